/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ucx fabric between nodes: what crosses and how often, tokens of ranks elsewhere, nodes that
 * die, jobs that break and form again, and nodes that do not agree.
 * ctest: timeout=150 link=gw_fabric_ucx
 */
#include "tests/unit/ucx_nodes.h"

#define WORLD 4u
#define NUMEL 300000u /* of a slice: more than a message */

static const uint32_t members[WORLD] = {0, 1, 2, 3};
static const uint8_t aligned[WORLD] = {0, 0, 1, 1}, mixed[WORLD] = {0, 1, 0, 1};
static const uint8_t of_three[WORLD] = {0, 1, 2, 2};

struct memory {
    float *of[WORLD]; /* WORLD slices each; NULL: the rank is elsewhere */
};

static bool is_own(const struct node *node, uint32_t rank)
{
    return node->nodes.of_rank[rank] == node->own;
}

/* Element i of rank r. */
static float value(uint32_t r, uint64_t i)
{
    return (float)(i % 1000 + 7 * r);
}

static void memory_make(const struct node *node, struct memory *memory)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        memory->of[r] = is_own(node, r) ? malloc(WORLD * NUMEL * sizeof(float)) : NULL;
        for (uint64_t i = 0; memory->of[r] && i < WORLD * NUMEL; i++)
            memory->of[r][i] = value(r, i);
    }
}

static void memory_free(struct memory *memory)
{
    for (uint32_t r = 0; r < WORLD; r++)
        free(memory->of[r]);
}

static void launch(struct node *node, struct core_op *op, struct fabric_op *to)
{
    op->id = ++node->ops;
    op->world = WORLD;
    op->members = members;
    to->op = op;
    CHECK(fabric_ucx.launch(node->fabric, to) == 0);
}

/* In place; sums are 4i + 42, as floats exact. */
static void launch_sum(struct node *node, struct memory *memory, uint64_t numel)
{
    const void *in[WORLD];
    void *out[WORLD];

    for (uint32_t r = 0; r < WORLD; r++) {
        in[r] = memory->of[r];
        out[r] = memory->of[r] ? memory->of[r] + r * numel : NULL;
    }
    launch(node,
           &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                             .traffic = GW_KIND_REDUCE_SCATTER,
                             .scale = 1,
                             .numel = numel},
           &(struct fabric_op){.in = in, .out = out});
}

static void check_sum(struct node *node, const struct memory *memory)
{
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint64_t i = r * NUMEL; memory->of[r] && i < (r + 1) * NUMEL; i++)
            CHECK(memory->of[r][i] == (float)(4 * (i % 1000) + 42));
}

static uint64_t crossed(const struct node *node, enum gw_kind kind)
{
    struct gw_counters kinds[GW_KINDS];
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < WORLD; r++) {
        fabric_ucx.counters(node->fabric, r, kinds);
        bytes += kinds[kind].cross_node_bytes;
    }
    return bytes;
}

static void start(struct node *node, const uint8_t *of_rank)
{
    node_start(node, of_rank, WORLD);
    CHECK(fabric_ucx.form(node->fabric) == 0);
}

static int stop(struct node *node, struct memory *memory)
{
    meet(node);
    node_stop(node);
    memory_free(memory);
    return 0;
}

/* ---- what crosses ---------------------------------------------------------------------------- */

/* Each node sends, for two slices elsewhere, one partial sum if its ranks are a subtree, else both
 * ranks' slices. */
static int sum_and_count(struct node *node, void *arg)
{
    const uint8_t *of_rank = arg;
    struct memory memory;
    uint64_t parts = of_rank == aligned ? 1 : 2;

    start(node, of_rank);
    memory_make(node, &memory);
    launch_sum(node, &memory, NUMEL);
    CHECK(node_finish(node) == 1);
    check_sum(node, &memory);
    CHECK(crossed(node, GW_KIND_REDUCE_SCATTER) == 2 * parts * NUMEL * sizeof(float));
    fabric_ucx.reset(node->fabric);
    CHECK(crossed(node, GW_KIND_REDUCE_SCATTER) == 0);
    return stop(node, &memory);
}

static void aligned_blocks_send_half_of_what_mixed_ranks_do(void **state)
{
    (void)state;
    run_nodes(2, sum_and_count, (void *)(uintptr_t)aligned, NULL);
    run_nodes(2, sum_and_count, (void *)(uintptr_t)mixed, NULL);
}

/* All of bucket 7's slices to the rank, as memory->of says. */
static void launch_gather(struct node *node, const struct memory *shards, struct memory *to,
                          uint32_t rank, uint64_t version)
{
    struct fabric_segment segments[WORLD];
    uint32_t count = 0;

    for (uint32_t q = 0; q < WORLD; q++)
        if (q != rank)
            segments[count++] = (struct fabric_segment){
                .to = to->of[rank] ? to->of[rank] + q * NUMEL : NULL,
                .from = shards->of[q],
                .bytes = NUMEL * sizeof(float),
                .owner = q};
    launch(node,
           &(struct core_op){.kind = CORE_OP_GATHER,
                             .stream = CORE_STREAM_GATHER,
                             .traffic = GW_KIND_ALL_GATHER,
                             .rank = rank,
                             .bucket = 7,
                             .bucket_count = 1,
                             .version = version,
                             .in_place_skip = 1,
                             .payload_bytes = WORLD * NUMEL * sizeof(float)},
           &(struct fabric_op){.segments = segments, .segment_count = count});
}

static void check_gathered(struct node *node, const struct memory *to, uint32_t rank, float more)
{
    for (uint32_t q = 0; to->of[rank] && q < WORLD; q++)
        for (uint64_t i = 0; q != rank && i < NUMEL; i++)
            CHECK(to->of[rank][q * NUMEL + i] == value(q, i) + more);
}

static void write_shards(struct memory *shards, float more)
{
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint64_t i = 0; shards->of[r] && i < NUMEL; i++)
            shards->of[r][i] = value(r, i) + more;
}

static int gather_and_count(struct node *node, void *arg)
{
    const uint64_t slice = NUMEL * sizeof(float);
    struct memory shards, to;
    struct gw_counters kinds[GW_KINDS];

    (void)arg;
    start(node, aligned);
    memory_make(node, &shards);
    memory_make(node, &to);
    /* The second rank of each node copies what the first one got. */
    for (uint32_t r = 0; r < WORLD; r++)
        launch_gather(node, &shards, &to, r, 1);
    node_finish(node);
    for (uint32_t r = 0; r < WORLD; r++)
        check_gathered(node, &to, r, 0);
    CHECK(crossed(node, GW_KIND_ALL_GATHER) == 2 * slice);
    fabric_ucx.counters(node->fabric, 2 * node->own + 1, kinds);
    CHECK(kinds[GW_KIND_ALL_GATHER].calls == 1);
    CHECK(kinds[GW_KIND_ALL_GATHER].moved_bytes == 3 * slice);
    meet(node);
    /* Another version crosses again; so does one that nobody has any more or that has no number. */
    write_shards(&shards, 0.5f);
    meet(node);
    for (uint32_t r = 0; r < WORLD; r++)
        launch_gather(node, &shards, &to, r, 2);
    launch_gather(node, &shards, &to, 0, 2);
    node_finish(node);
    for (uint32_t r = 0; r < WORLD; r++)
        check_gathered(node, &to, r, 0.5f);
    CHECK(crossed(node, GW_KIND_ALL_GATHER) == 4 * slice);
    for (uint32_t r = 0; r < WORLD; r++)
        launch_gather(node, &shards, &to, r, 0);
    node_finish(node);
    CHECK(crossed(node, GW_KIND_ALL_GATHER) == 8 * slice);
    memory_free(&shards);
    return stop(node, &to);
}

static void a_slice_crosses_once_for_all_ranks_of_a_node(void **state)
{
    (void)state;
    run_nodes(2, gather_and_count, NULL, NULL);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int wait_for_another_nodes_token(struct node *node, void *arg)
{
    static _Atomic uint64_t word;
    const struct core_token token = {.rank = 3, .index = 0, .value = 1};
    const struct device_wait wait = {&word, 1, 3};
    struct memory memory = {{NULL}};
    struct device_done done;

    (void)arg;
    start(node, aligned);
    launch(node,
           &(struct core_op){.kind = CORE_OP_BARRIER,
                             .traffic = GW_KIND_CONTROL,
                             .waits = &token,
                             .wait_count = 1},
           &(struct fabric_op){.waits = &wait, .wait_count = node->own == 1});
    if (node->own == 1) {
        pause_ms(100);
        atomic_store(&node->meeting->word, 1);
        atomic_store(&word, 1);
        device_host.kick(node->device);
    }
    while (!device_host.take_done(node->device, &done))
        pause_ms(1);
    CHECK(!done.failed && atomic_load(&node->meeting->word) == 1);
    return stop(node, &memory);
}

static void a_barrier_waits_for_tokens_of_ranks_elsewhere(void **state)
{
    (void)state;
    run_nodes(2, wait_for_another_nodes_token, NULL, NULL);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Everything here has ended; returns how many failed. */
static uint32_t end_all(struct node *node)
{
    struct device_done done;
    uint32_t failed = 0;

    fabric_ucx.abort(node->fabric);
    device_host.abort(node->device, DEVICE_ALL_RANKS);
    device_host.drain(node->device);
    while (device_host.take_done(node->device, &done))
        failed += done.failed;
    device_host.resume(node->device);
    return failed;
}

/* Node 2 dies in the middle; the others' ops end when the job is aborted, and not before. */
static int lose_a_node(struct node *node, void *arg)
{
    struct memory memory;
    struct device_done done;

    (void)arg;
    start(node, of_three);
    memory_make(node, &memory);
    launch_sum(node, &memory, NUMEL);
    node_finish(node);
    check_sum(node, &memory);
    meet(node);
    if (node->own == 2) {
        launch_sum(node, &memory, NUMEL / 2);
        raise(SIGKILL);
    }
    launch_sum(node, &memory, NUMEL / 2);
    launch_sum(node, &memory, NUMEL);
    pause_ms(300);
    CHECK(!device_host.take_done(node->device, &done) || !done.failed);
    CHECK(end_all(node) >= 1);
    node_stop(node);
    memory_free(&memory);
    return 0;
}

static void a_lost_node_ends_with_the_job(void **state)
{
    (void)state;
    run_nodes(3, lose_a_node, NULL, (const int[]){0, 0, -SIGKILL});
}

/* Nodes abort and form at different times, with much under way and nothing, and go on. */
static int break_and_form(struct node *node, void *arg)
{
    struct memory memory, good;
    uint64_t ops;

    (void)arg;
    start(node, of_three);
    for (uint32_t turn = 0; turn < 12; turn++) {
        memory_make(node, &memory);
        memory_make(node, &good);
        ops = node->ops;
        if (turn % 3 != node->own) /* one of them does not come to it */
            for (uint32_t i = 0; i < 1 + turn % 2; i++)
                launch_sum(node, &memory, NUMEL);
        pause_ms((node->own * 7 + turn * 5) % 20);
        end_all(node);
        node->ops = ops + 2;
        CHECK(fabric_ucx.form(node->fabric) == 0);
        launch_sum(node, &good, NUMEL);
        CHECK(node_finish(node) == 1);
        check_sum(node, &good);
        memory_free(&memory);
        memory_free(&good);
    }
    memory_make(node, &memory);
    return stop(node, &memory);
}

static void a_broken_job_forms_again(void **state)
{
    (void)state;
    run_nodes(3, break_and_form, NULL, NULL);
}

/* Both hear of it, and nothing of such an op looks done. */
static int disagree(struct node *node, void *arg)
{
    char text[GW_TEXT_MAX + 1];
    struct memory memory;
    struct device_done done;

    (void)arg;
    start(node, aligned);
    memory_make(node, &memory);
    CHECK(!fabric_ucx.take_fault(node->fabric, text));
    launch_sum(node, &memory, node->own == 0 ? NUMEL : NUMEL - 4);
    while (!device_host.take_done(node->device, &done))
        pause_ms(1);
    CHECK(done.failed);
    CHECK(fabric_ucx.take_fault(node->fabric, text));
    if (!strstr(text, node->own == 0 ? "n1" : "n0"))
        fprintf(stderr, "node %u: %s\n", node->own, text);
    CHECK(strstr(text, node->own == 0 ? "n1" : "n0"));
    CHECK(!fabric_ucx.take_fault(node->fabric, text));
    end_all(node);
    return stop(node, &memory);
}

static void nodes_that_differ_are_told(void **state)
{
    (void)state;
    run_nodes(2, disagree, NULL, NULL);
}

/* Nobody says that the node is lost: then the fabric does. */
static int lose_touch(struct node *node, void *arg)
{
    char text[GW_TEXT_MAX + 1];
    struct memory memory;
    struct device_done done;

    (void)arg;
    start(node, aligned);
    memory_make(node, &memory);
    launch_sum(node, &memory, NUMEL);
    node_finish(node);
    meet(node);
    if (node->own == 1)
        raise(SIGKILL);
    launch_sum(node, &memory, NUMEL);
    while (!device_host.take_done(node->device, &done))
        pause_ms(1);
    CHECK(done.failed);
    CHECK(fabric_ucx.take_fault(node->fabric, text));
    CHECK(strstr(text, "n1 cannot be reached"));
    end_all(node);
    node_stop(node);
    memory_free(&memory);
    return 0;
}

static void a_node_out_of_reach_is_a_fault(void **state)
{
    (void)state;
    run_nodes(2, lose_touch, NULL, (const int[]){0, -SIGKILL});
}

/* The other node's address, cut anywhere, or with any bit of any byte turned over. */
static int damage(struct node *node, void *arg)
{
    const struct fabric_node *at = &node->nodes.at[1 - node->own];
    static uint8_t bytes[GW_FABRIC_ADDRESS_MAX];
    char text[GW_TEXT_MAX + 1];

    (void)arg;
    node_start(node, aligned, WORLD); /* connects to nobody */
    CHECK(fabric_ucx.address_check(at->address, at->address_bytes, text) == 0);
    for (uint32_t count = 1; count < at->address_bytes; count++)
        CHECK(fabric_ucx.address_check(at->address, count, text) == GW_E_PROTOCOL);
    memcpy(bytes, at->address, at->address_bytes);
    CHECK(fabric_ucx.address_check(bytes, at->address_bytes + 1, text) == GW_E_PROTOCOL);
    for (uint32_t i = 0; i < at->address_bytes; i++) {
        bytes[i] ^= (uint8_t)(1u << i % 8);
        CHECK(fabric_ucx.address_check(bytes, at->address_bytes, text) < 0);
        CHECK(strstr(text, "on all nodes"));
        bytes[i] = at->address[i];
    }
    node_stop(node);
    return 0;
}

static void an_address_that_is_not_whole_is_told(void **state)
{
    (void)state;
    run_nodes(2, damage, NULL, (const int[]){0, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_blocks_send_half_of_what_mixed_ranks_do),
        cmocka_unit_test(a_slice_crosses_once_for_all_ranks_of_a_node),
        cmocka_unit_test(a_barrier_waits_for_tokens_of_ranks_elsewhere),
        cmocka_unit_test(a_lost_node_ends_with_the_job),
        cmocka_unit_test(a_broken_job_forms_again),
        cmocka_unit_test(nodes_that_differ_are_told),
        cmocka_unit_test(a_node_out_of_reach_is_a_fault),
        cmocka_unit_test(an_address_that_is_not_whole_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
