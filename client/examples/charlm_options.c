/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of charlm. Prints usage and what is wrong with it; nothing else. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm.h"

static const char usage[] =
    "usage: charlm --rank R --world N --id-file FILE --stage 0..3 [options]   one rank of a job\n"
    "       charlm --reference N [options]   alone: N micro-batches, added in gradwire's order\n"
    "       charlm --plain N [options]       alone: one batch of N ranks' samples\n"
    "       charlm --model-tsv [options]     print the parameters' names, shapes and units\n"
    "\n"
    "  --steps K            optimizer steps (20)\n"
    "  --hidden H           width of the hidden layers (512)\n"
    "  --batch B            samples per rank and micro-step (32)\n"
    "  --micro-steps M      per step (1)\n"
    "  --accumulate local|shard   where micro-steps are added (by stage)\n"
    "  --dtype fp32|bf16    of parameters in use and of gradients; the rest is fp32 (fp32)\n"
    "  --seed S             of initial values and samples (1)\n"
    "  --text FILE          training text (the files of /usr/share/common-licenses)\n"
    "  --dump FILE          write the final parameters: fp32, in order, little endian\n"
    "  --out FILE           write losses, times and figures as JSON\n"
    "for a rank:\n"
    "  --socket PATH        of gradwired ($GRADWIRE_SOCKET, /run/gradwire/gradwired.sock)\n"
    "  --overlap on|off     reduce and prefetch while computing (on)\n"
    "  --gather private|mapped   how stage 3 fetches (private)\n"
    "  --bucket BYTES       of a bucket (655360)\n"
    "  --nodes N            that the job's ranks may be on; rank 0 says it (1)\n"
    "  --link BYTES_PER_S   simulate a link of that speed per rank (off)\n"
    "  --measure            time each collective alone before the first step\n"
    "  --timeout SECONDS    for joining and for each collective (120)\n"
    "  --gpu N              charlm-cuda: its GPU (the rank's number over the number of GPUs)\n"
    "  --help\n";

enum option_key {
    KEY_RANK = 256,
    KEY_WORLD,
    KEY_NODES,
    KEY_REFERENCE,
    KEY_PLAIN,
    KEY_STAGE,
    KEY_STEPS,
    KEY_HIDDEN,
    KEY_BATCH,
    KEY_MICRO_STEPS,
    KEY_SEED,
    KEY_BUCKET,
    KEY_LINK,
    KEY_TIMEOUT,
    KEY_GPU,
    KEY_OVERLAP,
    KEY_GATHER,
    KEY_ACCUMULATE,
    KEY_DTYPE,
    KEY_MODEL_TSV,
    KEY_MEASURE,
    KEY_ID_FILE,
    KEY_SOCKET,
    KEY_TEXT,
    KEY_DUMP,
    KEY_OUT,
    KEY_HELP,
};

static const struct option long_options[] = {
    {"rank", required_argument, NULL, KEY_RANK},
    {"world", required_argument, NULL, KEY_WORLD},
    {"nodes", required_argument, NULL, KEY_NODES},
    {"reference", required_argument, NULL, KEY_REFERENCE},
    {"plain", required_argument, NULL, KEY_PLAIN},
    {"stage", required_argument, NULL, KEY_STAGE},
    {"steps", required_argument, NULL, KEY_STEPS},
    {"hidden", required_argument, NULL, KEY_HIDDEN},
    {"batch", required_argument, NULL, KEY_BATCH},
    {"micro-steps", required_argument, NULL, KEY_MICRO_STEPS},
    {"seed", required_argument, NULL, KEY_SEED},
    {"bucket", required_argument, NULL, KEY_BUCKET},
    {"link", required_argument, NULL, KEY_LINK},
    {"timeout", required_argument, NULL, KEY_TIMEOUT},
    {"gpu", required_argument, NULL, KEY_GPU},
    {"overlap", required_argument, NULL, KEY_OVERLAP},
    {"gather", required_argument, NULL, KEY_GATHER},
    {"accumulate", required_argument, NULL, KEY_ACCUMULATE},
    {"dtype", required_argument, NULL, KEY_DTYPE},
    {"model-tsv", no_argument, NULL, KEY_MODEL_TSV},
    {"measure", no_argument, NULL, KEY_MEASURE},
    {"id-file", required_argument, NULL, KEY_ID_FILE},
    {"socket", required_argument, NULL, KEY_SOCKET},
    {"text", required_argument, NULL, KEY_TEXT},
    {"dump", required_argument, NULL, KEY_DUMP},
    {"out", required_argument, NULL, KEY_OUT},
    {"help", no_argument, NULL, KEY_HELP},
    {NULL, 0, NULL, 0},
};

static int wrong(const char *what, const char *value, const char *why)
{
    fprintf(stderr, "charlm: %s %s: %s (--help shows the options)\n", what, value, why);
    return EX_USAGE;
}

static int parse_u64(const char *what, const char *value, uint64_t min, uint64_t max,
                     uint64_t *ret_number)
{
    char *end, why[96];
    unsigned long long number;

    errno = 0;
    number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != 0 || errno != 0 || number < min || number > max) {
        snprintf(why, sizeof why, "must be a whole number from %llu to %llu",
                 (unsigned long long)min, (unsigned long long)max);
        return wrong(what, value, why);
    }
    *ret_number = number;
    return 0;
}

static int parse_u32(const char *what, const char *value, uint32_t min, uint32_t max,
                     uint32_t *ret_number)
{
    uint64_t number = 0;
    int r = parse_u64(what, value, min, max, &number);

    if (r == 0)
        *ret_number = (uint32_t)number;
    return r;
}

static int parse_word(const char *what, const char *value, const char *first, const char *second,
                      bool *ret_second)
{
    char why[96];

    if (strcmp(value, first) == 0 || strcmp(value, second) == 0) {
        *ret_second = strcmp(value, second) == 0;
        return 0;
    }
    snprintf(why, sizeof why, "must be %s or %s", first, second);
    return wrong(what, value, why);
}

static int parse_number(int key, const char *value, struct charlm_options *o)
{
    uint32_t seconds = 0, gpu = 0;
    int r;

    switch (key) {
    case KEY_RANK:
        return parse_u32("--rank", value, 0, 63, &o->rank);
    case KEY_WORLD:
        return parse_u32("--world", value, 1, 64, &o->world);
    case KEY_NODES:
        return parse_u32("--nodes", value, 1, 64, &o->nodes);
    case KEY_REFERENCE:
        o->mode = CHARLM_REFERENCE;
        return parse_u32("--reference", value, 1, 64, &o->world);
    case KEY_PLAIN:
        o->mode = CHARLM_PLAIN;
        return parse_u32("--plain", value, 1, 64, &o->world);
    case KEY_STAGE:
        return parse_u32("--stage", value, 0, 3, &o->stage);
    case KEY_STEPS:
        return parse_u32("--steps", value, 1, 1000000, &o->steps);
    case KEY_HIDDEN:
        return parse_u32("--hidden", value, 1, 16384, &o->hidden);
    case KEY_BATCH:
        return parse_u32("--batch", value, 1, 65536, &o->batch);
    case KEY_MICRO_STEPS:
        return parse_u32("--micro-steps", value, 1, 1024, &o->micro_steps);
    case KEY_SEED:
        return parse_u64("--seed", value, 0, UINT64_MAX, &o->seed);
    case KEY_BUCKET:
        r = parse_u64("--bucket", value, 4, (uint64_t)1 << 40, &o->bucket_bytes);
        if (r == 0 && o->bucket_bytes % 4 != 0)
            r = wrong("--bucket", value, "must be a multiple of 4, the bytes of a value");
        return r;
    case KEY_LINK:
        return parse_u64("--link", value, 1, (uint64_t)1 << 50, &o->link_bytes_per_s);
    case KEY_GPU:
        r = parse_u32("--gpu", value, 0, 1023, &gpu);
        o->gpu = (int)gpu;
        return r;
    default:
        r = parse_u32("--timeout", value, 1, 86400, &seconds);
        o->timeout_ns = (int64_t)seconds * 1000000000;
        return r;
    }
}

static int parse_one(int key, const char *value, struct charlm_options *o)
{
    bool second = false;
    int r = 0;

    switch (key) {
    case KEY_OVERLAP:
        return parse_word("--overlap", value, "on", "off", &o->overlap_off);
    case KEY_GATHER:
        r = parse_word("--gather", value, "private", "mapped", &second);
        o->gather = second ? GW_GATHER_MAPPED : GW_GATHER_PRIVATE;
        return r;
    case KEY_ACCUMULATE:
        r = parse_word("--accumulate", value, "local", "shard", &second);
        o->accumulate = second ? GW_ACCUMULATE_SHARD : GW_ACCUMULATE_LOCAL;
        return r;
    case KEY_DTYPE:
        return parse_word("--dtype", value, "fp32", "bf16", &o->bf16);
    case KEY_MODEL_TSV:
        o->mode = CHARLM_MODEL_TSV;
        return 0;
    case KEY_MEASURE:
        o->measure = true;
        return 0;
    case KEY_ID_FILE:
        o->id_file = value;
        return 0;
    case KEY_SOCKET:
        o->socket = value;
        return 0;
    case KEY_TEXT:
        o->text = value;
        return 0;
    case KEY_DUMP:
        o->dump = value;
        return 0;
    case KEY_OUT:
        o->out = value;
        return 0;
    default:
        return parse_number(key, value, o);
    }
}

int charlm_options_parse(int argc, char **argv, struct charlm_options *ret_options)
{
    struct charlm_options o = {
        .world = 1,
        .stage = UINT32_MAX,
        .micro_steps = 1,
        .steps = 20,
        .hidden = 512,
        .batch = 32,
        .seed = 1,
        .gpu = -1,
        .bucket_bytes = 655360,
        .timeout_ns = 120000000000,
    };
    int key, r;

    while ((key = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (key == KEY_HELP) {
            fputs(usage, stdout);
            return -1;
        }
        if (key == '?')
            return EX_USAGE; /* getopt has said why */
        r = parse_one(key, optarg, &o);
        if (r != 0)
            return r;
    }
    if (optind < argc)
        return wrong("argument", argv[optind], "is not expected");
    if (o.mode == CHARLM_RANK) {
        if (o.stage == UINT32_MAX)
            return wrong("--stage", "0..3", "must be given");
        if (o.id_file == NULL)
            return wrong("--id-file", "FILE", "must be given");
        if (o.rank >= o.world)
            return wrong("--rank", "R", "must be below --world");
    }
    *ret_options = o;
    return 0;
}

const char *charlm_who(const struct charlm_options *options, char *buffer, size_t size_bytes)
{
    if (options->mode == CHARLM_RANK)
        snprintf(buffer, size_bytes, "rank %u", options->rank);
    else
        snprintf(buffer, size_bytes, "%s",
                 options->mode == CHARLM_REFERENCE ? "reference"
                 : options->mode == CHARLM_PLAIN   ? "plain"
                                                   : "model");
    return buffer;
}
