/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases, and in each case rounds in which limit, gradwire and peers take turns, so that what else
 * happens on the machine meets all of them. The coordinator's thread.
 */
#include <math.h>

#include "client/bench/local.h"
#include "client/bench/nodes.h"
#include "client/bench/peer.h"

/* Systems in workers: the limit, gradwire, and what takes turns with them. */
enum { LOCALS = 3 };

#define LARGE_BYTES (16u << 20) /* enough to know a link by */
#define REACHED 0.8             /* of a shape; frames' heads and the pause between ops take some */

struct turns {
    struct local *locals[LOCALS];
    uint32_t count;
    struct bench_samples peers[PEERS_MAX];
};

static bool is_limit(const struct worker_ops *ops)
{
    return ops == &worker_limit || ops == &worker_link;
}

static const struct worker_ops *ops_of(const struct bench_case *what)
{
    if (what->op == BENCH_FETCH || what->variant == VARIANT_MAPPED)
        return &worker_fetch;
    if (what->op == BENCH_READY)
        return &worker_ready;
    if (what->variant == VARIANT_GRADIENTS)
        return &worker_gradients;
    if (what->variant == VARIANT_NOTHING_SENT)
        return &worker_unsent;
    return what->op == BENCH_STEP ? &worker_step : &worker_collective;
}

static int add_local(struct bench *bench, struct turns *turns, const struct bench_case *what,
                     const struct worker_ops *ops)
{
    struct local *local = local_new(is_limit(ops) ? "limit" : "gradwire", what);

    if (local == NULL)
        return EX_OSERR;
    turns->locals[turns->count++] = local;
    return local_start(local, ops, bench);
}

static const struct {
    enum bench_op op;
    enum bench_variant of, beside;
} in_turns[] = {
    {BENCH_REDUCE_SCATTER, VARIANT_NONE, VARIANT_GRADIENTS},
    {BENCH_STEP, VARIANT_OVERLAP, VARIANT_OVERLAP_OFF},
    {BENCH_STEP, VARIANT_COVERED, VARIANT_COVERED_STAGE3},
    {BENCH_STEP, VARIANT_COVERED, VARIANT_NOTHING_SENT},
};

/* All compute as much as the first. */
static int add_beside(struct bench *bench, struct turns *turns, const struct bench_case *what,
                      enum bench_variant variant)
{
    struct bench_case beside = *what;

    beside.variant = variant;
    beside.backward_ns = turns->locals[0]->workers[0].share->backward_ns;
    return add_local(bench, turns, &beside, ops_of(&beside));
}

static int start(struct bench *bench, const struct bench_case *what, struct turns *turns)
{
    const struct bench_options *o = &bench->options;
    int r = 0;

    for (uint32_t i = 0; i < bench->peers->count; i++)
        peer_begin(&bench->peers->list[i], (o->iterations + o->rounds - 1) / o->rounds);
    if (bench_ops[what->op].has_limit)
        r = add_local(bench, turns, what, what->nodes > 0 ? &worker_link : &worker_limit);
    if (r == 0)
        r = add_local(bench, turns, what, ops_of(what));
    for (uint32_t i = 0; r == 0 && i < sizeof in_turns / sizeof in_turns[0]; i++) {
        if (what->op == in_turns[i].op && what->variant == in_turns[i].of)
            r = add_beside(bench, turns, what, in_turns[i].beside);
    }
    return r;
}

static int one_round(struct bench *bench, const struct bench_case *what, struct turns *turns)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < turns->count; i++)
        r = local_round(turns->locals[i], &bench->options);
    for (uint32_t i = 0; r == 0 && i < bench->peers->count; i++)
        r = peer_round(bench, &bench->peers->list[i], what, &turns->peers[i]);
    return r;
}

/* A link that is shaped to more than processors carry is not shaped. */
static double link_gbits(const struct bench_case *what, uint64_t limit_ns)
{
    double gbits = 8.0 * (double)nodes_crossing_bytes(what) / (double)limit_ns;
    double shape_gbits = (double)what->shape_mbit / 1e3;

    if (what->bytes >= LARGE_BYTES && gbits < REACHED * shape_gbits)
        fprintf(stderr,
                "gwbench: links shaped to %g Gbit/s carry %.1f: these processors move no more, "
                "and the shape changes nothing\n",
                shape_gbits, gbits);
    return gbits;
}

/* The medians of two that took turns. */
static double beside(const struct turns *turns, uint32_t i, uint32_t other)
{
    return (double)samples_percentile(&turns->locals[i]->samples, 50) /
           (double)(samples_percentile(&turns->locals[other]->samples, 50) + 1);
}

static int tell_local(const struct bench_options *options, const struct turns *turns, uint32_t i,
                      uint64_t limit_ns)
{
    struct local *local = turns->locals[i];
    double figures[FIGURES];

    local_figures(local, figures);
    if (local->what.variant == VARIANT_OVERLAP)
        figures[FIGURE_BESIDE_OFF] = beside(turns, i, 1);
    if (local->what.variant == VARIANT_COVERED || local->what.variant == VARIANT_COVERED_STAGE3)
        figures[FIGURE_BESIDE_UNSENT] = beside(turns, i, 2);
    if (local->what.variant == VARIANT_COVERED_STAGE3)
        figures[FIGURE_BESIDE_STAGE2] = beside(turns, i, 0);
    if (local->what.nodes > 0 && limit_ns > 0 && i == 0)
        figures[FIGURE_LINK] = link_gbits(&local->what, limit_ns);
    return output_row(options, &local->what, local->name, &local->samples, limit_ns, figures);
}

static int tell(const struct bench *bench, const struct bench_case *what, struct turns *turns)
{
    uint64_t limit_ns = 0;
    int r = 0;

    if (bench_ops[what->op].has_limit)
        limit_ns = samples_percentile(&turns->locals[0]->samples, 50);
    for (uint32_t i = 0; r == 0 && i < turns->count; i++)
        r = tell_local(&bench->options, turns, i, limit_ns);
    for (uint32_t i = 0; r == 0 && i < bench->peers->count; i++) {
        if (turns->peers[i].count > 0)
            r = output_row(&bench->options, what, bench->peers->list[i].kind->name,
                           &turns->peers[i], limit_ns, NULL);
    }
    return r;
}

int case_run(struct bench *bench, const struct bench_case *what)
{
    struct turns turns = {.count = 0};
    int r;

    r = start(bench, what, &turns);
    for (uint64_t round = 0; r == 0 && round < bench->options.rounds; round++)
        r = one_round(bench, what, &turns);
    if (r == 0)
        r = tell(bench, what, &turns);
    while (turns.count > 0)
        (void)local_free(turns.locals[--turns.count]);
    for (uint32_t i = 0; i < PEERS_MAX; i++)
        samples_clear(&turns.peers[i]);
    return r;
}

int cases_run(struct bench *bench, const struct bench_case *base)
{
    const struct bench_op_traits *traits = &bench_ops[base->op];
    int r = 0;

    for (uint32_t variant = traits->first; r == 0 && variant <= (uint32_t)traits->last; variant++) {
        struct bench_case what = *base;

        what.variant = (enum bench_variant)variant;
        /* Two ways to gather are asked for one at a time; overlap off runs beside overlap. */
        if (base->op == BENCH_ALL_GATHER &&
            (variant == VARIANT_PRIVATE) != bench->options.is_private)
            continue;
        r = case_run(bench, &what);
    }
    return r;
}
