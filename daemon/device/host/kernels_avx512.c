/* SPDX-License-Identifier: Apache-2.0 */
/* Host kernels with vectors of 512 bits, and conversions of fp16. See kernels_body.h. */
#define ISA_NAME "avx512"
#define ISA_TABLE kernel_isa_avx512
#include "daemon/device/host/kernels_body.h"
