/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on a GPU: collectives, imported and staged memory, failures, forks and the end of a
 * handle. ctest: link=gw_client
 */
#include <sys/wait.h>

#include "test_client_service.h"

#define S(n) ((void *)(uintptr_t)(n))

static struct gw_slice slice(gw_buffer *buffer, uint64_t offset)
{
    return (struct gw_slice){.buffer = buffer, .offset = offset};
}

static gw_job *open_job(void)
{
    gw_job *job;

    sv_open(GW_DEVICE_CUDA);
    job = sv_job();
    sv_lines();
    return job;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void an_op_comes_after_the_stream(void **state)
{
    gw_job *job = open_job();
    gw_buffer *buffer = NULL;
    struct gw_token token;

    (void)state;
    assert_int_equal(gw_buffer_new(job, 64, &buffer), 0);
    assert_int_equal(sv.mapped, 1);
    assert_int_equal(gw_all_reduce(job, slice(buffer, 0), slice(buffer, 0), 8, NULL, &token), 0);
    assert_int_equal(gw_stream_wait(job, token, S(2)), 0);
    sv_expect("raise s0 t0 = 1\nOP 1 t0=1\nwait s2 op1 >= 1\n");
    assert_int_equal(gw_barrier(job, NULL, &token), 0);
    sv_expect("raise s0 t0 = 2\nOP 2 t0=2\n");
    atomic_store(&sv.engine->op[2].value, 2);
    assert_int_equal(gw_stream_wait(job, token, S(2)), 0); /* reached: nothing to wait for */
    sv_expect("");
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
}

static void memory_that_can_cross_is_not_copied(void **state)
{
    gw_job *job = open_job();
    gw_buffer *buffer = NULL;
    struct gw_token token;
    float memory[8];
    int staged = 7;

    (void)state;
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, &staged), 0);
    assert_int_equal(staged, 0);
    assert_ptr_equal(gw_buffer_data(buffer), memory);
    assert_int_equal(gw_buffer_size(buffer), sizeof(memory));
    assert_int_equal(gw_all_reduce(job, slice(buffer, 0), slice(buffer, 0), 8, NULL, &token), 0);
    sv_expect("IMPORT 64+32\nraise s0 t0 = 1\nOP 1 t0=1\n");
    assert_int_equal(gw_buffer_free(job, buffer), GW_E_BUSY);
    atomic_store(&sv.engine->op[1].value, 1);
    assert_int_equal(gw_buffer_free(job, buffer), 0);
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
}

/* In before the op is declared; out behind it, in a stream of ours whose token stands for the op's;
 * the next op's copy in comes after that. */
static void memory_that_cannot_cross_is_copied(void **state)
{
    struct gw_stats stats = {.struct_size = sizeof(stats)};
    gw_job *job = open_job();
    gw_buffer *buffer = NULL;
    struct gw_token first, second;
    float memory[8] = {1, 2, 3, 4};
    int staged = 0;

    (void)state;
    sv.export_code = GW_E_UNIMPLEMENTED;
    sv.hold = true;
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, &staged), 0);
    assert_int_equal(staged, 1);
    assert_ptr_equal(gw_buffer_data(buffer), memory);
    assert_int_equal(gw_all_reduce(job, slice(buffer, 0), slice(buffer, 0), 8, NULL, &first), 0);
    sv_expect("STANDS IN 1\ncopy s0 32\nraise s0 t1 = 1\nOP 1 t1=1\n"
              "wait s100 op1 >= 1\ncopy s100 32\nraise s100 t0 = 1\n");
    assert_int_equal(gw_all_reduce(job, slice(buffer, 0), slice(buffer, 4), 4, NULL, &second), 0);
    sv_expect("wait s0 t0 >= 1\ncopy s0 16\nraise s0 t1 = 2\nOP 2 t1=2\n"
              "wait s100 op2 >= 2\ncopy s100 16\nraise s100 t0 = 2\n");
    assert_int_equal(gw_stream_wait(job, first, S(3)), 0);
    sv_expect("wait s3 t0 >= 1\n");
    /* The copy alone is no completion: a released stream goes on too. */
    atomic_store(&sv.client->timeline[0], 1);
    assert_int_equal(gw_test(job, first), 0);
    atomic_store(&sv.engine->op[1].value, 1);
    assert_int_equal(gw_test(job, first), 1);
    atomic_store(&sv.engine->op[2].value, 2);
    assert_int_equal(gw_buffer_free(job, buffer), GW_E_BUSY);
    atomic_store(&sv.client->timeline[0], 2);
    assert_int_equal(gw_buffer_free(job, buffer), 0);
    assert_int_equal(gw_stats_sync(job, GW_FOREVER, &stats), 0);
    assert_int_equal(stats.staged_bytes, 32 + 32 + 16 + 16);
    sv.hold = false;
    atomic_store(&sv.client->timeline[1], 2);
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
    assert_int_equal(sv.streams, 0);
}

static void an_engine_that_cannot_open_memory_gets_copies(void **state)
{
    gw_job *job = open_job();
    gw_buffer *buffer = NULL;
    float memory[8];
    int staged = 0;

    (void)state;
    sv.import_code = GW_E_INVALID;
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, &staged), 0);
    assert_int_equal(staged, 1);
    sv_expect("IMPORT 64+32\nSTANDS IN 2\n");
    sv.import_code = GW_E_NOMEM;
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, &staged),
                     GW_E_NOMEM);
    sv.export_code = GW_E_INVALID; /* no memory of the device at all */
    assert_int_equal(gw_cuda_buffer_import(job, memory, sizeof(memory), &buffer, &staged),
                     GW_E_INVALID);
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
}

static void the_verdict_lies_on_the_device(void **state)
{
    struct gw_zero_options options = {.stage = 2};
    const struct gw_cuda_verdict *verdict = NULL, *again = NULL;
    unsigned mapped;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    mapped = sv.mapped;
    assert_int_equal(gw_cuda_verdict_ptr(job, &verdict), 0);
    assert_int_equal(gw_cuda_verdict_ptr(job, &again), 0);
    assert_non_null(verdict);
    assert_ptr_equal(again, verdict);
    assert_int_equal(sv.mapped, mapped + 1);
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void expect_released(const struct gw_wait_page *page)
{
    for (uint32_t i = 0; i < page->count; i++)
        assert_int_equal(atomic_load(&page->word[i]), GW_TIMELINE_END);
}

/* Any call that sees the failure frees the streams; nothing is enqueued any more. */
static void a_failed_job_frees_its_streams(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    struct gw_token step;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    assert_int_equal(gw_step_end(job, &step), 0);
    assert_int_equal(gw_stream_wait(job, step, S(1)), 0);
    sv_lines();
    assert_int_equal(atomic_load(&sv.board_words->word[GW_WAIT_STEP]), 0);
    sv_fail(GW_E_PEER_LOST, "rank 1 is gone");
    assert_int_equal(gw_test(job, step), GW_E_PEER_LOST); /* freed is not reached */
    expect_released(sv.op_words);
    expect_released(sv.board_words);
    assert_int_equal(gw_stream_wait(job, step, S(1)), GW_E_PEER_LOST);
    assert_int_equal(gw_wait(job, step, 1000000), GW_E_PEER_LOST);
    assert_string_equal(gw_last_error(), "rank 1 is gone");
    sv_expect("");
    sv_close(job);
}

static void a_lost_engine_frees_the_streams(void **state)
{
    gw_job *job = open_job();
    struct gw_token token;

    (void)state;
    assert_int_equal(gw_barrier(job, NULL, &token), 0);
    assert_int_equal(gw_stream_wait(job, token, S(1)), 0);
    sv_lines();
    sv_hang_up();
    assert_int_equal(gw_wait(job, token, 5000000000ll), GW_E_ENGINE_LOST);
    expect_released(sv.op_words);
    sv_close(job);
}

static void a_broken_gpu_ends_the_handle(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    void *values = NULL;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    assert_int_equal(gw_grad_acquire_sync(job, 0, 0, GW_FOREVER, &values, NULL), 0);
    sv.raise_fails = true;
    assert_int_equal(gw_grad_ready(job, 0, 0, 0, NULL, 0), 0); /* taken, but cannot be sent */
    assert_int_equal(gw_step_end(job, NULL), GW_E_DEVICE);
    assert_string_equal(gw_last_error(), "the GPU is broken");
    sv_close(job);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A stream that was made to wait, though for what had come already, counts; the default stream that
 * no call worked in does not. */
static void a_close_waits_for_its_streams(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    assert_int_equal(sv.page_count, 3);
    assert_true(sv.mapped > 0);
    assert_int_equal(gw_stream_wait(job, (struct gw_token){0}, S(4)), 0);
    sv_expect("");
    sv.busy = 3;
    sv_close(job);
    assert_int_equal(sv.busy, 0);
    assert_int_equal(sv.page_count, 0);
    assert_int_equal(sv.mapped, 0);
    assert_false(atomic_load(&sv_device.stuck));
    assert_string_equal(sv_lines(), "idle s4\nLEAVE\n");
}

/* A failed job's own words are raised by the engine, which knows nothing of its streams. */
static void a_raised_word_is_no_idle_stream(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    struct gw_token mark = {0};
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    sv.hold = true;
    assert_int_equal(gw_record(job, S(1), &mark), 0);
    sv_fail(GW_E_PEER_LOST, "rank 1 is gone");
    atomic_store(&sv.client->timeline[GW_TIMELINE_INDEX(mark.timeline)], GW_TIMELINE_END);
    assert_int_equal(gw_test(job, mark), GW_E_PEER_LOST);
    assert_int_equal(gw_wait(job, mark, GW_FOREVER), GW_E_PEER_LOST);
    sv_close(job);
    assert_int_equal(sv.page_count, 3);
    assert_true(sv.mapped > 0);
    assert_true(atomic_load(&sv_device.stuck));
}

/* What a stream may still touch stays mapped: a fault would end everything on the GPU. */
static void a_close_leaves_what_streams_hold(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    unsigned mapped;
    gw_job *job;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(2, &options);
    mapped = sv.mapped;
    sv.hold = true;
    assert_int_equal(gw_step_end(job, NULL), 0);
    sv_close(job);
    assert_int_equal(sv.page_count, 3);
    assert_int_equal(sv.mapped, mapped);
    assert_true(atomic_load(&sv_device.stuck));
}

/* In a forked child handles are dead, and the device hears nothing. */
static void a_child_makes_no_call(void **state)
{
    struct gw_zero_options options = {.stage = 1};
    struct gw_token token = {0};
    int status = 0;
    gw_job *job;
    pid_t child;

    (void)state;
    sv_open(GW_DEVICE_CUDA);
    job = sv_sealed_job(1, &options);
    child = fork();
    if (child == 0) {
        sv.fd = -1;
        if (gw_stream_wait(job, token, NULL) != GW_E_FORKED ||
            gw_record(job, NULL, &token) != GW_E_FORKED ||
            gw_cuda_set_stream(job, NULL) != GW_E_FORKED || gw_step_end(job, NULL) != GW_E_FORKED)
            _exit(1);
        gw_job_close(job);
        _exit(sv.count == 0 && sv.page_count == 3 ? 0 : 2);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    sv_close(job);
    assert_int_equal(sv.mapped, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_op_comes_after_the_stream),
        cmocka_unit_test(memory_that_can_cross_is_not_copied),
        cmocka_unit_test(memory_that_cannot_cross_is_copied),
        cmocka_unit_test(an_engine_that_cannot_open_memory_gets_copies),
        cmocka_unit_test(the_verdict_lies_on_the_device),
        cmocka_unit_test(a_failed_job_frees_its_streams),
        cmocka_unit_test(a_lost_engine_frees_the_streams),
        cmocka_unit_test(a_broken_gpu_ends_the_handle),
        cmocka_unit_test(a_close_waits_for_its_streams),
        cmocka_unit_test(a_raised_word_is_no_idle_stream),
        cmocka_unit_test(a_close_leaves_what_streams_hold),
        cmocka_unit_test(a_child_makes_no_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
