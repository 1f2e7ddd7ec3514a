/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with parameters: set-up, looking at them, a step's end. In a worker; one thread. */
#include <stdlib.h>

#include "client/bench/rank.h"

/* Masters are fp32; every type holds these values. */
static int write_values(struct worker *worker, gw_job *job, const struct rank_model *model)
{
    struct values must = {.type = GW_DTYPE_FP32, .factor = 1.0f};
    float *values = malloc(model->numel * sizeof *values);
    int r = 0;

    if (values == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    for (uint32_t p = worker->rank; r == 0 && p < model->units; p += worker->what->ranks) {
        must.first = p * model->numel;
        values_fill(values, model->numel, &must);
        values_plant("gradwire", must.type, values, model->numel);
        r = rank_check(worker, "write values",
                       gw_param_write_sync(job, p, 0, model->numel, values, RANK_WAIT_NS));
    }
    free(values);
    return r != 0 ? r : rank_barrier(worker, job);
}

int rank_seal(struct worker *worker, gw_job *job, const struct rank_model *model,
              const struct gw_zero_options *options)
{
    struct gw_param_options typed = {
        .struct_size = sizeof typed,
        .dtype = worker->what->dtype,
        .grad_dtype = worker->what->dtype,
    };
    char name[32];
    uint32_t param;
    int r = 0;

    for (uint32_t p = 0; r == 0 && p < model->units; p++) {
        (void)snprintf(name, sizeof name, "p%u", p);
        r = rank_check(worker, "add parameter",
                       gw_param_add(job, name, model->numel, &typed, &param));
    }
    if (r == 0)
        r = rank_check(worker, "seal", gw_seal(job, options, RANK_WAIT_NS));
    return r != 0 ? r : write_values(worker, job, model);
}

int rank_verify_param(struct worker *worker, gw_job *job, uint32_t param, uint64_t numel,
                      const struct values *must, bool all)
{
    const void *values = NULL;
    uint64_t bad;
    int r;

    r = rank_check(worker, "parameter", gw_param_ptr(job, param, &values));
    if (r != 0 || (!all && values_spots(values, numel, must)))
        return r;
    bad = values_check(values, numel, must);
    if (bad < numel)
        return rank_wrong(worker, "parameter", values, bad, must, param * numel + bad);
    return 0;
}

int rank_end_step(struct worker *worker, gw_job *job, struct gw_verdict *ret_verdict)
{
    struct gw_token token;
    int r;

    r = rank_check(worker, "end step", gw_step_end(job, &token));
    return r != 0
               ? r
               : rank_check(worker, "wait for step", gw_wait_step(job, RANK_WAIT_NS, ret_verdict));
}

void rank_add(float *restrict params, const float *restrict grads, uint64_t count, float add)
{
    for (uint64_t i = 0; i < count; i++)
        params[i] = grads[i] + add;
}

int rank_update(struct worker *worker, gw_job *job, float add)
{
    const struct gw_span *spans;
    struct gw_token token;
    uint32_t count;
    int r;

    r = rank_check(worker, "begin update", gw_update_begin(job, &token));
    if (r == 0)
        r = rank_wait(worker, job, "begin update", token);
    if (r == 0)
        r = rank_check(worker, "shard", gw_shard_spans(job, &spans, &count));
    if (r != 0)
        return r;
    for (uint32_t i = 0; i < count; i++)
        rank_add(spans[i].params, spans[i].grads, spans[i].valid_numel, add);
    return rank_check(worker, "commit update", gw_update_commit(job));
}
