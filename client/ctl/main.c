/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl: command line, and one function per command. */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define ANSWER_MS 10000
#define STOP_MS 20000 /* engines get some seconds to end */

struct command {
    const char *name;
    const char *help;
    int (*run)(struct ctl *ctl);
    bool json, engines;                 /* options that it takes */
    int (*main)(int argc, char **argv); /* in place of `run`: its command line is its own */
};

void ctl_say(const char *format, ...)
{
    va_list list;

    (void)fflush(stdout);
    (void)fputs("gwctl: ", stderr);
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    (void)fputc('\n', stderr);
}

/* ---- commands ------------------------------------------------------------------------------ */

static int ask_status(struct ctl *ctl, struct wire_msg **ret_status)
{
    struct wire_msg request = {.type = WIRE_STATUS_GET};

    return ctl_ask(ctl, &request, WIRE_STATUS, ANSWER_MS, ret_status);
}

static int run_status(struct ctl *ctl)
{
    struct wire_msg *status = NULL;
    int r;

    r = ctl_connect(ctl, true);
    if (r == 0)
        r = ask_status(ctl, &status);
    if (r == 0)
        r = show_status(status, ctl->json);
    (void)wire_free(status);
    return r;
}

/* One page after the other, until none is left; jobs may end in between. */
static int ask_jobs(struct ctl *ctl, struct ctl_jobs *jobs)
{
    struct wire_msg request = {.type = WIRE_JOBS_GET};
    struct wire_msg *page;
    struct wire_msg **pages;
    int r;

    do {
        request.u.jobs_get.first = jobs->shown;
        r = ctl_ask(ctl, &request, WIRE_JOBS, ANSWER_MS, &page);
        if (r != 0)
            return r;
        pages = reallocarray(jobs->pages, jobs->pages_count + 1, sizeof(struct wire_msg *));
        if (pages == NULL) {
            (void)wire_free(page);
            ctl_say("no memory for the answer");
            return EX_OSERR;
        }
        jobs->pages = pages;
        jobs->pages[jobs->pages_count++] = page;
        jobs->shown += page->u.jobs.count;
    } while (page->u.jobs.count > 0 && jobs->shown < page->u.jobs.total);
    return 0;
}

static int run_jobs(struct ctl *ctl)
{
    struct ctl_jobs jobs = {0};
    int r;

    r = ctl_connect(ctl, true);
    if (r == 0)
        r = ask_status(ctl, &jobs.status);
    if (r == 0)
        r = ask_jobs(ctl, &jobs);
    if (r == 0)
        r = show_jobs(&jobs, ctl->json);
    for (size_t i = 0; i < jobs.pages_count; i++)
        (void)wire_free(jobs.pages[i]);
    free(jobs.pages);
    (void)wire_free(jobs.status);
    return r;
}

static int run_drain(struct ctl *ctl)
{
    struct wire_msg request = {.type = WIRE_DRAIN};
    struct wire_msg *done = NULL;
    int r;

    r = ctl_connect(ctl, false);
    if (r == 0)
        r = ctl_ask(ctl, &request, WIRE_DONE, -1, &done);
    (void)wire_free(done);
    return r;
}

static int run_stop(struct ctl *ctl)
{
    struct wire_msg request = {.type = WIRE_STOP};
    struct wire_msg *done = NULL;
    int r;

    request.u.stop.engines = ctl->engines;
    r = ctl_connect(ctl, false);
    if (r == 0)
        r = ctl_ask(ctl, &request, WIRE_DONE, STOP_MS, &done);
    if (r == 0)
        r = ctl_wait_end(ctl, ANSWER_MS);
    (void)wire_free(done);
    return r;
}

static const struct command commands[] = {
    {"status", "what gradwired says of itself", run_status, true, false, NULL},
    {"jobs", "the jobs of this node; without rights on admin.sock, the own ones", run_jobs, true,
     false, NULL},
    {"drain", "refuse new jobs; return when the last has ended", run_drain, false, false, NULL},
    {"stop", "end gradwired; jobs go on, unless --engines", run_stop, false, true, NULL},
    {"plan", "what a step will send and hold, before the run; see gwctl plan --help", NULL, true,
     false, plan_main},
    {"doctor", "what this node offers gradwire, and what to do; see gwctl doctor --help", NULL,
     true, false, doctor_main},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* ---- command line -------------------------------------------------------------------------- */

static void help(void)
{
    (void)puts("Usage: gwctl [OPTION]... COMMAND\n"
               "\n"
               "Commands:");
    for (size_t i = 0; i < COMMANDS; i++)
        (void)printf("  %-8s %s\n", commands[i].name, commands[i].help);
    (void)puts("\n"
               "Options:\n"
               "  --json                of all but drain and stop: JSON\n"
               "  --engines             of stop: end all jobs too\n"
               "  --runtime-dir DIR     of the gradwired to ask; also $GRADWIRE_RUNTIME_DIR\n"
               "  --socket PATH         its client socket; also $GRADWIRE_SOCKET\n"
               "  --admin-socket PATH   its administration socket (admin.sock beside the other)\n"
               "  --version, --help");
}

static int usage(const char *what, const char *name)
{
    ctl_say("%s %s; see gwctl --help", what, name);
    return EX_USAGE;
}

static int set_path(char path[CTL_PATH_BYTES], const char *dir, int dir_bytes, const char *name)
{
    int n = snprintf(path, CTL_PATH_BYTES, "%.*s%s", dir_bytes, dir, name);

    if (n > 0 && n < (int)CTL_PATH_BYTES)
        return 0;
    ctl_say("the socket path is too long, %d bytes of at most %u: %.*s%s", n, CTL_PATH_BYTES - 1,
            dir_bytes, dir, name);
    return EX_USAGE;
}

/* Command line, environment, default; as gradwired does it. */
int ctl_find_sockets(struct ctl *ctl, const char *runtime_dir, const char *socket,
                     const char *admin_socket)
{
    const char *slash;
    int r;

    if (socket == NULL && runtime_dir == NULL)
        socket = getenv("GRADWIRE_SOCKET");
    if (runtime_dir == NULL)
        runtime_dir = getenv("GRADWIRE_RUNTIME_DIR");
    if (runtime_dir == NULL || runtime_dir[0] == '\0')
        runtime_dir = "/run/gradwire";
    if (socket != NULL && socket[0] != '\0')
        r = set_path(ctl->socket, socket, (int)strlen(socket), "");
    else
        r = set_path(ctl->socket, runtime_dir, (int)strlen(runtime_dir), "/gradwired.sock");
    if (r != 0)
        return r;
    if (admin_socket != NULL)
        return set_path(ctl->admin_socket, admin_socket, (int)strlen(admin_socket), "");
    slash = strrchr(ctl->socket, '/');
    return set_path(ctl->admin_socket, ctl->socket, slash == NULL ? 0 : (int)(slash - ctl->socket),
                    slash == NULL ? "admin.sock" : "/admin.sock");
}

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'},
    {"engines", no_argument, NULL, 'e'},
    {"runtime-dir", required_argument, NULL, 'r'},
    {"socket", required_argument, NULL, 's'},
    {"admin-socket", required_argument, NULL, 'a'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int run_command(struct ctl *ctl, const char *name)
{
    int r;

    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, name) != 0)
            continue;
        if (ctl->json && !commands[i].json)
            return usage("--json does not go with", name);
        if (ctl->engines && !commands[i].engines)
            return usage("--engines does not go with", name);
        if (commands[i].run == NULL)
            return usage("no other option may stand before", name);
        r = commands[i].run(ctl);
        if (ctl->fd >= 0)
            (void)close(ctl->fd);
        return r;
    }
    return usage("unknown command", name);
}

/* gwctl [--json] COMMAND, where the command's line is its own. */
static const struct command *own_command(int argc, char **argv)
{
    int at = argc > 1 && strcmp(argv[1], "--json") == 0 ? 2 : 1;

    for (size_t i = 0; i < COMMANDS && at < argc; i++) {
        if (commands[i].main != NULL && strcmp(commands[i].name, argv[at]) == 0)
            return &commands[i];
    }
    return NULL;
}

static int finish(int r)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        ctl_say("cannot write the answer");
        return EX_IOERR;
    }
    return r;
}

int main(int argc, char **argv)
{
    const struct command *own = own_command(argc, argv);
    const char *runtime_dir = NULL, *socket = NULL, *admin_socket = NULL;
    struct ctl ctl = {.fd = -1};
    int option;
    int r;

    opterr = 0;
    if (own != NULL)
        return finish(own->main(argc, argv));
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (option == 'j') {
            ctl.json = true;
        } else if (option == 'e') {
            ctl.engines = true;
        } else if (option == 'r') {
            runtime_dir = optarg;
        } else if (option == 's') {
            socket = optarg;
        } else if (option == 'a') {
            admin_socket = optarg;
        } else if (option == 'V') {
            (void)printf("gwctl %s\n", GW_VERSION);
            return 0;
        } else if (option == 'h') {
            help();
            return 0;
        } else {
            return usage(option == ':' ? "a value is missing after" : "unknown option",
                         argv[optind - 1]);
        }
    }
    if (optind == argc)
        return usage("a command is missing:", "status, jobs, drain, stop or plan");
    if (optind + 1 < argc)
        return usage("unexpected argument", argv[optind + 1]);
    r = ctl_find_sockets(&ctl, runtime_dir, socket, admin_socket);
    if (r != 0)
        return r;
    return finish(run_command(&ctl, argv[optind]));
}
