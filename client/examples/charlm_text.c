/* SPDX-License-Identifier: Apache-2.0 */
/* Text and sampling; see charlm_text.h. */
#include "client/examples/charlm_text.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#define DEFAULT_DIRECTORY "/usr/share/common-licenses"
#define TEXT_SIZE_MAX ((size_t)1 << 30)

struct load {
    uint8_t *bytes;
    size_t size, capacity;
    char *error;
    size_t error_size;
};

static int fail(struct load *load, int code, const char *what, const char *path, const char *why)
{
    snprintf(load->error, load->error_size, "%s %s: %s", what, path, why);
    return code;
}

static bool grow(struct load *load)
{
    size_t capacity = load->capacity == 0 ? 1 << 16 : load->capacity * 2;
    uint8_t *bytes = realloc(load->bytes, capacity);

    if (bytes == NULL)
        return false;
    load->bytes = bytes;
    load->capacity = capacity;
    return true;
}

static int append_file(struct load *load, const char *path)
{
    FILE *file = fopen(path, "re");
    int r = 0;

    if (file == NULL)
        return fail(load, EX_NOINPUT, "cannot read text", path, strerror(errno));
    for (;;) {
        size_t got;

        if (load->size == load->capacity && !grow(load)) {
            r = fail(load, EX_OSERR, "cannot keep text", path, "no memory");
            break;
        }
        got = fread(load->bytes + load->size, 1, load->capacity - load->size, file);
        load->size += got;
        if (got == 0)
            break;
        if (load->size > TEXT_SIZE_MAX) {
            r = fail(load, EX_DATAERR, "text", path, "larger than 1 GiB");
            break;
        }
    }
    /* A directory opens, and fails here. */
    if (r == 0 && ferror(file))
        r = fail(load, EX_NOINPUT, "cannot read text", path, strerror(errno));
    fclose(file);
    return r;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int append_directory(struct load *load, const char *directory)
{
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, NULL, by_bytes);
    int r = 0;

    if (count < 0)
        return fail(load, EX_NOINPUT, "cannot read the default text in", directory,
                    strerror(errno));
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat st;

        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        /* Symbolic links name files that are there already. */
        if (r == 0 && lstat(path, &st) == 0 && S_ISREG(st.st_mode))
            r = append_file(load, path);
        free(entries[i]);
    }
    free(entries);
    return r;
}

/* Bytes become symbols in place; returns how many distinct ones there are. */
static uint32_t number_symbols(uint8_t *bytes, size_t size)
{
    uint8_t symbol[256] = {0};
    bool present[256] = {false};
    uint32_t vocab = 0;

    for (size_t i = 0; i < size; i++)
        present[bytes[i]] = true;
    for (uint32_t b = 0; b < 256; b++) {
        if (present[b])
            symbol[b] = (uint8_t)vocab++;
    }
    for (size_t i = 0; i < size; i++)
        bytes[i] = symbol[bytes[i]];
    return vocab;
}

int text_load(const char *path, uint32_t context, struct text *ret_text, char *error,
              size_t error_size)
{
    struct load load = {.error = error, .error_size = error_size};
    const char *name = path != NULL ? path : DEFAULT_DIRECTORY;
    int r;

    r = path != NULL ? append_file(&load, path) : append_directory(&load, DEFAULT_DIRECTORY);
    if (r == 0 && load.size == 0)
        r = fail(&load, EX_NOINPUT, "text", name, "is empty; give a file with --text");
    if (r == 0 && load.size <= context)
        r = fail(&load, EX_DATAERR, "text", name, "is shorter than one sample");
    if (r != 0) {
        free(load.bytes);
        return r;
    }
    ret_text->vocab = number_symbols(load.bytes, load.size);
    ret_text->symbols = load.bytes;
    ret_text->size = load.size;
    return 0;
}

void text_clear(struct text *text)
{
    free(text->symbols);
    *text = (struct text){0};
}

uint64_t text_mix(uint64_t state, uint64_t value)
{
    uint64_t z = state * 0xd1342543de82ef95u + value + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

size_t text_sample(const struct text *text, const struct text_draw *draw, uint32_t sample,
                   uint32_t context)
{
    uint64_t h = text_mix(text_mix(draw->seed, draw->step), draw->micro);

    h = text_mix(text_mix(h, draw->rank), sample);
    return (size_t)(h % (text->size - context));
}
