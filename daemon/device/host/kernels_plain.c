/* SPDX-License-Identifier: Apache-2.0 */
/* Host kernels with vectors of whatever the compiler's base has: SSE2 on x86-64, NEON on arm64. See
 * kernels_body.h. */
#define ISA_NAME "plain"
#define ISA_TABLE kernel_isa_plain
#include "daemon/device/host/kernels_body.h"
