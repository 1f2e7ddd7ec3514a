/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's life: set-up, loop, signals, end. One thread; owns struct supervisor.
 *
 * Set-up takes the directory's lock first, then adopts engines, then listens: a client that can
 * connect finds every living job.
 */
#include "daemon/supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/base/parse.h"
#include "daemon/supervisor/config.h"
#include "daemon/supervisor/log.h"
#include "daemon/supervisor/run.h"

#define STOP_ENGINES_NS 8000000000ull /* a little more than SUP_ENGINE_END_NS */
#define ABANDON_NS 300000000ull

static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
#define SIGNALS (sizeof(signals) / sizeof(signals[0]))

/* ---- end ----------------------------------------------------------------------------------- */

void supervisor_stop(struct supervisor *sup)
{
    (void)sd_notify(0, "STOPPING=1");
    uv_stop(sup->loop);
}

static void on_stop_deadline(void *owner)
{
    struct supervisor *sup = owner;
    struct engine *engine = TAILQ_FIRST(&sup->engines);
    char text[GW_TEXT_MAX + 1];

    (void)snprintf(text, sizeof(text),
                   "%u engines did not end, the first is %s (pid %d); gradwired stops without them",
                   engines_count(sup), engine == NULL ? "?" : engine->entry,
                   engine == NULL ? 0 : (int)engine->pid);
    log_error("%s", text);
    peers_answer_end(sup, GW_E_TIMEOUT, text);
    supervisor_stop(sup);
}

void supervisor_stop_engines(struct supervisor *sup)
{
    struct engine *engine;

    sup->draining = sup->stopping = true;
    TAILQ_FOREACH(engine, &sup->engines, link)
    {
        engine_end(engine);
    }
    alarm_set(sup->stop_alarm, STOP_ENGINES_NS);
    supervisor_engine_gone(sup);
}

void supervisor_engine_gone(struct supervisor *sup)
{
    if (!TAILQ_EMPTY(&sup->engines))
        return;
    if (sup->draining)
        peers_answer_end(sup, 0, "");
    if (sup->stopping)
        supervisor_stop(sup);
}

/* ---- signals ------------------------------------------------------------------------------- */

static void take_field(const struct conf_key *key, struct conf *to, const struct conf *from)
{
    size_t bytes =
        key->type == CONF_COUNT || key->type == CONF_CHOICE ? sizeof(uint32_t) : sizeof(uint64_t);

    memcpy((uint8_t *)to + key->offset, (const uint8_t *)from + key->offset, bytes);
}

static void reload(struct supervisor *sup)
{
    char error[CONF_ERROR_BYTES];
    const struct conf_key *key;
    struct conf fresh;

    if (config_load(sup->config_path, sup->config_optional, &fresh, error, sizeof(error)) != 0) {
        log_error("the configuration stays as it was: %s", error);
        return;
    }
    for (size_t i = 0; (key = conf_difference(&sup->file_conf, &fresh, i)) != NULL;
         i = (size_t)(key - conf_keys) + 1) {
        if (key->reload) {
            take_field(key, &sup->conf, &fresh);
            take_field(key, &sup->file_conf, &fresh);
            log_info("'%s' in [%s] has changed", key->name, key->section);
        } else {
            log_warning("'%s' in [%s] has changed, but needs a restart; running jobs will not "
                        "notice it",
                        key->name, key->section);
        }
    }
    log_set_level((enum conf_level)sup->conf.log_level);
    log_info("read %s", sup->config_path);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct supervisor *sup = handle->data;

    if (number == SIGHUP) {
        reload(sup);
        return;
    }
    log_info("%s: ending; %u engines go on", number == SIGTERM ? "SIGTERM" : "SIGINT",
             engines_count(sup));
    supervisor_stop(sup);
}

/* ---- sockets ------------------------------------------------------------------------------- */

/* -1 where gradwired is not root, or there is no such group: then nobody else gets in. */
static gid_t find_group(const struct supervisor *sup, const char *name)
{
    struct group *group;
    uint64_t number;

    if (!sup->privileged)
        return (gid_t)-1;
    if (parse_u64(name, 0, UINT32_MAX - 1, &number) == 0)
        return (gid_t)number;
    group = getgrnam(name);
    if (group == NULL)
        log_warning("there is no group %s: only root can use the socket it is for", name);
    return group == NULL ? (gid_t)-1 : group->gr_gid;
}

/* Sockets that systemd holds for us. They stay after our end, and so do their files. */
static int take_activated(struct supervisor *sup, bool taken[2], char *error, size_t error_bytes)
{
    int count = sd_listen_fds(1);

    for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + count; fd++) {
        bool admin = sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, sup->conf.admin_socket, 0) > 0;

        if (!admin && sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, sup->conf.socket, 0) <= 0) {
            (void)snprintf(
                error, error_bytes,
                "systemd passed a socket that is neither %s nor %s; ListenSequentialPacket= "
                "and the configuration must agree",
                sup->conf.socket, sup->conf.admin_socket);
            return EX_CONFIG;
        }
        (void)fcntl(fd, F_SETFL, O_NONBLOCK);
        if (taken[admin] || peers_listen(sup, admin, fd) < 0)
            return EX_OSERR;
        taken[admin] = true;
    }
    return 0;
}

static int listen_all(struct supervisor *sup, char *error, size_t error_bytes)
{
    bool taken[2] = {false, false};
    int r;

    r = take_activated(sup, taken, error, error_bytes);
    for (int admin = 0; r == 0 && admin < 2; admin++) {
        const char *path = admin ? sup->conf.admin_socket : sup->conf.socket;
        int fd;

        if (taken[admin])
            continue;
        r = rundir_listen(sup->dir, path,
                          find_group(sup, admin ? sup->conf.admin_group : sup->conf.group), &fd,
                          error, error_bytes);
        if (r == 0 && peers_listen(sup, admin, fd) < 0)
            r = EX_OSERR;
    }
    return r;
}

/* ---- set-up and teardown ------------------------------------------------------------------- */

static int start_signals(struct supervisor *sup, uv_signal_t handles[SIGNALS])
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, as we may have got it, children reap themselves */
    for (size_t i = 0; i < SIGNALS; i++) {
        if (uv_signal_init(sup->loop, &handles[i]) < 0 ||
            uv_signal_start(&handles[i], on_signal, signals[i]) < 0)
            return EX_OSERR;
        handles[i].data = sup;
    }
    return 0;
}

static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int set_up(struct supervisor *sup, char *error, size_t error_bytes)
{
    int r;

    sup->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (alarm_new(sup->loop, on_stop_deadline, sup, &sup->stop_alarm) < 0)
        return EX_OSERR;
    r = rundir_open(sup->conf.runtime_dir, sup->privileged, &sup->dir, error, error_bytes);
    if (r != 0)
        return r;
    topology_load(sup);
    adopt_all(sup);
    r = probe_start(sup, error, error_bytes);
    return r != 0 ? r : listen_all(sup, error, error_bytes);
}

/* Nobody has the id of an engine that is still starting: all such are killed, and then waited for,
 * together no longer than briefly. */
static void abandon_starting(struct supervisor *sup)
{
    uint64_t end_ns = now_ns() + ABANDON_NS, now;
    struct engine *engine;

    TAILQ_FOREACH(engine, &sup->engines, link)
    {
        if (engine->state == ENGINE_STARTING)
            engine_kill(engine);
    }
    TAILQ_FOREACH(engine, &sup->engines, link)
    {
        struct pollfd process = {.fd = watch_fd(engine->process), .events = POLLIN};

        now = now_ns();
        if (engine->state == ENGINE_STARTING &&
            poll(&process, 1, now < end_ns ? (int)((end_ns - now) / 1000000u) : 0) == 1)
            rundir_entry_remove(sup->dir, engine->entry);
    }
}

/* Connections are closed last: whoever sees the end of file finds everything gone. */
static void tear_down(struct supervisor *sup)
{
    struct engine *engine;
    struct peer *peer;
    sigset_t ends;

    /* It ends already; a second signal must not turn that into a death by signal. */
    (void)sigemptyset(&ends);
    for (size_t i = 0; i < SIGNALS; i++)
        (void)sigaddset(&ends, signals[i]);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    peers_stop_listening(sup);
    probe_end(sup);
    abandon_starting(sup);
    while ((engine = TAILQ_FIRST(&sup->engines)) != NULL) {
        engine->end_code = GW_E_NO_DAEMON;
        (void)snprintf(engine->end_text, sizeof(engine->end_text), "gradwired is stopping");
        (void)engine_free(engine);
    }
    sup->dir = rundir_free(sup->dir);
    sup->stop_alarm = alarm_free(sup->stop_alarm);
    while ((peer = TAILQ_FIRST(&sup->peers)) != NULL)
        (void)peer_free(peer);
    fd_close(&sup->reserve_fd);
}

static void serve(struct supervisor *sup)
{
    log_info("version %s serves %s for %s; administration at %s", GW_VERSION, sup->conf.socket,
             sup->privileged ? "all users" : "its own user", sup->conf.admin_socket);
    (void)sd_notifyf(0, "READY=1\nSTATUS=serving %s\nMAINPID=%d", sup->conf.socket, (int)getpid());
    (void)uv_run(sup->loop, UV_RUN_DEFAULT);
}

int supervisor_run(const struct supervisor_options *options, char *error, size_t error_bytes)
{
    struct supervisor *sup = calloc(1, sizeof(*sup));
    uv_signal_t handles[SIGNALS];
    uv_loop_t loop;
    int r;

    (void)snprintf(error, error_bytes, "no memory, or no descriptors, to start with");
    if (sup == NULL || uv_loop_init(&loop) < 0) {
        free(sup);
        return EX_OSERR;
    }
    sup->loop = &loop;
    sup->conf = *options->conf;
    sup->file_conf = *options->file_conf;
    sup->config_path = options->config_path;
    sup->config_optional = options->config_optional;
    (void)snprintf(sup->engine_path, sizeof(sup->engine_path), "%s", options->engine_path);
    sup->uid = geteuid();
    sup->privileged = sup->uid == 0;
    sup->started_ns = now_ns();
    TAILQ_INIT(&sup->peers);
    TAILQ_INIT(&sup->engines);
    raise_descriptors();
    r = start_signals(sup, handles);
    if (r == 0)
        r = set_up(sup, error, error_bytes);
    if (r == 0)
        serve(sup);
    tear_down(sup);
    for (size_t i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&handles[i], NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT); /* close callbacks */
    if (uv_loop_close(&loop) < 0)
        log_error("a handle was left open");
    free(sup);
    return r;
}
