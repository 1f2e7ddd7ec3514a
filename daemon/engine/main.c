/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwire-engine's command line. Started by gradwired as the job's user, with descriptors already
 * open; drops nothing itself. Exit codes: sysexits.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/base/error.h"
#include "daemon/base/parse.h"
#include "daemon/base/priority.h"
#include "daemon/core/edges.h"
#include "daemon/engine/engine.h"

enum {
    OPT_CHANNEL = 1,
    OPT_LISTEN,
    OPT_LOCK,
    OPT_STATS,
    OPT_OWNER,
    OPT_LINGER,
    OPT_MEMORY,
    OPT_STALL,
    OPT_WORKERS,
    OPT_TOPOLOGY,
    OPT_DEVICE,
    OPT_PLUGINS,
    OPT_FOLLOW,
    OPT_NODE_NAME,
    OPT_STAR_INTERFACE,
    OPT_STAR_PORTS,
    OPT_STAR_BEAT,
    OPT_STAR_LOST,
    OPT_PROBE,
    OPT_GUARD,
    OPT_HELP,
    OPT_VERSION
};

static const char help[] =
    "usage: gradwire-engine --channel-fd N --listen-fd N --lock-fd N --stats-fd N [options]\n"
    "\n"
    "Runs one job of gradwire on this node. gradwired starts it; there is no reason to do so by\n"
    "hand.\n"
    "\n"
    "  --channel-fd N         socket to gradwired\n"
    "  --listen-fd N          listening socket of the engine's directory entry\n"
    "  --lock-fd N            lock of that entry, held while the engine lives\n"
    "  --stats-fd N           statistics page, made by gradwired\n"
    "  --owner-uid UID        user whose gradwired may connect, besides root and the own user\n"
    "  --linger-ns N          life after the last client (default 60 s)\n"
    "  --memory-max-bytes N   limit of all the job's memory on this node (default 0: none)\n"
    "  --stall-report-ns N    a stall is reported after that time (default 10 s)\n"
    "  --worker-priority WHAT of threads that sum and copy: equal, nice or idle (default equal)\n"
    "  --topology NODES       processors by NUMA node, '0:0-3,8-11 1:4-7', to place threads and\n"
    "                         memory by (default: they are not placed)\n"
    "  --device WHAT          what jobs are offered: auto, host or cuda (default auto)\n"
    "  --plugins DIR          where gradwire-cuda.so is (beside the engine, or as installed)\n"
    "  --follow TAG           of a job that another node's engine made; its id comes with a rank\n"
    "  --node-name NAME       of this node, for texts (default: the host's)\n"
    "  --star-interface WHAT  or address where other nodes' engines find it (default: chosen)\n"
    "  --star-ports A-B       of those ports (default 0: any)\n"
    "  --star-beat-ns N       engines of a job's nodes say so often that they live\n"
    "  --star-lost-ns N       and are lost when they have not for so long\n"
    "  --guard                watches over the engine that started it, on descriptor 3\n"
    "  --probe                says how many GPUs it can offer, or why none; exit code 0 or 69\n"
    "  --version, --help\n";

static const struct option long_options[] = {
    {"channel-fd", required_argument, NULL, OPT_CHANNEL},
    {"listen-fd", required_argument, NULL, OPT_LISTEN},
    {"lock-fd", required_argument, NULL, OPT_LOCK},
    {"stats-fd", required_argument, NULL, OPT_STATS},
    {"owner-uid", required_argument, NULL, OPT_OWNER},
    {"linger-ns", required_argument, NULL, OPT_LINGER},
    {"memory-max-bytes", required_argument, NULL, OPT_MEMORY},
    {"stall-report-ns", required_argument, NULL, OPT_STALL},
    {"worker-priority", required_argument, NULL, OPT_WORKERS},
    {"topology", required_argument, NULL, OPT_TOPOLOGY},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"plugins", required_argument, NULL, OPT_PLUGINS},
    {"follow", required_argument, NULL, OPT_FOLLOW},
    {"node-name", required_argument, NULL, OPT_NODE_NAME},
    {"star-interface", required_argument, NULL, OPT_STAR_INTERFACE},
    {"star-ports", required_argument, NULL, OPT_STAR_PORTS},
    {"star-beat-ns", required_argument, NULL, OPT_STAR_BEAT},
    {"star-lost-ns", required_argument, NULL, OPT_STAR_LOST},
    {"probe", no_argument, NULL, OPT_PROBE},
    {"guard", no_argument, NULL, OPT_GUARD},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

/* An inherited descriptor: open, and from now on close-on-exec. */
static int take_fd(const char *text, int *ret_fd)
{
    uint64_t value;

    if (parse_u64(text, 0, INT32_MAX, &value) < 0 || fcntl((int)value, F_SETFD, FD_CLOEXEC) < 0)
        return GW_E_INVALID;
    *ret_fd = (int)value;
    return 0;
}

/* Of jobs that span nodes. */
static int take_nodes_option(int option, const char *text, struct engine_options *options)
{
    switch (option) {
    case OPT_FOLLOW:
        options->follow = true;
        return tag_from_hex(text, options->follow_tag);
    case OPT_NODE_NAME:
        snprintf(options->node_name, sizeof(options->node_name), "%s", text);
        return strlen(text) <= GW_LABEL_MAX && *text ? 0 : GW_E_INVALID;
    case OPT_STAR_INTERFACE:
        options->star_interface = text;
        return *text ? 0 : GW_E_INVALID;
    case OPT_STAR_PORTS:
        return parse_ports(text, &options->star_port_first, &options->star_port_last);
    case OPT_STAR_BEAT:
        return parse_u64(text, 1, INT64_MAX, &options->star_beat_ns);
    default:
        return parse_u64(text, 1, INT64_MAX, &options->star_lost_ns);
    }
}

/* A name of the kernel's 64 bytes is cut; one that cannot be had is a word. */
static void default_name(struct engine_options *options)
{
    char name[HOST_NAME_MAX + 1] = "";

    if (options->node_name[0])
        return;
    if (gethostname(name, sizeof(name) - 1) < 0 || !name[0])
        snprintf(name, sizeof(name), "node");
    snprintf(options->node_name, sizeof(options->node_name), "%.*s", (int)GW_LABEL_MAX, name);
}

static int take_priority(const char *text, enum priority *ret_priority)
{
    for (uint32_t i = 0; i < PRIORITIES; i++) {
        if (strcmp(text, priority_names[i]) == 0) {
            *ret_priority = (enum priority)i;
            return 0;
        }
    }
    return GW_E_INVALID;
}

static int take_option(int option, const char *text, struct engine_options *options)
{
    uint64_t uid;
    int r;

    switch (option) {
    case OPT_CHANNEL:
        return take_fd(text, &options->channel_fd);
    case OPT_LISTEN:
        return take_fd(text, &options->listen_fd);
    case OPT_LOCK:
        return take_fd(text, &options->lock_fd);
    case OPT_STATS:
        return take_fd(text, &options->stats_fd);
    case OPT_OWNER:
        r = parse_u64(text, 0, UINT32_MAX - 1, &uid);
        if (r == 0)
            options->owner_uid = (uid_t)uid;
        return r;
    case OPT_LINGER:
        return parse_u64(text, 0, INT64_MAX, &options->linger_ns);
    case OPT_MEMORY:
        return parse_u64(text, 0, INT64_MAX, &options->memory_max_bytes);
    case OPT_STALL:
        return parse_u64(text, 0, INT64_MAX, &options->stall_report_ns);
    case OPT_WORKERS:
        return take_priority(text, &options->worker_priority);
    case OPT_TOPOLOGY:
        return topology_parse(text, &options->topology);
    case OPT_DEVICE:
        return plugin_offer_parse(text, &options->offer);
    case OPT_PLUGINS:
        options->plugins = text;
        return *text ? 0 : GW_E_INVALID;
    case OPT_FOLLOW:
    case OPT_NODE_NAME:
    case OPT_STAR_INTERFACE:
    case OPT_STAR_PORTS:
    case OPT_STAR_BEAT:
    case OPT_STAR_LOST:
        return take_nodes_option(option, text, options);
    case OPT_GUARD:
        options->guard = true;
        return 0;
    case OPT_PROBE:
        options->probe = true;
        return 0;
    default:
        return GW_E_INVALID;
    }
}

/* EX_OK: go on; else the exit code is in *ret_code. */
static bool parse_options(int argc, char **argv, struct engine_options *options, int *ret_code)
{
    int index = 0, option;

    *ret_code = EX_OK;
    while ((option = getopt_long(argc, argv, "", long_options, &index)) != -1) {
        if (option == OPT_HELP || option == OPT_VERSION) {
            if (option == OPT_HELP)
                fputs(help, stdout);
            else
                puts("gradwire-engine " GW_VERSION);
            return false;
        }
        if (option == '?') {
            *ret_code = EX_USAGE;
            return false;
        }
        if (take_option(option, optarg, options) < 0) {
            fprintf(stderr, "gradwire-engine: --%s %s: not a value that fits\n",
                    long_options[index].name, optarg);
            *ret_code = EX_USAGE;
            return false;
        }
    }
    if (optind < argc ||
        (!options->probe && !options->guard && options->channel_fd < 0 && options->listen_fd < 0)) {
        fprintf(stderr, "gradwire-engine is started by gradwired; see --help\n");
        *ret_code = EX_USAGE;
        return false;
    }
    return true;
}

/* Tests only; a name that no edge has must not pass for a test. */
static int take_edges(struct engine_options *options)
{
#ifdef GW_TEST_EDGES
    const char *name = getenv("GRADWIRE_DROP_EDGE");

    if (!name || !*name)
        return 0;
    options->drop_edges = edges_parse(name);
    return options->drop_edges ? 0 : GW_E_INVALID;
#else
    (void)options;
    return 0;
#endif
}

/* Every arena, page and client is a descriptor. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* For gradwired, which has no CUDA in it. One line on stdout. */
static int probe(const struct engine_options *options)
{
    struct plugins *plugins = NULL;
    char text[GW_TEXT_MAX + 1] = "no memory";
    int gpus;
    int r;

    r = plugins_open(&(struct plugins_config){options->offer, options->plugins}, &plugins);
    gpus = r < 0 ? r : plugins_probe(plugins, text);
    if (gpus > 0)
        printf("%d GPU%s\n", gpus, gpus == 1 ? "" : "s");
    else
        printf("%s\n", text);
    plugins_free(plugins);
    return gpus > 0 ? EX_OK : EX_UNAVAILABLE;
}

int main(int argc, char **argv)
{
    struct engine_options options = {.channel_fd = -1,
                                     .listen_fd = -1,
                                     .lock_fd = -1,
                                     .stats_fd = -1,
                                     .owner_uid = getuid(),
                                     .linger_ns = 60000000000ull};
    struct engine *engine;
    int code;
    int r;

    if (!parse_options(argc, argv, &options, &code))
        return code;
    if (options.guard)
        return guard_run(GUARD_FD);
    if (options.probe)
        return probe(&options);
    default_name(&options);
    r = take_edges(&options);
    if (r < 0) {
        fprintf(stderr, "gradwire-engine: GRADWIRE_DROP_EDGE names no ordering edge\n");
        return EX_USAGE;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    r = engine_new(&options, &engine);
    if (r < 0) {
        fprintf(stderr, "gradwire-engine: cannot start: %s: %s\n", gw_base_error_name(r),
                gw_base_error_message(r));
        return r == GW_E_NOMEM ? EX_OSERR : EX_UNAVAILABLE;
    }
    code = engine_run(engine);
    engine_free(engine);
    return code ? EX_SOFTWARE : EX_OK;
}
