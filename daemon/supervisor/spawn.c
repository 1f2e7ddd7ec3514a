/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts engines: directory entry, descriptors, fork, exec as the job's user. Loop thread only.
 *
 * Own fork and exec, because uv_spawn would drop the user's supplementary groups. They are taken
 * from the client's socket (SO_PEERGROUPS): what the client really has, and no name service that
 * could block the loop.
 *
 *   3 channel   4 listening socket   5 lock   6 statistics page   0,1 /dev/null   2 gradwired's
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/priority.h"
#include "daemon/base/text.h"
#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define FIRST_FD 3
#define FDS 4
#define GROUPS_MAX_KEPT 65536u
#define ENGINE_ARGS 38

extern char **environ;

/* Everything the child needs, made before the fork: after it only system calls are safe. */
struct plan {
    const char *program;
    char *argv[ENGINE_ARGS];
    char numbers[10][24];
    char ports[CONF_PORTS_TEXT];
    char follow[TAG_HEX_BYTES];
    char **envp;
    int fds[FDS];
    int null_fd;
    int report_fd;
    int cgroup_fd; /* -1: stays where it is */
    bool change_user;
    uid_t uid;
    gid_t gid;
    gid_t *groups;
    size_t groups_count;
};

enum step { STEP_FDS, STEP_SESSION, STEP_GROUPS, STEP_USER, STEP_PRIVILEGES, STEP_EXEC };
static const char *const step_names[] = {
    "arrange its descriptors", "start a session",    "take the user's groups",
    "become the user",         "give up privileges", "run",
};

struct report {
    int step;
    int error;
};

/* ---- child --------------------------------------------------------------------------------- */

static int child_fds(const struct plan *plan)
{
    int moved[FDS];

    /* Up first, so that no target number is still a source. */
    for (int i = 0; i < FDS; i++) {
        moved[i] = fcntl(plan->fds[i], F_DUPFD_CLOEXEC, FIRST_FD + FDS);
        if (moved[i] < 0)
            return -1;
    }
    if (dup2(plan->null_fd, 0) < 0 || dup2(plan->null_fd, 1) < 0)
        return -1;
    for (int i = 0; i < FDS; i++) {
        if (dup2(moved[i], FIRST_FD + i) < 0)
            return -1;
    }
    return 0;
}

static int child_user(const struct plan *plan, enum step *step)
{
    if (plan->change_user) {
        *step = STEP_GROUPS;
        if (setgroups(plan->groups_count, plan->groups) < 0)
            return -1;
        *step = STEP_USER;
        if (setresgid(plan->gid, plan->gid, plan->gid) < 0 ||
            setresuid(plan->uid, plan->uid, plan->uid) < 0)
            return -1;
    }
    *step = STEP_PRIVILEGES;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* Best effort: without these the job runs as well, only accounted to gradwired. */
static void child_accounting(const struct plan *plan)
{
    int fd;
    ssize_t n;

    if (plan->cgroup_fd >= 0) {
        n = write(plan->cgroup_fd, "0\n", 2);
        (void)n;
    }
    if (plan->change_user) {
        fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        n = fd < 0 ? 0 : write(fd, "0\n", 2);
        (void)n;
    }
}

/* A report keeps its own number: child_fds may write over the one it had. */
static _Noreturn void child_run(const struct plan *plan)
{
    struct report report = {STEP_FDS, 0};
    enum step step = STEP_FDS;
    int report_fd = fcntl(plan->report_fd, F_DUPFD_CLOEXEC, FIRST_FD + FDS);
    sigset_t none;
    ssize_t n;

    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    child_accounting(plan);
    if (child_fds(plan) < 0)
        goto fail;
    step = STEP_SESSION;
    if (setsid() < 0 || chdir("/") < 0)
        goto fail;
    (void)umask(0077);
    if (child_user(plan, &step) < 0)
        goto fail;
    step = STEP_EXEC;
    (void)syscall(SYS_close_range, FIRST_FD + FDS, ~0u, 1u << 2 /* CLOSE_RANGE_CLOEXEC */);
    (void)execve(plan->program, plan->argv, plan->envp);
fail:
    report.step = (int)step;
    report.error = errno;
    n = write(report_fd, &report, sizeof(report));
    (void)n;
    _exit(127);
}

bool spawn_report(struct engine *engine, char *text, size_t text_bytes)
{
    struct report report;

    if (engine->report_fd < 0 ||
        read(engine->report_fd, &report, sizeof(report)) != (ssize_t)sizeof(report) ||
        report.step < STEP_FDS || report.step > STEP_EXEC)
        return false;
    (void)snprintf(text, text_bytes, "the engine %s could not %s: %s", engine->sup->engine_path,
                   step_names[report.step], strerror(report.error));
    return true;
}

/* ---- preparation --------------------------------------------------------------------------- */

static bool environment_kept(const char *entry, bool privileged)
{
    /* systemd's are gradwired's own. */
    static const char *const never[] = {"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_", "MAINPID=", NULL};
    /* A user can read the environment of the own processes: root's is not for them. */
    static const char *const always[] = {
        "GRADWIRE_", "CUDA_", "NCCL_",  "UCX_",  "LC_",   "LANG=",   "TZ=",
        "PATH=",     "ASAN_", "UBSAN_", "TSAN_", "LSAN_", "MALLOC_", "LD_LIBRARY_PATH=",
        NULL};

    for (unsigned i = 0; never[i] != NULL; i++) {
        if (strncmp(entry, never[i], strlen(never[i])) == 0)
            return false;
    }
    for (unsigned i = 0; privileged && always[i] != NULL; i++) {
        if (strncmp(entry, always[i], strlen(always[i])) == 0)
            return true;
    }
    return !privileged;
}

static int plan_environment(struct plan *plan, bool privileged)
{
    size_t count = 0, kept = 0;

    while (environ[count] != NULL)
        count++;
    plan->envp = calloc(count + 1, sizeof(char *));
    if (plan->envp == NULL)
        return GW_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        if (environment_kept(environ[i], privileged))
            plan->envp[kept++] = environ[i];
    }
    return 0;
}

static int plan_user(struct plan *plan, const struct peer *peer)
{
    socklen_t bytes = 0;

    plan->uid = peer->cred.uid;
    plan->gid = peer->cred.gid;
    plan->change_user = peer->sup->privileged;
    if (!plan->change_user)
        return 0;
    /* Asked for with no room, the kernel says how much it takes. */
    (void)getsockopt(watch_fd(peer->watch), SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes);
    if (bytes == 0)
        return 0;
    if (bytes > GROUPS_MAX_KEPT * sizeof(gid_t))
        return GW_E_LIMIT;
    plan->groups = malloc(bytes);
    if (plan->groups == NULL)
        return GW_E_NOMEM;
    if (getsockopt(watch_fd(peer->watch), SOL_SOCKET, SO_PEERGROUPS, plan->groups, &bytes) < 0)
        return GW_E_IO;
    plan->groups_count = bytes / sizeof(gid_t);
    return 0;
}

void spawn_devices(struct conf *conf, char *argv[SPAWN_DEVICE_ARGS])
{
    size_t used = 0;

    argv[used++] = (char *)(uintptr_t) "--device";
    argv[used++] = (char *)(uintptr_t)conf_device_names[conf->device];
    if (conf->plugins[0] != '\0') {
        argv[used++] = (char *)(uintptr_t) "--plugins";
        argv[used++] = conf->plugins;
    }
    argv[used] = NULL;
}

static void add(struct plan *plan, size_t *used, const char *option, char *value)
{
    plan->argv[(*used)++] = (char *)(uintptr_t)option;
    plan->argv[(*used)++] = value;
}

/* follow: the tag of a job that another node's engine made, or NULL. */
static void plan_arguments(struct plan *plan, struct supervisor *sup, const uint8_t *follow)
{
    struct conf *conf = &sup->conf;
    const struct {
        const char *option;
        unsigned long long value;
    } options[] = {
        {"--channel-fd", FIRST_FD},
        {"--listen-fd", FIRST_FD + 1},
        {"--lock-fd", FIRST_FD + 2},
        {"--stats-fd", FIRST_FD + 3},
        {"--owner-uid", plan->uid},
        {"--linger-ns", (unsigned long long)conf->linger_ns},
        {"--memory-max-bytes", conf->memory_max_bytes},
        {"--stall-report-ns", (unsigned long long)conf->stall_report_ns},
        {"--star-beat-ns", (unsigned long long)conf->star_beat_ns},
        {"--star-lost-ns", (unsigned long long)conf->star_lost_ns},
    };
    size_t used = 0;

    plan->argv[used++] = (char *)(uintptr_t)plan->program;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        (void)snprintf(plan->numbers[i], sizeof(plan->numbers[i]), "%llu", options[i].value);
        add(plan, &used, options[i].option, plan->numbers[i]);
    }
    add(plan, &used, "--worker-priority",
        (char *)(uintptr_t)priority_names[conf->worker_priority]);
    if (conf->placement == CONF_PLACEMENT_AUTO && sup->topology[0] != '\0')
        add(plan, &used, "--topology", sup->topology);
    conf_ports_text(&conf->star_ports, plan->ports);
    add(plan, &used, "--star-ports", plan->ports);
    if (conf->star_interface[0] != '\0')
        add(plan, &used, "--star-interface", conf->star_interface);
    if (conf->node_name[0] != '\0')
        add(plan, &used, "--node-name", conf->node_name);
    if (follow != NULL) {
        tag_to_hex(follow, plan->follow);
        add(plan, &used, "--follow", plan->follow);
    }
    spawn_devices(conf, plan->argv + used);
}

/* cgroup.procs of the client's group (version 2), or -1. The pidfd proves that what was read of the
 * pid was still this process. */
static int open_cgroup(pid_t pid)
{
    char path[64], line[512], procs[640];
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool found = false;
    int fd = -1;
    FILE *file;

    if (pidfd < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = strncmp(line, "0::/", 4) == 0 && strchr(line, '\n') != NULL;
    if (file != NULL)
        (void)fclose(file);
    /* The root group says nothing; ".." is outside of what we can see. */
    if (found && strcmp(line, "0::/\n") != 0 && strstr(line, "/..") == NULL &&
        syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0) {
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(procs, sizeof(procs), "/sys/fs/cgroup%s/cgroup.procs", line + 3);
        fd = open(procs, O_WRONLY | O_CLOEXEC);
    }
    fd_close(&pidfd);
    return fd;
}

/* ---- parent -------------------------------------------------------------------------------- */

static pid_t fork_child(const struct plan *plan)
{
    sigset_t all, before;
    pid_t pid;

    /* Signals stay away from the child until it has no handlers of ours any more. */
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid = fork();
    if (pid == 0)
        child_run(plan);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return pid;
}

/* plan->fds in the child's order; the other end of the channel to *channel_fd. */
static int make_descriptors(struct engine *engine, struct plan *plan, int *channel_fd,
                            int *report_fd)
{
    struct supervisor *sup = engine->sup;
    int pair[2], ends[2];
    int r;

    r = rundir_entry_make(sup->dir, engine->uid, engine->started_ns, engine->entry, &plan->fds[2],
                          &plan->fds[1]);
    if (r == 0)
        r = stats_make(&engine->stats_fd);
    if (r < 0)
        return r;
    plan->fds[3] = engine->stats_fd;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return GW_E_IO;
    plan->fds[0] = pair[1];
    *channel_fd = pair[0];
    /* The kernel then names the sender of each packet. */
    if (setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) < 0)
        return GW_E_IO;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return GW_E_IO;
    *report_fd = ends[0];
    plan->report_fd = ends[1];
    plan->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    return plan->null_fd < 0 ? GW_E_IO : 0;
}

static void plan_close(struct plan *plan)
{
    for (int i = 0; i < FDS - 1; i++)
        fd_close(&plan->fds[i]); /* the last is the engine's own stats_fd */
    fd_close(&plan->null_fd);
    fd_close(&plan->report_fd);
    fd_close(&plan->cgroup_fd);
    free(plan->envp);
    free(plan->groups);
}

static int start(struct engine *engine, struct plan *plan)
{
    int channel_fd = -1;
    int r;

    r = make_descriptors(engine, plan, &channel_fd, &engine->report_fd);
    if (r < 0) {
        fd_close(&channel_fd);
        return r;
    }
    r = engine_set_channel(engine, channel_fd);
    if (r < 0)
        return r;
    engine->pid = fork_child(plan);
    if (engine->pid < 0) {
        engine->pid = 0;
        return GW_E_IO;
    }
    engine->child = true;
    r = engine_set_process(engine, (int)syscall(SYS_pidfd_open, engine->pid, 0));
    if (r < 0) {
        /* Our child and not reaped, so the number is still its own. */
        (void)kill(engine->pid, SIGKILL);
        (void)waitpid(engine->pid, NULL, 0);
    }
    return r;
}

int engine_spawn(struct supervisor *sup, const struct peer *peer, const uint8_t *follow,
                 struct engine **ret_engine, char *error, size_t error_bytes)
{
    struct plan plan = {
        .program = sup->engine_path,
        .fds = {-1, -1, -1, -1},
        .null_fd = -1,
        .report_fd = -1,
        .cgroup_fd = -1,
    };
    struct engine *engine = NULL;
    int r;

    r = engine_new(sup, ENGINE_STARTING, &engine);
    if (r < 0)
        goto out;
    engine->uid = peer->cred.uid;
    if (follow != NULL) {
        engine->follows = true;
        memcpy(engine->tag, follow, TAG_BYTES);
    }
    r = plan_user(&plan, peer);
    if (r == 0)
        r = plan_environment(&plan, sup->privileged);
    if (r < 0)
        goto out;
    plan_arguments(&plan, sup, follow);
    if (sup->privileged && peer->cred.pid > 0)
        plan.cgroup_fd = open_cgroup(peer->cred.pid);
    r = start(engine, &plan);
out:
    if (r < 0) {
        (void)snprintf(error, error_bytes, "no engine could be started on this node: %s",
                       r == GW_E_NOMEM ? "no memory" : strerror(errno));
        log_error("%s (for user %u)", error, peer->cred.uid);
        if (engine != NULL && engine->entry[0] != '\0')
            rundir_entry_remove(sup->dir, engine->entry);
        engine = engine_free(engine);
    } else {
        alarm_set(engine->alarm, SUP_ENGINE_READY_NS);
        log_debug("engine %d started for user %u", (int)engine->pid, engine->uid);
        *ret_engine = engine;
    }
    plan_close(&plan);
    return r;
}
