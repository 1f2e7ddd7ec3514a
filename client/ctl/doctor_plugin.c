/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: what the device plug-in says of them. It runs in a child, since a driver may hang or end
 * its process; each point comes through a pipe as one struct. And what lies on the PCI bus. See
 * doctor.h.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

#define PLUGIN_FILE "gradwire-cuda.so"
#define CHILD_S 60 /* contexts on many GPUs take seconds each */

/* ---- the child ------------------------------------------------------------------------------- */

static void send_point(void *user, const char *name, enum plugin_verdict verdict,
                       const char *found, const char *advice)
{
    struct doctor_point point = {.verdict = verdict};
    const int *fd = user;

    (void)snprintf(point.name, sizeof(point.name), "%s", name);
    (void)snprintf(point.found, sizeof(point.found), "%.*s", (int)GW_TEXT_MAX, found);
    (void)snprintf(point.advice, sizeof(point.advice), "%s", advice != NULL ? advice : "");
    if (write(*fd, &point, sizeof(point)) != (ssize_t)sizeof(point))
        _exit(1);
}

/* What the loader's words ask for. */
static const char *advice_for(const char *error)
{
    static const char cuda[] = "install the CUDA 13 runtime (libcudart.so.13) where the loader of "
                               "gwctl and gradwired looks: ldconfig, or LD_LIBRARY_PATH";
    static const char nccl[] = "install NCCL 2.28 or newer (libnccl.so.2) where the loader of "
                               "gwctl and gradwired looks: ldconfig, or LD_LIBRARY_PATH";
    static const struct {
        const char *words, *advice;
    } known[] = {{"libcudart.so", cuda},
                 {"undefined symbol: cuda", cuda},
                 {"libnccl.so", nccl},
                 {"undefined symbol: nccl", nccl}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strstr(error, known[i].words) != NULL)
            return known[i].advice;
    }
    return "install what it names, or gradwire built for this node";
}

static void run_child(const char *path, int fd)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct plugin *plugin = library != NULL ? dlsym(library, GW_PLUGIN_SYMBOL) : NULL;
    const char *error = plugin == NULL ? dlerror() : NULL;

    if (error != NULL) {
        send_point(&fd, "plug-in", PLUGIN_BAD, error, advice_for(error));
    } else if (plugin->version != GW_PLUGIN_VERSION) {
        send_point(&fd, "plug-in", PLUGIN_BAD, "it is of another release of gradwire",
                   "install both from one package");
    } else {
        send_point(&fd, "plug-in", PLUGIN_GOOD, path, NULL);
        plugin->doctor(send_point, &fd);
    }
}

/* ---- the parent ------------------------------------------------------------------------------ */

/* Where the engine would look: the directory given, beside this program, the installed one. */
static bool find_plugin(const struct doctor *doctor, char *path, size_t path_bytes)
{
    char self[400];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (doctor->plugins != NULL) {
        (void)snprintf(path, path_bytes, "%s/" PLUGIN_FILE, doctor->plugins);
        return access(path, R_OK) == 0;
    }
    if (bytes > 0) {
        self[bytes] = '\0';
        *(strrchr(self, '/') + 1) = '\0';
        (void)snprintf(path, path_bytes, "%s" PLUGIN_FILE, self);
        if (access(path, R_OK) == 0)
            return true;
    }
    (void)snprintf(path, path_bytes, GW_PLUGIN_DIR "/" PLUGIN_FILE);
    return access(path, R_OK) == 0;
}

static int milliseconds_left(const struct timespec *end)
{
    struct timespec now;
    long long left;

    clock_gettime(CLOCK_MONOTONIC, &now);
    left = (end->tv_sec - now.tv_sec) * 1000ll + (end->tv_nsec - now.tv_nsec) / 1000000;
    return left > 0 ? (int)left : 0;
}

/* True: the child closed its end. A point is smaller than what a pipe writes at once. */
static bool take_points(struct doctor *doctor, int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    struct doctor_point point;
    struct timespec end;
    ssize_t bytes;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += CHILD_S;
    while (poll(&wait, 1, milliseconds_left(&end)) > 0) {
        bytes = read(fd, &point, sizeof(point));
        if (bytes != (ssize_t)sizeof(point))
            return bytes == 0;
        doctor_add(doctor, point.name, point.verdict,
                   point.advice[0] != '\0' ? point.advice : NULL, "%s", point.found);
    }
    return false;
}

static void tell_end(struct doctor *doctor, bool closed, int status)
{
    if (!closed)
        doctor_add(doctor, "GPU driver", PLUGIN_BAD, "look at dmesg; the node may need a restart",
                   "does not answer within %d s", CHILD_S);
    else if (WIFSIGNALED(status))
        doctor_add(doctor, "GPU driver", PLUGIN_BAD, "look at dmesg",
                   "asking it ended the process with signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        doctor_add(doctor, "GPU driver", PLUGIN_BAD, "look at dmesg",
                   "asking it ended the process with exit code %d", WEXITSTATUS(status));
}

static void ask_plugin(struct doctor *doctor)
{
    char path[512];
    int fds[2], status = 0;
    bool closed;
    pid_t child;

    if (!find_plugin(doctor, path, sizeof(path))) {
        doctor_add(doctor, "GPUs", PLUGIN_NOTE,
                   "for jobs on GPUs install gradwire's CUDA plug-in; on the host all works "
                   "without",
                   "no " PLUGIN_FILE " here: this node runs host jobs");
        return;
    }
    if (pipe2(fds, O_CLOEXEC) < 0) {
        doctor_add(doctor, "GPUs", PLUGIN_BAD, NULL, "no pipe to ask about them: %m");
        return;
    }
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        run_child(path, fds[1]);
        _exit(0);
    }
    (void)close(fds[1]);
    closed = child > 0 && take_points(doctor, fds[0]);
    (void)close(fds[0]);
    if (child > 0) {
        if (!closed)
            (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
    }
    tell_end(doctor, closed, status);
}

/* ---- the bus --------------------------------------------------------------------------------- */

static bool has_point(const struct doctor *doctor, const char *name)
{
    bool found = false;

    for (size_t i = 0; i < doctor->count && !found; i++)
        found = strcmp(doctor->points[i].name, name) == 0;
    return found;
}

/* NVIDIA's display controllers and accelerators, drivers or none. */
static unsigned count_on_bus(void)
{
    glob_t found = {0};
    unsigned count = 0;

    (void)glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[512], line[32] = "";
        size_t directory = strlen(found.gl_pathv[i]) - strlen("vendor");

        if (!doctor_line(found.gl_pathv[i], line, sizeof(line)) || strcmp(line, "0x10de") != 0)
            continue;
        (void)snprintf(path, sizeof(path), "%.*sclass", (int)directory, found.gl_pathv[i]);
        count += doctor_line(path, line, sizeof(line)) && strncmp(line, "0x03", 4) == 0;
    }
    globfree(&found);
    return count;
}

/* A node without GPUs is as good as any; one whose GPUs lie idle may not be meant so. */
static void look_at_bus(struct doctor *doctor)
{
    unsigned count = count_on_bus();

    if (count > 0 && !has_point(doctor, "GPU 0"))
        doctor_add(doctor, "GPUs on PCI", PLUGIN_WARN,
                   "for host jobs that is fine; for jobs on GPUs see the points above",
                   "%u of NVIDIA, of which gradwire can use none", count);
}

void doctor_plugin(struct doctor *doctor)
{
    ask_plugin(doctor);
    look_at_bus(doctor);
}
