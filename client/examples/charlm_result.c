/* SPDX-License-Identifier: Apache-2.0 */
/* What a run leaves as JSON; see charlm.h. One thread; writes one file. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm.h"
#include "client/examples/charlm_device.h"

static const char *const kinds[GW_KINDS] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "broadcast", "control"};
static const char *const memories[GW_MEMORIES] = {"params", "gradients", "buckets", "gathered",
                                                  "optimizer"};

int charlm_result_init(struct charlm_result *result, uint32_t steps)
{
    *result = (struct charlm_result){
        .loss = calloc(steps, sizeof(double)),
        .norm = calloc(steps, sizeof(double)),
        .step_ns = calloc(steps, sizeof(uint64_t)),
        .backward_ns = calloc(steps, sizeof(uint64_t)),
    };
    if (result->loss == NULL || result->norm == NULL || result->step_ns == NULL ||
        result->backward_ns == NULL) {
        charlm_result_clear(result);
        return -1;
    }
    return 0;
}

void charlm_result_clear(struct charlm_result *result)
{
    free(result->loss);
    free(result->norm);
    free(result->step_ns);
    free(result->backward_ns);
    *result = (struct charlm_result){0};
}

/* JSON knows no infinity and no NaN. 17 digits give every double back. */
static void write_doubles(FILE *file, const char *name, const double *values, uint32_t count)
{
    fprintf(file, "  \"%s\": [", name);
    for (uint32_t i = 0; i < count; i++) {
        if (isfinite(values[i]))
            fprintf(file, "%s%.17g", i == 0 ? "" : ", ", values[i]);
        else
            fprintf(file, "%snull", i == 0 ? "" : ", ");
    }
    fprintf(file, "],\n");
}

static void write_times(FILE *file, const char *name, const uint64_t *values, uint32_t count)
{
    fprintf(file, "  \"%s\": [", name);
    for (uint32_t i = 0; i < count; i++)
        fprintf(file, "%s%" PRIu64, i == 0 ? "" : ", ", values[i]);
    fprintf(file, "],\n");
}

static void write_layout(FILE *file, const struct gw_layout_info *layout)
{
    fprintf(file,
            "  \"layout\": {\"buckets\": %u, \"units\": %u, \"fetch_units\": %u, "
            "\"numel\": %" PRIu64 ", \"padded_numel\": %" PRIu64 ", \"hash\": \"",
            layout->buckets, layout->units, layout->fetch_units, layout->numel,
            layout->padded_numel);
    for (size_t i = 0; i < sizeof layout->hash; i++)
        fprintf(file, "%02x", layout->hash[i]);
    fprintf(file, "\"},\n");
}

static void write_stats(FILE *file, const struct gw_stats *stats)
{
    fprintf(file, "  \"stats\": {\"steps\": %" PRIu64 ",\n    \"kinds\": {", stats->steps);
    for (int k = 0; k < GW_KINDS; k++) {
        const struct gw_counters *c = &stats->kinds[k];

        fprintf(file,
                "%s\n      \"%s\": {\"calls\": %" PRIu64 ", \"payload_bytes\": %" PRIu64
                ", \"padding_bytes\": %" PRIu64 ", \"ring_bytes\": %" PRIu64
                ", \"moved_bytes\": %" PRIu64 ", \"cross_node_bytes\": %" PRIu64 "}",
                k == 0 ? "" : ",", kinds[k], c->calls, c->payload_bytes, c->padding_bytes,
                c->ring_bytes, c->moved_bytes, c->cross_node_bytes);
    }
    fprintf(file, "},\n    \"memory_bytes\": {");
    for (int m = 0; m < GW_MEMORIES; m++)
        fprintf(file, "%s\"%s\": %" PRIu64, m == 0 ? "" : ", ", memories[m],
                stats->memory_bytes[m]);
    fprintf(file,
            "},\n    \"prefetch\": {\"hits\": %" PRIu64 ", \"misses\": %" PRIu64
            ", \"drops\": %" PRIu64 "},\n    \"gathered_bytes_max\": %" PRIu64
            ", \"overflow_slots\": %" PRIu64 ", \"copied_in_bytes\": %" PRIu64 ",\n",
            stats->prefetch_hits, stats->prefetch_misses, stats->prefetch_drops,
            stats->gathered_bytes_max, stats->overflow_slots, stats->copied_in_bytes);
    fprintf(file,
            "    \"comm_ns\": %" PRIu64 ", \"comm_alone_ns\": %" PRIu64 ", \"late_ns\": %" PRIu64
            ", \"queued_ns\": %" PRIu64 ", \"exposed_ns\": %" PRIu64 ", \"wakeup_ns\": %" PRIu64
            "},\n",
            stats->comm_ns, stats->comm_alone_ns, stats->late_ns, stats->queued_ns,
            stats->exposed_ns, stats->wakeup_ns);
}

/* waited_ns null: the waits are in the stats. */
static void write_device(FILE *file)
{
    double waited_ns;

    fprintf(file, "  \"device\": \"%s\", \"waited_ns\": ", charlm_device_name());
    if (charlm_device_waited(&waited_ns))
        fprintf(file, "%.0f,\n", waited_ns);
    else
        fprintf(file, "null,\n");
}

static void write_settings(FILE *file, const struct charlm_options *o)
{
    if (o->mode != CHARLM_RANK) {
        fprintf(file, "  \"mode\": \"%s\",\n", o->mode == CHARLM_REFERENCE ? "reference" : "plain");
        return;
    }
    fprintf(file,
            "  \"mode\": \"rank\", \"rank\": %u, \"stage\": %u, \"overlap\": %s,\n"
            "  \"gather\": \"%s\", \"bucket_bytes\": %" PRIu64 ", \"measured\": %s,\n",
            o->rank, o->stage, o->overlap_off ? "false" : "true",
            o->gather == GW_GATHER_MAPPED ? "mapped" : "private", o->bucket_bytes,
            o->measure ? "true" : "false");
    if (o->link_bytes_per_s == 0)
        fprintf(file, "  \"link_bytes_per_s\": null,\n");
    else
        fprintf(file, "  \"link_bytes_per_s\": %" PRIu64 ",\n", o->link_bytes_per_s);
}

int charlm_result_write(const struct charlm_options *options, const struct text *text,
                        const struct model *model, const struct charlm_result *result)
{
    const struct charlm_options *o = options;
    FILE *file;
    char who[32];
    bool bad;

    if (o->out == NULL)
        return 0;
    file = fopen(o->out, "we");
    if (file != NULL) {
        fprintf(file, "{\n");
        write_settings(file, o);
        fprintf(file,
                "  \"world\": %u, \"steps\": %u, \"seed\": %" PRIu64 ", \"batch\": %u,\n"
                "  \"micro_steps\": %u, \"hidden\": %u, \"vocab\": %u, \"text_bytes\": %zu,\n",
                o->world, o->steps, o->seed, o->batch, o->micro_steps, o->hidden, text->vocab,
                text->size);
        write_doubles(file, "loss", result->loss, o->steps);
        if (o->mode == CHARLM_RANK) {
            write_doubles(file, "norm", result->norm, o->steps);
            write_times(file, "step_ns", result->step_ns, o->steps);
            write_times(file, "backward_ns", result->backward_ns, o->steps);
            write_device(file);
            write_layout(file, &result->layout);
            write_stats(file, &result->stats);
        }
        fprintf(file, "  \"params\": %zu\n}\n", model->numel);
        bad = ferror(file) != 0;
        if (fclose(file) == 0 && !bad)
            return 0;
    }
    fprintf(stderr, "charlm %s: cannot write %s: %s\n", charlm_who(o, who, sizeof who), o->out,
            strerror(errno));
    return EX_CANTCREAT;
}
