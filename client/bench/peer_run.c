/* SPDX-License-Identifier: Apache-2.0 */
/* Starts compilers, installers and launchers, each in a process group of its own. See peer.h. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench/peer.h"

bool peer_in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[512];

    while (path != NULL && *path != 0) {
        size_t length = strcspn(path, ":");
        int used = snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);

        if (used > 0 && (size_t)used < sizeof file && access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* Intel's libraries in a directory of their own, on one machine. */
static void set_root(const char *root)
{
    char libraries[384];

    (void)snprintf(libraries, sizeof libraries, "%s/lib", root);
    (void)setenv("LD_LIBRARY_PATH", libraries, 1);
    (void)setenv("I_MPI_ROOT", root, 1);
    (void)setenv("CCL_ROOT", root, 1);
    (void)setenv("I_MPI_FABRICS", "shm", 1);
}

static _Noreturn void become(const char *const argv[], const char *directory, const char *root,
                             const char *out)
{
    int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(127);
    (void)setenv("TMPDIR", directory, 1); /* what they leave goes with the directory */
    if (root != NULL)
        set_root(root);
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

int peer_run(const char *const argv[], const char *directory, const char *root, const char *out,
             uint64_t limit_ns)
{
    uint64_t until = bench_now_ns() + limit_ns;
    pid_t pid = fork();
    int status = 0;

    if (pid == 0)
        become(argv, directory, root, out);
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (bench_stopped() || bench_now_ns() > until) {
            kill(-pid, SIGTERM);
            for (uint32_t i = 0; i < 200 && waitpid(pid, &status, WNOHANG) == 0; i++)
                bench_nap();
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        bench_nap();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void peer_tell(const char *who, const char *out)
{
    FILE *file = fopen(out, "re");
    char line[256];

    for (uint32_t i = 0; file != NULL && i < 8 && fgets(line, sizeof line, file) != NULL; i++)
        fprintf(stderr, "gwbench: %s: %s", who, line);
    if (file != NULL)
        fclose(file);
}
