/* SPDX-License-Identifier: Apache-2.0 */
/* Files that gwctl plan reads, whole and bounded. Blocking; says itself what fails. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"

#define FIRST_BYTES 65536u
#define LENGTH_BYTES 8u

struct file {
    const char *path;
    int fd;
    char *data;
    size_t bytes, room;
};

static int no_file(const struct file *file, int error)
{
    ctl_say("cannot read %s: %s", file->path, strerror(error));
    return EX_NOINPUT;
}

/* Reads on until `bytes` are there or the file ends. */
static int read_up_to(struct file *file, size_t bytes)
{
    char *data;
    ssize_t n;

    if (bytes > file->room) {
        data = realloc(file->data, bytes);
        if (data == NULL) {
            ctl_say("no memory for %s", file->path);
            return EX_OSERR;
        }
        file->data = data;
        file->room = bytes;
    }
    while (file->bytes < bytes) {
        n = read(file->fd, file->data + file->bytes, bytes - file->bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return no_file(file, errno);
        if (n == 0)
            break;
        file->bytes += (size_t)n;
    }
    return 0;
}

/* A text grows until its end shows; one byte more than allowed is too many. */
static int read_text(struct file *file, size_t bytes_max)
{
    int r = 0;

    while (r == 0 && file->bytes == file->room && file->room <= bytes_max)
        r = read_up_to(file, file->room * 2 <= bytes_max ? file->room * 2 : bytes_max + 1);
    if (r == 0 && file->bytes > bytes_max) {
        ctl_say("%s: more than %zu bytes", file->path, bytes_max);
        return EX_DATAERR;
    }
    return r;
}

int plan_read(const char *path, size_t bytes_max, bool safetensors, char **ret_data,
              size_t *ret_bytes)
{
    struct file file = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)};
    uint64_t header_bytes;
    int r;

    if (file.fd < 0)
        return no_file(&file, errno);
    r = read_up_to(&file, FIRST_BYTES);
    if (r == 0 && safetensors &&
        model_is_safetensors((const uint8_t *)file.data, file.bytes, &header_bytes))
        r = read_up_to(&file, (size_t)header_bytes + LENGTH_BYTES);
    else if (r == 0)
        r = read_text(&file, bytes_max);
    (void)close(file.fd);
    if (r != 0) {
        free(file.data);
        return r;
    }
    *ret_data = file.data;
    *ret_bytes = file.bytes;
    return 0;
}
