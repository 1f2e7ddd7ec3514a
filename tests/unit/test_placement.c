/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's NUMA nodes as text, and where threads and memory of a job's ranks go on them; on
 * topologies that hwloc makes up.
 * ctest: timeout=60 link=hwloc
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/placement.h"
#include "gradwire/errors.h"

/* ---- text ------------------------------------------------------------------------------------ */

static void text_is_read_as_it_is_written(void **state)
{
    static const char *const texts[] = {"0:0", "0:0-3,8-11 1:4-7,12-15", "3:1023 63:0,2,4-6"};
    struct topology topology;
    char text[TOPOLOGY_TEXT_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(topology_parse(texts[i], &topology), 0);
        assert_int_equal(topology_text(&topology, text, sizeof(text)), 0);
        assert_string_equal(text, texts[i]);
    }
    assert_int_equal(topology_parse(texts[2], &topology), 0);
    assert_int_equal(topology.count, 2);
    assert_int_equal(topology.node[1].number, 63);
    assert_int_equal(cpus_count(&topology.node[1].cpus), 5);
    assert_true(cpus_has(&topology.node[0].cpus, 1023));
}

static void other_text_is_refused(void **state)
{
    static const char *const texts[] = {
        "",     "0",    "0:",       ":0",   "0:1-", "0:-1",    "0:3-2",       "0:1024",
        "64:0", "0:0 ", "0:0  1:1", "0:0,", "0:a",  "0:0 1:0", "0:0-3 1:3-5", " 0:0",
        "0:0;", "99999999999:0",
    };
    struct topology topology = {.count = 7};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (topology_parse(texts[i], &topology) != GW_E_INVALID)
            fail_msg("taken: '%s'", texts[i]);
    assert_int_equal(topology.count, 7);
}

/* Neighbours on other nodes, so that no processor is part of a range: 2,986 digits, 1,023 signs
 * between; 32 numbers of nodes, of 2 digits, with their signs. */
static void every_topology_has_room(void **state)
{
    struct topology topology = {.count = 0}, again;
    char text[TOPOLOGY_TEXT_BYTES];

    (void)state;
    for (uint32_t node = 0; node < TOPOLOGY_NODES_MAX; node++) {
        struct cpus cpus = {{0}};
        for (uint32_t cpu = node; cpu < CPUS_MAX; cpu += TOPOLOGY_NODES_MAX)
            cpus_add(&cpus, cpu);
        topology_add(&topology, TOPOLOGY_NUMBERS - 1 - node, &cpus);
    }
    assert_int_equal(topology_text(&topology, text, sizeof(text)), 0);
    assert_int_equal(strlen(text), 2986 + 1023 + 64 + 32);
    assert_int_equal(topology_parse(text, &again), 0);
    assert_int_equal(again.count, TOPOLOGY_NODES_MAX);
    assert_memory_equal(&again.node[31].cpus, &topology.node[31].cpus, sizeof(struct cpus));
}

static void what_does_not_fit_is_told(void **state)
{
    struct topology topology;
    char text[8];

    (void)state;
    assert_int_equal(topology_parse("0:0-3 1:4", &topology), 0);
    assert_int_equal(topology_text(&topology, text, sizeof(text)), GW_E_LIMIT);
    assert_int_equal(topology_text(&topology, text, 0), GW_E_LIMIT);
}

/* ---- policy ---------------------------------------------------------------------------------- */

static struct topology made_up(const char *description)
{
    struct topology topology = {0};
    hwloc_topology_t hwloc;
    hwloc_obj_t node = NULL;

    assert_int_equal(hwloc_topology_init(&hwloc), 0);
    assert_int_equal(hwloc_topology_set_synthetic(hwloc, description), 0);
    assert_int_equal(hwloc_topology_load(hwloc), 0);
    while ((node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        struct cpus cpus = {{0}};
        for (uint32_t cpu = 0; cpu < CPUS_MAX; cpu++)
            if (hwloc_bitmap_isset(node->cpuset, cpu))
                cpus_add(&cpus, cpu);
        topology_add(&topology, node->os_index, &cpus);
    }
    hwloc_topology_destroy(hwloc);
    return topology;
}

static struct cpus from_to(uint32_t first, uint32_t last)
{
    struct cpus cpus = {{0}};

    for (uint32_t cpu = first; cpu <= last; cpu++)
        cpus_add(&cpus, cpu);
    return cpus;
}

/* Processors first-last; last 0 and first 0 of a rank: all that the engine has; first > last: not
 * known. NUMA nodes are packages of equal size, numbered on. */
static const struct row {
    const char *machine;
    uint32_t own[2], ranks, of[4][2];
    uint32_t cpus[2]; /* that threads get */
    uint32_t nodes, workers[4];
    uint64_t memory[4]; /* of the ranks */
    uint64_t shared;    /* of the job */
} rows[] = {
    /* One node: as many workers as processors beside one, memory where it comes. */
    {"numa:1 core:4 pu:2", {0, 7}, 2, {{0, 7}, {0, 7}}, {0, 7}, 1, {7}, {0, 0}, 0},
    {"numa:1 core:32 pu:2", {0, 63}, 1, {{0, 63}}, {0, 63}, 1, {15}, {0}, 0},
    {"numa:1 core:2 pu:1", {0, 1}, 1, {{1, 1}}, {1, 1}, 1, {0}, {0}, 0},
    /* Two: ranks that are bound lie where they are, those that are not are dealt in blocks. */
    {"numa:2 core:4 pu:2", {0, 15}, 2, {{0, 7}, {8, 15}}, {0, 15}, 2, {7, 8}, {1, 2}, 3},
    {"numa:2 core:4 pu:2", {0, 15}, 2, {{8, 15}, {0, 7}}, {0, 15}, 2, {7, 8}, {2, 1}, 3},
    {"numa:2 core:4 pu:2", {0, 15}, 4, {{0, 15}, {0, 15}, {0, 15}, {0, 15}}, {0, 15}, 2, {7, 8},
     {1, 1, 2, 2}, 3},
    {"numa:2 core:4 pu:2", {0, 15}, 3, {{0, 5}, {6, 9}, {7, 15}}, {0, 15}, 2, {7, 8}, {1, 1, 2}, 3},
    {"numa:2 core:4 pu:2", {0, 15}, 2, {{1, 0}, {8, 15}}, {0, 15}, 2, {7, 8}, {1, 2}, 3},
    /* All on one of two: as on a node of one. */
    {"numa:2 core:4 pu:2", {0, 15}, 2, {{8, 15}, {8, 11}}, {8, 15}, 1, {7}, {0, 0}, 0},
    {"numa:2 core:4 pu:2", {0, 15}, 1, {{3, 3}}, {3, 3}, 1, {0}, {0}, 0},
    /* What the engine may not use it does not get; ranks that are elsewhere move it nowhere. */
    {"numa:2 core:4 pu:2", {4, 11}, 1, {{0, 15}}, {4, 11}, 2, {3, 4}, {1}, 3},
    {"numa:2 core:4 pu:2", {0, 7}, 1, {{8, 15}}, {0, 7}, 1, {7}, {0}, 0},
    {"numa:4 core:16 pu:2", {0, 127}, 4, {{96, 127}, {64, 95}, {0, 31}, {0, 127}}, {0, 127}, 4,
     {15, 15, 15, 15}, {8, 4, 1, 8}, 15},
};

static void check_row(const struct row *row)
{
    struct topology topology = made_up(row->machine);
    struct cpus own = from_to(row->own[0], row->own[1]), of[GW_RANKS_MAX] = {{{0}}};
    struct cpus want = from_to(row->cpus[0], row->cpus[1]);
    struct ranks ranks = ranks_below(row->ranks);
    struct placement placement;

    for (uint32_t r = 0; r < row->ranks; r++)
        of[r] = from_to(row->of[r][0], row->of[r][1]);
    placement_make(&topology, &own, &ranks, of, &placement);
    assert_memory_equal(&placement.cpus, &want, sizeof(want));
    assert_int_equal(placement.count, row->nodes);
    for (uint32_t i = 0; i < row->nodes; i++) {
        struct cpus inside = cpus_and(&placement.node[i].cpus, &want);
        assert_memory_equal(&inside, &placement.node[i].cpus, sizeof(inside));
        assert_int_equal(placement.node[i].workers, row->workers[i]);
        if (row->nodes > 1) {
            inside = cpus_and(&topology.node[placement.node[i].number].cpus, &want);
            assert_memory_equal(&inside, &placement.node[i].cpus, sizeof(inside));
        }
    }
    for (uint32_t r = 0; r < row->ranks; r++)
        assert_int_equal(placement_memory(&placement, r), row->memory[r]);
    assert_int_equal(placement_memory(&placement, UINT32_MAX), row->shared);
}

static void threads_and_memory_go_where_ranks_are(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("row %zu: %s\n", i, rows[i].machine);
        check_row(&rows[i]);
    }
}

/* hwloc gives memory without processors those that are near: they are one node's only. */
static void memory_alone_is_no_node(void **state)
{
    struct topology topology = {0};
    struct cpus none = {{0}}, some = from_to(0, 3);

    (void)state;
    topology_add(&topology, 0, &some);
    topology_add(&topology, 1, &none);
    topology_add(&topology, 2, &some);
    topology_add(&topology, TOPOLOGY_NUMBERS, &(struct cpus){{0, 1}});
    assert_int_equal(topology.count, 1);
}

/* Without a topology: one node with what the engine has. */
static void nothing_known_is_one_node(void **state)
{
    struct cpus own = from_to(5, 7);
    struct placement placement;

    (void)state;
    placement_make(&(struct topology){0}, &own, &(struct ranks){{0}}, NULL, &placement);
    assert_int_equal(placement.count, 1);
    assert_int_equal(placement.node[0].workers, 2);
    assert_memory_equal(&placement.cpus, &own, sizeof(own));
    assert_int_equal(placement_memory(&placement, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_read_as_it_is_written),
        cmocka_unit_test(other_text_is_refused),
        cmocka_unit_test(every_topology_has_room),
        cmocka_unit_test(what_does_not_fit_is_told),
        cmocka_unit_test(threads_and_memory_go_where_ranks_are),
        cmocka_unit_test(memory_alone_is_no_node),
        cmocka_unit_test(nothing_known_is_one_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
