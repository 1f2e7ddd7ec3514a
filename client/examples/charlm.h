/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm: a character language model trained by data-parallel ranks, the example and the workload
 * of the demo. This header owns what its files share: options, exit codes, and the result of a run.
 * One thread. The model knows nothing of gradwire; only charlm_rank.c calls libgradwire.
 */
#ifndef CHARLM_H
#define CHARLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sysexits.h>

#include <gradwire/gradwire.h>

#include "client/examples/charlm_model.h"
#include "client/examples/charlm_text.h"

enum charlm_mode {
    CHARLM_RANK,      /* one rank of a gradwire job */
    CHARLM_REFERENCE, /* alone: micro-batches of all ranks, added in the contract's tree */
    CHARLM_PLAIN,     /* alone: one large batch, summed as it comes */
    CHARLM_MODEL_TSV, /* print names, shapes and units; train nothing */
};

struct charlm_options {
    enum charlm_mode mode;
    uint32_t rank, world; /* world: also of --reference and --plain */
    uint32_t stage;
    bool overlap_off, measure;
    uint32_t gather;     /* enum gw_gather */
    uint32_t accumulate; /* enum gw_accumulate */
    bool bf16;           /* parameters as fetched, and gradients */
    uint32_t micro_steps, steps, hidden, batch;
    uint32_t nodes; /* that its ranks may be on */
    uint64_t seed, bucket_bytes, link_bytes_per_s;
    int64_t timeout_ns;
    int gpu; /* charlm-cuda: -1: by the rank */
    const char *id_file, *socket, *text, *dump, *out;
};

/* What a run leaves for report.py. Arrays have `steps` entries. */
struct charlm_result {
    double *loss;                    /* mean over this rank's samples; alone: over all */
    double *norm;                    /* of the verdict; ranks only */
    uint64_t *step_ns, *backward_ns; /* ranks only */
    struct gw_stats stats;
    struct gw_layout_info layout;
};

/* 0; EX_USAGE after a message; -1: --help was printed, end with 0. */
int charlm_options_parse(int argc, char **argv, struct charlm_options *ret_options);
/* "rank 3", "reference", ...: how messages name this process. */
const char *charlm_who(const struct charlm_options *options, char *buffer, size_t size_bytes);

/* Both print what went wrong and return an exit code. */
int charlm_run_rank(const struct charlm_options *options, const struct text *text,
                    struct model *model, struct charlm_result *result);
int charlm_run_alone(const struct charlm_options *options, const struct text *text,
                     struct model *model, struct charlm_result *result);

int charlm_result_init(struct charlm_result *result, uint32_t steps);
void charlm_result_clear(struct charlm_result *result);
/* Writes options->out, if any, as JSON. An exit code. */
int charlm_result_write(const struct charlm_options *options, const struct text *text,
                        const struct model *model, const struct charlm_result *result);

#endif
