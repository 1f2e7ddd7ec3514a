/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the cuda device and what they take: one struct each, passed by value. Sums have the
 * bits of daemon/device/host/kernels.h, which states the contract.
 *
 * cuda_launch_x enqueues gw_k_x on a stream of the current device and returns the cudaError_t; any
 * thread; the argument is copied. `threads` bounds how many threads run at once (blocks are of
 * GW_K_BLOCK); 0: as many as there is work for. Every pointer must be one that the GPU reaches.
 * C and C++ (nvcc).
 */
#ifndef GW_DEVICE_CUDA_KERNELS_H
#define GW_DEVICE_CUDA_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GW_K_BLOCK 256u
#define GW_K_CHUNK 4096u /* elements; KERNEL_CHUNK */
#define GW_K_LANES 16u
#define GW_K_INPUTS 64u  /* GW_GPU_RANKS_MAX */
#define GW_K_SIGNALS 64u

enum gw_k_type { GW_K_FP32 = 0, GW_K_FP16 = 1, GW_K_BF16 = 2 };

/* ---- numbers: no shared memory, no shuffles, no atomics; each thread writes what is its own -- */

/* struct kernel_partial. */
struct gw_k_partial {
    double norm;
    uint64_t nonfinite;
};

/* value = scale * tree(in), each input rounded to round_type first if that is a half; with
 * accumulate, value = out[0] + that; rounded once to out_type and stored to each out. Outs may be
 * inputs (the same address for the same element, and type), else nothing overlaps. */
struct gw_k_reduce {
    const void *in[GW_K_INPUTS]; /* NULL: zeros */
    void *out[GW_K_INPUTS];
    /* NULL, or of each chunk of `count` GW_K_LANES entries: squares (max: the largest |x|) and
     * non-finite elements of the values stored. gw_k_partials joins them. */
    struct gw_k_partial *lanes;
    uint64_t first, count;       /* elements [first, first + count) of every pointer */
    uint32_t n;                  /* 1..GW_K_INPUTS */
    uint32_t outs;               /* >= 1 */
    uint32_t in_type, out_type, round_type; /* enum gw_k_type */
    uint32_t accumulate, max;
    float scale;
};

/* partials[chunk] = its lanes, added pairwise: ((0+1)+(2+3))+..., or the largest. */
struct gw_k_partials {
    const struct gw_k_partial *lanes;
    struct gw_k_partial *partials;
    uint64_t chunks;
    uint64_t max;
};

/* Bytes of `word`, repeated. `to` is a multiple of 4. */
struct gw_k_fill {
    void *to;
    uint64_t bytes;
    uint32_t word;
};
#define GW_K_POISON 0xffffffffu /* a NaN in every type */

struct gw_k_cast {
    const void *in;
    void *out;
    uint64_t count;
    uint32_t in_type, out_type;
};

/* Partials of one bucket: slice by slice, chunk by chunk. */
struct gw_k_bucket {
    const struct gw_k_partial *partials;
    uint64_t chunks; /* of all slices; 0: no gradient this step */
};

/* The step's verdict: partials in (bucket, slice, chunk) order, by one thread. */
struct gw_k_verdict {
    const struct gw_k_bucket *buckets;
    uint64_t *verdict[2]; /* struct gw_shm_verdict each: the board's, the device's; NULL: none */
    const uint8_t *used_bits;
    uint8_t *bits[2]; /* of the parameters: the board's, the device's; NULL: none */
    uint64_t bits_bytes;
    uint64_t step, digest;
    double clip_norm; /* 0: none */
    uint32_t bucket_count, used_params;
    uint64_t max; /* the norm is the largest partial, not the root of their sum */
};

/* ---- time, signals ----------------------------------------------------------------------------
 * Times are ns of CLOCK_MONOTONIC: the GPU's clock plus clock_ns. Stamps and words lie in host
 * memory or on the GPU. An op has one struct gw_k_stamps per GPU that takes part, one after the
 * other: its parts. */

struct gw_k_stamps {
    uint64_t started_ns;
    uint64_t run_started_ns; /* where the lane's uninterrupted run of chained works began */
    uint64_t done_ns;        /* 0: not stamped */
};

/* Of one lane on one GPU; 0 at first. */
struct gw_k_lane {
    uint64_t run_started_ns, last_done_ns;
};

/* *at = now */
struct gw_k_stamp {
    uint64_t *at;
    int64_t clock_ns;
};

/* On the work stream, before the work: stamps->started_ns and run_started_ns; done_ns = 0. */
struct gw_k_begin {
    struct gw_k_stamps *stamps;
    struct gw_k_lane *lane;
    uint64_t ready_ns;
    int64_t clock_ns;
    uint32_t chained;
};

/* On the work stream, after the work: stamps->done_ns. */
struct gw_k_end {
    struct gw_k_stamps *stamps;
    struct gw_k_lane *lane;
    int64_t clock_ns;
};

/* Simulated link: takes `hold_ns` of it from when it is free, and waits until that has passed, or
 * one of `ranks` is aborted. */
struct gw_k_hold {
    uint64_t *link_free_ns;
    const uint64_t *aborted; /* bit per rank; NULL: none ever is */
    uint64_t ranks;
    uint64_t hold_ns;
    int64_t clock_ns;
};

/* struct gw_shm_slot. */
struct gw_k_slot {
    uint64_t value, ready_ns, started_ns, done_ns, offset, reserved[3];
};

struct gw_k_signal {
    struct gw_k_slot *slot;
    uint64_t value, offset;
    uint64_t *mirror; /* raised to value after the slot, for the client's streams. NULL: none */
};

/* When all parts of the op are done: raises slots, unless one of `ranks` is aborted. started_ns:
 * the earliest run_started_ns of the parts; done_ns: the latest, or now. */
struct gw_k_finish {
    struct gw_k_signal signal[GW_K_SIGNALS];
    const struct gw_k_stamps *stamps;
    struct gw_k_stamps *result; /* earliest and latest of the parts; not one of them. NULL: none */
    const uint64_t *aborted;
    uint64_t ranks;
    uint64_t ready_ns;
    int64_t clock_ns;
    uint32_t parts; /* >= 1 */
    uint32_t signals;
};

#define GW_K_LAUNCH(name)                                                                          \
    int cuda_launch_##name(const struct gw_k_##name *arg, uint64_t threads, void *stream)
GW_K_LAUNCH(reduce);
GW_K_LAUNCH(partials);
GW_K_LAUNCH(fill);
GW_K_LAUNCH(cast);
GW_K_LAUNCH(verdict);
GW_K_LAUNCH(stamp);
GW_K_LAUNCH(begin);
GW_K_LAUNCH(end);
GW_K_LAUNCH(hold);
GW_K_LAUNCH(finish);

/* All kernels onto the current device, or the cudaError_t: a first launch would load its kernel
 * then, and may wait for the whole device. Set-up path. */
int cuda_load_kernels(void);

#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint64_t gw_k_chunks(uint64_t count)
{
    return (count + GW_K_CHUNK - 1) / GW_K_CHUNK;
}

#ifdef __cplusplus
}
#endif
#endif
