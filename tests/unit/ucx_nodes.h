/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes for the tests of the ucx fabric: each is a process, forked by the test, with a host device
 * and a ucx fabric of its own. They meet in shared memory, where a node leaves its address and
 * waits for the others. A node says what is wrong on stderr and exits; the test looks at how all
 * ended.
 */
#ifndef GW_TESTS_UCX_NODES_H
#define GW_TESTS_UCX_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "daemon/fabric/fabric.h"

#define NODES_MAX 4u
#define NODES_DEADLINE_S 50

/* What all nodes of a test see. */
struct meeting {
    uint32_t count;
    _Atomic uint32_t arrived; /* over all meetings */
    _Atomic uint32_t word;    /* the test's own */
    uint32_t address_bytes[NODES_MAX];
    uint8_t address[NODES_MAX][GW_FABRIC_ADDRESS_MAX];
};

struct node {
    struct meeting *meeting;
    uint32_t own, met;
    struct fabric_nodes nodes;
    struct device *device;
    struct fabric *fabric;
    struct device *local_device; /* all ranks in one process: the reference */
    struct fabric *local;
    uint64_t ops;
};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "node %u: %s:%d: %s\n", node->own, __FILE__, __LINE__, #condition);    \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* All nodes have come here as often. */
static inline void meet(struct node *node)
{
    node->met++;
    atomic_fetch_add(&node->meeting->arrived, 1);
    while (atomic_load(&node->meeting->arrived) < node->met * node->meeting->count)
        pause_ms(1);
}

static inline void node_woken(void *user)
{
    (void)user;
}

/* The node's fabric, not formed yet; ranks are where of_rank says. */
static inline void node_start(struct node *node, const uint8_t *of_rank, uint32_t world)
{
    struct fabric_config config = {.device_ops = &device_host, .world = world};
    const char *slower = getenv("GW_TEST_SLOWER");

    alarm(NODES_DEADLINE_S * (slower ? (unsigned)strtoul(slower, NULL, 10) : 1));
    node->nodes.count = node->meeting->count;
    node->nodes.own = node->own;
    for (uint32_t rank = 0; rank < world; rank++)
        node->nodes.of_rank[rank] = of_rank[rank];
    CHECK(device_host.device_new(&(struct device_config){.wake = node_woken, .user = NULL},
                                 &node->device) == 0);
    CHECK(device_host.device_new(&(struct device_config){.wake = node_woken, .user = NULL},
                                 &node->local_device) == 0);
    config.device = node->local_device;
    CHECK(fabric_local.fabric_new(&config, &node->local) == 0);
    config.device = node->device;
    config.nodes = &node->nodes;
    CHECK(fabric_ucx.fabric_new(&config, &node->fabric) == 0);
    CHECK(fabric_ucx.address(node->fabric, node->meeting->address[node->own],
                             &node->meeting->address_bytes[node->own]) == 0);
    meet(node);
    for (uint32_t i = 0; i < node->nodes.count; i++) {
        struct fabric_node *at = &node->nodes.at[i];
        at->address_bytes = node->meeting->address_bytes[i];
        memcpy(at->address, node->meeting->address[i], at->address_bytes);
        snprintf(at->name, sizeof(at->name), "n%u", i);
    }
}

static inline void node_stop(struct node *node)
{
    device_host.device_free(node->device);
    fabric_ucx.fabric_free(node->fabric);
    device_host.device_free(node->local_device);
    fabric_local.fabric_free(node->local);
}

/* All that was launched, here; none failed. */
static inline uint32_t node_finish(struct node *node)
{
    struct device_done done;
    uint32_t count = 0;

    device_host.drain(node->device);
    while (device_host.take_done(node->device, &done)) {
        CHECK(!done.failed);
        count++;
    }
    device_host.drain(node->local_device);
    while (device_host.take_done(node->local_device, &done))
        CHECK(!done.failed);
    return count;
}

/* Runs main in each node. expected: how node i ends: its exit code, or -signal. */
static inline void run_nodes(uint32_t count, int (*main_of)(struct node *node, void *arg),
                             void *arg, const int *expected)
{
    struct meeting *meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[NODES_MAX];
    int status, ended;

    assert_true(meeting != MAP_FAILED);
    /* Nodes share no memory; and UCX 1.18 aborts where a peer ends while both still agree on it. */
    assert_int_equal(setenv("UCX_TLS", "tcp,self", 0), 0);
    meeting->count = count;
    fflush(NULL);
    for (uint32_t i = 0; i < count; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct node *node = calloc(1, sizeof(*node));
            node->meeting = meeting;
            node->own = i;
            ended = main_of(node, arg);
            free(node);
            exit(ended);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        ended = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        if (ended != (expected ? expected[i] : 0))
            print_error("node %u ended with %d\n", i, ended);
        assert_int_equal(ended, expected ? expected[i] : 0);
    }
    munmap(meeting, sizeof(*meeting));
}

#endif
