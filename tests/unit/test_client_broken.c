/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failed check of the client library ends the job: the call and all that come after it answer
 * GW_E_INTERNAL with the check's text, and the engine finds the connection closed.
 * ctest: link=gw_client
 */
#include "test_client_service.h"

#include "client/lib/job.h"

static gw_job *job;

/* The engine has closed its end too, and says what it makes of that. */
static void assert_engine_lost_it(void)
{
    time_t end = time(NULL) + SV_DEADLINE_S;
    bool lost = false;

    while (!lost) {
        pthread_mutex_lock(&sv.lock);
        lost = sv.fd < 0;
        pthread_mutex_unlock(&sv.lock);
        assert_true(time(NULL) < end);
        sched_yield();
    }
    sv_fail(GW_E_PEER_LOST, "rank 0 is lost");
}

static void assert_ended(int r, const char *text)
{
    assert_int_equal(r, GW_E_INTERNAL);
    if (strstr(gw_last_error(), text) == NULL || strstr(gw_last_error(), "report it") == NULL)
        fail_msg("\"%s\"; expected \"%s\"", gw_last_error(), text);
}

static void assert_all_has_ended(const char *text)
{
    const struct gw_token token = {.timeline = GW_TIMELINE(GW_TL_UPDATE, 0), .value = 99};

    assert_engine_lost_it();
    assert_ended(gw_step_end(job, NULL), text);
    assert_ended(gw_wait(job, token, GW_FOREVER), text);
    assert_ended(gw_barrier(job, NULL, NULL), text);
}

static void open_job(void)
{
    struct gw_zero_options options = {.stage = 0};

    sv_open(GW_DEVICE_HOST);
    job = sv_sealed_job(1, &options);
}

static void a_verdict_of_another_step_ends_the_job(void **state)
{
    static const char text[] = "the board shows step 1 but the verdict of step 8";
    struct gw_verdict verdict;
    struct gw_token token;

    (void)state;
    open_job();
    assert_int_equal(gw_step_end(job, &token), 0);
    assert_int_equal(token.value, 1);
    sv.board->verdict.step = 8;
    atomic_store(&sv.board->step.value, 1);
    assert_ended(gw_wait_step(job, GW_FOREVER, &verdict), text);
    assert_all_has_ended(text);
    sv_close(job);
}

/* An engine that ends raises words whatever the verdict is. */
static void a_failed_job_has_its_own_error(void **state)
{
    struct gw_token token;

    (void)state;
    open_job();
    assert_int_equal(gw_step_end(job, &token), 0);
    sv_fail(GW_E_PEER_LOST, "rank 1 is lost");
    atomic_store(&sv.board->step.value, token.value);
    assert_int_equal(gw_wait_step(job, GW_FOREVER, NULL), GW_E_PEER_LOST);
    assert_string_equal(gw_last_error(), "rank 1 is lost");
    sv_close(job);
}

static void a_message_that_cannot_be_encoded_ends_the_job(void **state)
{
    struct wire_msg msg = {.type = 9999};

    (void)state;
    open_job();
    assert_ended(channel_send(&job->channel, &msg), "cannot encode a ");
    assert_all_has_ended("cannot encode a ");
    sv_close(job);
}

static void a_request_that_cannot_be_encoded_ends_the_job(void **state)
{
    struct wire_msg msg = {.type = 9999};

    (void)state;
    open_job();
    assert_ended(channel_request(&job->channel, &msg, WIRE_DONE, CHANNEL_PARK_NONE, GW_FOREVER,
                                 NULL),
                 "cannot encode a ");
    assert_all_has_ended("cannot encode a ");
    sv_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verdict_of_another_step_ends_the_job),
        cmocka_unit_test(a_failed_job_has_its_own_error),
        cmocka_unit_test(a_message_that_cannot_be_encoded_ends_the_job),
        cmocka_unit_test(a_request_that_cannot_be_encoded_ends_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
