/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps a forked child (a data loader) free of the parent's job: the list of all handles of
 * this process, their descriptors, and the lock under which both change.
 *
 * The child's atfork handler closes every descriptor listed here and marks the handles; shared
 * memory is MADV_DONTFORK (map.c). So every descriptor must be listed, and every mapping marked,
 * before fork_unlock. The lock is the innermost one and is held for short calls only; it is never
 * taken in a forked child.
 */
#ifndef GW_CLIENT_FORK_H
#define GW_CLIENT_FORK_H

#include <stdatomic.h>
#include <stdbool.h>

#define FORK_FDS 96 /* socket, events, and the descriptors of replies not yet taken */

struct fork_state {
    struct fork_state *next, *previous;
    atomic_bool forked; /* true: this is a child's copy; only memory of its own is left */
    int fds[FORK_FDS];  /* -1: free */
};

/* GW_E_NOMEM when the handlers cannot be installed. */
int fork_register(struct fork_state *state);
void fork_unregister(struct fork_state *state);
void fork_lock(void);
void fork_unlock(void);
/* With the lock held. Closes fd and returns GW_E_LIMIT when the table is full. */
int fork_fd_add(struct fork_state *state, int fd);
/* Without the lock. Closes *fd unless it is -1, and makes it -1. */
void fork_fd_close(struct fork_state *state, int *fd);

#endif
