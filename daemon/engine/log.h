/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's log: one line per event on stderr, with the job's tag; names escaped by the caller,
 * never values, never secrets. Loop thread. */
#ifndef GW_ENGINE_LOG_H
#define GW_ENGINE_LOG_H

/* "0123456789abcdef"; kept as a copy. */
void log_set_tag(const char *tag);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
