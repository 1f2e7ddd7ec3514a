/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker: a process that measures when told. Orders go through a pipe, answers through another
 * and a page both share. It sleeps in read() while others have their round. The coordinator's side
 * (start, await, order, stop) is used on its one thread; the rest in the worker.
 */
#ifndef GW_BENCH_WORKER_H
#define GW_BENCH_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include <gradwire/gradwire.h>

enum { WORKER_SAMPLES = 20000 };

enum worker_status { WORKER_OK, WORKER_WRONG, WORKER_FAILED };

/* What is told beside times; names in output.c. */
enum bench_figure {
    FIGURE_HIDDEN,
    FIGURE_COMM,
    FIGURE_COMM_ALONE,
    FIGURE_EXPOSED,
    FIGURE_COMPUTE,
    FIGURE_SLOWED,
    FIGURE_BESIDE_OFF,
    FIGURE_BESIDE_UNSENT,
    FIGURE_BESIDE_STAGE2,
    FIGURE_CALL_P50,
    FIGURE_CALL_P99,
    FIGURE_ACQUIRE,
    FIGURE_CLIENTS,
    FIGURE_JOBS,
    FIGURE_FAILURES,
    FIGURE_WAKEUPS,
    FIGURE_RESIDENT,
    FIGURE_THREADS,
    FIGURE_LINK,
    FIGURES
};

struct worker_share {
    uint32_t status;         /* enum worker_status */
    uint32_t turn;           /* of a storm, once `id` is its job's: a futex; a link's port */
    double figures[FIGURES]; /* NAN: none */
    char text[480];          /* what was wrong */
    struct gw_job_id id;
    uint64_t backward_ns; /* chosen by rank 0 of a step that covers its communication */
    uint64_t count;       /* samples of the round */
    uint64_t samples[WORKER_SAMPLES];
};

struct bench_case;
struct nodes;
struct worker;

struct worker_ops {
    int (*open)(struct worker *worker);                     /* 0, or after worker_fail */
    int (*run)(struct worker *worker, uint64_t iterations); /* adds samples, then verifies */
    void (*close)(struct worker *worker);
};

struct worker {
    const struct worker_ops *ops;
    const struct bench_case *what;
    const char *socket;
    const struct nodes *nodes; /* NULL: no --nodes */
    uint32_t rank;
    struct worker_share *share;       /* its own */
    const struct worker_share *first; /* rank 0's, for the job's id; a link's: the next's */
    void *state;                      /* of ops, in the worker */
    int pid, order_fd, answer_fd;
};

/* Coordinator. All: 0 or an exit code after a message. */
int worker_share_new(struct worker *worker);
/* Its share is there, and `first`. */
int worker_start(struct worker *worker);
/* One answer. */
int worker_await(struct worker *worker, const char *what);
/* `iterations` on all of them at once. */
int workers_run(struct worker *workers, uint32_t count, uint64_t iterations);
/* Tells them to end, and waits. */
void workers_stop(struct worker *workers, uint32_t count);

/* Worker. */
void worker_say(struct worker *worker);
void worker_sample(struct worker *worker, uint64_t ns);
int worker_fail(struct worker *worker, uint32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

extern const struct worker_ops worker_collective; /* rank.c */
extern const struct worker_ops worker_gradients;  /* rank_gradients.c */
extern const struct worker_ops worker_fetch;      /* rank_fetch.c: also the mapped all-gather */
extern const struct worker_ops worker_step;       /* rank_step.c */
extern const struct worker_ops worker_unsent;     /* rank_unsent.c */
extern const struct worker_ops worker_ready;      /* rank_ready.c */
extern const struct worker_ops worker_storm;      /* rank_storm.c */
extern const struct worker_ops worker_idle;       /* rank.c */
extern const struct worker_ops worker_limit;      /* limit.c */

#endif
