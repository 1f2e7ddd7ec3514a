/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL tells late, wrongly or never: each is a fault of the device, once, with the rank, the
 * call and NCCL's words in its text, and everything ends in bounded time.
 * ctest: label=cuda timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/plugin.h"
#include "tests/fakegpu/alone.h"

#define RANKS 2u
#define NUMEL 1000u
#define DEADLINE_NS (30 * UINT64_C(1000000000))

static const struct plugin *plugin;
static uint8_t uuids[RANKS][GW_GPU_BYTES];
static const uint32_t everyone[RANKS] = {0, 1};

struct job {
    struct device *device;
    struct fabric *fabric;
    struct device_memory *memory[RANKS];
    uint64_t ops;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void on_wake(void *user)
{
    (void)user;
}

static void start(struct job *job, uint64_t op_timeout_ns)
{
    char text[GW_TEXT_MAX + 1];

    *job = (struct job){0};
    assert_int_equal(plugin->device_ops->device_new(
                         &(struct device_config){.wake = on_wake, .user = NULL}, &job->device),
                     0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct device_place place;
        memcpy(place.gpu, uuids[rank], sizeof(place.gpu));
        assert_int_equal(plugin->device_ops->place(job->device, rank, &place, text), 0);
        assert_int_equal(plugin->device_ops->memory_new(job->device, DEVICE_MEMORY_ARENA, rank,
                                                        "test", 4 * NUMEL * sizeof(float),
                                                        &job->memory[rank]),
                         0);
    }
    assert_int_equal(
        plugin->fabric_ops->fabric_new(&(struct fabric_config){.device_ops = plugin->device_ops,
                                                               .device = job->device,
                                                               .world = RANKS,
                                                               .op_timeout_ns = op_timeout_ns},
                                       &job->fabric),
        0);
}

static void launch_gather(struct job *job)
{
    const void *in[RANKS];
    void *out[RANKS];
    struct core_op op = {.id = ++job->ops,
                         .kind = CORE_OP_ALL_GATHER,
                         .stream = CORE_STREAM_REDUCE,
                         .traffic = GW_KIND_ALL_GATHER,
                         .world = RANKS,
                         .members = everyone,
                         .numel = NUMEL};

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        in[rank] = job->memory[rank]->base;
        out[rank] = (float *)job->memory[rank]->base + 2 * NUMEL;
    }
    assert_int_equal(plugin->fabric_ops->launch(
                         job->fabric, &(struct fabric_op){.op = &op, .in = in, .out = out}),
                     0);
}

static void assert_fault(struct job *job, const char *part)
{
    uint64_t until_ns = now_ns() + DEADLINE_NS;
    char text[GW_TEXT_MAX + 1] = "no fault";

    while (!plugin->device_ops->take_fault(job->device, text) && now_ns() < until_ns)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (!strstr(text, part) || !strstr(text, "rank "))
        fail_msg("told: %s; expected: %s", text, part);
    assert_false(plugin->device_ops->take_fault(job->device, text));
}

/* As an engine ends: nothing waits for what will not come. */
static void stop(struct job *job)
{
    struct device_done done;
    uint64_t began_ns = now_ns();

    plugin->fabric_ops->abort(job->fabric);
    plugin->device_ops->abort(job->device, DEVICE_ALL_RANKS);
    plugin->device_ops->drain(job->device);
    while (plugin->device_ops->take_done(job->device, &done))
        assert_true(done.failed);
    assert_null(plugin->fabric_ops->fabric_free(job->fabric));
    assert_null(plugin->device_ops->device_free(job->device));
    assert_true(now_ns() - began_ns < DEADLINE_NS);
}

static void an_error_that_comes_without_a_call(void **state)
{
    struct job job;

    (void)state;
    start(&job, DEADLINE_NS);
    assert_int_equal(plugin->fabric_ops->form(job.fabric), 0);
    assert_true(alone_control("inject nccl-error 6"));
    launch_gather(&job);
    assert_fault(&job, "remote");
    stop(&job);
}

static void a_call_that_fails(void **state)
{
    struct job job;

    (void)state;
    start(&job, DEADLINE_NS);
    assert_int_equal(plugin->fabric_ops->form(job.fabric), 0);
    assert_true(alone_control("inject nccl-call-error 1"));
    launch_gather(&job);
    assert_fault(&job, "ncclAllGather");
    stop(&job);
}

static void communicators_that_cannot_be_made(void **state)
{
    struct job job;

    (void)state;
    start(&job, DEADLINE_NS);
    assert_true(alone_control("inject nccl-init-error 2"));
    assert_int_equal(plugin->fabric_ops->form(job.fabric), 0);
    assert_fault(&job, "ncclComm");
    stop(&job);
}

static void communicators_that_never_come(void **state)
{
    struct job job;

    (void)state;
    start(&job, UINT64_C(500000000));
    assert_true(alone_control("inject nccl-init-hang"));
    assert_int_equal(plugin->fabric_ops->form(job.fabric), 0);
    launch_gather(&job);
    assert_fault(&job, "was not over after");
    stop(&job);
}

/* A broken device leaves everything to the end of its process, so each case has its own. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_that_comes_without_a_call),
        cmocka_unit_test(a_call_that_fails),
        cmocka_unit_test(communicators_that_cannot_be_made),
        cmocka_unit_test(communicators_that_never_come),
    };
    const size_t count = sizeof(tests) / sizeof(tests[0]);
    int result = 0;

    setenv("FAKEGPU_LEAKS", "off", 1);
    if (alone_inside()) {
        size_t at = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
        const struct CMUnitTest one[] = {tests[at < count ? at : 0]};
        plugin = alone_plugin(RANKS, uuids);
        return plugin ? cmocka_run_group_tests(one, NULL, NULL) : 1;
    }
    for (size_t i = 0; i < ALONE_SEEDS; i++) {
        char number[8];
        snprintf(number, sizeof(number), "%zu", i % count);
        result |= alone_run((char *[]){argv[0], number, NULL}, RANKS);
    }
    return result;
}
