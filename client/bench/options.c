/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of gwbench. Prints usage and what is wrong with it; nothing else. */
#include <getopt.h>
#include <string.h>

#include "client/bench/nodes.h"
#include "daemon/base/parse.h"

static const char usage[] =
    "usage: gwbench OP [options]\n"
    "       gwbench --install-peers [--peers-dir DIR]\n"
    "\n"
    "  reduce-scatter       sums of all ranks' buffers, a slice for each; in turns with it, those\n"
    "                       of gradients, with their norm (ZeRO stage 2)\n"
    "  all-gather           a fetch of mapped parameters (moves nothing); with --private, a copy\n"
    "                       of all slices into each rank's own memory\n"
    "  all-reduce           sums of all ranks' buffers, whole for each\n"
    "  latency              an all-reduce of 4 KiB, from the call to the wake-up\n"
    "  fetch                a fetch of private parameters: not foreseen (miss), prefetched (hit)\n"
    "  step                 an optimizer step that computes nothing, stages 0 to 3; stage 2 on a\n"
    "                       simulated link, with and without overlap; and stages 2 and 3 beside\n"
    "                       the same ranks with nothing sent\n"
    "  ready                what it costs to mark one of 1000 parameters' gradients ready\n"
    "  storm                clients that create and join jobs all at once\n"
    "  idle                 wake-ups and memory of processes that have nothing to do\n"
    "\n"
    "  --ranks LIST         ranks, each a process (2,4; storm: 4 in each job)\n"
    "  --sizes LIST         bytes of a rank's larger buffer (4K,1M,64M; latency: 4K; ready: 4M)\n"
    "  --dtypes LIST        fp32, fp16, bf16; sums are made in fp32 (fp32)\n"
    "  --nodes LIST         nodes on this machine, joined by links; ranks are then on each (1,2), "
    "in\n"
    "                       blocks of neighbours and dealt; for collectives and storm\n"
    "  --shape LIST         of these links: none, 1G, 100M (bits per second), by tc (none)\n"
    "  --jobs N             of a storm (50)\n"
    "  --iterations N       timed ops per case and system\n"
    "  --seconds S          or as many as fit into S seconds (1)\n"
    "  --rounds N           in which the systems take turns (3)\n"
    "  --private            see all-gather\n"
    "  --peers              also every peer found: MPICH, Open MPI, Intel MPI, oneCCL, gloo\n"
    "  --peers-dir DIR      where Intel MPI, oneCCL and gloo are (~/.local/share/gradwire/peers)\n"
    "  --install-peers      bring those three there, by pip, and end (1.5 GB)\n"
    "  --json               one JSON document instead of a table\n"
    "  --plot FILE          also draw size against bandwidth: FILE.svg, or FILE.png by\n"
    "                       rsvg-convert (Debian: librsvg2-bin)\n"
    "  --socket PATH        of a running gradwired, instead of a private one\n"
    "  --gradwired PATH     the program to start for a private one\n"
    "  --engine PATH        the engine that it starts\n"
    "  --config FILE        its configuration, such as the priority of its sums\n"
    "  --version\n"
    "  --help\n"
    "\n"
    "Every result is verified. Exit codes: 0, 1 wrong values, 64 wrong use, 69 no gradwired.\n";

enum option_key {
    KEY_RANKS = 256,
    KEY_SIZES,
    KEY_DTYPES,
    KEY_NODES,
    KEY_SHAPE,
    KEY_JOBS,
    KEY_ITERATIONS,
    KEY_SECONDS,
    KEY_ROUNDS,
    KEY_PRIVATE,
    KEY_PEERS,
    KEY_PEERS_DIR,
    KEY_INSTALL_PEERS,
    KEY_JSON,
    KEY_PLOT,
    KEY_SOCKET,
    KEY_GRADWIRED,
    KEY_ENGINE,
    KEY_CONFIG,
    KEY_VERSION,
    KEY_HELP,
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, KEY_RANKS},
    {"sizes", required_argument, NULL, KEY_SIZES},
    {"dtypes", required_argument, NULL, KEY_DTYPES},
    {"nodes", required_argument, NULL, KEY_NODES},
    {"shape", required_argument, NULL, KEY_SHAPE},
    {"jobs", required_argument, NULL, KEY_JOBS},
    {"iterations", required_argument, NULL, KEY_ITERATIONS},
    {"seconds", required_argument, NULL, KEY_SECONDS},
    {"rounds", required_argument, NULL, KEY_ROUNDS},
    {"private", no_argument, NULL, KEY_PRIVATE},
    {"peers", no_argument, NULL, KEY_PEERS},
    {"peers-dir", required_argument, NULL, KEY_PEERS_DIR},
    {"install-peers", no_argument, NULL, KEY_INSTALL_PEERS},
    {"json", no_argument, NULL, KEY_JSON},
    {"plot", required_argument, NULL, KEY_PLOT},
    {"socket", required_argument, NULL, KEY_SOCKET},
    {"gradwired", required_argument, NULL, KEY_GRADWIRED},
    {"engine", required_argument, NULL, KEY_ENGINE},
    {"config", required_argument, NULL, KEY_CONFIG},
    {"version", no_argument, NULL, KEY_VERSION},
    {"help", no_argument, NULL, KEY_HELP},
    {NULL, 0, NULL, 0},
};

static int wrong(const char *what, const char *value, const char *why)
{
    fprintf(stderr, "gwbench: %s %s: %s (--help shows the options)\n", what, value, why);
    return EX_USAGE;
}

/* The next word of a list separated by commas; false: none, too long, or nothing after a comma. */
static bool next_word(const char **list, char *word, size_t word_bytes)
{
    size_t length = strcspn(*list, ",");

    if (length == 0 || length >= word_bytes)
        return false;
    memcpy(word, *list, length);
    word[length] = 0;
    *list += length;
    if (**list != ',')
        return true;
    (*list)++;
    return **list != 0;
}

static bool is_ranks(const char *word, uint64_t *ret_value)
{
    return parse_u64(word, 1, RANKS_MAX, ret_value) >= 0;
}

static bool is_nodes(const char *word, uint64_t *ret_value)
{
    return parse_u64(word, 2, NODES_MAX, ret_value) >= 0;
}

static bool is_size(const char *word, uint64_t *ret_value)
{
    return parse_size(word, ret_value) >= 0 && *ret_value >= 4 && *ret_value <= 2ull << 30;
}

/* What lists are of, and what is said about others. */
static const struct list {
    const char *option;
    bool (*is)(const char *word, uint64_t *ret_value);
    const char *why;
} lists[] = {
    {"--ranks", is_ranks, "must be whole numbers from 2 (with --nodes: 1) to 64, as 2,4"},
    {"--sizes", is_size, "must be sizes from 4 to 2G, as 4K,1M,64M"},
    {"--nodes", is_nodes, "must be whole numbers from 2 to 16, as 2,4"},
    {"--shape", shape_parse, "must be none, or bits per second up to 400G, as none,1G,100M"},
};

enum { LIST_RANKS, LIST_SIZES, LIST_NODES, LIST_SHAPES };

static int parse_list(uint32_t which, const char *text, uint64_t *ret_values, uint32_t *ret_count)
{
    const struct list *list = &lists[which];
    const char *at = text;
    uint32_t count = 0;
    char word[32];

    do {
        if (count == BENCH_LIST || !next_word(&at, word, sizeof word) ||
            !list->is(word, &ret_values[count]))
            return wrong(list->option, text, list->why);
        count++;
    } while (*at != 0);
    *ret_count = count;
    return 0;
}

static int parse_dtypes(const char *list, struct bench_options *o)
{
    static const char why[] = "must be of fp32, fp16 and bf16, as fp32,bf16";
    const char *at = list;
    char word[32];

    o->dtypes_count = 0;
    do {
        uint32_t dtype = 0;

        if (o->dtypes_count == BENCH_LIST || !next_word(&at, word, sizeof word))
            return wrong("--dtypes", list, why);
        while (dtype < GW_DTYPES && strcmp(word, bench_dtype_names[dtype]) != 0)
            dtype++;
        if (dtype == GW_DTYPES)
            return wrong("--dtypes", word, why);
        o->dtypes[o->dtypes_count++] = dtype;
    } while (*at != 0);
    return 0;
}

static int parse_number(const char *what, const char *value, uint64_t least, uint64_t most,
                        uint64_t *ret_value)
{
    char why[64];

    if (parse_u64(value, least, most, ret_value) >= 0)
        return 0;
    (void)snprintf(why, sizeof why, "must be a whole number from %llu to %llu",
                   (unsigned long long)least, (unsigned long long)most);
    return wrong(what, value, why);
}

static int parse_path_or_flag(int key, const char *value, struct bench_options *o)
{
    switch (key) {
    case KEY_PRIVATE:
        o->is_private = true;
        return 0;
    case KEY_PEERS:
        o->peers = true;
        return 0;
    case KEY_INSTALL_PEERS:
        o->install_peers = true;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_PEERS_DIR:
        o->peers_root = value;
        return 0;
    case KEY_PLOT:
        o->plot = value;
        return 0;
    case KEY_SOCKET:
        o->socket = value;
        return 0;
    case KEY_GRADWIRED:
        o->gradwired = value;
        return 0;
    case KEY_CONFIG:
        o->config = value;
        return 0;
    default:
        o->engine = value;
        return 0;
    }
}

static int parse_one(int key, const char *value, struct bench_options *o)
{
    switch (key) {
    case KEY_RANKS:
        return parse_list(LIST_RANKS, value, o->ranks, &o->ranks_count);
    case KEY_SIZES:
        return parse_list(LIST_SIZES, value, o->sizes, &o->sizes_count);
    case KEY_NODES:
        return parse_list(LIST_NODES, value, o->nodes, &o->nodes_count);
    case KEY_SHAPE:
        return parse_list(LIST_SHAPES, value, o->shapes, &o->shapes_count);
    case KEY_DTYPES:
        return parse_dtypes(value, o);
    case KEY_JOBS:
        return parse_number("--jobs", value, 1, 64, &o->jobs);
    case KEY_ITERATIONS:
        return parse_number("--iterations", value, 1, 1000000, &o->iterations);
    case KEY_SECONDS:
        if (parse_duration(value, &o->budget_ns) < 0 || o->budget_ns < 1000000 ||
            o->budget_ns > 3600000000000)
            return wrong("--seconds", value, "must be a time from 1ms to 1h");
        return 0;
    case KEY_ROUNDS:
        return parse_number("--rounds", value, 1, 100, &o->rounds);
    default:
        return parse_path_or_flag(key, value, o);
    }
}

static int parse_op(const char *word, struct bench_options *o)
{
    for (uint32_t op = 0; op < BENCH_OPS; op++) {
        if (strcmp(word, bench_ops[op].name) == 0) {
            o->op = (enum bench_op)op;
            return 0;
        }
    }
    return wrong("op", word, "is none");
}

/* What goes with which op. */
static int check_op(const struct bench_options *o)
{
    const struct bench_op_traits *traits = &bench_ops[o->op];

    if (o->is_private && o->op != BENCH_ALL_GATHER)
        return wrong("--private", "", "is for all-gather");
    if (o->jobs != 0 && o->op != BENCH_STORM)
        return wrong("--jobs", "", "is for storm");
    if (o->peers && !traits->has_peers)
        return wrong("--peers", "", "peers have collectives only");
    if (o->sizes_count > 0 && traits->sizes == NULL)
        return wrong("--sizes", "", "is not for storm and idle");
    if (o->dtypes_count > 0 && traits->sizes == NULL)
        return wrong("--dtypes", "", "is not for storm and idle");
    if (o->socket != NULL && o->op == BENCH_IDLE)
        return wrong("--socket", "", "idle looks at processes of its own");
    if (o->config != NULL && (o->socket != NULL || o->nodes_count > 0))
        return wrong("--config", o->config, "is of a private gradwired on this node");
    if (o->plot != NULL && !traits->has_bandwidth)
        return wrong("--plot", "", "is for ops that have a bandwidth");
    return o->plot != NULL ? plot_check(o->plot) : 0;
}

/* What goes with --nodes. */
static int check_nodes(const struct bench_options *o)
{
    if (o->shapes_count > 0 && o->nodes_count == 0)
        return wrong("--shape", "", "is of the links between --nodes");
    if (o->nodes_count == 0)
        return 0;
    if (!bench_ops[o->op].has_nodes)
        return wrong("--nodes", "",
                     "is for reduce-scatter, all-gather, all-reduce, latency, storm");
    if (o->socket != NULL)
        return wrong("--socket", "", "each of --nodes has a gradwired of its own");
    return o->plot != NULL ? wrong("--plot", "", "is not of --nodes") : 0;
}

/* All ranks of a case, by the most nodes. */
static int check_ranks(const struct bench_options *o, uint64_t ranks, uint64_t nodes)
{
    uint64_t all = ranks * (nodes > 0 ? nodes : 1);

    if (all < 2 || all > RANKS_MAX)
        return wrong("--ranks", "", lists[LIST_RANKS].why);
    for (uint32_t i = 0; i < o->sizes_count; i++) {
        if (o->sizes[i] < bench_granule(o->op, all, GW_DTYPE_FP32))
            return wrong("--sizes", "", "one is too small for that many ranks");
    }
    return 0;
}

static int check_all_ranks(const struct bench_options *o)
{
    uint64_t most = 0;
    int r = 0;

    for (uint32_t i = 0; i < o->nodes_count; i++)
        most = o->nodes[i] > most ? o->nodes[i] : most;
    for (uint32_t i = 0; r == 0 && i < o->ranks_count; i++)
        r = check_ranks(o, o->ranks[i], most);
    return r;
}

static int finish(struct bench_options *o)
{
    const struct bench_op_traits *traits = &bench_ops[o->op];
    int r;

    r = check_op(o);
    if (r == 0)
        r = check_nodes(o);
    if (r != 0)
        return r;
    if (o->ranks_count == 0)
        (void)parse_list(LIST_RANKS,
                         traits->sizes == NULL ? "4"
                         : o->nodes_count > 0  ? "1,2"
                                               : "2,4",
                         o->ranks, &o->ranks_count);
    if (o->shapes_count == 0)
        (void)parse_list(LIST_SHAPES, "none", o->shapes, &o->shapes_count);
    if (o->sizes_count == 0 && traits->sizes != NULL)
        (void)parse_list(LIST_SIZES, traits->sizes, o->sizes, &o->sizes_count);
    if (o->dtypes_count == 0)
        o->dtypes[o->dtypes_count++] = GW_DTYPE_FP32;
    if (o->jobs == 0)
        o->jobs = 50;
    return check_all_ranks(o);
}

int options_parse(int argc, char **argv, struct bench_options *ret_options)
{
    struct bench_options o = {.budget_ns = 1000000000, .rounds = 3};
    int key, r;

    while ((key = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (key == KEY_HELP || key == KEY_VERSION) {
            fputs(key == KEY_HELP ? usage : "gwbench " GW_VERSION "\n", stdout);
            return -1;
        }
        if (key == '?')
            return EX_USAGE; /* getopt has said why */
        r = parse_one(key, optarg, &o);
        if (r != 0)
            return r;
    }
    if (o.install_peers && optind < argc)
        return wrong("--install-peers", argv[optind], "nothing is measured: name no op");
    if (o.install_peers) {
        *ret_options = o;
        return 0;
    }
    if (optind == argc)
        return wrong("op", "", "none is named");
    if (optind + 1 < argc)
        return wrong("argument", argv[optind + 1], "is not expected");
    r = parse_op(argv[optind], &o);
    if (r == 0)
        r = finish(&o);
    if (r == 0)
        *ret_options = o;
    return r;
}
