/* SPDX-License-Identifier: Apache-2.0 */
/* Names, messages and the thread's last error text: gw_version, gw_error_*, gw_last_error. Any
 * thread; touches nothing but its own thread-local buffer. */
#include "client/lib/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/device.h"
#include "daemon/base/error.h"
#include "gradwire/gradwire.h"

#define GW_STRING2(x) #x
#define GW_STRING(x) GW_STRING2(x)

/* Longer than any text of the engine (GW_TEXT_MAX) with a prefix of ours. */
static _Thread_local char last_error[1024];

int err_set(int code, const char *format, ...)
{
    char text[sizeof(last_error)]; /* an argument may be the present text itself */
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    memcpy(last_error, text, sizeof(text));
    return code;
}

/* For callers that know what was tried, after the one that knows what went wrong. */
int err_prefix(int code, const char *format, ...)
{
    char prefix[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(prefix, sizeof(prefix), format, arguments);
    va_end(arguments);
    return err_set(code, "%s: %s", prefix, last_error);
}

int gw_private_error(int code, const char *new_text)
{
    return err_set(code, "%s", new_text);
}

const char *gw_last_error(void)
{
    return last_error;
}

const char *gw_version(void)
{
    return GW_STRING(GW_VERSION_MAJOR) "." GW_STRING(GW_VERSION_MINOR) "." GW_STRING(
        GW_VERSION_PATCH);
}

const char *gw_error_name(int error)
{
    return gw_base_error_name(error);
}

const char *gw_error_message(int error)
{
    return gw_base_error_message(error);
}
