/* SPDX-License-Identifier: Apache-2.0 */
/* Names and messages of error codes, from the one table in gradwire/errors.h. Pure; any thread. */
#ifndef GW_BASE_ERROR_H
#define GW_BASE_ERROR_H

#include "gradwire/errors.h"

/* "GW_E_TIMEOUT"; "GW_OK" for 0; "GW_E_?" for anything else. Static storage. */
const char *gw_base_error_name(int error);
/* The table's message; "success" for 0; "unknown error" for anything else. Static storage. */
const char *gw_base_error_message(int error);

#endif
