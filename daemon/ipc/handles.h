/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuv handles with a life of their own: freeing a watch or an alarm ends its callbacks at once,
 * so an owner can be freed without waiting for libuv's close callbacks. Loop thread only.
 */
#ifndef GW_IPC_HANDLES_H
#define GW_IPC_HANDLES_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct watch; /* a descriptor that is polled; owns it */
struct alarm; /* one timer */

/* `events` of uv_poll; negative when the descriptor failed. */
typedef void watch_fn(void *owner, int events);
typedef void alarm_fn(void *owner);

/* Takes fd over, also on failure (then it is closed). GW_E_NOMEM, GW_E_IO. */
int watch_new(uv_loop_t *loop, int fd, int events, watch_fn *fn, void *owner,
              struct watch **ret_watch);
/* Closes the descriptor; NULL is fine; returns NULL. */
struct watch *watch_free(struct watch *watch);
int watch_fd(const struct watch *watch);
int watch_events(struct watch *watch, int events);

int alarm_new(uv_loop_t *loop, alarm_fn *fn, void *owner, struct alarm **ret_alarm);
struct alarm *alarm_free(struct alarm *alarm);
/* Once, after delay_ns; replaces an earlier setting. */
void alarm_set(struct alarm *alarm, uint64_t delay_ns);
void alarm_clear(struct alarm *alarm);

/* CLOCK_MONOTONIC */
uint64_t now_ns(void);
/* Closes *fd unless it is -1, and sets it to -1; errno stays. */
void fd_close(int *fd);

#endif
