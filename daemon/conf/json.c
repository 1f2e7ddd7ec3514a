/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON, and what is wrong with other text. See json.h. Pure; any thread. */
#include "daemon/conf/json.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/escape.h"
#include "gradwire/errors.h"

/* jansson says "string or '}' expected near '/'": a hint where the reason is a common one. */
static const char *hint(const char *text, size_t bytes, const json_error_t *problem)
{
    size_t at = problem->position > 0 ? (size_t)problem->position - 1 : 0;

    if (json_error_code(problem) != json_error_invalid_syntax || at >= bytes)
        return "";
    if (text[at] == '/' || text[at] == '#')
        return "; comments are not JSON";
    if (text[at] == '}' || text[at] == ']') {
        while (at > 0 && strchr(" \t\r\n", text[at - 1]) != NULL)
            at--;
        if (at > 0 && text[at - 1] == ',')
            return "; a comma before the end is not JSON";
    }
    return "";
}

int json_read(const char *text, size_t bytes, const char *file, json_t **ret_value, char *error,
              size_t error_bytes)
{
    char safe[ESCAPE_BYTES(JSON_ERROR_TEXT_LENGTH)];
    json_error_t problem;
    json_t *value;

    /* A fixed seed of the hash: nothing is read from the system. Texts are bounded by callers. */
    json_object_seed(1);
    value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
    if (value != NULL) {
        *ret_value = value;
        return 0;
    }
    if (json_error_code(&problem) == json_error_out_of_memory)
        return GW_E_NOMEM;
    (void)escape_text(problem.text, strnlen(problem.text, JSON_ERROR_TEXT_LENGTH), safe,
                      sizeof(safe));
    (void)snprintf(error, error_bytes, "%s:%d:%d: %s%s", file, problem.line, problem.column, safe,
                   hint(text, bytes, &problem));
    return GW_E_INVALID;
}
