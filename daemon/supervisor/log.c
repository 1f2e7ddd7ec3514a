/* SPDX-License-Identifier: Apache-2.0 */
/* gradwired's log lines. Owns the level and form; loop thread only. */
#include "daemon/supervisor/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/text.h"

static enum conf_level log_level = CONF_INFO;
static bool log_plain = true;

void log_start(bool plain)
{
    log_plain = plain || getenv("JOURNAL_STREAM") == NULL;
}

void log_set_level(enum conf_level level)
{
    log_level = level;
}

void log_write(enum conf_level level, const char *format, ...)
{
    static const int priority[] = {3, 4, 6, 7}; /* syslog's */
    int saved = errno;
    char line[1024];
    struct text text;
    va_list list;

    if (level > log_level)
        return;
    /* One byte is kept for the newline; one write, so that lines of engines do not mix in. */
    text_start(&text, line, sizeof(line) - 1);
    if (log_plain)
        text_add(&text, "gradwired: ");
    else
        text_add(&text, "<%d>", priority[level]);
    va_start(list, format);
    text_addv(&text, format, list);
    va_end(list);
    line[text.used] = '\n';
    /* A log that cannot be written must not stop the service. */
    if (write(STDERR_FILENO, line, text.used + 1) < 0)
        errno = 0;
    errno = saved;
}
