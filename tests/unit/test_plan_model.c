/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model lists: text and safetensors headers, and what is wrong with them, with line and column.
 * ctest: link=gw_conf_json
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/conf/model.h"
#include "gradwire/errors.h"

static char error[MODEL_ERROR_BYTES];
static uint8_t file[4096];

static struct model *text_model(const char *text)
{
    struct model *model = NULL;

    if (model_parse_text(text, strlen(text), "m.tsv", &model, error, sizeof(error)) != 0)
        fail_msg("%s: %s", text, error);
    return model;
}

static void assert_text_refused(const char *text, size_t bytes, const char *message)
{
    struct model *model = NULL;
    int r = model_parse_text(text, bytes, "m.tsv", &model, error, sizeof(error));

    assert_null(model);
    if (r != GW_E_INVALID || !strstr(error, message))
        fail_msg("%s: %d, \"%s\"; expected \"%s\"", text, r, error, message);
}

static void assert_param(const struct model *model, uint32_t i, const char *name, const char *unit,
                         uint64_t numel)
{
    assert_true(i < model->count);
    assert_string_equal(model->params[i].name, name);
    assert_string_equal(model->params[i].unit, unit);
    assert_int_equal(model->params[i].numel, numel);
}

static void lines_become_parameters(void **state)
{
    struct model *model = text_model("# name\tshape\tunit\n"
                                     "wte\t7x3\tembed\n"
                                     "\n"
                                     "bias\t5\r\n"
                                     "empty\t4x0\tu\n"
                                     "last\t1x2x3\tu");

    (void)state;
    assert_int_equal(model->count, 4);
    assert_param(model, 0, "wte", "embed", 21);
    assert_param(model, 1, "bias", "", 5);
    assert_param(model, 2, "empty", "u", 0);
    assert_param(model, 3, "last", "u", 6);
    assert_int_equal(model->params[3].line, 6);
    assert_false(model->units_guessed);
    assert_null(model_free(model));
}

static void wrong_lines_are_told_with_line_and_column(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a\t3xfour\tu\n", "m.tsv:1:5: a shape is numbers"},
        {"a\t3\tu\nb\t3x\tu", "m.tsv:2:5: a shape is numbers"},
        {"a\t-3\tu", "m.tsv:1:3: a shape is numbers"},
        {"a\t\tu", "m.tsv:1:3: a shape is numbers"},
        {"a\t3 4\tu", "m.tsv:1:4: a shape is numbers"},
        {"a\t99999999999999999999\tu", "m.tsv:1:3: the shape is too large"},
        {"a\t4294967296x4294967296\tu", "m.tsv:1:14: the shape is too large"},
        {"name only", "m.tsv:1:10: expected name<TAB>shape<TAB>unit"},
        {"\t3\tu", "m.tsv:1:1: a name has 1 to 255 bytes"},
        {"a\t3\tu\tmore", "m.tsv:1:7: more than"},
        {"", "m.tsv:0:1: no parameter"},
        {"# nothing\n", "m.tsv:1:1: no parameter"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_text_refused(rows[i].text, strlen(rows[i].text), rows[i].message);
    assert_text_refused("a\t3\tu\n\0", 7, "m.tsv:2:1: a NUL byte");
    /* Nothing that a list says reaches a terminal as it is. */
    assert_text_refused("\033[2J", 4, "\\u001b[2J");
}

/* ---- safetensors ---- */

static size_t write_file(const char *header, uint64_t header_bytes)
{
    for (unsigned i = 0; i < 8; i++)
        file[i] = (uint8_t)(header_bytes >> (8 * i));
    memcpy(file + 8, header, strlen(header));
    return 8 + strlen(header);
}

static void assert_header_refused(const char *header, uint64_t header_bytes, const char *message)
{
    size_t bytes = write_file(header, header_bytes);
    struct model *model = NULL;
    int r = model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error));

    assert_null(model);
    if (r != GW_E_INVALID || !strstr(error, message))
        fail_msg("%s: %d, \"%s\"; expected \"%s\"", header, r, error, message);
}

static void tensors_are_grouped_by_the_layers_number(void **state)
{
    static const char header[] =
        "{\"__metadata__\": {\"format\": \"pt\"},"
        "\"h.10.w\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
        "\"h.2.mlp.0.w\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [24, 40]},"
        "\"h.2.b\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [40, 44]},"
        "\"wte.weight\": {\"dtype\": \"BF16\", \"shape\": [3], \"data_offsets\": [44, 50]},"
        "\"scale\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [50, 50]}}";
    size_t bytes = write_file(header, strlen(header));
    struct model *model = NULL;

    (void)state;
    assert_int_equal(model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error)), 0);
    assert_int_equal(model->count, 5);
    assert_param(model, 0, "h.2.mlp.0.w", "h.2", 4); /* 2 before 10, then as in the file */
    assert_param(model, 1, "h.2.b", "h.2", 1);
    assert_param(model, 2, "h.10.w", "h.10", 6);
    assert_param(model, 3, "scale", "scale", 0);
    assert_param(model, 4, "wte.weight", "wte", 3);
    assert_true(model->units_guessed);
    assert_false(model->other_dtypes);
    assert_int_equal(model->params[0].dtype, GW_DTYPE_FP32);
    assert_int_equal(model->params[4].dtype, GW_DTYPE_BF16);
    model_free(model);
}

static void names_have_a_length(void **state)
{
    char name[MODEL_NAME_MAX + 2], text[1024];

    (void)state;
    for (size_t bytes = 0; bytes <= MODEL_NAME_MAX + 1; bytes += bytes ? 85 : 1) {
        struct model *model = NULL;
        int r;

        memset(name, 'n', bytes);
        name[bytes] = 0;
        for (int unit = 0; unit < 2; unit++) {
            snprintf(text, sizeof(text), unit ? "a\t3\t%s\n" : "%s\t3\tu\n", name);
            r = model_parse_text(text, strlen(text), "m.tsv", &model, error, sizeof(error));
            assert_int_equal(r == 0, bytes <= MODEL_NAME_MAX && (unit || bytes > 0));
            model = model_free(model);
        }
    }
}

/* One parameter more than a job takes, in a list that is well-formed otherwise. */
static void a_list_has_a_length(void **state)
{
    static const char row[] = "a\t1\n";
    size_t bytes = (size_t)(MODEL_PARAMS_MAX + 1) * (sizeof(row) - 1);
    char *text = malloc(bytes);

    (void)state;
    assert_non_null(text);
    for (size_t at = 0; at < bytes; at += sizeof(row) - 1)
        memcpy(text + at, row, sizeof(row) - 1);
    assert_text_refused(text, bytes, "m.tsv:1048577:1: more than 1048576 parameters");
    free(text);
}

/* Of a type that nobody here knows, its length cannot be judged: counted as fp32, and told. */
static void unknown_types_are_told(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"F4\", \"shape\": [3], \"data_offsets\": [0, 2]}}";
    size_t bytes = write_file(header, strlen(header));
    struct model *model = NULL;

    (void)state;
    assert_int_equal(model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error)), 0);
    assert_param(model, 0, "a", "a", 3);
    assert_true(model->other_dtypes);
    assert_int_equal(model->params[0].dtype, GW_DTYPE_FP32);
    model_free(model);
}

/* Of a type that is known, but none of ours, its length is judged. */
static void other_types_are_counted_as_fp32(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"I64\", \"shape\": [3], \"data_offsets\": [0, 24]}}";
    size_t bytes = write_file(header, strlen(header));
    struct model *model = NULL;

    (void)state;
    assert_int_equal(model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error)), 0);
    assert_param(model, 0, "a", "a", 3);
    assert_true(model->other_dtypes);
    model_free(model);
}

/* Within a unit the data's order counts, not the header's. */
static void tensors_of_a_unit_are_in_the_files_order(void **state)
{
    static const char header[] =
        "{\"h.0.z\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [8, 12]}, "
        "\"h.0.y\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}, "
        "\"h.0.x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}";
    size_t bytes = write_file(header, strlen(header));
    struct model *model = NULL;

    (void)state;
    assert_int_equal(model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error)), 0);
    assert_param(model, 0, "h.0.x", "h.0", 1);
    assert_param(model, 1, "h.0.y", "h.0", 1);
    assert_param(model, 2, "h.0.z", "h.0", 1);
    model_free(model);
}

static void tensors_names_have_a_length(void **state)
{
    char name[MODEL_NAME_MAX + 2], header[MODEL_NAME_MAX + 100];

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(header, sizeof(header),
                   "{\"%s\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}}",
                   name);
    assert_header_refused(header, strlen(header), "a name has 1 to 255 bytes");
}

/* Leading zeros and long numbers do not change the order; equal offsets go by name. */
static void layers_are_numbers(void **state)
{
    static const char header[] =
        "{\"h.010.w\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]},"
        "\"h.9.w\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]},"
        "\"h.11.b\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]},"
        "\"h.11.a\": {\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]},"
        "\"h.008.w\": {\"dtype\": \"X9\", \"shape\": [0], \"data_offsets\": [0, 0]}}";
    static const char *const want[] = {"h.008.w", "h.9.w", "h.010.w", "h.11.a", "h.11.b"};
    size_t bytes = write_file(header, strlen(header));
    struct model *model = NULL;

    (void)state;
    assert_int_equal(model_parse_safetensors(file, bytes, "m.st", &model, error, sizeof(error)), 0);
    for (uint32_t i = 0; i < 5; i++)
        assert_string_equal(model->params[i].name, want[i]);
    model_free(model);
}

static void wrong_headers_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", "do not fit"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", "from 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": 1, \"data_offsets\": [0, 4]}}",
         "list of numbers"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", "rising"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", "rising"},
        {"{\"a\": {\"shape\": [1], \"data_offsets\": [0, 4]}}", "dtype"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 8], "
         "\"data_offsets\": [0, 0]}}",
         "too large"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", "from 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [true, 4]}}", "rising"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, \"4\"]}}", "rising"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", "rising"},
        {"{\"a\": {\"dtype\": \"I64\", \"shape\": [4611686018427387904], "
         "\"data_offsets\": [0, 0]}}",
         "do not fit"},
        {"{\"a\": 3}", "not an object"},
        {"{\"\": {}}", "1 to 255 bytes"},
        {"{}", "no tensor"},
        {"{\"a\": }", "m.st:1:7"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_header_refused(rows[i][0], strlen(rows[i][0]), rows[i][1]);
    assert_header_refused("{\"a\"", 500, "the file ends inside it");
    assert_header_refused("{}", MODEL_HEADER_MAX + 1, "no safetensors file");
    assert_header_refused("[]", 2, "no safetensors file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_become_parameters),
        cmocka_unit_test(wrong_lines_are_told_with_line_and_column),
        cmocka_unit_test(tensors_are_grouped_by_the_layers_number),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(layers_are_numbers),
        cmocka_unit_test(names_have_a_length),
        cmocka_unit_test(a_list_has_a_length),
        cmocka_unit_test(unknown_types_are_told),
        cmocka_unit_test(other_types_are_counted_as_fp32),
        cmocka_unit_test(tensors_of_a_unit_are_in_the_files_order),
        cmocka_unit_test(tensors_names_have_a_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
