/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random ops of all kinds, over ranks that are placed on nodes in many ways: each node's memory is,
 * bit for bit, what the local fabric leaves there when all ranks are in one process, and each
 * rank's figures are the same.
 * ctest: timeout=120 link=gw_fabric_ucx
 */
#include "tests/unit/ucx_nodes.h"

#define BATCH 14u
#define BUCKETS 3u
#define PARAMS 19u
#define WORLD_MAX 15u

struct random_case {
    const char *name;
    uint32_t nodes, world, batches, seed;
    uint64_t numel_max;
    uint8_t of_rank[WORLD_MAX];
};

/* One op's memory: [0] for the local fabric, [1] for the ucx fabric, which has own ranks' only. */
struct memory {
    void *in[2][WORLD_MAX], *out[2][WORLD_MAX];
    uint64_t in_bytes, out_bytes;
    bool in_place;
};

struct launched {
    struct core_op op;
    uint32_t members[WORLD_MAX];
    struct memory memory;
    struct fabric_segment segments[2][2 * WORLD_MAX];
    uint32_t segment_count;
};

struct board {
    struct gw_shm_board board;
    struct gw_shm_slot slots[BUCKETS + 1];
    uint8_t bits[64];
} __attribute__((aligned(64)));

struct run {
    const struct random_case *what;
    struct node *node;
    uint64_t state; /* of the random numbers: alike on all nodes */
    uint64_t last;  /* op of the reduce stream: the verdict waits for it */
    struct launched ops[BATCH];
    struct board boards[2][WORLD_MAX];
    uint8_t used[BUCKETS], bits[(PARAMS + 7) / 8];
    struct { /* a bucket's slices are alike in all ops of a step */
        uint64_t numel;
        uint32_t slices;
    } buckets[BUCKETS];
};

static uint64_t rnd(struct run *run, uint64_t below)
{
    run->state ^= run->state << 13;
    run->state ^= run->state >> 7;
    run->state ^= run->state << 17;
    return (run->state >> 11) % below;
}

static bool is_own(const struct run *run, uint32_t rank)
{
    return run->what->of_rank[rank] == run->node->own;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint16_t half_value(uint64_t bits, uint8_t dtype)
{
    /* Around 1 in either dtype, now and then a number that is none. */
    uint16_t special = dtype == GW_DTYPE_FP16 ? 0x7c00 : 0x7f80;
    uint16_t one = dtype == GW_DTYPE_FP16 ? 0x3c00 : 0x3f80;

    if (bits % 50021 == 0)
        return (uint16_t)(special | (bits >> 20 & 1) << 15);
    return (uint16_t)(one ^ (bits >> 17 & 0x87ff));
}

static void fill(void *at, uint64_t numel, uint8_t dtype, uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;

    for (uint64_t i = 0; i < numel; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        if (dtype == GW_DTYPE_FP32)
            ((float *)at)[i] = (float)(int32_t)(state >> 32) / (float)(1u << (state >> 27 & 31));
        else
            ((uint16_t *)at)[i] = half_value(state >> 13, dtype);
    }
}

/* Not zeros, so that what is not written shows; alike in both copies. */
static void *room(uint64_t bytes, uint64_t seed)
{
    void *at = malloc(bytes + 64);

    if (!at)
        abort();
    fill(at, (bytes + 64) / 2, GW_DTYPE_BF16, seed);
    return at;
}

static void make_memory(struct run *run, struct launched *launched, uint64_t in_numel,
                        uint64_t out_numel, bool may_lack)
{
    struct memory *memory = &launched->memory;
    const struct core_op *op = &launched->op;

    memory->in_bytes = in_numel * gw_dtype_bytes(op->in_dtype);
    memory->out_bytes = out_numel * gw_dtype_bytes(op->out_dtype);
    for (uint32_t i = 0; i < op->world; i++) {
        uint64_t seed = rnd(run, 1u << 30);
        uint64_t out_seed = op->kind == CORE_OP_ALL_REDUCE ? launched->op.id : seed + 1;
        bool lacks = may_lack && rnd(run, 6) == 0;
        for (uint32_t copy = 0; copy < 2; copy++) {
            if (copy == 1 && !is_own(run, op->members[i]))
                continue;
            if (in_numel > 0 && !lacks) {
                memory->in[copy][i] = malloc(memory->in_bytes + 64);
                fill(memory->in[copy][i], in_numel, op->in_dtype, seed);
            }
            memory->out[copy][i] = room(memory->out_bytes, out_seed);
            fill(memory->out[copy][i], out_numel, op->out_dtype, out_seed);
        }
    }
}

static void check_memory(struct run *run, struct launched *launched)
{
    struct memory *memory = &launched->memory;
    struct node *node = run->node;

    for (uint32_t i = 0; i < launched->op.world; i++) {
        const void *was = launched->op.shards ? memory->in[0][i] : NULL;
        const void *is = launched->op.shards ? memory->in[1][i] : NULL;
        if ((memory->out[1][i] &&
             memcmp(memory->out[0][i], memory->out[1][i], memory->out_bytes) != 0) ||
            (was && is && memcmp(was, is, memory->in_bytes) != 0)) {
            fprintf(stderr, "node %u: case %s: op %llu (kind %u, numel %llu, world %u): rank %u\n",
                    node->own, run->what->name, (unsigned long long)launched->op.id,
                    launched->op.kind, (unsigned long long)launched->op.numel, launched->op.world,
                    launched->op.members[i]);
            _exit(1);
        }
        for (uint32_t copy = 0; copy < 2; copy++) {
            free(memory->in[copy][i]);
            free(memory->out[copy][i]);
        }
    }
    memset(memory, 0, sizeof(*memory));
}

/* ---- ops ------------------------------------------------------------------------------------- */

static uint8_t some_dtype(struct run *run)
{
    static const uint8_t dtypes[] = {GW_DTYPE_FP32, GW_DTYPE_FP16, GW_DTYPE_BF16};

    return dtypes[rnd(run, 3)];
}

static void choose_members(struct run *run, struct launched *launched)
{
    uint32_t world = run->what->world, left = world;
    uint32_t all[WORLD_MAX];

    for (uint32_t i = 0; i < world; i++)
        all[i] = i;
    launched->op.world = rnd(run, 3) ? world : 1 + (uint32_t)rnd(run, world);
    launched->op.members = launched->members;
    for (uint32_t i = 0; i < launched->op.world; i++) {
        uint32_t k = launched->op.world == world && rnd(run, 4) ? 0 : (uint32_t)rnd(run, left);
        launched->members[i] = all[k];
        left--;
        memmove(&all[k], &all[k + 1], (left - k) * sizeof(all[0]));
    }
}

static void choose_sum(struct run *run, struct launched *launched)
{
    struct core_op *op = &launched->op;
    uint64_t whole = op->numel * op->world;

    op->shards = op->kind == CORE_OP_ALL_REDUCE && rnd(run, 2);
    op->in_dtype = some_dtype(run);
    op->out_dtype = rnd(run, 2) ? (uint8_t)GW_DTYPE_FP32 : some_dtype(run);
    op->round_dtype = rnd(run, 2) ? (uint8_t)GW_DTYPE_FP32 : some_dtype(run);
    op->scale = rnd(run, 2) ? 1.0f : 0.3f;
    op->accumulate = (uint8_t)rnd(run, 2);
    op->norm = (uint8_t)rnd(run, 2);
    if (rnd(run, 2)) {
        uint32_t b = op->bucket = (uint32_t)rnd(run, BUCKETS);
        op->partials = 1;
        if (run->buckets[b].slices == 0) {
            run->buckets[b].numel = op->numel;
            run->buckets[b].slices = op->world + (uint32_t)rnd(run, 3);
        }
        op->numel = run->buckets[b].numel;
        op->slices = run->buckets[b].slices;
        op->partials = op->world <= op->slices;
        op->slice_first = op->partials ? (uint32_t)rnd(run, op->slices - op->world + 1) : 0;
        whole = op->numel * op->world;
    } else if (op->kind == CORE_OP_ALL_REDUCE && !op->shards && rnd(run, 2)) {
        op->total_numel = whole - rnd(run, op->numel < whole ? op->numel : 1);
        whole = op->total_numel;
        op->numel = (whole + op->world - 1) / op->world;
    }
    make_memory(run, launched, op->partials || op->total_numel == 0 ? op->numel * op->world : whole,
                op->kind == CORE_OP_ALL_REDUCE && !op->shards ? op->numel * op->world : op->numel,
                true);
}

/* Buckets of one op: each member owns a slice of each. */
static void choose_gather(struct run *run, struct launched *launched)
{
    struct core_op *op = &launched->op;
    uint64_t slice = op->numel * 4;
    uint32_t buckets = 1 + (uint32_t)rnd(run, 2);
    uint32_t to = (uint32_t)rnd(run, op->world);

    op->stream = CORE_STREAM_GATHER;
    op->rank = op->members[to];
    op->bucket_count = buckets;
    op->in_place_skip = (uint8_t)rnd(run, 2);
    make_memory(run, launched, op->numel * buckets, op->numel * buckets * op->world, false);
    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t q = 0; q < op->world; q++) {
            if (op->in_place_skip && q == to)
                continue;
            for (uint32_t copy = 0; copy < 2; copy++) {
                char *from = launched->memory.in[copy][q], *at = launched->memory.out[copy][to];
                launched->segments[copy][launched->segment_count] =
                    (struct fabric_segment){.to = at ? at + (b * op->world + q) * slice : NULL,
                                            .from = from ? from + b * slice : NULL,
                                            .bytes = slice,
                                            .owner = op->members[q]};
            }
            launched->segment_count++;
        }
}

/* The other way: of buckets that one member has whole, each gets its slices. */
static void choose_fill(struct run *run, struct launched *launched)
{
    struct core_op *op = &launched->op;
    uint64_t slice = op->numel * 4;
    uint32_t buckets = 1 + (uint32_t)rnd(run, 2), of = (uint32_t)rnd(run, op->world);

    op->stream = CORE_STREAM_GATHER;
    op->rank = op->members[of];
    op->bucket_count = buckets;
    make_memory(run, launched, op->numel * buckets * op->world, op->numel * buckets, false);
    launched->segment_count = buckets * op->world;
    for (uint32_t i = 0; i < launched->segment_count; i++) {
        uint32_t b = i / op->world, q = i % op->world;
        for (uint32_t copy = 0; copy < 2; copy++) {
            char *from = launched->memory.in[copy][of], *at = launched->memory.out[copy][q];
            launched->segments[copy][i] = (struct fabric_segment){.to = at ? at + b * slice : NULL,
                                                                  .from = from ? from + i * slice
                                                                               : NULL,
                                                                  .bytes = slice,
                                                                  .owner = op->members[q]};
        }
    }
}

/* Of one rank: what the others have of it is nothing. */
static void choose_own(struct run *run, struct launched *launched)
{
    struct core_op *op = &launched->op;

    op->rank = op->members[0];
    op->world = 1;
    op->in_dtype = some_dtype(run);
    op->out_dtype = op->kind == CORE_OP_CAST ? some_dtype(run) : GW_DTYPE_FP32;
    if (op->kind == CORE_OP_CAST)
        op->in_dtype = GW_DTYPE_FP32;
    op->accumulate = (uint8_t)rnd(run, 2);
    make_memory(run, launched, op->numel, op->numel, false);
    for (uint32_t copy = 0; copy < 2 && op->kind == CORE_OP_CAST; copy++) {
        launched->segment_count = 1;
        launched->segments[copy][0] =
            (struct fabric_segment){launched->memory.out[copy][0], launched->memory.in[copy][0],
                                    op->numel * gw_dtype_bytes(op->out_dtype), op->rank};
    }
}

static void choose_op(struct run *run, struct launched *launched)
{
    static const uint8_t kinds[] = {
        CORE_OP_REDUCE_SCATTER, CORE_OP_REDUCE_SCATTER, CORE_OP_ALL_REDUCE, CORE_OP_ALL_REDUCE,
        CORE_OP_ALL_GATHER,     CORE_OP_GATHER,         CORE_OP_GATHER,     CORE_OP_BROADCAST,
        CORE_OP_BARRIER,        CORE_OP_LOCAL_ADD,      CORE_OP_ZERO,       CORE_OP_CAST,
        CORE_OP_FILL,           CORE_OP_FILL};
    static const uint8_t traffic[] = {[CORE_OP_REDUCE_SCATTER] = GW_KIND_REDUCE_SCATTER,
                                      [CORE_OP_ALL_REDUCE] = GW_KIND_ALL_REDUCE,
                                      [CORE_OP_ALL_GATHER] = GW_KIND_ALL_GATHER,
                                      [CORE_OP_GATHER] = GW_KIND_ALL_GATHER,
                                      [CORE_OP_FILL] = GW_KIND_ALL_GATHER,
                                      [CORE_OP_BROADCAST] = GW_KIND_BROADCAST,
                                      [CORE_OP_BARRIER] = GW_KIND_CONTROL,
                                      [CORE_OP_LOCAL_ADD] = GW_KINDS,
                                      [CORE_OP_ZERO] = GW_KINDS,
                                      [CORE_OP_CAST] = GW_KINDS};
    struct core_op *op = &launched->op;

    memset(launched, 0, sizeof(*launched));
    op->id = ++run->node->ops;
    op->kind = kinds[rnd(run, sizeof(kinds))];
    op->traffic = traffic[op->kind];
    op->payload_bytes = op->id; /* figures are added as they are */
    op->numel = 1 + rnd(run, rnd(run, 4) ? 5000 : run->what->numel_max);
    if (op->kind != CORE_OP_GATHER && op->kind != CORE_OP_FILL)
        run->last = op->id;
    choose_members(run, launched);
    if (op->kind == CORE_OP_REDUCE_SCATTER || op->kind == CORE_OP_ALL_REDUCE) {
        choose_sum(run, launched);
    } else if (op->kind == CORE_OP_GATHER) {
        choose_gather(run, launched);
    } else if (op->kind == CORE_OP_FILL) {
        choose_fill(run, launched);
    } else if (op->kind == CORE_OP_ALL_GATHER) {
        make_memory(run, launched, op->numel, op->numel * op->world, false);
    } else if (op->kind == CORE_OP_BROADCAST) {
        make_memory(run, launched, op->numel, op->numel, false);
        op->rank = op->members[rnd(run, op->world)];
    } else if (op->kind != CORE_OP_BARRIER) {
        choose_own(run, launched);
    }
}

static void launch(struct run *run, struct launched *launched)
{
    struct node *node = run->node;
    struct core_op *op = &launched->op;

    for (uint32_t copy = 0; copy < 2; copy++) {
        struct memory *memory = &launched->memory;
        const void *in[WORLD_MAX];
        struct fabric_op to = {.op = op,
                               .in = in,
                               .out = memory->out[copy],
                               .segments = launched->segments[copy],
                               .segment_count = launched->segment_count};
        memcpy(in, memory->in[copy], sizeof(in));
        for (uint32_t i = 0; op->kind == CORE_OP_BROADCAST && i < op->world; i++)
            if (op->members[i] == op->rank)
                in[0] = memory->in[copy][i];
        CHECK(
            (copy ? &fabric_ucx : &fabric_local)->launch(copy ? node->fabric : node->local, &to) ==
            0);
    }
}

static void verdict(struct run *run)
{
    struct node *node = run->node;
    uint32_t members[WORLD_MAX];
    struct core_op op = {.id = ++node->ops,
                         .kind = CORE_OP_VERDICT,
                         .stream = CORE_STREAM_CONTROL,
                         .traffic = GW_KIND_CONTROL,
                         .world = run->what->world,
                         .members = members,
                         .norm = (uint8_t)rnd(run, 2),
                         .wait_ops = &run->last,
                         .wait_op_count = 1,
                         .step = node->ops,
                         .clip_norm = 1,
                         .used_bits = run->bits,
                         .used_buckets = run->used};

    for (uint32_t b = 0; b < BUCKETS; b++)
        run->used[b] = rnd(run, 4) != 0;
    for (uint32_t i = 0; i < sizeof(run->bits); i++)
        run->bits[i] = (uint8_t)rnd(run, 256);
    memset(run->buckets, 0, sizeof(run->buckets));
    for (uint32_t copy = 0; copy < 2; copy++) {
        struct gw_shm_board *boards[WORLD_MAX];
        struct fabric_op to = {.op = &op, .boards = boards, .buckets = BUCKETS, .params = PARAMS};
        for (uint32_t r = 0; r < run->what->world; r++) {
            members[r] = r;
            run->boards[copy][r].board.buckets = BUCKETS;
            run->boards[copy][r].board.units = 1;
            boards[r] = copy == 0 || is_own(run, r) ? &run->boards[copy][r].board : NULL;
        }
        CHECK(
            (copy ? &fabric_ucx : &fabric_local)->launch(copy ? node->fabric : node->local, &to) ==
            0);
    }
}

/* ---- figures --------------------------------------------------------------------------------- */

static void check_counters(struct run *run)
{
    struct gw_counters want[GW_KINDS], got[GW_KINDS];
    struct node *node = run->node;

    for (uint32_t r = 0; r < run->what->world; r++) {
        fabric_local.counters(node->local, r, want);
        fabric_ucx.counters(node->fabric, r, got);
        for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
            CHECK(want[kind].cross_node_bytes == 0);
            CHECK(got[kind].calls == (is_own(run, r) ? want[kind].calls : 0));
            CHECK(got[kind].payload_bytes == (is_own(run, r) ? want[kind].payload_bytes : 0));
            CHECK(got[kind].ring_bytes == (is_own(run, r) ? want[kind].ring_bytes : 0));
            if (kind == GW_KIND_ALL_GATHER || kind == GW_KIND_BROADCAST)
                CHECK(got[kind].moved_bytes == (is_own(run, r) ? want[kind].moved_bytes : 0));
        }
    }
}

static int run_case(struct node *node, void *arg)
{
    const struct random_case *what = arg;
    struct run *run = aligned_alloc(64, (sizeof(*run) + 63) / 64 * 64);

    memset(run, 0, sizeof(*run));
    *run = (struct run){.what = what, .node = node, .state = what->seed * 77777u + 12345};
    node_start(node, what->of_rank, what->world);
    CHECK(fabric_ucx.form(node->fabric) == 0);
    for (uint32_t batch = 0; batch < what->batches; batch++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            choose_op(run, &run->ops[i]);
            launch(run, &run->ops[i]);
        }
        verdict(run);
        CHECK(node_finish(node) == BATCH + 1);
        for (uint32_t i = 0; i < BATCH; i++)
            check_memory(run, &run->ops[i]);
        for (uint32_t r = 0; r < what->world; r++)
            if (is_own(run, r))
                CHECK(memcmp(&run->boards[0][r], &run->boards[1][r], sizeof(struct board)) == 0);
    }
    check_counters(run);
    meet(node);
    node_stop(node);
    free(run);
    return 0;
}

static void check_case(struct random_case *what)
{
    run_nodes(what->nodes, run_case, what, NULL);
}

static void aligned_blocks(void **state)
{
    (void)state;
    check_case(&(struct random_case){"aligned", 2, 4, 8, 1, 700000, {0, 0, 1, 1}});
}

static void interleaved(void **state)
{
    (void)state;
    check_case(&(struct random_case){"interleaved", 2, 4, 6, 2, 300000, {0, 1, 0, 1}});
}

static void one_and_three(void **state)
{
    (void)state;
    check_case(&(struct random_case){"one and three", 2, 4, 6, 3, 300000, {0, 1, 1, 1}});
    check_case(&(struct random_case){"three and one", 2, 4, 6, 4, 300000, {1, 1, 1, 0}});
}

static void seven_and_eight(void **state)
{
    (void)state;
    check_case(&(struct random_case){
        "seven and eight", 2, 15, 5, 5, 60000, {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}});
}

static void three_nodes(void **state)
{
    (void)state;
    check_case(&(struct random_case){"three", 3, 6, 6, 6, 200000, {2, 2, 0, 0, 1, 1}});
    check_case(&(struct random_case){"three, mixed", 3, 7, 6, 7, 200000, {0, 1, 2, 2, 1, 0, 0}});
}

static void four_nodes(void **state)
{
    (void)state;
    check_case(&(struct random_case){"four", 4, 4, 6, 8, 200000, {0, 1, 2, 3}});
    check_case(
        &(struct random_case){"four, uneven", 4, 9, 6, 9, 100000, {0, 0, 0, 0, 1, 1, 2, 3, 0}});
}

/* A node of the job that has no rank in it any more takes part in nothing. */
static void a_node_without_ranks(void **state)
{
    (void)state;
    check_case(&(struct random_case){"without ranks", 3, 4, 4, 10, 100000, {0, 0, 2, 2}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_blocks),       cmocka_unit_test(interleaved),
        cmocka_unit_test(one_and_three),        cmocka_unit_test(seven_and_eight),
        cmocka_unit_test(three_nodes),          cmocka_unit_test(four_nodes),
        cmocka_unit_test(a_node_without_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
