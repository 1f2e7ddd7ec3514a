/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of safetensors files and their index, as gw_state_load_sync reads them: taken whole, or
 * refused with the byte. The first byte chooses which.
 */
#include <string.h>

#include "client/lib/state.h"
#include "client/lib/state_json.h"
#include "tests/fuzz/fuzz.h"

static const char *const seeds[] = {
    "h{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "h{\"__metadata__\":{\"format\":\"pt\",\"gradwire_save\":\"0123456789abcdef\"},\"\\u00e9\\\"\":"
    "{\"shape\":[],\"data_offsets\":[0,2],\"dtype\":\"BF16\",\"x\":[[{}],-1.5e3,null]}}  ",
    "i{\"metadata\":{\"total_size\":1,\"gradwire_save\":\"0123456789abcdef\"},\"weight_map\":"
    "{\"a\":\"m-1\",\"\\ud83d\\ude00\":\"m-2\"}}",
    "s[[1,[]],{\"a\":{\"b\":[true,\"\\n\"]}},0.5]",
};

static int take_entry(void *arg, const struct state_entry *entry)
{
    size_t *count = arg;

    FUZZ_CHECK(strlen(entry->name) <= STATE_NAME_MAX && entry->begin <= entry->end);
    FUZZ_CHECK(strlen(entry->dtype) < sizeof(entry->dtype));
    if (entry->numel_fits && entry->dims == 1)
        FUZZ_CHECK(entry->numel == entry->extents[0]);
    (*count)++;
    return 0;
}

static int take_file(void *arg, const char *file)
{
    size_t *count = arg;

    FUZZ_CHECK(file[0] != '\0' && strlen(file) < 256);
    (*count)++;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data + 1;
    struct scan scan = {text, text + bytes - 1};
    char id[STATE_ID_CHARS + 1] = "";
    size_t count = 0;
    int r = 0;

    if (bytes == 0)
        return 0;
    if (data[0] == 's') {
        (void)scan_skip(&scan);
        FUZZ_CHECK(scan.at >= text && scan.at <= scan.end);
    } else if (data[0] == 'i') {
        r = state_index_read(text, bytes - 1, id, take_file, &count);
    } else {
        r = state_header_read(text, bytes - 1, id, take_entry, &count);
    }
    FUZZ_CHECK(r == 0 || (r == GW_E_INVALID && strncmp(gw_last_error(), "byte ", 5) == 0));
    FUZZ_CHECK(strlen(id) <= STATE_ID_CHARS);
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

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
