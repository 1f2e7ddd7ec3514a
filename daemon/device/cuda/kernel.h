/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim under which one kernel file compiles twice: by nvcc for GPUs, and as C for the CPU. It
 * owns the launch index, the clock and the few operations on shared words; kernels use nothing else
 * that differs. Included by .cu files only, and by who runs their CPU builds.
 *
 *   GW_KERNEL(gw_k_x)   { ... arg->field ... }      takes one struct gw_k_x
 *   for (i = gw_k_index(); i < n; i += gw_k_count())
 *
 * A CPU build ends with GW_KERNEL_TABLE_BEGIN, GW_KERNEL_ENTRY(gw_k_x) ..., GW_KERNEL_TABLE_END:
 * the table by which a fake GPU finds kernels, and gw_kernel_gap, by which it gets between the two
 * halves of an atomic. One entry's run() does what one thread does; the
 * indices 0..count-1 may run in any order and on any thread, (0, 1) alone does all the work.
 */
#ifndef GW_DEVICE_CUDA_KERNEL_H
#define GW_DEVICE_CUDA_KERNEL_H

#include <stddef.h>
#include <stdint.h>

struct gw_kernel_entry {
    const char *name;  /* as registered with the CUDA runtime; NULL ends the table */
    size_t arg_bytes;  /* of its one argument, a struct by value */
    void (*run)(const void *arg, uint64_t index, uint64_t count);
};
#define GW_KERNEL_TABLE "gw_kernel_table" /* symbols of a CPU build */
#define GW_KERNEL_GAP "gw_kernel_gap"

#ifdef __CUDACC__

#define GW_DEVICE static __device__ __forceinline__
/* A grid constant's address is the constant bank's: no thread copies the struct. */
#define GW_KERNEL(kernel)                                                                          \
    GW_DEVICE void kernel##_body(const struct kernel *arg);                                        \
    extern "C" __global__ void kernel(const __grid_constant__ struct kernel argument)              \
    {                                                                                              \
        kernel##_body(&argument);                                                                  \
    }                                                                                              \
    GW_DEVICE void kernel##_body(const struct kernel *arg)
#define GW_UNROLL _Pragma("unroll")
#define GW_NO_UNROLL _Pragma("unroll 1")

GW_DEVICE uint64_t gw_k_index(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

GW_DEVICE uint64_t gw_k_count(void)
{
    return (uint64_t)gridDim.x * blockDim.x;
}

GW_DEVICE uint32_t gw_k_bits(float value)
{
    return __float_as_uint(value);
}

GW_DEVICE float gw_k_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

/* Nanoseconds of the GPU's clock, whose distance to CLOCK_MONOTONIC is an argument of kernels. */
GW_DEVICE uint64_t gw_k_clock(void)
{
    uint64_t now_ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    return now_ns;
}

GW_DEVICE void gw_k_nap(uint32_t ns)
{
    __nanosleep(ns);
}

/* Words that others look at meanwhile: one access each, no order. */
GW_DEVICE uint64_t gw_k_load(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

GW_DEVICE void gw_k_store(uint64_t *word, uint64_t value)
{
    *(volatile uint64_t *)word = value;
}

GW_DEVICE void gw_k_store_byte(uint8_t *byte, uint8_t value)
{
    *(volatile uint8_t *)byte = value;
}

/* Everything stored before is seen, by hosts too, before what is stored after. */
GW_DEVICE void gw_k_fence(void)
{
    __threadfence_system();
}

/* Of the GPU's own signals none is lost. To the CPU it is an atomic only where
 * hostNativeAtomicSupported says so (CUDA guide, Atomic Functions; over PCIe it does not): a host's
 * store that comes between its read and its write is overwritten. So a host must store such a word
 * while no kernel raises it, or again afterwards, as whoever stores GW_TIMELINE_END does. */
GW_DEVICE void gw_k_raise(uint64_t *word, uint64_t value)
{
    (void)atomicMax_system((unsigned long long *)word, (unsigned long long)value);
}

/* 1: it was `from`, and is `to`. */
GW_DEVICE int gw_k_swap(uint64_t *word, uint64_t from, uint64_t to)
{
    return atomicCAS_system((unsigned long long *)word, (unsigned long long)from,
                            (unsigned long long)to) == (unsigned long long)from;
}

#else

#include <sched.h>
#include <string.h>
#include <time.h>

#define GW_DEVICE static inline __attribute__((always_inline))
#define GW_KERNEL(kernel)                                                                          \
    static void kernel##_body(const struct kernel *arg);                                           \
    static void kernel##_run(const void *arg, uint64_t index, uint64_t count)                      \
    {                                                                                              \
        gw_k_thread_index = index;                                                                 \
        gw_k_thread_count = count;                                                                 \
        kernel##_body((const struct kernel *)arg);                                                 \
    }                                                                                              \
    static void kernel##_body(const struct kernel *arg)
#define GW_UNROLL _Pragma("GCC unroll 16")
#define GW_NO_UNROLL _Pragma("GCC unroll 1")
#define GW_KERNEL_TABLE_BEGIN                                                                      \
    __attribute__((visibility("default"))) void (*gw_kernel_gap)(uint64_t *word);                  \
    extern const struct gw_kernel_entry gw_kernel_table[];                                         \
    __attribute__((visibility("default"))) const struct gw_kernel_entry gw_kernel_table[] = {
#define GW_KERNEL_ENTRY(kernel) {#kernel, sizeof(struct kernel), kernel##_run},
#define GW_KERNEL_TABLE_END                                                                        \
    {NULL, 0, NULL}                                                                                \
    }                                                                                              \
    ;

/* Called, if set, between the read and the write of an atomic that is none to the CPU. */
extern void (*gw_kernel_gap)(uint64_t *word);

static _Thread_local uint64_t gw_k_thread_index, gw_k_thread_count;
static char gw_k_atomics; /* set: a thread is in one, which to GPUs is a single access */

GW_DEVICE uint64_t gw_k_index(void)
{
    return gw_k_thread_index;
}

GW_DEVICE uint64_t gw_k_count(void)
{
    return gw_k_thread_count;
}

GW_DEVICE uint32_t gw_k_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

GW_DEVICE float gw_k_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

GW_DEVICE uint64_t gw_k_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

GW_DEVICE void gw_k_nap(uint32_t ns)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)ns};

    nanosleep(&time, NULL);
}

GW_DEVICE uint64_t gw_k_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

GW_DEVICE void gw_k_store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

GW_DEVICE void gw_k_store_byte(uint8_t *byte, uint8_t value)
{
    __atomic_store_n(byte, value, __ATOMIC_RELAXED);
}

GW_DEVICE void gw_k_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* The word was looked at before, so that who may not touch it faults without the lock. */
GW_DEVICE void gw_k_raise(uint64_t *word, uint64_t value)
{
    uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED);

    while (__atomic_test_and_set(&gw_k_atomics, __ATOMIC_ACQUIRE))
        sched_yield();
    before = __atomic_load_n(word, __ATOMIC_RELAXED);
    if (gw_kernel_gap)
        gw_kernel_gap(word);
    __atomic_store_n(word, before < value ? value : before, __ATOMIC_RELEASE);
    __atomic_clear(&gw_k_atomics, __ATOMIC_RELEASE);
}

GW_DEVICE int gw_k_swap(uint64_t *word, uint64_t from, uint64_t to)
{
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

#endif
#endif
