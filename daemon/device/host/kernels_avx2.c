/* SPDX-License-Identifier: Apache-2.0 */
/* Host kernels with vectors of 256 bits, and conversions of fp16. See kernels_body.h. */
#define ISA_NAME "avx2"
#define ISA_TABLE kernel_isa_avx2
#include "daemon/device/host/kernels_body.h"
