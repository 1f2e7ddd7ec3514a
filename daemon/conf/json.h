/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict JSON from text, by jansson: no comments, no trailing commas, no key twice, nothing after
 * the value. Pure; any thread.
 */
#ifndef GW_CONF_JSON_H
#define GW_CONF_JSON_H

#include <jansson.h>
#include <stddef.h>

/* 0 (json_decref it), GW_E_NOMEM, or GW_E_INVALID with `error` = "file:line:column: what". */
int json_read(const char *text, size_t bytes, const char *file, json_t **ret_value, char *error,
              size_t error_bytes);

#endif
