/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of the guard's socket. See guard.h. */
#include "daemon/engine/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "daemon/engine/waits.h"

#define SEND_S 2 /* a guard that is stopped must not hold the engine for longer */
#define RAISE_ROUNDS 20
#define RAISE_PAUSE_NS 100000000

struct guard {
    int fd;
    pid_t pid;
};

/* ---- the engine's side ----------------------------------------------------------------------- */

static int spawn(int fd, pid_t *ret_pid)
{
    static char *const argv[] = {(char *)(uintptr_t) "gradwire-engine",
                                 (char *)(uintptr_t) "--guard", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    int r;

    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawn_file_actions_adddup2(&actions, fd, GUARD_FD);
    (void)sigemptyset(&none);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    /* Of no group of the engine's: what is sent to that is not meant for it. */
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    r = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attributes, argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    errno = r;
    return r == 0 ? 0 : GW_E_IO;
}

int guard_new(struct guard **ret_guard)
{
    struct guard *guard = calloc(1, sizeof(*guard));
    const struct timeval timeout = {.tv_sec = SEND_S};
    int pair[2];
    int r;

    if (!guard || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(guard);
        return GW_E_IO;
    }
    /* Its number must differ from the target's, or it would stay close-on-exec. */
    if (pair[1] == GUARD_FD) {
        int other = fcntl(pair[1], F_DUPFD_CLOEXEC, GUARD_FD + 1);
        (void)close(pair[1]);
        pair[1] = other;
    }
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    r = pair[1] < 0 ? GW_E_IO : spawn(pair[1], &guard->pid);
    if (pair[1] >= 0)
        (void)close(pair[1]);
    if (r < 0) {
        (void)close(pair[0]);
        free(guard);
        return r;
    }
    guard->fd = pair[0];
    *ret_guard = guard;
    return 0;
}

struct guard *guard_free(struct guard *guard)
{
    if (!guard)
        return NULL;
    (void)close(guard->fd);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(guard);
    return NULL;
}

/* fd -1: forget. */
static int send_page(struct guard *guard, const struct device_memory *page, int fd)
{
    uint64_t id = (uintptr_t)page;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec vector = {&id, sizeof(id)};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t n;

    if (fd >= 0) {
        struct cmsghdr *c;
        header.msg_control = control.room;
        header.msg_controllen = sizeof(control.room);
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    do {
        n = sendmsg(guard->fd, &header, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? GW_E_IO : 0;
}

int guard_watch(struct guard *guard, const struct device_memory *page)
{
    return send_page(guard, page, page->fd);
}

void guard_forget(struct guard *guard, const struct device_memory *page)
{
    (void)send_page(guard, page, -1);
}

/* ---- the guard's side ------------------------------------------------------------------------ */

struct watched {
    LIST_ENTRY(watched) link;
    uint64_t id;
    struct gw_wait_page *page;
    size_t bytes;
};
LIST_HEAD(watched_list, watched);

static void watch(struct watched_list *list, uint64_t id, int fd)
{
    struct watched *watched = malloc(sizeof(*watched));
    struct stat status;
    void *page = MAP_FAILED;

    if (watched && fstat(fd, &status) == 0 && status.st_size > (off_t)sizeof(struct gw_wait_page))
        page = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        free(watched);
        return;
    }
    *watched = (struct watched){.id = id, .page = page, .bytes = (size_t)status.st_size};
    LIST_INSERT_HEAD(list, watched, link);
}

static void forget(struct watched *watched)
{
    LIST_REMOVE(watched, link);
    (void)munmap(watched->page, watched->bytes);
    free(watched);
}

static void forget_id(struct watched_list *list, uint64_t id)
{
    struct watched *watched;

    LIST_FOREACH(watched, list, link)
    {
        if (watched->id == id) {
            forget(watched);
            return;
        }
    }
}

/* False: the engine has ended. */
static bool receive(struct watched_list *list, int socket_fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    uint64_t id;
    struct iovec vector = {&id, sizeof(id)};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control.room,
                            .msg_controllen = sizeof(control.room)};
    ssize_t n = recvmsg(socket_fd, &header, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c;
    int fd;

    if (n != (ssize_t)sizeof(id))
        return n < 0 && errno == EINTR;
    c = CMSG_FIRSTHDR(&header);
    if (!c || c->cmsg_type != SCM_RIGHTS) {
        forget_id(list, id);
        return true;
    }
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    watch(list, id, fd);
    (void)close(fd);
    return true;
}

/* More than once: a process that dies may lose its socket before its GPUs stop, and a GPU's atomic
 * on host memory is not atomic to a CPU: a signal that was under way may store its lower value over
 * ours. */
static void raise_all(const struct watched_list *list)
{
    const struct timespec pause = {0, RAISE_PAUSE_NS};
    const struct watched *watched;

    for (int i = 0; i < RAISE_ROUNDS && !LIST_EMPTY(list); i++) {
        LIST_FOREACH(watched, list, link)
        waits_release(watched->page, watched->bytes);
        nanosleep(&pause, NULL);
    }
}

int guard_run(int fd)
{
    struct watched_list list = LIST_HEAD_INITIALIZER(list);
    struct watched *watched;

    /* It ends with the engine, by nothing else that is meant for that. */
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)prctl(PR_SET_NAME, "gradwire-guard");
    while (receive(&list, fd))
        ;
    raise_all(&list);
    while ((watched = LIST_FIRST(&list)) != NULL)
        forget(watched);
    return EX_OK;
}
