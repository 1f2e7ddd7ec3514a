/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration file: taken whole, or refused with file and line and the old values kept. */
#include <stdlib.h>
#include <string.h>

#include "daemon/conf/conf.h"
#include "gradwire/errors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct conf before, conf;
    char error[CONF_ERROR_BYTES] = "";
    char *text = malloc(bytes + 1);
    int r;

    FUZZ_CHECK(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    memset(&before, 0, sizeof(before));
    conf_defaults(&before);
    conf = before;
    r = conf_parse(text, bytes, "fuzz", &conf, error, sizeof(error));
    FUZZ_CHECK(memchr(error, 0, sizeof(error)) != NULL);
    if (r < 0) {
        FUZZ_CHECK(strncmp(error, "fuzz:", 5) == 0);
        FUZZ_CHECK(memcmp(&conf, &before, sizeof(conf)) == 0);
    }
    free(text);
    return 0;
}

/* Every key with its default, in its section. */
size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    size_t used = 0;

    if (index >= conf_keys_count || bytes < 1024)
        return 0;
    for (size_t i = index; i < conf_keys_count && i < index + 3; i++)
        used += (size_t)snprintf((char *)buffer + used, bytes - used, "[%s]\n%s = %s\n# note\n",
                                 conf_keys[i].section, conf_keys[i].name, conf_keys[i].initial);
    return used;
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
