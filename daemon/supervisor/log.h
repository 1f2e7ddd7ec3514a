/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's log: one line per message on stderr, names and counts only, never values.
 *
 * Loop thread only. Where stderr goes to the journal ($JOURNAL_STREAM, without --foreground) lines
 * start with the "<6>" priority that journald takes off, else with the program's name. Text that a
 * client chose must be escaped by the caller.
 */
#ifndef GW_SUPERVISOR_LOG_H
#define GW_SUPERVISOR_LOG_H

#include <stdbool.h>

#include "daemon/conf/conf.h"

void log_start(bool plain);
void log_set_level(enum conf_level level);
void log_write(enum conf_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(CONF_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(CONF_WARNING, __VA_ARGS__)
#define log_info(...) log_write(CONF_INFO, __VA_ARGS__)
#define log_debug(...) log_write(CONF_DEBUG, __VA_ARGS__)

#endif
