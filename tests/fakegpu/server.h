/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the server: one lock over all state; the main thread answers requests, a few workers run
 * streams. Everything below is called with the lock held unless it says otherwise.
 *
 * The server maps every piece of device memory itself, at the addresses that processes know, so
 * that the bodies of kernels run here, on plain pointers. Who touches what is gone faults here and
 * is told; see guard.c.
 */
#ifndef FAKEGPU_SERVER_H
#define FAKEGPU_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/fakegpu/fakegpu.h"

#define S_NS UINT64_C(1000000000)

struct server;
struct process;

/* CUresult values that the server gives (cuda.h is not needed to build it). */
enum {
    E_OK = 0,
    E_INVALID_VALUE = 1,
    E_OUT_OF_MEMORY = 2,
    E_NOT_INITIALIZED = 3,
    E_DEVICE_UNAVAILABLE = 46,
    E_INVALID_DEVICE = 101,
    E_ALREADY_MAPPED = 208,
    E_NOT_SUPPORTED_PEER = 217,
    E_INVALID_HANDLE = 400,
    E_NOT_FOUND = 500,
    E_NOT_READY = 600,
    E_ILLEGAL_ADDRESS = 700,
    E_PEER_ALREADY = 704,
    E_PEER_NOT_ENABLED = 705,
    E_TOO_MANY_PEERS = 711,
    E_HOST_REGISTERED = 712,
    E_HOST_NOT_REGISTERED = 713,
    E_LAUNCH_FAILED = 719,
    E_NOT_PERMITTED = 800,
    E_NOT_SUPPORTED = 801,
    E_UNKNOWN = 999,
};

/* ---- rules ---------------------------------------------------------------------------------- */

enum rule {
#define RULE(name, text, source) RULE_##name,
#include "tests/fakegpu/rules.def"
#undef RULE
    RULE_COUNT,
};

/* Counts and keeps the first ones' texts. process may be NULL. where: call, kernel or stream. */
void violation(struct server *s, enum rule rule, struct process *process, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* -1: no rule of that name. */
int rule_find(const char *name);

/* ---- randomness: a function of the seed and of what it is for, never of time ---------------- */

uint64_t mix64(uint64_t x);
uint64_t random_of(const struct server *s, uint64_t what, uint64_t which);
/* Nanoseconds that an op, a late enqueue or a completion is held; mostly 0 to 300 µs. */
uint64_t random_delay_ns(const struct server *s, uint64_t what, uint64_t which);
uint64_t now_ns(void);

/* ---- memory --------------------------------------------------------------------------------- */

enum phys_kind { PHYS_MALLOC, PHYS_VMM, PHYS_HOST, PHYS_REGISTERED };

struct access_log; /* server_order.c */

/* What really holds bytes: a memfd. */
struct phys {
    uint64_t id, secret;
    enum phys_kind kind;
    int gpu; /* -1: host */
    struct process *owner; /* NULL once it has ended */
    int fd;
    uint64_t offset; /* of a registered mapping in its file */
    uint64_t bytes, mapped_bytes;
    uint32_t handles;  /* VMM handles of all processes */
    uint32_t maps;     /* struct map */
    uint32_t imports;  /* legacy IPC: open in other processes */
    bool exported, exportable, freed;
    /* What VMM exports is the write end of a pipe, its inode the name; this is the read end, which
     * tells when the last copy of the other has been closed. -1: not yet. */
    int token_fd;
    uint64_t token_inode;
    uint64_t inode; /* of fd: two registrations of one file are the same memory */
    struct phys *next;
};

/* VMM handles of one process to one allocation. */
struct handle {
    struct process *process;
    struct phys *phys;
    uint32_t count;
    struct handle *next;
};

enum map_kind { MAP_MALLOC, MAP_IPC, MAP_VMM, MAP_HOST, MAP_REGISTERED, MAP_RESERVED };

/* A range of addresses of one process, the server's own mapping of it included. No two overlap;
 * reservations (cuMemAddressReserve) are kept apart, as maps without memory. */
struct map {
    uint64_t address, bytes; /* bytes: as asked for; guard pages lie between maps */
    uint64_t mapped_bytes;
    uint64_t host_address; /* MAP_REGISTERED: where the process sees it */
    enum map_kind kind;
    struct process *process;
    struct phys *phys; /* NULL: MAP_RESERVED */
    uint64_t phys_offset;
    uint64_t readable, writable; /* VMM: a bit per GPU */
    int gpu;                     /* that opened or allocated; -1 host */
    bool read_only;
};

struct maps { /* sorted by address */
    struct map **at;
    size_t count, room;
};

/* The map of the process that holds [address, address + bytes), or NULL. Also finds registered
 * memory by its host address where `host` is set. */
struct map *map_find(struct server *s, struct process *p, uint64_t address, uint64_t bytes,
                     bool host);
/* The server's pointer for an address of the process, NULL where the process may not use it. */
void *map_pointer(const struct map *map, uint64_t address);

/* ---- streams -------------------------------------------------------------------------------- */

enum op_kind {
    OP_NONE, /* only order */
    OP_KERNEL,
    OP_COPY,
    OP_FILL,
    OP_WAIT,
    OP_WRITE,
    OP_RECORD,
    OP_HOSTFN,
    OP_COLLECTIVE,
};

struct after {
    uint32_t stream; /* index */
    uint64_t seq;
};

struct kernel;
struct event;
struct stream;

/* Per stream index: up to which of its ops something is ordered behind. */
struct clock {
    uint32_t count;
    uint64_t *seq;
};

struct op {
    struct op *next; /* in its stream */
    struct stream *stream;
    uint64_t seq; /* from 1, per stream */
    uint64_t id;  /* over all streams, in order of enqueue */
    enum op_kind kind;
    bool running;   /* taken by a worker, resident, or with the process (host function) */
    bool collected; /* a collective: told to the NCCL part */
    uint64_t enqueued_ns, not_before_ns; /* not_before 0: not yet at the head */
    uint64_t start; /* running: in order of starts, from 1 */
    struct after *after;
    uint32_t after_count;
    uint32_t ctas;
    union {
        struct {
            const struct kernel *kernel;
            uint64_t blocks, threads;
            void *argument;
        } launch;
        struct {
            uint64_t to, from, bytes;
            int to_gpu, from_gpu; /* who touches which side: the stream's, or both contexts' */
        } copy; /* addresses as the process says them (host addresses of registered memory too) */
        struct {
            uint64_t to, count;
            uint32_t value, width;
        } fill;
        struct fg_memop memop;
        struct event *event;
        struct {
            uint64_t function, argument;
        } hostfn;
        void *collective; /* the NCCL part's */
    } u;
};

struct stream {
    uint32_t index; /* id - 1; never used again */
    struct process *process;
    int gpu;
    uint32_t queue; /* hardware queue that it shares with others of its process and GPU */
    bool blocking, null, closed;
    bool own;  /* a thread's, which nobody destroys */
    bool busy; /* in server.busy */
    bool dead; /* its process has ended: what was queued never completes */
    int priority;
    uint64_t last_seq, done_seq;
    struct op *head, *tail;
    struct clock clock; /* of the op at the head once it runs, else of the last that ran */
};

struct event {
    uint64_t id, secret;
    struct process *process;
    int gpu;
    bool interprocess, timing, closed;
    struct after recorded; /* seq 0: never */
    uint64_t done_ns;    /* when the last record ran */
    struct clock clock;  /* then */
    uint32_t queued;     /* ops that name it */
    uint32_t waits;      /* queued waits of other processes */
    uint64_t opened;     /* bit per process id % 64: others that opened it */
    struct event *next;
};

struct gpu {
    int index, node;
    uint64_t total_bytes, used_bytes;
    uint32_t ctas_free;
    struct process *slice; /* whose kernels run now (time slicing) */
    uint32_t slice_running;
};

/* NULL: no such stream of this process (numbers of other processes mean nothing to it). */
struct stream *stream_find(struct server *s, const struct process *p, uint64_t number);
/* Makes an op for the end of the stream, ordered behind what CUDA says; the caller fills `u` and
 * then calls op_submit before it makes another. NULL: no memory. */
struct op *op_new(struct server *s, struct stream *stream, enum op_kind kind);
void op_submit(struct server *s, struct op *op);
/* The op at its stream's head has ended: frees it, starts what follows. */
void op_finish(struct server *s, struct op *op);
/* Ends the process' GPU work with a sticky error, as a fault does. */
void process_fault(struct server *s, struct process *p, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Declares what an op that runs now reads or writes; reports what is unordered with others. */
void access_note(struct server *s, struct op *op, uint64_t address, uint64_t bytes, bool write);
/* The ops, all running, saw each other (a collective): each stream is ordered behind all. */
void ops_join(struct server *s, struct op *const *ops, uint32_t count);
/* Wakes a worker. */
void server_kick(struct server *s);

/* Without the lock: runs fn(arg) and catches its faults. Returns 0 or the address it touched. */
uint64_t guard_run(void (*fn)(void *arg), void *arg);

/* ---- processes ------------------------------------------------------------------------------ */

struct process {
    uint32_t id;
    pid_t pid;
    int node;
    int fd, host_fd;
    bool step;     /* phase: no host synchronization allowed */
    bool no_leaks; /* not reported */
    bool bye, gone;
    int sticky;
    int sticky_in; /* injected: kernels until one fails; 0: none */
    uint64_t contexts; /* bit per GPU */
    uint64_t peers[FG_GPUS_MAX]; /* bit per GPU whose memory this GPU's kernels may use */
    struct stream *null_streams[FG_GPUS_MAX];
    uint32_t queues; /* per GPU: CUDA_DEVICE_MAX_CONNECTIONS, 8 */
    uint32_t streams[FG_GPUS_MAX]; /* made so far */
    struct process *next;
};

/* CUcomputemode */
enum { MODE_PROHIBITED = 2, MODE_EXCLUSIVE_PROCESS = 3 };

struct inject {
    uint32_t oom, oom_after, ipc_open_fail;
    uint32_t peers;        /* GPUs reach each other in groups of so many; 0: all */
    uint32_t streams;      /* of a process on one GPU, at most; 0: any number */
    uint32_t links;        /* peers in groups of so many have the faster link; 0: all */
    uint32_t compute_mode; /* MODE_*; 0: any number of processes */
    bool no_memops, no_ipc;
    bool no_vmm_export; /* memory has no descriptor */
    bool few_peers; /* no room for another peer, wherever one is possible */
};

struct counts {
    uint64_t kernels, copies, copy_bytes, fills, waits, writes, records, hostfns, collectives;
    uint64_t zero_ctas;    /* collectives without one */
    uint64_t ctas_most;    /* that collectives held of a GPU at once */
    uint64_t threads_most; /* of a kernel */
    uint64_t allocations, frees, registers, imports, syncs, faults;
};

struct server {
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool quit;
    uint64_t seed;
    uint32_t gpus_per_node, nodes, gpu_count;
    uint32_t ctas; /* per GPU */
    uint32_t delay_percent;
    bool mps, no_memops, default_step, order_off;
    struct gpu gpus[FG_GPUS_MAX];
    struct process *processes;
    uint32_t next_process;
    struct phys *phys;
    struct handle *handles;
    struct maps maps, reserved;
    uint64_t next_address, next_phys;
    struct stream **streams;
    uint32_t stream_count;
    struct stream **busy; /* those with work, and some that had; room for all */
    uint32_t busy_count;
    struct event *events;
    uint64_t next_event, next_op, next_start, picks;
    struct inject inject;
    struct counts counts;
    uint64_t broken[RULE_COUNT]; /* how often */
};

struct process *process_find(struct server *s, pid_t pid);
/* Whether GPU a could be let into GPU b's memory. */
bool gpus_are_peers(const struct server *s, int a, int b);
/* Whether ops of the process on that GPU may touch the memory. A kernel's access: also what a copy
 * is free to do, cudaMalloc's memory of any GPU, needs to have been enabled. */
bool gpu_reaches(const struct process *p, int gpu, const struct map *map, bool write, bool kernel);

/* ---- what the NCCL part (nccl_server.c) provides; nccl_none.c stands in where it is missing - */

/* Requests FG_NCCL_FIRST to FG_NCCL_LAST. */
void nccl_request(struct server *s, struct process *p, const struct fg_request *request,
                  const void *payload, struct fg_reply *reply);
/* A collective is at its stream's head with its CTAs taken: on the GPU, waiting for its peers. It
 * stays (other streams go on) until op_finish. */
void nccl_start(struct server *s, struct op *op);
/* A job all of whose ranks are there (taken: not given twice), or NULL. */
void *nccl_take(struct server *s);
/* Without the lock, under guard_run: moves the bytes. */
void nccl_run(void *job);
/* After it; faulted: the address, or 0. Calls op_finish for its ops. */
void nccl_finish(struct server *s, void *job, uint64_t faulted);
/* An op that will not run (process ended, fault): forget it, free u.collective. It may come while
 * nccl_run runs for it; nccl_finish then leaves the op out. */
void nccl_drop(struct server *s, struct op *op);
/* Does what is due (late enqueues) and says when to call again; UINT64_MAX: no need. */
uint64_t nccl_tick(struct server *s, uint64_t now);
/* A process has ended; bye: in an orderly way, so communicators left are leaks. */
void nccl_process_gone(struct server *s, struct process *p, bool bye);
/* Something is about to be put into the stream (op_new): reports, true, where that is behind a
 * call that its caller has not seen end. */
bool nccl_behind(struct server *s, struct stream *stream, const char *what);
/* The map is about to go: reports communicators and queued collectives that still name it. */
void nccl_memory_going(struct server *s, const struct map *map);
/* `inject nccl-... ARGS`; false: no such injection. */
bool nccl_inject(struct server *s, const char *kind, const char *args);

#endif
