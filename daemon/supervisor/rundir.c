/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the runtime directory's descriptor, the daemon's lock, the socket files. Loop thread only.
 * In a privileged daemon everything here belongs to root and nobody else may write: entries can be
 * believed, engines cannot move them.
 */
#include "daemon/supervisor/rundir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/base/parse.h"
#include "daemon/ipc/handles.h"
#include "gradwire/errors.h"

#define LOCK_NAME "gradwired.lock"
#define BACKLOG 512
#define GPUS_MAX 1024u

struct rundir {
    char *path;
    int fd;
    int lock_fd;
    bool made; /* by us, so ours to remove */
    char *sockets[2];
    unsigned sockets_count;
    unsigned gpus; /* files under gpus/, at most; so that they do not fill the file system */
};

/* What kept us from making something, as an exit code. */
static int exit_code(int error)
{
    return error == EACCES || error == EPERM || error == EROFS ? EX_NOPERM : EX_CANTCREAT;
}

static int open_directory(struct rundir *dir, bool privileged, char *error, size_t error_bytes)
{
    struct stat status;

    if (mkdir(dir->path, 0755) == 0) {
        dir->made = true;
    } else if (errno != EEXIST) {
        int r = exit_code(errno);

        (void)snprintf(error, error_bytes,
                       "cannot make the runtime directory %s: %s; give another with --runtime-dir",
                       dir->path, strerror(errno));
        return r;
    }
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0 || fstat(dir->fd, &status) < 0) {
        int r = exit_code(errno);

        (void)snprintf(error, error_bytes, "cannot open the runtime directory %s: %s", dir->path,
                       strerror(errno));
        return r;
    }
    if (status.st_uid != geteuid()) {
        (void)snprintf(
            error, error_bytes,
            "the runtime directory %s belongs to user %u, not to us (%u); give one of our "
            "own with --runtime-dir",
            dir->path, status.st_uid, geteuid());
        return EX_NOPERM;
    }
    if (privileged && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        (void)snprintf(
            error, error_bytes,
            "the runtime directory %s can be written by others; give one with --runtime-dir "
            "that only root can write (it is made where it does not exist)",
            dir->path);
        return EX_NOPERM;
    }
    return 0;
}

static pid_t lock_holder(int fd)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    return n <= 0 ? 0 : (pid_t)strtol(text, NULL, 10);
}

/* The lock file is removed at the end, so what was locked may no longer be what the name means:
 * then once more. Nobody else may open it: whoever can, can hold the lock and keep us from
 * starting. */
static int take_lock(struct rundir *dir, char *error, size_t error_bytes)
{
    for (unsigned i = 0; i < 100; i++) {
        struct stat ours, named;

        dir->lock_fd = openat(dir->fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (dir->lock_fd < 0) {
            int r = exit_code(errno);

            (void)snprintf(error, error_bytes, "cannot make %s/" LOCK_NAME ": %s", dir->path,
                           strerror(errno));
            return r;
        }
        if (flock(dir->lock_fd, LOCK_EX | LOCK_NB) < 0) {
            (void)snprintf(error, error_bytes,
                           "gradwired (pid %d) already serves %s; stop it with "
                           "'gwctl stop --runtime-dir %s', or give another --runtime-dir",
                           (int)lock_holder(dir->lock_fd), dir->path, dir->path);
            fd_close(&dir->lock_fd);
            return EX_UNAVAILABLE;
        }
        if (fstat(dir->lock_fd, &ours) == 0 &&
            fstatat(dir->fd, LOCK_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
            ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
            if (ftruncate(dir->lock_fd, 0) == 0 && dprintf(dir->lock_fd, "%d\n", getpid()) > 0)
                return 0;
            break;
        }
        fd_close(&dir->lock_fd);
    }
    (void)snprintf(error, error_bytes, "cannot write %s/" LOCK_NAME ": %s", dir->path,
                   strerror(errno));
    return EX_CANTCREAT;
}

/* Removes the files of GPUs that nobody uses; how many are left. Only we make and lock them, so
 * none can be taken between the look and the removal. */
static unsigned sweep_gpus(struct rundir *dir)
{
    int list_fd = openat(dir->fd, "gpus", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *list = list_fd < 0 ? NULL : fdopendir(list_fd);
    struct dirent *item;
    unsigned left = 0;

    if (list == NULL) {
        fd_close(&list_fd);
        return 0;
    }
    while ((item = readdir(list)) != NULL) {
        int fd;

        if (item->d_name[0] == '.')
            continue;
        fd = openat(list_fd, item->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0)
            left++;
        else
            (void)unlinkat(list_fd, item->d_name, 0);
        fd_close(&fd);
    }
    (void)closedir(list);
    return left;
}

int rundir_open(const char *path, bool privileged, struct rundir **ret_dir, char *error,
                size_t error_bytes)
{
    struct rundir *dir = calloc(1, sizeof(*dir));
    char socket[2 * RUNDIR_SOCKET_MAX];
    int r;

    if (dir == NULL || (dir->path = strdup(path)) == NULL) {
        free(dir);
        (void)snprintf(error, error_bytes, "no memory");
        return EX_OSERR;
    }
    dir->fd = dir->lock_fd = -1;
    rundir_engine_socket(dir, "0123456789abcdef.4294967294", socket, sizeof(socket));
    if (strlen(socket) > RUNDIR_SOCKET_MAX) {
        (void)snprintf(error, error_bytes,
                       "the runtime directory's path is too long: engines need a socket in it, and "
                       "its path would have %zu bytes of at most %u: %s",
                       strlen(path) + strlen(socket) - strlen(dir->path), RUNDIR_SOCKET_MAX, path);
        r = EX_USAGE;
        goto fail;
    }
    r = open_directory(dir, privileged, error, error_bytes);
    if (r == 0)
        r = take_lock(dir, error, error_bytes);
    if (r != 0)
        goto fail;
    dir->gpus = sweep_gpus(dir);
    if (mkdirat(dir->fd, "engines", 0755) < 0 && errno != EEXIST) {
        r = exit_code(errno);
        (void)snprintf(error, error_bytes, "cannot make %s/engines: %s", path, strerror(errno));
        goto fail;
    }
    *ret_dir = dir;
    return 0;
fail:
    (void)rundir_free(dir);
    return r;
}

struct rundir *rundir_free(struct rundir *dir)
{
    if (dir == NULL)
        return NULL;
    for (unsigned i = 0; i < dir->sockets_count; i++) {
        (void)unlink(dir->sockets[i]);
        free(dir->sockets[i]);
    }
    if (dir->lock_fd >= 0) {
        (void)sweep_gpus(dir);
        (void)unlinkat(dir->fd, "gpus", AT_REMOVEDIR);
        /* Fails while engines live, and so it should. */
        (void)unlinkat(dir->fd, "engines", AT_REMOVEDIR);
        (void)unlinkat(dir->fd, LOCK_NAME, 0);
    }
    if (dir->made)
        (void)rmdir(dir->path);
    fd_close(&dir->lock_fd);
    fd_close(&dir->fd);
    free(dir->path);
    free(dir);
    return NULL;
}

/* A socket file at the place: 0 when it is free now, else why not. */
static int clear_stale(const struct sockaddr_un *address, char *error, size_t error_bytes)
{
    struct ucred owner = {0};
    socklen_t owner_bytes = sizeof(owner);
    struct stat status;
    int fd;
    int r = 0;

    if (lstat(address->sun_path, &status) < 0)
        return 0;
    if (!S_ISSOCK(status.st_mode)) {
        (void)snprintf(error, error_bytes, "%s exists and is not a socket; remove it",
                       address->sun_path);
        return EX_CANTCREAT;
    }
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0; /* bind will say it */
    /* Anything but a refusal means that somebody listens, or that we may not know. */
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
        errno != ECONNREFUSED) {
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_bytes);
        (void)snprintf(error, error_bytes,
                       "the socket %s is in use by another process (pid %d); stop that one, or "
                       "give another --socket",
                       address->sun_path, (int)owner.pid);
        r = EX_UNAVAILABLE;
    } else if (unlink(address->sun_path) < 0 && errno != ENOENT) {
        r = exit_code(errno);
        (void)snprintf(error, error_bytes, "cannot replace the stale socket %s: %s",
                       address->sun_path, strerror(errno));
    }
    (void)close(fd);
    return r;
}

int rundir_listen(struct rundir *dir, const char *path, gid_t group, int *ret_fd, char *error,
                  size_t error_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    mode_t mode = group == (gid_t)-1 ? 0600 : 0660;
    char *copy = NULL;
    mode_t mask;
    int fd = -1;
    int r;

    assert(strlen(path) <= RUNDIR_SOCKET_MAX && dir->sockets_count < 2);
    memcpy(address.sun_path, path, strlen(path) + 1);
    r = clear_stale(&address, error, error_bytes);
    if (r != 0)
        return r;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    copy = strdup(path);
    mask = umask(0177);
    r = fd < 0 || copy == NULL ? -1 : bind(fd, (struct sockaddr *)&address, sizeof(address));
    (void)umask(mask);
    if (r < 0)
        goto fail;
    /* Nobody can connect before listen, so nobody gets in with the wrong rights. */
    dir->sockets[dir->sockets_count++] = copy;
    copy = NULL;
    if ((group != (gid_t)-1 && lchown(path, (uid_t)-1, group) < 0) || chmod(path, mode) < 0 ||
        listen(fd, BACKLOG) < 0)
        goto fail;
    *ret_fd = fd;
    return 0;
fail:
    r = exit_code(errno);
    (void)snprintf(error, error_bytes, "cannot make the socket %s: %s", path, strerror(errno));
    fd_close(&fd);
    free(copy);
    return r;
}

void rundir_entry_name(const uint8_t tag[TAG_BYTES], bool follows, uid_t uid,
                       char ret_entry[RUNDIR_ENTRY_BYTES])
{
    char hex[TAG_HEX_BYTES];

    tag_to_hex(tag, hex);
    if (follows)
        (void)snprintf(ret_entry, RUNDIR_ENTRY_BYTES, "%s.%u", hex, uid);
    else
        (void)snprintf(ret_entry, RUNDIR_ENTRY_BYTES, "%s", hex);
}

bool rundir_entry_parse(const char *entry, uint8_t ret_tag[TAG_BYTES], bool *ret_follows)
{
    const char *dot = strchr(entry, '.');
    char hex[TAG_HEX_BYTES] = "";
    uint64_t uid;

    if (dot != NULL && dot - entry == TAG_HEX_BYTES - 1)
        memcpy(hex, entry, TAG_HEX_BYTES - 1); /* else empty, and so refused */
    if (tag_from_hex(dot == NULL ? entry : hex, ret_tag) < 0 ||
        (dot != NULL && parse_u64(dot + 1, 0, UINT32_MAX, &uid) < 0))
        return false;
    *ret_follows = dot != NULL;
    return true;
}

void rundir_engine_socket(const struct rundir *dir, const char *entry, char *path,
                          size_t path_bytes)
{
    (void)snprintf(path, path_bytes, "%s/engines/%s/sock", dir->path, entry);
}

/* Lock of a new entry. What it says is written through another description, so that the engine
 * inherits one that cannot write: the owner noted there stays true. */
static int make_lock(int entry_fd, uid_t uid, uint64_t started_ns, int *ret_fd)
{
    int fd = openat(entry_fd, "lock", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int written;

    if (fd < 0)
        return GW_E_IO;
    written = dprintf(fd, "%u %llu\n", uid, (unsigned long long)started_ns);
    fd_close(&fd);
    fd = openat(entry_fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (written <= 0 || fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        fd_close(&fd);
        return GW_E_IO;
    }
    *ret_fd = fd;
    return 0;
}

static int make_listener(const struct rundir *dir, const char *entry, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    mode_t mask;
    int fd;
    int r;

    rundir_engine_socket(dir, entry, address.sun_path, sizeof(address.sun_path));
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return GW_E_IO;
    mask = umask(0177);
    r = bind(fd, (struct sockaddr *)&address, sizeof(address));
    (void)umask(mask);
    if (r < 0 || listen(fd, 8) < 0) {
        fd_close(&fd);
        return GW_E_IO;
    }
    *ret_fd = fd;
    return 0;
}

int rundir_entry_make(struct rundir *dir, uid_t uid, uint64_t started_ns,
                      char ret_entry[RUNDIR_ENTRY_BYTES], int *ret_lock_fd, int *ret_listen_fd)
{
    char path[2 * RUNDIR_SOCKET_MAX];
    const char *entry;
    int entry_fd = -1, lock_fd = -1, listen_fd = -1;
    int r = GW_E_IO;

    (void)mkdirat(dir->fd, "engines", 0755); /* an engine may have removed it with the last entry */
    (void)snprintf(path, sizeof(path), "%s/engines/new-XXXXXX", dir->path);
    if (mkdtemp(path) == NULL)
        return GW_E_IO;
    entry = strrchr(path, '/') + 1;
    entry_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (entry_fd >= 0)
        r = make_lock(entry_fd, uid, started_ns, &lock_fd);
    if (r == 0)
        r = make_listener(dir, entry, &listen_fd);
    fd_close(&entry_fd);
    if (r < 0) {
        int why = errno; /* the caller tells it */

        fd_close(&lock_fd);
        rundir_entry_remove(dir, entry);
        errno = why;
        return r;
    }
    (void)snprintf(ret_entry, RUNDIR_ENTRY_BYTES, "%s", entry);
    *ret_lock_fd = lock_fd;
    *ret_listen_fd = listen_fd;
    return 0;
}

int rundir_entry_rename(struct rundir *dir, const char *from, const char *to)
{
    char from_path[64], to_path[64];

    (void)snprintf(from_path, sizeof(from_path), "engines/%s", from);
    (void)snprintf(to_path, sizeof(to_path), "engines/%s", to);
    if (renameat2(dir->fd, from_path, dir->fd, to_path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EEXIST ? GW_E_DUPLICATE : GW_E_IO;
}

void rundir_entry_remove(struct rundir *dir, const char *entry)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "engines/%s/sock", entry);
    (void)unlinkat(dir->fd, path, 0);
    (void)snprintf(path, sizeof(path), "engines/%s/lock", entry);
    (void)unlinkat(dir->fd, path, 0);
    (void)snprintf(path, sizeof(path), "engines/%s", entry);
    (void)unlinkat(dir->fd, path, AT_REMOVEDIR);
}

bool rundir_entry_alive(struct rundir *dir, const char *entry, uid_t *ret_uid,
                        uint64_t *ret_started_ns)
{
    char path[64], text[64] = "";
    char *end;
    bool alive;
    int fd;

    (void)snprintf(path, sizeof(path), "engines/%s/lock", entry);
    fd = openat(dir->fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    alive = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    if (alive && ret_uid != NULL && pread(fd, text, sizeof(text) - 1, 0) > 0) {
        *ret_uid = (uid_t)strtoul(text, &end, 10);
        *ret_started_ns = strtoull(end, NULL, 10);
    }
    (void)close(fd);
    return alive;
}

/* As with an engine's lock: what the file says is written through another description than the one
 * that is passed on, so that no engine can write there. */
int rundir_gpu_lock(struct rundir *dir, const char *gpu, const char *tag, uid_t uid, int *ret_fd,
                    char ret_holder[RUNDIR_HOLDER_BYTES])
{
    char path[96];
    ssize_t n;
    int write_fd, fd;
    int r = GW_E_IO;

    ret_holder[0] = '\0';
    if (mkdirat(dir->fd, "gpus", 0700) == 0)
        dir->gpus = 0;
    else if (errno != EEXIST)
        return GW_E_IO;
    (void)snprintf(path, sizeof(path), "gpus/%s", gpu);
    if (faccessat(dir->fd, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && dir->gpus >= GPUS_MAX) {
        dir->gpus = sweep_gpus(dir);
        if (dir->gpus >= GPUS_MAX)
            return GW_E_LIMIT;
    }
    write_fd = openat(dir->fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (write_fd >= 0)
        dir->gpus++;
    else
        write_fd = openat(dir->fd, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    fd = openat(dir->fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || write_fd < 0)
        goto out;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        r = errno == EWOULDBLOCK ? GW_E_BUSY : GW_E_IO;
        n = pread(fd, ret_holder, RUNDIR_HOLDER_BYTES - 1, 0);
        ret_holder[n > 0 ? n : 0] = '\0';
        goto out;
    }
    if (ftruncate(write_fd, 0) == 0 && dprintf(write_fd, "%s %u\n", tag, uid) > 0)
        r = 0;
out:
    fd_close(&write_fd);
    if (r == 0)
        *ret_fd = fd;
    else
        fd_close(&fd);
    return r;
}

void rundir_entries(struct rundir *dir, void (*fn)(void *user, const char *entry), void *user)
{
    char path[2 * RUNDIR_SOCKET_MAX];
    struct dirent *item;
    DIR *list;

    (void)snprintf(path, sizeof(path), "%s/engines", dir->path);
    list = opendir(path);
    if (list == NULL)
        return;
    while ((item = readdir(list)) != NULL) {
        if (item->d_name[0] != '.' && strlen(item->d_name) < RUNDIR_ENTRY_BYTES)
            fn(user, item->d_name);
    }
    (void)closedir(list);
}
