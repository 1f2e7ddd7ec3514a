/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passing a job id as text, or through a file: complete or absent for readers, and readable by its
 * owner alone. Any thread; touches no job. The id is written to a name of its own first and then
 * linked to the final one: link fails where the path exists, also as a dangling symbolic link.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "gradwire/gradwire.h"

#define LOAD_PAUSE_NS (10 * CLOCK_MS)
#define PATH_BYTES 4096

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : EIO;
        data += written;
        bytes -= (size_t)written;
    }
    return 0;
}

/* Writes the temporary file and gives it its final name. 0 or an errno. */
static int publish(const struct gw_job_id *id, const char *temporary, const char *path)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error;

    if (fd < 0)
        return errno;
    error = fchmod(fd, 0600) < 0 ? errno : write_all(fd, id->bytes, id->size_bytes);
    if (close(fd) < 0 && error == 0)
        error = errno;
    if (error == 0 && link(temporary, path) < 0)
        error = errno;
    unlink(temporary);
    return error;
}

/* The temporary name is this process's and call's own, beside the target: link needs one file
 * system. */
int gw_job_id_save(const struct gw_job_id *id, const char *path)
{
    static atomic_uint calls;
    char temporary[PATH_BYTES];
    int length, error;

    if (!id || !path || id->size_bytes == 0 || id->size_bytes > GW_JOB_ID_MAX)
        return err_set(GW_E_INVALID, "%s",
                       !path ? "path is NULL" : "id is not one of gw_job_get_id");
    length = snprintf(temporary, sizeof(temporary), "%s.%ld.%u.tmp", path, (long)getpid(),
                      atomic_fetch_add(&calls, 1));
    if (length < 0 || (size_t)length >= sizeof(temporary))
        return err_set(GW_E_INVALID, "the path of the id file is too long");
    error = publish(id, temporary, path);
    if (error == EEXIST)
        return err_set(GW_E_DUPLICATE,
                       "%s exists already; remove it if its job is over, or use another path",
                       path);
    if (error != 0)
        return err_set(error == EACCES || error == EPERM ? GW_E_DENIED : GW_E_IO,
                       "cannot write the job id to %s: %s", path, strerror(error));
    return 0;
}

/* On the descriptor, not the path: what is checked is what is read. */
static int check_file(int fd, const char *path)
{
    struct stat stat;

    if (fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode))
        return err_set(GW_E_INVALID, "%s is not a regular file", path);
    if (stat.st_uid != geteuid())
        return err_set(GW_E_DENIED, "%s belongs to user %u, not to user %u who reads it", path,
                       stat.st_uid, geteuid());
    if (stat.st_mode & 077)
        return err_set(
            GW_E_DENIED,
            "%s has mode %04o: others may read the job's secret; make a new job and save "
            "its id with gw_job_id_save",
            path, stat.st_mode & 07777);
    if (stat.st_size <= 0 || stat.st_size > GW_JOB_ID_MAX)
        return err_set(GW_E_INVALID, "%s has %lld bytes; it holds no job id", path,
                       (long long)stat.st_size);
    return 0;
}

static int read_id(int fd, const char *path, struct gw_job_id *id)
{
    int r = check_file(fd, path);

    while (r == 0) {
        ssize_t bytes = read(fd, id->bytes + id->size_bytes, sizeof(id->bytes) - id->size_bytes);

        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0)
            r = err_set(GW_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (bytes <= 0)
            break;
        id->size_bytes += (uint32_t)bytes;
    }
    return r;
}

int gw_job_id_load(const char *path, int64_t timeout_ns, struct gw_job_id *ret_id)
{
    int64_t deadline = clock_deadline(timeout_ns);
    struct gw_job_id id = {0};
    int fd;
    int r;

    if (!path || !ret_id)
        return err_set(GW_E_INVALID, "%s is NULL", path ? "ret_id" : "path");
    /* O_NONBLOCK: a FIFO in its place must not hold us; check_file refuses it. */
    while ((fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)) < 0) {
        struct timespec pause = clock_timespec(LOAD_PAUSE_NS);
        int error = errno;

        if (error == ELOOP)
            return err_set(GW_E_DENIED, "%s is a symbolic link", path);
        if (error != ENOENT && error != EINTR)
            return err_set(error == EACCES ? GW_E_DENIED : GW_E_IO, "cannot open %s: %s", path,
                           strerror(error));
        if (clock_now() >= deadline)
            return err_set(GW_E_TIMEOUT,
                           "no job id came to %s within %lld ms; rank 0 saves it after "
                           "gw_job_create",
                           path, (long long)(timeout_ns / CLOCK_MS));
        nanosleep(&pause, NULL);
    }
    r = read_id(fd, path, &id);
    close(fd);
    if (r == 0)
        *ret_id = id;
    sodium_memzero(&id, sizeof(id));
    return r;
}

int gw_job_id_text(const struct gw_job_id *id, char ret_text[GW_JOB_ID_TEXT_BYTES])
{
    if (!id || !ret_text || id->size_bytes == 0 || id->size_bytes > GW_JOB_ID_MAX)
        return err_set(GW_E_INVALID, "%s",
                       !ret_text ? "ret_text is NULL" : "id is not one of gw_job_get_id");
    sodium_bin2hex(ret_text, GW_JOB_ID_TEXT_BYTES, id->bytes, id->size_bytes);
    return 0;
}

int gw_job_id_from_text(const char *text, struct gw_job_id *ret_id)
{
    struct gw_job_id id = {0};
    size_t length = text ? strnlen(text, GW_JOB_ID_TEXT_BYTES) : 0, bytes = 0;
    int r = 0;

    if (!text || !ret_id)
        return err_set(GW_E_INVALID, "%s is NULL", text ? "ret_id" : "text");
    /* What it says is a secret: it is in no message. */
    if (length == 0 || length % 2 != 0 || length / 2 > GW_JOB_ID_MAX ||
        sodium_hex2bin(id.bytes, sizeof(id.bytes), text, length, NULL, &bytes, NULL) != 0 ||
        bytes != length / 2)
        r = err_set(GW_E_INVALID, "the text is not one of gw_job_id_text");
    id.size_bytes = (uint32_t)bytes;
    if (r == 0)
        *ret_id = id;
    sodium_memzero(&id, sizeof(id));
    return r;
}
