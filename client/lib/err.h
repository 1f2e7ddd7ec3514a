/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error text. Owns one thread-local buffer; any thread; never fails,
 * prints or allocates.
 */
#ifndef GW_CLIENT_ERR_H
#define GW_CLIENT_ERR_H

/* Keeps the text for gw_last_error and returns `code`, so that a failing path is one line:
 *     return err_set(GW_E_INVALID, "rank %u is not below world %u", rank, world); */
int err_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts "what: " before the present text; returns `code`. */
int err_prefix(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
