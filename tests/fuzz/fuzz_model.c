/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's list, as text and as a safetensors header: taken whole, or refused with its file's
 * name. ctest: link=gw_conf_json
 */
#include <string.h>

#include "daemon/conf/model.h"
#include "gradwire/errors.h"
#include "tests/fuzz/fuzz.h"

#define LENGTH_BYTES 8u

static const char *const seeds[] = {
    "# name\tshape\tunit\nwte\t7x3\tembed\nbias\t5\nempty\t4x0\tu\r\n",
    "a\t1x2x3x4\tlayer.0\nb\t18446744073709551615\tlayer.0\n",
    "12345678{\"a.0.w\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}}",
    "12345678{\"__metadata__\": {}, \"h.10.b\": {\"dtype\": \"BF16\", \"shape\": [], "
    "\"data_offsets\": [0, 2]}, \"h.2.b\": {\"dtype\": \"X\", \"shape\": [0], "
    "\"data_offsets\": [2, 2]}}",
};

static void check(int r, struct model *model, const char *error)
{
    FUZZ_CHECK((r == 0) == (model != NULL));
    if (r < 0) {
        FUZZ_CHECK(r == GW_E_INVALID && strncmp(error, "fuzz:", 5) == 0);
        return;
    }
    FUZZ_CHECK(model->count > 0);
    for (uint32_t i = 0; i < model->count; i++) {
        FUZZ_CHECK(model->params[i].name[0] && strlen(model->params[i].name) <= MODEL_NAME_MAX);
        FUZZ_CHECK(strlen(model->params[i].unit) <= MODEL_NAME_MAX);
    }
    (void)model_free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char error[MODEL_ERROR_BYTES] = "";
    struct model *model = NULL;
    int r;

    r = model_parse_text((const char *)data, bytes, "fuzz", &model, error, sizeof(error));
    check(r, model, error);
    model = NULL;
    r = model_parse_safetensors(data, bytes, "fuzz", &model, error, sizeof(error));
    check(r, model, error);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    size_t length;

    if (index >= sizeof(seeds) / sizeof(seeds[0]))
        return 0;
    length = strlen(seeds[index]);
    if (length > bytes)
        return 0;
    memcpy(buffer, seeds[index], length);
    return length;
}

/* A header's length that fits, mostly: else nothing behind it is ever read. */
void fuzz_repair(uint8_t *data, size_t bytes)
{
    uint64_t header_bytes = bytes - LENGTH_BYTES;

    if (bytes <= LENGTH_BYTES || data[LENGTH_BYTES] != '{')
        return;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        data[i] = (uint8_t)(header_bytes >> (8 * i));
}
