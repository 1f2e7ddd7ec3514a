/* SPDX-License-Identifier: Apache-2.0 */
/* See alone.h. One thread; owns the server it started and its directory. */
#include "tests/fakegpu/alone.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_TRIES 1000 /* of 10 ms */

static uint32_t runs; /* of this process */

struct alone {
    char directory[64], socket[96], report[96];
    const char *build;
    pid_t server;
};

bool alone_inside(void)
{
    return getenv("FAKEGPU_ALONE") != NULL;
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s.ctl", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool alone_control(const char *line)
{
    const char *path = getenv("FAKEGPU_SOCKET");
    int fd = path ? connect_to(path) : -1;
    char answer[64] = "";

    if (fd < 0)
        return false;
    dprintf(fd, "%s\n", line);
    shutdown(fd, SHUT_WR);
    if (read(fd, answer, sizeof(answer) - 1) < 2)
        answer[0] = 0;
    close(fd);
    return strncmp(answer, "ok", 2) == 0;
}

uint64_t alone_count(const char *name)
{
    static char report[1 << 20];
    const char *path = getenv("FAKEGPU_SOCKET"), *at;
    int fd = path ? connect_to(path) : -1;
    char label[64];
    size_t used = 0;
    ssize_t bytes;

    if (fd < 0)
        return UINT64_MAX;
    dprintf(fd, "report\n");
    shutdown(fd, SHUT_WR);
    while ((bytes = read(fd, report + used, sizeof(report) - 1 - used)) > 0)
        used += (size_t)bytes;
    close(fd);
    report[used] = 0;
    snprintf(label, sizeof(label), "\"%s\":", name);
    at = strstr(report, label);
    return at ? strtoull(at + strlen(label), NULL, 10) : UINT64_MAX;
}

static bool start_server(struct alone *alone, uint32_t gpus)
{
    const char *first = getenv("FAKEGPU_SEED");
    char program[512], count[16], kernels[512], seed[24];
    const struct timespec nap = {0, 10000000};

    snprintf(program, sizeof(program), "%s/tests/fakegpu/fakegpu", alone->build);
    snprintf(kernels, sizeof(kernels), "%s/lib/libgw_kernels-cpu.so", alone->build);
    snprintf(count, sizeof(count), "%u", gpus);
    snprintf(seed, sizeof(seed), "%lu", (first ? strtoul(first, NULL, 10) : 1) + runs++);
    printf("GPUs with seed %s\n", seed); /* tests/summary.py counts them */
    fflush(stdout);
    alone->server = fork();
    if (alone->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        execl(program, program, "--socket", alone->socket, "--gpus", count, "--seed",
              seed, "--report", alone->report, "--kernels", kernels,
              /* A quarter of them, what NCCL takes by itself, is more than we let it take. */
              "--ctas", "64", (char *)NULL);
        perror(program);
        _exit(127);
    }
    for (int i = 0; alone->server > 0 && i < START_TRIES; i++) {
        int fd = connect_to(alone->socket);
        if (fd >= 0) {
            close(fd);
            return true;
        }
        if (waitpid(alone->server, NULL, WNOHANG) == alone->server)
            return false;
        nanosleep(&nap, NULL);
    }
    return false;
}

static int run_inside(const struct alone *alone, char **argv)
{
    const char *nccl = getenv("FAKEGPU_NCCL");
    bool old = nccl && strcmp(nccl, "old") == 0;
    char libraries[1100];
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        snprintf(libraries, sizeof(libraries), "%s%s%s/tests/fakegpu/lib", old ? alone->build : "",
                 old ? "/tests/fakegpu/lib/old:" : "", alone->build);
        setenv("LD_LIBRARY_PATH", libraries, 1);
        setenv("FAKEGPU_SOCKET", alone->socket, 1);
        setenv("FAKEGPU_ALONE", "1", 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int alone_run(char **argv, uint32_t gpus)
{
    struct alone alone = {.directory = "/tmp/fakegpu-XXXXXX", .build = getenv("GRADWIRE_BUILD")};
    int result = 1, status = 1;

    if (!alone.build || !mkdtemp(alone.directory)) {
        fputs("GRADWIRE_BUILD must name the build directory\n", stderr);
        return 1;
    }
    snprintf(alone.socket, sizeof(alone.socket), "%s/gpu", alone.directory);
    snprintf(alone.report, sizeof(alone.report), "%s/report", alone.directory);
    if (start_server(&alone, gpus))
        result = run_inside(&alone, argv);
    else
        fputs("the server did not start\n", stderr);
    if (alone.server > 0 && kill(alone.server, SIGTERM) == 0 &&
        waitpid(alone.server, &status, 0) == alone.server && status != 0)
        result = result ? result : 1; /* the server has said which rules */
    (void)unlink(alone.report);
    (void)unlink(alone.socket);
    strncat(alone.socket, ".ctl", 5);
    (void)unlink(alone.socket);
    (void)rmdir(alone.directory);
    return result;
}

int alone_seeds(char **argv, uint32_t gpus)
{
    int result = 0;

    for (int i = 0; i < ALONE_SEEDS; i++)
        result |= alone_run(argv, gpus);
    return result;
}

/* ---- inside ---------------------------------------------------------------------------------- */

static bool find_uuids(uint32_t gpus, uint8_t (*ret_uuids)[GW_GPU_BYTES])
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned flags), (*get)(int *ret_device, int ordinal);
    int (*uuid)(void *ret_uuid, int device);

    if (!driver)
        return false;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&get = dlsym(driver, "cuDeviceGet");
    *(void **)&uuid = dlsym(driver, "cuDeviceGetUuid_v2");
    if (!init || !get || !uuid || init(0) != 0)
        return false;
    for (uint32_t i = 0; i < gpus; i++) {
        int device;
        if (get(&device, (int)i) != 0 || uuid(ret_uuids[i], device) != 0)
            return false;
    }
    return true;
}

const struct plugin *alone_plugin(uint32_t gpus, uint8_t (*ret_uuids)[GW_GPU_BYTES])
{
    char path[512], text[GW_TEXT_MAX + 1] = "";
    const struct plugin *plugin;
    void *library;

    snprintf(path, sizeof(path), "%s/daemon/engine/gradwire-cuda.so", getenv("GRADWIRE_BUILD"));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    plugin = library ? dlsym(library, GW_PLUGIN_SYMBOL) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    if (plugin->probe(text) < (int)gpus || !find_uuids(gpus, ret_uuids)) {
        fprintf(stderr, "%u GPUs are needed. %s\n", gpus, text);
        return NULL;
    }
    return plugin;
}
