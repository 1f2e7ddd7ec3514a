/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices this node offers. gradwired has no CUDA in it: an engine's program is started to
 * look, `gradwire-engine --probe`, which says in one line how many GPUs it can use (exit code 0) or
 * why none, and ends. Jobs do not wait for the answer: each engine finds out for itself. Loop
 * thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define PROBE_NS 30000000000ull /* first use of a GPU's driver takes seconds */

struct probe {
    struct supervisor *sup;
    pid_t pid;
    struct watch *output;
    struct alarm *alarm;
    char line[GW_TEXT_MAX + 1];
    size_t used;
};

static void probe_free(struct probe *probe)
{
    watch_free(probe->output);
    alarm_free(probe->alarm);
    free(probe);
}

/* Its child is not reaped before, so the number is its own. */
static int reap(struct probe *probe, bool by_force)
{
    int status = 0;

    if (by_force)
        (void)kill(probe->pid, SIGKILL);
    while (waitpid(probe->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* The answer, or what there is instead of one: true if there are GPUs. */
static bool take_answer(struct probe *probe, bool late)
{
    char *devices = probe->sup->devices, said[GW_TEXT_MAX + 1];
    size_t devices_bytes = sizeof(probe->sup->devices);
    int status = reap(probe, late);
    bool good = !late && WIFEXITED(status) && WEXITSTATUS(status) == 0;

    probe->line[strcspn(probe->line, "\n")] = '\0';
    (void)escape_string(probe->line, said, sizeof(said));
    if (good)
        (void)snprintf(devices, devices_bytes, "host, cuda (%.300s)", said);
    else if (late)
        (void)snprintf(devices, devices_bytes,
                       "host; no cuda: the driver did not answer within %u s",
                       (unsigned)(PROBE_NS / 1000000000u));
    else if (said[0] != '\0' && WIFEXITED(status) && WEXITSTATUS(status) == EX_UNAVAILABLE)
        (void)snprintf(devices, devices_bytes, "host; no cuda: %.450s", said);
    else
        (void)snprintf(devices, devices_bytes,
                       "host; cuda is not known: the engine %.200s could not look (%s %d)",
                       probe->sup->engine_path, WIFSIGNALED(status) ? "signal" : "exit code",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return good;
}

static void finish(struct probe *probe, bool late)
{
    struct supervisor *sup = probe->sup;

    sup->probe = NULL;
    (void)take_answer(probe, late);
    probe_free(probe);
    log_info("devices: %s", sup->devices);
}

/* False: the end of its output. */
static bool receive(struct probe *probe)
{
    char rest[256];
    bool full = probe->used == sizeof(probe->line) - 1;
    ssize_t n = full ? read(watch_fd(probe->output), rest, sizeof(rest))
                     : read(watch_fd(probe->output), probe->line + probe->used,
                            sizeof(probe->line) - 1 - probe->used);

    if (n > 0 && !full)
        probe->used += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static void on_output(void *owner, int events)
{
    struct probe *probe = owner;

    (void)events;
    if (!receive(probe))
        finish(probe, false);
}

static void on_alarm(void *owner)
{
    finish(owner, true);
}

static int start_child(struct supervisor *sup, int output_fd, pid_t *ret_pid)
{
    char *argv[2 + SPAWN_DEVICE_ARGS] = {sup->engine_path, (char *)(uintptr_t) "--probe"};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t signals;
    int r;

    spawn_devices(&sup->conf, argv + 2);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, output_fd, 1);
    (void)sigemptyset(&signals);
    (void)posix_spawnattr_setsigmask(&attributes, &signals);
    (void)sigaddset(&signals, SIGPIPE);
    (void)posix_spawnattr_setsigdefault(&attributes, &signals);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    r = posix_spawn(ret_pid, sup->engine_path, &actions, &attributes, argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return r == 0 ? 0 : GW_E_IO;
}

static int probe_new(struct supervisor *sup, struct probe **ret_probe)
{
    struct probe *probe = calloc(1, sizeof(*probe));
    int ends[2];
    int r;

    if (probe == NULL || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(probe);
        return GW_E_NOMEM;
    }
    probe->sup = sup;
    r = alarm_new(sup->loop, on_alarm, probe, &probe->alarm);
    if (r == 0)
        r = watch_new(sup->loop, ends[0], UV_READABLE | UV_DISCONNECT, on_output, probe,
                      &probe->output);
    else
        fd_close(&ends[0]);
    if (r == 0)
        r = start_child(sup, ends[1], &probe->pid);
    fd_close(&ends[1]);
    if (r < 0) {
        probe_free(probe);
        return r;
    }
    alarm_set(probe->alarm, PROBE_NS);
    *ret_probe = probe;
    return 0;
}

/* Before the loop runs. False: too late. */
static bool wait_answer(struct probe *probe)
{
    uint64_t end_ns = now_ns() + PROBE_NS, now;
    struct pollfd output = {.fd = watch_fd(probe->output), .events = POLLIN};

    do {
        now = now_ns();
        if (now >= end_ns)
            return false;
        if (poll(&output, 1, (int)((end_ns - now) / 1000000u) + 1) <= 0)
            continue;
    } while (output.revents == 0 || receive(probe));
    return true;
}

int probe_start(struct supervisor *sup, char *error, size_t error_bytes)
{
    struct probe *probe = NULL;
    bool good;

    if (sup->conf.device == CONF_DEVICE_HOST) {
        (void)snprintf(sup->devices, sizeof(sup->devices), "host (device = host)");
        log_info("devices: %s", sup->devices);
        return 0;
    }
    (void)snprintf(sup->devices, sizeof(sup->devices), "host; still looking for GPUs");
    if (probe_new(sup, &probe) < 0) {
        (void)snprintf(sup->devices, sizeof(sup->devices),
                       "host; cuda is not known: the engine could not be started to look");
        good = false;
    } else if (sup->conf.device == CONF_DEVICE_AUTO) {
        sup->probe = probe;
        return 0;
    } else {
        good = take_answer(probe, !wait_answer(probe));
        probe_free(probe);
    }
    log_info("devices: %s", sup->devices);
    if (good || sup->conf.device != CONF_DEVICE_CUDA)
        return 0;
    (void)snprintf(error, error_bytes,
                   "device = cuda, but this node offers: %s; or let gradwired serve the host alone "
                   "(--device host)",
                   sup->devices);
    return EX_UNAVAILABLE;
}

void probe_end(struct supervisor *sup)
{
    struct probe *probe = sup->probe;

    if (probe == NULL)
        return;
    sup->probe = NULL;
    (void)reap(probe, true);
    probe_free(probe);
}
