/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order by words (way.h): streams wait for 64-bit words and write them. A wait may be enqueued long
 * before what ends it, so nothing is held back. Owns nothing: the done words are the device's.
 */
#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"

static int track_new(struct cuda_gpu *gpu, uint32_t lane)
{
    (void)gpu;
    (void)lane;
    return 0;
}

static void track_free(struct cuda_gpu *gpu, uint32_t lane)
{
    (void)gpu;
    (void)lane;
}

static bool wait_word(struct cuda_gpu *gpu, CUstream stream, CUdeviceptr at, uint64_t value,
                      uint64_t op)
{
    return cuda_good(gpu, cu.cuStreamWaitValue64(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ),
                     "cuStreamWaitValue64", op);
}

/* A dead rank's tokens count as reached. */
static bool wait_tokens(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work)
{
    for (uint32_t i = 0; i < work->work.wait_count; i++) {
        const struct device_wait *wait = &work->work.waits[i];
        const void *word = (const void *)(uintptr_t)wait->word;
        if (cuda_aborted(gpu->device) >> wait->rank & 1)
            continue;
        if (!wait_word(gpu, stream, cuda_alias_now(gpu->device, word), wait->value, work->work.op))
            return false;
    }
    return true;
}

/* Of the shared memory that all GPUs reach at the same address. */
static CUdeviceptr done_word(struct cuda_device *device, uint32_t lane, uint32_t rank)
{
    return (CUdeviceptr)(uintptr_t)&device->shared->done[planted("word_reused") ? 0 : lane][rank];
}

static bool mark(struct cuda_gpu *gpu, uint32_t lane, uint64_t op)
{
    return cuda_good(gpu,
                     cu.cuStreamWriteValue64(gpu->tracks[lane].work,
                                             done_word(gpu->device, lane, gpu->rank), op,
                                             CU_STREAM_WRITE_VALUE_DEFAULT),
                     "cuStreamWriteValue64", op);
}

static bool wait(struct cuda_gpu *gpu, CUstream stream, uint32_t lane, uint64_t ranks,
                 uint64_t value, uint64_t op)
{
    for (; ranks; ranks &= ranks - 1) {
        CUdeviceptr word = done_word(gpu->device, lane, (uint32_t)__builtin_ctzll(ranks));
        if (!wait_word(gpu, stream, word, value, op))
            return false;
    }
    return true;
}

static void ended(struct cuda_gpu *gpu, uint32_t lane, uint64_t op)
{
    (void)gpu;
    (void)lane;
    (void)op;
}

static void look(struct cuda_gpu *gpu)
{
    gpu->look_ns = 0;
}

const struct cuda_way cuda_words = {
    .name = "words",
    .track_new = track_new,
    .track_free = track_free,
    .submit = cuda_push_work,
    .retry = cuda_raise_words,
    .wait_tokens = wait_tokens,
    .mark = mark,
    .wait = wait,
    .ended = ended,
    .look = look,
};
