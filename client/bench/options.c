/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of gwbench. Prints usage and what is wrong with it; nothing else. */
#include <getopt.h>
#include <string.h>

#include "client/bench/bench.h"
#include "daemon/base/parse.h"

static const char usage[] =
    "usage: gwbench OP [options]\n"
    "       gwbench --install-peers [--peers-dir DIR]\n"
    "\n"
    "  reduce-scatter       sums of all ranks' buffers, a slice for each\n"
    "  all-gather           a fetch of mapped parameters (moves nothing); with --private, a copy\n"
    "                       of all slices into each rank's own memory\n"
    "  all-reduce           sums of all ranks' buffers, whole for each\n"
    "  latency              an all-reduce of 4 KiB, from the call to the wake-up\n"
    "  fetch                a fetch of private parameters: not foreseen (miss), prefetched (hit)\n"
    "  step                 an optimizer step that computes nothing, stages 0 to 3; and stage 2\n"
    "                       beside a backward pass on a simulated link, with and without overlap\n"
    "  ready                what it costs to mark one of 1000 parameters' gradients ready\n"
    "  storm                clients that create and join jobs all at once\n"
    "  idle                 wake-ups and memory of processes that have nothing to do\n"
    "\n"
    "  --ranks LIST         ranks, each a process (2,4; storm: 4 in each job)\n"
    "  --sizes LIST         bytes of a rank's larger buffer (4K,1M,64M; latency: 4K; ready: 4M)\n"
    "  --dtypes LIST        fp32, fp16, bf16; sums are made in fp32 (fp32)\n"
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
    "  --version\n"
    "  --help\n"
    "\n"
    "Every result is verified. Exit codes: 0, 1 wrong values, 64 wrong use, 69 no gradwired.\n";

enum option_key {
    KEY_RANKS = 256,
    KEY_SIZES,
    KEY_DTYPES,
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
    KEY_VERSION,
    KEY_HELP,
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, KEY_RANKS},
    {"sizes", required_argument, NULL, KEY_SIZES},
    {"dtypes", required_argument, NULL, KEY_DTYPES},
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

static int parse_list(const char *what, const char *list, bool sizes, uint64_t *ret_values,
                      uint32_t *ret_count)
{
    const char *why = sizes ? "must be sizes from 4 to 2G, as 4K,1M,64M"
                            : "must be whole numbers from 2 to 64, as 2,4";
    const char *at = list;
    uint32_t count = 0;
    char word[32];
    int r = 0;

    do {
        if (count == BENCH_LIST || !next_word(&at, word, sizeof word))
            return wrong(what, list, why);
        r = sizes ? parse_size(word, &ret_values[count])
                  : parse_u64(word, 2, 64, &ret_values[count]);
        if (r < 0 || (sizes && (ret_values[count] < 4 || ret_values[count] > 2ull << 30)))
            return wrong(what, list, why);
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
    default:
        o->engine = value;
        return 0;
    }
}

static int parse_one(int key, const char *value, struct bench_options *o)
{
    switch (key) {
    case KEY_RANKS:
        return parse_list("--ranks", value, false, o->ranks, &o->ranks_count);
    case KEY_SIZES:
        return parse_list("--sizes", value, true, o->sizes, &o->sizes_count);
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
    if (o->plot != NULL && !traits->has_bandwidth)
        return wrong("--plot", "", "is for ops that have a bandwidth");
    return o->plot != NULL ? plot_check(o->plot) : 0;
}

static int check_sizes(const struct bench_options *o)
{
    for (uint32_t i = 0; i < o->sizes_count; i++) {
        for (uint32_t j = 0; j < o->ranks_count; j++) {
            if (o->sizes[i] < bench_granule(o->op, o->ranks[j], GW_DTYPE_FP32))
                return wrong("--sizes", "", "one is too small for that many ranks");
        }
    }
    return 0;
}

static int finish(struct bench_options *o)
{
    const struct bench_op_traits *traits = &bench_ops[o->op];
    int r;

    r = check_op(o);
    if (r != 0)
        return r;
    if (o->ranks_count == 0)
        (void)parse_list("--ranks", traits->sizes == NULL ? "4" : "2,4", false, o->ranks,
                         &o->ranks_count);
    if (o->sizes_count == 0 && traits->sizes != NULL)
        (void)parse_list("--sizes", traits->sizes, true, o->sizes, &o->sizes_count);
    if (o->dtypes_count == 0)
        o->dtypes[o->dtypes_count++] = GW_DTYPE_FP32;
    if (o->jobs == 0)
        o->jobs = 50;
    return check_sizes(o);
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
