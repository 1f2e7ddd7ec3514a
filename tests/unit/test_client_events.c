/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on a GPU whose streams cannot wait for words: what it records and tells the engine, and
 * what it waits for on the host. ctest: link=gw_client
 */
#include "test_client_service.h"

#define S(n) ((void *)(uintptr_t)(n))
#define SHORT_NS 20000000ll

static void give(gw_job *job, uint32_t param)
{
    void *values = NULL;

    if (gw_grad_acquire_sync(job, param, 0, 5000000000ll, &values, NULL) < 0 ||
        gw_grad_ready(job, param, 0, GW_GRAD_FINAL, NULL, 0) < 0)
        fail_msg("%s", gw_last_error());
}

static void the_engine_has_the_events_before_a_stream_records_one(void **state)
{
    struct gw_zero_options options = {0};
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_job();
    sv_expect("CREATE device 1 gpu 16:ab\nEVENTS t0 2048\n");
    sv_close(job);
    sv_open_events();
    job = sv_sealed_job(1, &options);
    give(job, 0);
    sv_expect("record s0 = 1\nREADY p0.0 slot -1 t0=1\n");
    assert_int_equal(gw_cuda_set_stream(job, S(3)), 0);
    assert_int_equal(gw_cuda_set_stream(job, S(3)), 0);
    sv_expect("EVENTS t1 2048\n");
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_expect("record s3 = 1\nSTEP_END t1=1\n");
    sv_close(job);
    sv_expect("idle s0\nidle s3\nEVENTS t0 0\nEVENTS t1 0\nLEAVE\n");
    assert_int_equal(sv.rings, 0);
}

/* A writer waits on the host for the memory's last reader; nothing of that is in the stream. */
static void a_reader_is_waited_for_on_the_host(void **state)
{
    struct gw_zero_options options = {0};
    void *values = NULL;
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_sealed_job(1, &options);
    give(job, 0);
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_lines();
    assert_int_equal(gw_grad_acquire_sync(job, 0, 0, SHORT_NS, &values, NULL), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "still being read"));
    sv_consume(0, 1);
    assert_int_equal(gw_grad_acquire_sync(job, 0, 0, SHORT_NS, &values, NULL), 0);
    sv_expect("");
    sv_close(job);
}

static void a_stream_wait_is_the_hosts(void **state)
{
    struct gw_zero_options options = {0};
    struct gw_token token;
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_sealed_job(1, &options);
    give(job, 0);
    assert_int_equal(gw_step_end(job, &token), 0);
    sv_lines();
    sv_fail(GW_E_PEER_LOST, "rank 1 is gone");
    assert_int_equal(gw_stream_wait(job, token, S(0)), GW_E_PEER_LOST);
    sv_expect("");
    sv_close(job);
}

/* Streams of one process do wait for each other. */
static void a_stream_of_the_jobs_is_waited_for_in_the_stream(void **state)
{
    struct gw_token token;
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_job();
    sv_lines();
    sv.hold = true;
    assert_int_equal(gw_record(job, S(4), &token), 0);
    assert_int_equal(gw_stream_wait(job, token, S(0)), 0);
    sv_expect("EVENTS t1 2048\nrecord s4 = 1\nwait s0 e1 >= 1\n");
    assert_int_equal(gw_test(job, token), 0);
    assert_int_equal(gw_wait(job, token, SHORT_NS), GW_E_TIMEOUT);
    sv.hold = false;
    assert_int_equal(sv.client->timeline[1], 0);
    assert_int_equal(gw_wait(job, token, SHORT_NS), 0);
    assert_int_equal(sv.client->timeline[1], 1); /* for the engine, too */
    sv_close(job);
}

static void an_engine_that_cannot_open_them_is_told_of(void **state)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .world = 2};
    gw_job *job = NULL;

    (void)state;
    sv_open_events();
    sv.events_code = GW_E_UNIMPLEMENTED;
    options.socket_path = sv.path;
    options.device = &sv_device;
    assert_int_equal(gw_job_create(&options, &job), GW_E_UNIMPLEMENTED);
    assert_int_equal(sv.rings, 0);
    sv_close(NULL);
}

/* Events that the engine may still ask are not destroyed. */
static void events_that_were_not_given_back_stay(void **state)
{
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_job();
    sv.events_code = GW_E_INTERNAL;
    sv_close(job);
    assert_int_equal(sv.rings, 1);
    free(sv.last_events);
}

static void no_copy_stands_in_for_an_import(void **state)
{
    gw_buffer *buffer = NULL;
    float memory[8];
    gw_job *job;

    (void)state;
    sv_open_events();
    job = sv_job();
    sv.export_code = GW_E_UNIMPLEMENTED;
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, NULL),
                     GW_E_UNIMPLEMENTED);
    assert_non_null(strstr(gw_last_error(), "gw_buffer_new"));
    sv_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_has_the_events_before_a_stream_records_one),
        cmocka_unit_test(a_reader_is_waited_for_on_the_host),
        cmocka_unit_test(a_stream_wait_is_the_hosts),
        cmocka_unit_test(a_stream_of_the_jobs_is_waited_for_in_the_stream),
        cmocka_unit_test(an_engine_that_cannot_open_them_is_told_of),
        cmocka_unit_test(events_that_were_not_given_back_stay),
        cmocka_unit_test(no_copy_stands_in_for_an_import),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
