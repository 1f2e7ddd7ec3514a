/* SPDX-License-Identifier: Apache-2.0 */
/* Containers, security modules, and gradwired itself. See doctor.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

#define KLOG_READ_ALL 3     /* syslog(2): not in a header */
#define KLOG_BYTES (1 << 20)

/* ---- processes and containers ---------------------------------------------------------------- */

static void look_at_pidfd(struct doctor *doctor)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0)
        (void)close(fd);
    doctor_add(doctor, "dead processes", fd >= 0 ? PLUGIN_GOOD : PLUGIN_WARN,
               fd >= 0 ? NULL
                       : "Linux 5.3 or newer, and a seccomp filter that allows pidfd_open: without "
                         "it a rank whose children outlive it is noticed late",
               fd >= 0 ? "told at once (pidfd)" : "told by their sockets only");
}

static bool in_container(void)
{
    char line[64];

    return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
           doctor_line("/run/systemd/container", line, sizeof(line)) ||
           getenv("KUBERNETES_SERVICE_HOST") != NULL;
}

static void look_at_namespaces(struct doctor *doctor)
{
    unsigned inside = 1, outside = 1, length = 0;
    char line[128] = "";
    bool mapped = doctor_line("/proc/self/uid_map", line, sizeof(line)) &&
                  sscanf(line, "%u %u %u", &inside, &outside, &length) == 3 &&
                  !(inside == 0 && outside == 0 && length > 1u << 31);

    if (mapped)
        doctor_add(doctor, "user namespace", PLUGIN_WARN,
                   "gradwired sees users by SO_PEERCRED: run it and its clients in one user "
                   "namespace (no PrivateUsers=)",
                   "users are mapped here (%s)", line);
    else
        doctor_add(doctor, "user namespace", PLUGIN_GOOD, NULL, "users are the host's");
    if (in_container())
        doctor_add(doctor, "container", PLUGIN_NOTE,
                   "mount the directory /run/gradwire into it, not the socket file, which a "
                   "restart replaces; share the PID namespace (hostPID) so that dead ranks are "
                   "told at once and CUDA IPC works",
                   "this is one");
}

/* ---- security modules ------------------------------------------------------------------------ */

/* Lines of the kernel's log that deny something to gradwire. False: it may not be read. */
static bool count_denials(unsigned *ret_count)
{
    char *log = malloc(KLOG_BYTES + 1), *rest, *line;
    int bytes = log != NULL ? klogctl(KLOG_READ_ALL, log, KLOG_BYTES) : -1;

    *ret_count = 0;
    if (bytes < 0) {
        free(log);
        return false;
    }
    log[bytes] = '\0';
    for (rest = log; (line = strsep(&rest, "\n")) != NULL;) {
        bool denied = strstr(line, "DENIED") != NULL || strstr(line, "avc:  denied") != NULL;

        *ret_count += denied && strstr(line, "gradwire") != NULL;
    }
    free(log);
    return true;
}

static void look_at_security(struct doctor *doctor)
{
    char line[256] = "";
    const char *module = "none active";
    unsigned denials;
    bool readable;

    if (doctor_line("/sys/fs/selinux/enforce", line, sizeof(line)))
        module = line[0] == '1' ? "SELinux enforces" : "SELinux is permissive";
    else if (doctor_line("/proc/self/attr/current", line, sizeof(line)) &&
             strcmp(line, "unconfined") != 0 && line[0] != '\0')
        module = "AppArmor confines this process";
    readable = count_denials(&denials);
    if (readable && denials > 0)
        doctor_add(doctor, "security modules", PLUGIN_BAD,
                   "see the kernel's log (dmesg | grep gradwire) and allow what it names",
                   "%s; %u denials name gradwire", module, denials);
    else
        doctor_add(doctor, "security modules", PLUGIN_GOOD, NULL, "%s; %s", module,
                   readable ? "no denial names gradwire" : "the kernel's log may not be read");
}

/* ---- gradwired ------------------------------------------------------------------------------- */

/* 0, or errno. */
static int try_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int error = 0;

    if (fd < 0)
        return errno;
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        error = errno;
    (void)close(fd);
    return error;
}

static void look_at_gradwired(struct doctor *doctor)
{
    const char *path = doctor->ctl->socket;
    int error = try_connect(path);

    if (error == 0)
        doctor_add(doctor, "gradwired", PLUGIN_GOOD, NULL, "answers on %s", path);
    else if (error == EACCES)
        doctor_add(doctor, "gradwired", PLUGIN_WARN,
                   "usermod -aG gradwire USER, then log in again",
                   "this user may not use %s", path);
    else
        doctor_add(doctor, "gradwired", PLUGIN_WARN,
                   "systemctl start gradwired, or gradwired --foreground --runtime-dir DIR",
                   "does not answer on %s: %s", path, strerror(error));
}

void doctor_system(struct doctor *doctor)
{
    look_at_pidfd(doctor);
    look_at_namespaces(doctor);
    look_at_security(doctor);
    look_at_gradwired(doctor);
}
