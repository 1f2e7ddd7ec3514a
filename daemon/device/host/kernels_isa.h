/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the host kernels: the same code (kernels_body.h), compiled for several widths of
 * vectors; the widest that the processor has is chosen when first used. All have the same bits.
 */
#ifndef GW_DEVICE_HOST_KERNELS_ISA_H
#define GW_DEVICE_HOST_KERNELS_ISA_H

#include "daemon/device/host/kernels.h"

struct kernel_isa {
    const char *name;
    /* Elements [at, at + count) of every pointer, count <= KERNEL_CHUNK; partial: NULL or theirs.
     * Stores past the caches have not settled yet. */
    void (*chunk)(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                  struct kernel_partial *partial);
    /* Past the caches; settled. */
    void (*copy_past)(void *to, const void *from, size_t bytes);
    void (*settle)(void);
};

extern const struct kernel_isa kernel_isa_plain;
#ifdef __x86_64__
extern const struct kernel_isa kernel_isa_avx2, kernel_isa_avx512;
#endif

/* NULL ends them; the best first. Only those that this processor has. */
const struct kernel_isa *const *kernel_isas(void);

void kernel_reduce_with(const struct kernel_isa *isa, const struct kernel_reduce *reduce,
                        struct kernel_moved *moved);

#endif
