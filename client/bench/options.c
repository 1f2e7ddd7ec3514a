/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of gwbench. Prints usage and what is wrong with it; nothing else. */
#include <getopt.h>
#include <string.h>

#include "client/bench/bench.h"
#include "daemon/base/parse.h"

static const char usage[] =
    "usage: gwbench OP [options]\n"
    "\n"
    "  reduce-scatter       sums of all ranks' buffers, a slice for each\n"
    "  all-gather           a fetch of mapped parameters (moves nothing); with --private, a copy\n"
    "                       of all slices into each rank's own memory\n"
    "  all-reduce           sums of all ranks' buffers, whole for each\n"
    "  latency              an all-reduce of 4 KiB, from the call to the wake-up\n"
    "  fetch                a fetch of private parameters: not foreseen (miss), prefetched (hit)\n"
    "  step                 an optimizer step that computes nothing, stages 0 to 3\n"
    "\n"
    "  --ranks LIST         ranks, each a process (2,4)\n"
    "  --sizes LIST         bytes of a rank's larger buffer (4K,1M,64M; latency: 4K)\n"
    "  --dtypes LIST        fp32, the only one that is measured\n"
    "  --iterations N       timed ops per case and system\n"
    "  --seconds S          or as many as fit into S seconds (1)\n"
    "  --rounds N           in which the systems take turns (3)\n"
    "  --private            see all-gather\n"
    "  --peers              also MPICH and Open MPI, where installed\n"
    "  --json               one JSON document instead of a table\n"
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
    KEY_ITERATIONS,
    KEY_SECONDS,
    KEY_ROUNDS,
    KEY_PRIVATE,
    KEY_PEERS,
    KEY_JSON,
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
    {"iterations", required_argument, NULL, KEY_ITERATIONS},
    {"seconds", required_argument, NULL, KEY_SECONDS},
    {"rounds", required_argument, NULL, KEY_ROUNDS},
    {"private", no_argument, NULL, KEY_PRIVATE},
    {"peers", no_argument, NULL, KEY_PEERS},
    {"json", no_argument, NULL, KEY_JSON},
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

static int parse_dtypes(const char *list)
{
    const char *at = list;
    char word[32];

    do {
        if (!next_word(&at, word, sizeof word))
            return wrong("--dtypes", list, "must be fp32");
        if (strcmp(word, "fp32") != 0)
            return wrong("--dtypes", word, "must be fp32, which is all that is measured");
    } while (*at != 0);
    return 0;
}

static int parse_one(int key, const char *value, struct bench_options *o)
{
    switch (key) {
    case KEY_RANKS:
        return parse_list("--ranks", value, false, o->ranks, &o->ranks_count);
    case KEY_SIZES:
        return parse_list("--sizes", value, true, o->sizes, &o->sizes_count);
    case KEY_DTYPES:
        return parse_dtypes(value);
    case KEY_ITERATIONS:
        if (parse_u64(value, 1, 1000000, &o->iterations) < 0)
            return wrong("--iterations", value, "must be a whole number from 1 to 1000000");
        return 0;
    case KEY_SECONDS:
        if (parse_duration(value, &o->budget_ns) < 0 || o->budget_ns < 1000000 ||
            o->budget_ns > 3600000000000)
            return wrong("--seconds", value, "must be a time from 1ms to 1h");
        return 0;
    case KEY_ROUNDS:
        if (parse_u64(value, 1, 100, &o->rounds) < 0)
            return wrong("--rounds", value, "must be a whole number from 1 to 100");
        return 0;
    case KEY_PRIVATE:
        o->is_private = true;
        return 0;
    case KEY_PEERS:
        o->peers = true;
        return 0;
    case KEY_JSON:
        o->json = true;
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

static int parse_op(const char *word, struct bench_options *o)
{
    for (uint32_t op = 0; op < BENCH_OPS; op++) {
        if (strcmp(word, bench_op_names[op]) == 0) {
            o->op = (enum bench_op)op;
            return 0;
        }
    }
    if (strcmp(word, "storm") == 0)
        return wrong("op", word, "is planned");
    return wrong("op", word, "is none");
}

static int finish(struct bench_options *o)
{
    if (o->is_private && o->op != BENCH_ALL_GATHER)
        return wrong("--private", "", "is for all-gather");
    if (o->peers && (o->op == BENCH_FETCH || o->op == BENCH_STEP))
        return wrong("--peers", "", "peers have no fetch and no step");
    if (o->ranks_count == 0)
        (void)parse_list("--ranks", "2,4", false, o->ranks, &o->ranks_count);
    if (o->sizes_count == 0)
        (void)parse_list("--sizes", o->op == BENCH_LATENCY ? "4K" : "4K,1M,64M", true, o->sizes,
                         &o->sizes_count);
    /* A step has 8 parameters, each a bucket; others a value for each rank. */
    for (uint32_t i = 0; i < o->sizes_count; i++) {
        for (uint32_t j = 0; j < o->ranks_count; j++) {
            if (o->sizes[i] < (o->op == BENCH_STEP ? 32 : 4) * o->ranks[j])
                return wrong("--sizes", "", "one is too small for that many ranks");
        }
    }
    return 0;
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
