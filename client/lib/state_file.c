/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a saved state: made under temporary names with all of their room, written in parts by
 * all ranks, renamed by rank 0. Blocking calls of the file system, by the caller's thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/err.h"
#include "client/lib/state.h"

#define LENGTH_BYTES 8u
#define MODE 0666 /* less the process's umask, as files of other programs */

static int failed(const char *doing, const char *path, int error)
{
    const char *advice =
        error == ENOSPC || error == EDQUOT || error == EFBIG ? "; make room or save elsewhere" : "";

    return err_set(GW_E_IO, "%s %.200s: %s%s", doing, path, strerror(error), advice);
}

static void close_file(struct state_file *file)
{
    if (file->fd >= 0)
        (void)close(file->fd);
    file->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

int state_file_write(const struct state_file *file, uint64_t at, const void *bytes, size_t count)
{
    const char *from = bytes;

    while (count > 0) {
        ssize_t n = pwrite(file->fd, from, count, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return failed("writing", file->partial, n < 0 ? errno : ENOSPC);
        from += n;
        at += (uint64_t)n;
        count -= (size_t)n;
    }
    return 0;
}

static int read_at(int fd, const char *path, uint64_t at, void *bytes, size_t count)
{
    char *to = bytes;

    while (count > 0) {
        ssize_t n = pread(fd, to, count, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed("reading", path, errno);
        if (n == 0)
            return err_set(GW_E_IO, "reading %.200s: it ends at byte %llu, before its tensors do",
                           path, (unsigned long long)at);
        to += n;
        at += (uint64_t)n;
        count -= (size_t)n;
    }
    return 0;
}

int state_file_read(const struct state_file *file, uint64_t at, void *bytes, size_t count)
{
    return read_at(file->fd, file->path, at, bytes, count);
}

/* Which bytes are the text. */
static int text_extent(int fd, const char *path, bool header, uint64_t size, uint64_t *ret_at,
                       uint64_t *ret_bytes)
{
    uint8_t length[LENGTH_BYTES] = {0};
    uint64_t bytes = 0;
    int r;

    *ret_at = 0;
    *ret_bytes = size;
    if (header && size >= LENGTH_BYTES) {
        r = read_at(fd, path, 0, length, sizeof(length));
        if (r < 0)
            return r;
        for (unsigned i = 0; i < LENGTH_BYTES; i++)
            bytes |= (uint64_t)length[i] << (8 * i);
        *ret_at = LENGTH_BYTES;
        *ret_bytes = bytes;
    }
    if (header && (size < LENGTH_BYTES || bytes > size - LENGTH_BYTES))
        return err_set(GW_E_INVALID,
                       "%.200s ends inside its header: it is no safetensors file, or "
                       "only a part of one",
                       path);
    if (*ret_bytes > STATE_HEADER_MAX)
        return err_set(GW_E_LIMIT, "%.200s: %s of %llu bytes; at most %u", path,
                       header ? "a header" : "an index", (unsigned long long)*ret_bytes,
                       STATE_HEADER_MAX);
    return 0;
}

int state_file_text(const char *path, bool header, char **ret_text, uint64_t *ret_bytes,
                    uint64_t *ret_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    uint64_t at = 0, bytes = 0;
    struct stat about;
    char *text = NULL;
    int r = 0;

    if (fd < 0 || fstat(fd, &about) < 0)
        r = failed("opening", path, errno);
    else if (!S_ISREG(about.st_mode))
        r = err_set(GW_E_IO, "opening %.200s: it is no plain file", path);
    if (r == 0)
        r = text_extent(fd, path, header, (uint64_t)about.st_size, &at, &bytes);
    if (r == 0) {
        text = malloc((size_t)bytes + 1);
        r = text ? read_at(fd, path, at, text, (size_t)bytes)
                 : err_set(GW_E_NOMEM, "no memory for the header of %.200s", path);
    }
    if (fd >= 0)
        (void)close(fd);
    if (r < 0) {
        free(text);
        return r;
    }
    *ret_text = text;
    *ret_bytes = bytes;
    *ret_size = (uint64_t)about.st_size;
    return 0;
}

/* ---- one open at a time ---------------------------------------------------------------------- */

int state_file_done(struct state *s)
{
    struct state_file *file = s->open == STATE_NOT_FOUND ? NULL : &s->files[s->open];
    int r = 0;

    s->open = STATE_NOT_FOUND;
    if (!file || file->fd < 0)
        return 0;
    if (s->saving && fsync(file->fd) < 0)
        r = failed("writing", file->partial, errno);
    close_file(file);
    return r;
}

int state_file_use(struct state *s, uint32_t index)
{
    struct state_file *file = &s->files[index];
    const char *path = s->saving ? file->partial : file->path;
    int flags = s->saving ? O_WRONLY | O_NOFOLLOW : O_RDONLY;
    int r;

    if (s->open == index)
        return 0;
    r = state_file_done(s);
    if (r < 0)
        return r;
    file->fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
    if (file->fd < 0)
        return failed("opening", path, errno);
    s->open = index;
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* All of it now: a full disk is told before the first value moves. Some file systems cannot. */
static int make_room(struct state_file *file, uint64_t bytes)
{
    if (bytes == 0 || fallocate(file->fd, 0, 0, (off_t)bytes) == 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return failed("making room for", file->partial, errno);
    return ftruncate(file->fd, (off_t)bytes) < 0 ? failed("making room for", file->partial, errno)
                                                 : 0;
}

/* One that is there is of a save of this job that was killed. */
static int make(struct state_file *file)
{
    int r;

    if (file->header_bytes > (uint64_t)INT64_MAX - file->data_bytes)
        return err_set(GW_E_LIMIT, "%.200s would be too large for a file", file->path);
    (void)unlink(file->partial);
    file->fd = open(file->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (file->fd < 0)
        return failed("making", file->partial, errno);
    file->made = true;
    r = make_room(file, file->header_bytes + file->data_bytes);
    if (r == 0)
        r = state_file_write(file, 0, file->header, (size_t)file->header_bytes);
    if (r == 0 && fsync(file->fd) < 0)
        r = failed("writing", file->partial, errno);
    close_file(file);
    return r;
}

int state_files_make(struct state *s)
{
    uint8_t random[STATE_ID_CHARS / 2];
    int r = 0;

    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(s->id, sizeof(s->id), random, sizeof(random));
    for (uint32_t f = 0; f < s->file_count && r == 0; f++) {
        struct state_file *file = &s->files[f];

        free(file->header);
        file->header = NULL;
        r = state_header_write(s, f, &file->header, &file->header_bytes);
        if (r == 0)
            r = make(file);
    }
    if (r == 0 && s->index.path)
        r = state_index_write(s, &s->index.header, &s->index.header_bytes);
    if (r == 0 && s->index.path)
        r = make(&s->index);
    return r;
}

/* ---- naming ---------------------------------------------------------------------------------- */

static int rename_file(struct state_file *file)
{
    if (rename(file->partial, file->path) < 0)
        return failed("renaming to", file->path, errno);
    file->made = false;
    return 0;
}

/* Names are on the disk once their directory is. */
static int sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash == path ? strdup("/")
                      : slash       ? strndup(path, (size_t)(slash - path))
                                    : strdup(".");
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int r = 0;

    if (!directory)
        r = err_set(GW_E_NOMEM, "no memory for the name of a directory");
    else if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL)) /* EINVAL: it has no such thing */
        r = failed("writing directory", directory, errno);
    if (fd >= 0)
        (void)close(fd);
    free(directory);
    return r;
}

/* A file without its index would be found beside one with, and the other way round. */
static int remove_other_form(const struct state *s)
{
    char *other = NULL;
    int r = 0;

    if (s->index.path)
        other = strdup(s->path);
    else if (asprintf(&other, "%s.index.json", s->path) < 0)
        other = NULL;
    if (!other)
        r = err_set(GW_E_NOMEM, "no memory for the name of a file");
    else if (unlink(other) < 0 && errno != ENOENT)
        r = failed("removing the older", other, errno);
    free(other);
    return r;
}

int state_files_name(struct state *s)
{
    int r = 0;

    for (uint32_t f = 0; f < s->file_count && r == 0; f++)
        r = rename_file(&s->files[f]);
    if (r == 0 && s->index.path)
        r = rename_file(&s->index);
    if (r == 0)
        r = remove_other_form(s);
    return r == 0 ? sync_directory(s->path) : r;
}

static void remove_file(struct state_file *file)
{
    close_file(file);
    if (file->made)
        (void)unlink(file->partial);
    file->made = false;
}

void state_files_remove(struct state *s)
{
    for (uint32_t f = 0; f < s->file_count; f++)
        remove_file(&s->files[f]);
    if (s->index.path)
        remove_file(&s->index);
}
