/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's inputs: see pool.h. Lives as long as the program. */
#include "tests/fuzz/pool.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/cover.h"

#define POOL_MAX 4096u
#define FILE_MAX 65600u
#define KEPT_MAX 48u

struct entry {
    uint8_t *data;
    size_t bytes;
    uint32_t edges; /* that it reaches alone */
};

static struct entry entries[POOL_MAX];
static size_t count;

void pool_add(const uint8_t *data, size_t bytes)
{
    uint8_t *copy;

    if (count == POOL_MAX || !bytes)
        return;
    copy = malloc(bytes);
    if (!copy)
        return;
    memcpy(copy, data, bytes);
    entries[count++] = (struct entry){copy, bytes, 0};
}

size_t pool_count(void)
{
    return count;
}

size_t pool_get(size_t at, uint8_t *buffer, size_t buffer_bytes)
{
    const size_t bytes = entries[at].bytes < buffer_bytes ? entries[at].bytes : buffer_bytes;

    memcpy(buffer, entries[at].data, bytes);
    return bytes;
}

static int is_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int pool_read(const char *directory)
{
    static uint8_t data[FILE_MAX];
    struct dirent **names = NULL;
    const int found = scandir(directory, &names, is_file, alphasort);
    char path[4096];

    for (int i = 0; i < found; i++) {
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", directory, names[i]->d_name);
        file = fopen(path, "rbe");
        if (file) {
            pool_add(data, fread(data, 1, sizeof(data), file));
            fclose(file);
        }
        free(names[i]);
    }
    free(names);
    return found < 0 ? -1 : 0;
}

/* Those that reach most first, so that few files are enough. */
static int by_reach(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->edges != y->edges)
        return x->edges > y->edges ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return memcmp(x->data, y->data, x->bytes);
}

int pool_write(const char *directory, void (*run)(const uint8_t *data, size_t bytes))
{
    unsigned written = 0;
    char path[4096];

    for (size_t i = 0; i < count; i++) {
        cover_forget();
        cover_start();
        run(entries[i].data, entries[i].bytes);
        entries[i].edges = cover_edges();
    }
    qsort(entries, count, sizeof(entries[0]), by_reach);
    cover_forget();
    for (size_t i = 0; i < count && written < KEPT_MAX; i++) {
        FILE *file;

        cover_start();
        run(entries[i].data, entries[i].bytes);
        if (!cover_news())
            continue;
        snprintf(path, sizeof(path), "%s/%02u", directory, written++);
        file = fopen(path, "wbe");
        if (!file)
            return -1;
        if (fwrite(entries[i].data, 1, entries[i].bytes, file) != entries[i].bytes) {
            fclose(file);
            return -1;
        }
        if (fclose(file) != 0)
            return -1;
    }
    return 0;
}
