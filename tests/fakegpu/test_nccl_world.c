/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generation of communicators whose making fails halfway: what some issuing threads have begun is
 * aborted and waited for before anything else is made or freed. The fabric's own sources between
 * stand-ins for NCCL and for the device, whose issuing threads do what they are told at once, and
 * from the failure on late. No server.
 * ctest: label=cuda timeout=60
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/fabric/nccl/nccl.h"

#define RANKS 3u
#define CALLS_MAX 64

/* ---- the device ------------------------------------------------------------------------------ */

struct call {
    void (*run)(void *arg, int gpu);
    void *arg;
    void (*release)(void *arg);
};

static struct call calls[CALLS_MAX]; /* run NULL: has been */
static uint32_t call_count, calls_left; /* calls_left: until one cannot be posted; 0: all can */
static bool late;
static uint32_t made, ended, live_at_init, live_at_free; /* communicators */
static char comms[CALLS_MAX];

int cuda_call(struct device *device, uint32_t rank, void (*run)(void *arg, int gpu), void *arg,
              void (*release)(void *arg))
{
    (void)device, (void)rank;
    if (calls_left && --calls_left == 0) {
        late = true;
        return GW_E_NOMEM;
    }
    assert_true(call_count < CALLS_MAX);
    calls[call_count++] = (struct call){late ? run : NULL, arg, release};
    if (!late)
        run(arg, 0);
    return 0;
}

/* What was posted until then. */
static void *issue(void *arg)
{
    uint32_t count = *(const uint32_t *)arg;

    usleep(20000);
    for (uint32_t i = 0; i < count; i++)
        if (calls[i].run)
            calls[i].run(calls[i].arg, 0);
    return NULL;
}

static void release_calls(void)
{
    for (uint32_t i = 0; i < call_count; i++)
        calls[i].release(calls[i].arg);
    call_count = 0;
}

int cuda_idle(struct device *device, uint32_t rank, void (*idle)(void *arg, int gpu), void *arg)
{
    (void)device, (void)rank, (void)idle, (void)arg;
    return 0;
}

void cuda_fault(struct device *device, const char *format, ...)
{
    (void)device;
    fail_msg("a fault was told: %s", format);
}

bool cuda_broken(const struct device *device)
{
    (void)device;
    return false;
}

int cuda_gpu(const struct device *device, uint32_t rank)
{
    (void)device;
    return (int)rank;
}

int cuda_scratch_new(struct device *device, uint32_t rank, size_t bytes, void **ret_base)
{
    static char scratch[RANKS];

    (void)device, (void)bytes;
    *ret_base = &scratch[rank];
    return 0;
}

/* The last that may still use it: a communicator of the half-made generation. */
void cuda_scratch_free(struct device *device, uint32_t rank, void *base)
{
    (void)device, (void)rank, (void)base;
    live_at_free += made - ended;
}

static int stream_new(struct device *device, const char *name, struct device_stream **ret_stream)
{
    (void)name;
    *ret_stream = (struct device_stream *)device;
    return 0;
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 1, sizeof(*id));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    (void)ranks, (void)id, (void)config;
    if (rank == 0)
        live_at_init = made - ended;
    *comm = (ncclComm_t)(void *)&comms[made++];
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config)
{
    (void)comm, (void)color, (void)key, (void)config;
    *child = (ncclComm_t)(void *)&comms[made++];
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    (void)comm;
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    (void)comm;
    ended++;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    (void)result;
    return "";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* ---- what is not asked for here -------------------------------------------------------------- */

void nccl_run(void *arg, void *native)
{
    (void)arg, (void)native;
}

int nccl_op_new(struct nccl_fabric *fabric, const struct fabric_op *from, struct nccl_op **ret_op)
{
    (void)fabric, (void)from, (void)ret_op;
    return GW_E_INTERNAL;
}

void nccl_op_free(void *arg)
{
    (void)arg;
}

int nccl_seal(struct nccl_fabric *fabric, const struct gw_layout_page *page)
{
    (void)fabric, (void)page;
    return 0;
}

void nccl_unseal(struct nccl_fabric *fabric)
{
    (void)fabric;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static struct fabric *start(void)
{
    static const struct device_ops ops = {.stream_new = stream_new};
    static char device;
    const struct fabric_config config = {
        .device_ops = &ops, .device = (struct device *)(void *)&device, .world = RANKS};
    struct fabric *fabric;

    made = ended = live_at_init = live_at_free = call_count = 0;
    late = false;
    assert_int_equal(fabric_nccl.fabric_new(&config, &fabric), 0);
    return fabric;
}

/* Of the three ranks' threads the third cannot be told to take part. */
static void fail_halfway(struct fabric *fabric)
{
    calls_left = RANKS;
    assert_int_equal(fabric_nccl.form(fabric), GW_E_NOMEM);
    assert_true(made > 0 && ended == 0);
}

static void nothing_goes_before_what_a_failure_left(void **state)
{
    struct fabric *fabric = start();
    pthread_t thread;
    uint32_t count;

    (void)state;
    fail_halfway(fabric);
    count = call_count;
    assert_int_equal(pthread_create(&thread, NULL, issue, &count), 0);
    assert_null(fabric_nccl.fabric_free(fabric));
    pthread_join(thread, NULL);
    assert_int_equal(live_at_free, 0);
    assert_int_equal(made, ended);
    release_calls();
}

static void the_next_generation_comes_behind_what_a_failure_left(void **state)
{
    struct fabric *fabric = start();
    pthread_t thread;
    uint32_t count;

    (void)state;
    fail_halfway(fabric);
    count = call_count;
    assert_int_equal(pthread_create(&thread, NULL, issue, &count), 0);
    late = false;
    assert_int_equal(fabric_nccl.form(fabric), 0);
    pthread_join(thread, NULL);
    assert_int_equal(live_at_init, 0);
    assert_true(made - ended >= 2 * RANKS); /* parents and everyone */
    fabric_nccl.abort(fabric);
    assert_int_equal(made, ended);
    assert_null(fabric_nccl.fabric_free(fabric));
    release_calls();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_goes_before_what_a_failure_left),
        cmocka_unit_test(the_next_generation_comes_behind_what_a_failure_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
