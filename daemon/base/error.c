/* SPDX-License-Identifier: Apache-2.0 */
/* Names and messages of error codes. Pure; any thread. */
#include "daemon/base/error.h"

const char *gw_base_error_name(int error)
{
    switch (error) {
    case GW_OK:
        return "GW_OK";
#define ERROR_NAME(name, value, scope, message)                                                    \
    case value:                                                                                    \
        return "GW_E_" #name;
        GW_ERROR_MAP(ERROR_NAME)
#undef ERROR_NAME
    default:
        return "GW_E_?";
    }
}

const char *gw_base_error_message(int error)
{
    switch (error) {
    case GW_OK:
        return "success";
#define ERROR_MESSAGE(name, value, scope, message)                                                 \
    case value:                                                                                    \
        return message;
        GW_ERROR_MAP(ERROR_MESSAGE)
#undef ERROR_MESSAGE
    default:
        return "unknown error";
    }
}
