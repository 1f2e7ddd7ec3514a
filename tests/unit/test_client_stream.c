/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on a GPU: what each call enqueues in the job's stream and what it tells the engine, in
 * which order. Steps: gradients, ends, updates, fetches. ctest: link=gw_client
 */
#include "test_client_service.h"

#define S(n) ((void *)(uintptr_t)(n))

static float *acquire(gw_job *job, uint32_t param)
{
    void *values = NULL;

    if (gw_grad_acquire_sync(job, param, 0, 5000000000ll, &values, NULL) < 0)
        fail_msg("%s", gw_last_error());
    assert_non_null(values);
    return values;
}

static void ready(gw_job *job, uint32_t param, uint32_t flags)
{
    if (gw_grad_ready(job, param, 0, flags, NULL, 0) < 0)
        fail_msg("%s", gw_last_error());
}

static void give(gw_job *job, uint32_t param)
{
    acquire(job, param);
    ready(job, param, GW_GRAD_FINAL);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void a_job_names_its_gpu(void **state)
{
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_job();
    sv_expect("CREATE device 1 gpu 16:ab\n");
    assert_int_equal(atomic_load(&sv_device.jobs), 1);
    sv_close(job);
    assert_int_equal(atomic_load(&sv_device.jobs), 0);
}

/* One bucket of two parameters: one raise for both. */
static void a_batch_is_marked_once(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 32};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    acquire(job, 0);
    acquire(job, 1);
    ready(job, 0, GW_GRAD_FINAL);
    sv_expect("");
    ready(job, 1, GW_GRAD_FINAL);
    sv_expect("raise s0 t0 = 1\nREADY p0.0 slot -1 t0=1\nREADY p1.0 slot -1 t0=1\n");
    sv_close(job);
}

/* The second step's writes come behind the first's reduction, by a wait in the stream: one for all
 * pieces of a bucket, none once the word is up. */
static void a_full_buffer_is_waited_for_in_the_stream(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 32};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(3, &options); /* bucket 0: p0, p1; bucket 1: p2 */
    give(job, 2);
    give(job, 1);
    give(job, 0);
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_lines();
    sv_consume(1, 1);
    acquire(job, 2);
    sv_expect("");
    acquire(job, 1);
    acquire(job, 0);
    sv_expect("wait s0 b0 >= 1\n");
    assert_int_equal(gw_cuda_set_stream(job, S(3)), 0);
    acquire(job, 0);
    sv_expect("wait s3 b0 >= 1\n");
    sv_close(job);
}

/* Two slots: the third bucket takes one whose reduction is launched, the fourth a new one; "look
 * again" leads to another question. */
static void a_launched_slot_is_used_behind_its_reader(void **state)
{
    struct gw_zero_options options = {.stage = 2, .ring_slots = 2};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(5, &options);
    sv.grants[0] = (struct sv_grant){1, 1};
    sv.grants[1] = (struct sv_grant){GW_NO_SLOT, 0};
    sv.grants[2] = (struct sv_grant){2, 0};
    sv.grant_count = 3;
    give(job, 4);
    give(job, 3);
    sv_expect("raise s0 t0 = 1\nREADY p4.0 slot 0 t0=1\nraise s0 t0 = 2\nREADY p3.0 slot 1 t0=2\n");
    acquire(job, 2);
    sv_expect("ACQUIRE b2 ordered\nwait s0 b3 >= 1\n");
    ready(job, 2, GW_GRAD_FINAL);
    sv_expect("raise s0 t0 = 3\nREADY p2.0 slot 1 t0=3\n");
    give(job, 1);
    sv_expect("ACQUIRE b1 ordered\nACQUIRE b1 ordered\nraise s0 t0 = 4\nREADY p1.0 slot 2 t0=4\n");
    sv_consume(4, 1);
    give(job, 0);
    sv_expect("raise s0 t0 = 5\nREADY p0.0 slot 0 t0=5\n");
    sv_close(job);
}

/* A slot that was taken early and of which nothing was declared is as it was before. */
static void an_unused_slot_is_still_waited_for(void **state)
{
    struct gw_zero_options options = {.stage = 2, .ring_slots = 1, .micro_steps = 2};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    sv.grants[0] = sv.grants[1] = (struct sv_grant){0, 1};
    sv.grant_count = 2;
    acquire(job, 1);
    ready(job, 1, GW_GRAD_ACCUMULATE);
    sv_lines();
    acquire(job, 0);
    sv_expect("ACQUIRE b0 ordered\nwait s0 b1 >= 1\n");
    assert_int_equal(gw_micro_step_end(job), 0);
    sv_expect("raise s0 t0 = 2\nMICRO_END t0=2\n");
    assert_int_equal(gw_cuda_set_stream(job, S(1)), 0);
    acquire(job, 1);
    sv_expect("ACQUIRE b1 ordered\nwait s1 b1 >= 1\n");
    sv_close(job);
}

static void what_a_wait_depends_on_is_sent_before(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 32};
    struct gw_token step;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    acquire(job, 0);
    acquire(job, 1);
    ready(job, 0, GW_GRAD_FINAL); /* not complete: batched */
    sv_expect("");
    assert_int_equal(gw_step_end(job, &step), 0);
    sv_expect("raise s0 t0 = 1\nREADY p0.0 slot -1 t0=1\nSTEP_END t0=1\n");
    assert_int_equal(gw_stream_wait(job, step, S(2)), 0);
    sv_expect("wait s2 step >= 1\n");
    acquire(job, 0); /* the step's contribution is still read */
    ready(job, 0, GW_GRAD_FINAL);
    sv_expect("wait s0 b0 >= 1\n");
    assert_int_equal(gw_stream_wait(job, step, S(5)), 0);
    sv_expect("raise s0 t0 = 2\nREADY p0.0 slot -1 t0=2\nwait s5 step >= 1\n");
    sv_close(job);
}

/* What was declared in the old stream is marked there. */
static void a_new_stream_takes_over(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 32};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    acquire(job, 0);
    ready(job, 0, GW_GRAD_FINAL);
    assert_int_equal(gw_cuda_set_stream(job, S(7)), 0);
    sv_expect("raise s0 t0 = 1\nREADY p0.0 slot -1 t0=1\n");
    give(job, 1);
    sv_expect("raise s7 t1 = 1\nREADY p1.0 slot -1 t1=1\n");
    assert_int_equal(gw_cuda_set_stream(job, S(99)), GW_E_INVALID);
    for (uintptr_t i = 10; i < 24; i++)
        assert_int_equal(gw_cuda_set_stream(job, S(i)), 0);
    assert_int_equal(gw_cuda_set_stream(job, S(24)), GW_E_LIMIT);
    assert_int_equal(gw_cuda_set_stream(job, S(7)), 0);
    sv_close(job);
}

static void further_producers_have_tokens(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 16};
    struct gw_token tokens[4];
    uint32_t own = 0;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    assert_int_equal(gw_timeline_new(job, &own), 0);
    assert_int_equal(gw_record(job, S(4), &tokens[0]), 0);
    assert_int_equal(gw_record(job, NULL, &tokens[1]), 0);
    tokens[2] = tokens[3] = (struct gw_token){.timeline = own, .value = 9};
    sv_expect("raise s4 t1 = 1\nraise s0 t2 = 1\n");
    acquire(job, 0);
    assert_int_equal(gw_grad_ready(job, 0, 0, 0, tokens, 4), GW_E_INVALID);
    assert_int_equal(gw_grad_ready(job, 0, 0, 0, tokens, 3), 0);
    sv_expect("raise s0 t2 = 2\nREADY p0.0 slot -1 t1=1 t2=2 t0=9\n");
    sv_close(job);
}

static void gradients_are_copied_in_the_stream(void **state)
{
    struct gw_zero_options options = {.bucket_bytes = 16};
    float values[4] = {1, 2, 3, 4}, *at;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    assert_int_equal(gw_grad_put_sync(job, 0, values, 0, 5000000000ll), 0);
    sv_expect("copy s0 16\nraise s0 t0 = 1\nraise s0 t0 = 2\nREADY p0.0 slot -1 t0=2\n");
    assert_int_equal(gw_step_end(job, NULL), 0);
    at = acquire(job, 0);
    assert_float_equal(at[3], 4, 0);
    sv_lines();
    sv.device_memory = values; /* memory of the GPU goes straight */
    assert_int_equal(gw_grad_put_sync(job, 0, values, 0, 5000000000ll), 0);
    sv_expect("copy s0 16\nraise s0 t0 = 4\nREADY p0.0 slot -1 t0=4\n");
    sv_close(job);
}

/* ---- ends and updates ------------------------------------------------------------------------ */

static void an_update_is_ordered_in_streams(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    struct gw_token update;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    give(job, 0);
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_lines();
    assert_int_equal(gw_update_begin(job, &update), 0);
    assert_int_equal(gw_update_commit(job), GW_E_STATE); /* nobody waits for the window */
    assert_int_equal(gw_stream_wait(job, update, S(2)), 0);
    sv_expect("UPDATE_BEGIN\nwait s2 update >= 1\n");
    assert_int_equal(gw_update_commit(job), 0); /* ... and neither does the job's stream */
    sv_expect("wait s0 update >= 1\nraise s0 t0 = 3\nUPDATE_COMMIT t0=3\n");
    sv_close(job);
}

static void a_units_place_is_known_before_its_values(void **state)
{
    struct gw_zero_options options = {.stage = 3};
    const void *first = NULL, *again = NULL;
    struct gw_token token;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    assert_int_equal(gw_fetch(job, 1, &token), 0);
    assert_int_equal(gw_stream_wait(job, token, NULL), 0);
    sv_expect("FETCH u1\nwait s0 u1 >= 1\n");
    sv.board->slots[sv.board->buckets + 1].placed_offset = 256;
    atomic_store(&sv.board->slots[sv.board->buckets + 1].placed, 1);
    assert_int_equal(gw_param_ptr(job, 1, &first), 0);
    assert_int_equal(gw_release(job, 1), 0);
    sv_expect("raise s0 t0 = 1\nRELEASE u1 t0=1\n");
    assert_int_equal(gw_param_ptr(job, 1, &again), GW_E_STATE);
    assert_int_equal(gw_fetch(job, 1, &token), 0);
    sv.board->slots[sv.board->buckets + 1].placed_offset = 512;
    atomic_store(&sv.board->slots[sv.board->buckets + 1].placed, 2);
    assert_int_equal(gw_param_ptr(job, 1, &again), 0);
    assert_ptr_equal(again, (const char *)first + 256);
    sv_close(job);
}

static void values_move_when_streams_are_done(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    float values[4] = {0};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    assert_int_equal(gw_param_write_sync(job, 0, 0, 4, values, 5000000000ll), 0);
    sv_expect("raise s0 t0 = 1\nPARAM_IO\n");
    sv.hold = true;
    assert_int_equal(gw_param_read_sync(job, 0, 0, 4, values, 20000000), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "stream"));
    sv_close(job);
}

/* ---- what cannot be -------------------------------------------------------------------------- */

static void a_host_job_has_no_streams(void **state)
{
    struct gw_zero_options options = {.stage = 1, .order = GW_ORDER_FABRIC};
    struct gw_token token;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_HOST);
    job = sv_job();
    sv_expect("CREATE device 0 gpu 0:00\n");
    assert_int_equal(gw_stream_wait(job, (struct gw_token){0}, NULL), GW_E_STATE);
    assert_int_equal(gw_record(job, NULL, &token), GW_E_STATE);
    assert_int_equal(gw_cuda_set_stream(job, NULL), GW_E_STATE);
    assert_int_equal(gw_param_add(job, "p0", 4, NULL, NULL), 0);
    options.struct_size = sizeof(options);
    options.bucket_bytes = 16;
    assert_int_equal(gw_seal(job, &options, GW_FOREVER), GW_E_INVALID); /* fabric order: GPUs */
    options.order = GW_ORDER_EXACT;
    assert_int_equal(gw_seal(job, &options, GW_FOREVER), 0);
    give(job, 0);
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_expect("READY p0.0 slot -1\nSTEP_END\n");
    sv_close(job);
}

static void an_engine_of_another_kind_is_refused(void **state)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .world = 2};
    gw_job *job = NULL;

    (void)state;
    sv_open(GW_DEVICE_HOST);
    options.socket_path = sv.path;
    options.device = &sv_device;
    assert_int_equal(gw_job_create(&options, &job), GW_E_PROTOCOL);
    assert_int_equal(atomic_load(&sv_device.jobs), 0);
    sv_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_names_its_gpu),
        cmocka_unit_test(a_batch_is_marked_once),
        cmocka_unit_test(a_full_buffer_is_waited_for_in_the_stream),
        cmocka_unit_test(a_launched_slot_is_used_behind_its_reader),
        cmocka_unit_test(an_unused_slot_is_still_waited_for),
        cmocka_unit_test(what_a_wait_depends_on_is_sent_before),
        cmocka_unit_test(a_new_stream_takes_over),
        cmocka_unit_test(further_producers_have_tokens),
        cmocka_unit_test(gradients_are_copied_in_the_stream),
        cmocka_unit_test(an_update_is_ordered_in_streams),
        cmocka_unit_test(a_units_place_is_known_before_its_values),
        cmocka_unit_test(values_move_when_streams_are_done),
        cmocka_unit_test(a_host_job_has_no_streams),
        cmocka_unit_test(an_engine_of_another_kind_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
