/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a wait is put down to: the ops that its token stands for, whichever call waited. Stamps lie
 * far outside the wait, so that all of it has one cause, however long it was. ctest: link=gw_client
 */
#include "test_client_service.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include "client/lib/wait.h"

#define FOR_EVER UINT64_MAX

static gw_job *job;

static void stamp(struct gw_shm_slot *slot, uint64_t ready, uint64_t started, uint64_t done)
{
    slot->ready_ns = ready;
    slot->started_ns = started;
    slot->done_ns = done;
}

/* Raises the step's word once somebody sleeps. */
static void *raise_step(void *unused)
{
    uint32_t line = gw_wake_line(&sv.board->step);

    while (atomic_load(&sv.client->waiting[line]) + atomic_load(&sv.client->together[line]) == 0)
        sched_yield();
    atomic_fetch_add(&sv.board->step.value, 1);
    atomic_fetch_add(&sv.engine->wake, 1);
    atomic_fetch_add(&sv.common->wake, 1);
    wait_wake(job);
    syscall(SYS_futex, &sv.common->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return unused;
}

/* One step of one parameter and bucket. The reduction runs during the whole wait for it, the
 * verdict's own op was over before. */
static struct gw_token step_under_way(pthread_t *thread)
{
    struct gw_token token;
    void *values = NULL;

    assert_int_equal(gw_grad_acquire_sync(job, 0, 0, GW_FOREVER, &values, NULL), 0);
    assert_int_equal(gw_grad_ready(job, 0, 0, GW_GRAD_FINAL, NULL, 0), 0);
    assert_int_equal(gw_step_end(job, &token), 0);
    stamp(&sv.board->slots[0], 1, 2, FOR_EVER);
    stamp(&sv.board->step, 1, 2, 3);
    sv_consume(0, token.value);
    sv.board->verdict.step = token.value;
    assert_int_equal(pthread_create(thread, NULL, raise_step, NULL), 0);
    return token;
}

static int wait_step(struct gw_token token)
{
    (void)token;
    return gw_wait_step(job, GW_FOREVER, NULL);
}

static int wait_one(struct gw_token token)
{
    return gw_wait(job, token, GW_FOREVER);
}

static int wait_any(struct gw_token token)
{
    const struct gw_token tokens[] = {{.timeline = GW_TIMELINE(GW_TL_UPDATE, 0), .value = 99},
                                      token};
    size_t index = 0;

    return gw_wait_any(job, tokens, 2, GW_FOREVER, &index);
}

static int wait_all(struct gw_token token)
{
    const struct gw_token tokens[] = {token,
                                      {.timeline = GW_TIMELINE(GW_TL_BUCKET, 0), .value = 1}};

    return gw_wait_all(job, tokens, 2, GW_FOREVER);
}

/* The service's time is exposed, not "wakeup" after an op of its own that was over long before. */
static void a_step_is_waited_for_with_all_its_reductions(void **state)
{
    int (*const waits[])(struct gw_token) = {wait_step, wait_one, wait_any, wait_all};
    struct gw_zero_options options = {.stage = 0};
    struct wait_parts parts;
    uint64_t before = 0;

    (void)state;
    sv_open(GW_DEVICE_HOST);
    job = sv_sealed_job(1, &options);
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        pthread_t thread;
        struct gw_token token = step_under_way(&thread);

        if (waits[i](token) < 0)
            fail_msg("wait %zu: %s", i, gw_last_error());
        pthread_join(thread, NULL);
        split_get(&job->split, &parts);
        assert_true(parts.exposed > before);
        assert_int_equal(parts.late + parts.queued + parts.wakeup, 0);
        before = parts.exposed;
    }
    sv_close(job);
}

/* What the engine raises words to is nobody's value. */
static void a_timeline_ends_below_its_end(void **state)
{
    struct gw_token token = {0};

    (void)state;
    sv_open(GW_DEVICE_HOST);
    job = sv_job();
    assert_int_equal(gw_timeline_new(job, &token.timeline), 0);
    assert_int_equal(gw_timeline_raise(job, token.timeline, GW_TIMELINE_END), GW_E_INVALID);
    token.value = GW_TIMELINE_END - 1;
    assert_int_equal(gw_test(job, token), 0);
    assert_int_equal(gw_timeline_raise(job, token.timeline, token.value), 0);
    assert_int_equal(gw_test(job, token), 1);
    sv_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeline_ends_below_its_end),
        cmocka_unit_test(a_step_is_waited_for_with_all_its_reductions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
