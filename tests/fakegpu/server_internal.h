/* SPDX-License-Identifier: Apache-2.0 */
/* What the server's own files share, beside server.h. All with the lock held. */
#ifndef FAKEGPU_SERVER_INTERNAL_H
#define FAKEGPU_SERVER_INTERNAL_H

#include <stdio.h>

#include "tests/fakegpu/server.h"

struct call { /* one request while it is answered */
    struct process *process;
    const struct fg_request *q;
    const void *payload;
    int fd; /* that came with it; taken by who sets it to -1 */
    struct fg_reply reply;
    int reply_fd;     /* goes back with the reply; -1: none */
    bool reply_owned; /* closed after that */
};

/* server_memory.c */
void memory_request(struct server *s, struct call *c);
struct phys *phys_new(struct server *s, enum phys_kind kind, int gpu, uint64_t bytes,
                      struct process *owner);
/* Frees it when nothing holds it any more. */
void phys_drop(struct server *s, struct phys *phys);
void phys_poison(const struct phys *phys);
uint64_t address_new(struct server *s, uint64_t bytes, uint64_t alignment);
/* Maps phys at an address of the process, in the server too. NULL: no memory. */
struct map *map_new(struct server *s, struct process *p, enum map_kind kind, struct phys *phys,
                    uint64_t address, uint64_t bytes, uint64_t offset, int protection);
void map_free(struct server *s, struct map *map);
struct map *map_exact(struct server *s, const struct process *p, uint64_t address,
                      enum map_kind kind);
int maps_add(struct maps *maps, struct map *map);
void maps_remove(struct maps *maps, const struct map *map);
/* Allocation and free wait for what runs on the process' GPU: true, and FG_BUSY with a ticket that
 * comes back in a[5], while it does. */
bool memory_busy(struct server *s, struct call *c);
/* Reports queued work that names a range which is about to go. */
void map_check_queued(struct server *s, const struct map *map);
void memory_process_gone(struct server *s, struct process *p, bool leaks);
uint64_t page_up(uint64_t bytes);

/* server_share.c: IPC and VMM */
void ipc_request(struct server *s, struct call *c);
void vmm_request(struct server *s, struct call *c);
/* Frees what only lost descriptors held. */
void vmm_sweep(struct server *s);
void vmm_process_gone(struct server *s, struct process *p, bool leaks);

/* server_stream.c */
void stream_request(struct server *s, struct call *c);
struct stream *stream_new(struct server *s, struct process *p, int gpu, bool blocking);
struct stream *stream_null(struct server *s, struct process *p, int gpu);
bool after_done(const struct server *s, const struct after *after);
/* What is queued (not what runs) never runs. */
void stream_kill(struct server *s, struct stream *stream);
void streams_process_gone(struct server *s, struct process *p, bool leaks);
void op_free(struct server *s, struct op *op);

/* server_event.c */
void event_request(struct server *s, struct call *c);
struct event *event_find(struct server *s, const struct process *p, uint64_t number);
void event_drop(struct server *s, struct event *event);
void events_process_gone(struct server *s, struct process *p, bool leaks);

/* server_enqueue.c */
void enqueue_request(struct server *s, struct call *c);

/* server_kernel.c */
struct kernel {
    char name[128];
    uint64_t argument_bytes;
    void (*run)(const void *argument, uint64_t index, uint64_t count);
};
int kernels_load(const char *paths);
/* 0: none; else number. */
uint32_t kernel_find(const char *name);
const struct kernel *kernel_at(uint32_t number);

/* server_run.c, server_exec.c: workers */
int workers_start(struct server *s, uint32_t count);
void workers_stop(struct server *s);
/* Runs an op that was picked; gives the lock away meanwhile. */
void op_execute(struct server *s, struct op *op);
bool wait_satisfied(struct server *s, const struct op *op);

/* server_order.c */
int clock_raise(struct clock *clock, uint32_t stream, uint64_t seq);
int clock_join(struct clock *clock, const struct clock *other);
void clock_free(struct clock *clock);
/* A word was written by a stream / is waited for by one that now goes on. */
void word_released(struct server *s, const struct op *op, const struct map *map, uint64_t address,
                   uint64_t value);
void word_acquired(struct server *s, struct op *op, const struct map *map, uint64_t address,
                   uint64_t value);
void order_op_done(struct server *s, const struct op *op);

/* server_ranges.c: access_note for what is known of the kernel */
void kernel_ranges(struct server *s, struct op *op);

/* server_process.c */
struct process *process_new(struct server *s, int fd, pid_t pid, int node);
void process_gone(struct server *s, struct process *p);
void process_request(struct server *s, struct call *c);

/* server_guard.c */
void guard_init(void);

/* server_report.c */
void report_write(struct server *s, FILE *file);
uint64_t report_violations(const struct server *s);
void rules_print(FILE *file);

/* server_control.c: one line in, one or more lines out; false: end the server */
bool control_line(struct server *s, char *line, FILE *out);

#endif
