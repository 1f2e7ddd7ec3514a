/* SPDX-License-Identifier: Apache-2.0 */
/* Fork handlers and the process-wide list of handles; see fork.h. Any thread; the child handler
 * runs in the new process, where no other thread lives and no other lock may be taken. */
#include "client/lib/fork.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "client/lib/err.h"
#include "gradwire/errors.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_result;
static struct fork_state *states;

void fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

void fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Only close() and stores: the child may have been forked inside any function of any library. The
 * heap of the handles stays; it is the child's own copy. */
static void child(void)
{
    for (struct fork_state *state = states; state; state = state->next) {
        atomic_store(&state->forked, true);
        for (size_t i = 0; i < FORK_FDS; i++) {
            if (state->fds[i] >= 0)
                close(state->fds[i]);
            state->fds[i] = -1;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    once_result = pthread_atfork(fork_lock, fork_unlock, child);
}

int fork_register(struct fork_state *state)
{
    pthread_once(&once, install);
    if (once_result != 0)
        return err_set(GW_E_NOMEM, "no memory for the fork handlers");
    for (size_t i = 0; i < FORK_FDS; i++)
        state->fds[i] = -1;
    fork_lock();
    state->previous = NULL;
    state->next = states;
    if (states)
        states->previous = state;
    states = state;
    fork_unlock();
    return 0;
}

void fork_unregister(struct fork_state *state)
{
    fork_lock();
    if (state->previous)
        state->previous->next = state->next;
    else if (states == state)
        states = state->next;
    if (state->next)
        state->next->previous = state->previous;
    fork_unlock();
}

/* Linear: a handful of entries, and the place must be found without allocating. */
int fork_fd_add(struct fork_state *state, int fd)
{
    for (size_t i = 0; i < FORK_FDS; i++) {
        if (state->fds[i] < 0) {
            state->fds[i] = fd;
            return 0;
        }
    }
    close(fd);
    return GW_E_LIMIT;
}

void fork_fd_close(struct fork_state *state, int *fd)
{
    if (*fd < 0)
        return;
    fork_lock();
    for (size_t i = 0; i < FORK_FDS; i++) {
        if (state->fds[i] == *fd)
            state->fds[i] = -1;
    }
    close(*fd);
    fork_unlock();
    *fd = -1;
}
