/* SPDX-License-Identifier: Apache-2.0 */
/* The words for priorities. Constant data; any thread. */
#include "daemon/base/priority.h"

#include <stddef.h>

const char *const priority_names[] = {
    [PRIORITY_EQUAL] = "equal",
    [PRIORITY_NICE] = "nice",
    [PRIORITY_IDLE] = "idle",
    [PRIORITIES] = NULL,
};
