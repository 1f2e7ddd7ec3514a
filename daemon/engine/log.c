/* SPDX-License-Identifier: Apache-2.0 */
/* One write per line, so that lines of several engines on one stderr do not mix. Loop thread. */
#include "daemon/engine/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/base/text.h"
#include "proto/limits.h"

static char log_tag[24] = "-";

void log_set_tag(const char *tag)
{
    snprintf(log_tag, sizeof(log_tag), "%s", tag);
}

void log_line(const char *format, ...)
{
    char line[GW_TEXT_MAX * 2];
    struct text text = {line, sizeof(line) - 1, 0, false};
    va_list arguments;

    text_add(&text, "gradwire-engine %s: ", log_tag);
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    line[text.used] = '\n';
    /* A log that cannot be written is no reason to end a job. */
    if (write(STDERR_FILENO, line, text.used + 1) < 0)
        return;
}
