/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: see worker.h. Owns their pipes and shared pages. */
#include "client/bench/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench/bench.h"

#define ANSWER_NS 300000000000ull /* one round, however slow the machine */

/* ---- in the worker --------------------------------------------------------------------------- */

void worker_say(struct worker *worker)
{
    char byte = 0;

    while (write(worker->answer_fd, &byte, 1) < 0 && errno == EINTR)
        ;
}

void worker_sample(struct worker *worker, uint64_t ns)
{
    if (worker->share->count < WORKER_SAMPLES)
        worker->share->samples[worker->share->count++] = ns;
}

/* The first message stays: what comes after it follows from it. */
int worker_fail(struct worker *worker, uint32_t status, const char *format, ...)
{
    struct worker_share *share = worker->share;
    va_list arguments;

    if (share->status == WORKER_OK) {
        va_start(arguments, format);
        (void)vsnprintf(share->text, sizeof share->text, format, arguments);
        va_end(arguments);
        share->status = status;
    }
    return -1;
}

/* Until it is told 0, or the coordinator is gone. */
static _Noreturn void work(struct worker *worker)
{
    uint64_t iterations = 0;
    int r;

    r = worker->ops->open(worker);
    worker_say(worker);
    while (r == 0 && read(worker->order_fd, &iterations, sizeof iterations) > 0 && iterations > 0) {
        worker->share->count = 0;
        r = worker->ops->run(worker, iterations);
        worker_say(worker);
    }
    worker->ops->close(worker);
    _exit(0);
}

/* ---- in the coordinator ---------------------------------------------------------------------- */

static int no_worker(const struct worker *worker)
{
    fprintf(stderr, "gwbench: cannot start the process of rank %u: %s\n", worker->rank,
            strerror(errno));
    return EX_OSERR;
}

int worker_share_new(struct worker *worker)
{
    struct worker_share *share =
        mmap(NULL, sizeof *share, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (share == MAP_FAILED)
        return no_worker(worker);
    for (uint32_t i = 0; i < FIGURES; i++)
        share->figures[i] = (double)NAN;
    worker->share = share;
    return 0;
}

int worker_start(struct worker *worker)
{
    int order[2] = {-1, -1}, answer[2] = {-1, -1};
    pid_t parent = getpid();

    worker->order_fd = worker->answer_fd = -1;
    if (pipe2(order, O_CLOEXEC) < 0)
        return no_worker(worker);
    worker->order_fd = order[1];
    if (pipe2(answer, O_CLOEXEC) < 0) {
        close(order[0]);
        return no_worker(worker);
    }
    worker->answer_fd = answer[0];
    worker->pid = fork();
    if (worker->pid == 0) {
        /* No worker outlives the coordinator, not even a killed one. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        close(order[1]);
        close(answer[0]);
        worker->order_fd = order[0];
        worker->answer_fd = answer[1];
        work(worker);
    }
    close(order[0]);
    close(answer[1]);
    return worker->pid < 0 ? no_worker(worker) : 0;
}

static int outcome(const struct worker *worker, const char *what)
{
    const struct worker_share *share = worker->share;

    if (share->status == WORKER_OK)
        return 0;
    fprintf(stderr, "gwbench: %s: %s\n", what, share->text);
    return share->status == WORKER_WRONG ? EX_WRONG : EX_SOFTWARE;
}

int worker_await(struct worker *worker, const char *what)
{
    struct pollfd poll_fd = {.fd = worker->answer_fd, .events = POLLIN};
    uint64_t until = bench_now_ns() + ANSWER_NS;
    char byte;
    int r;

    for (;;) {
        if (bench_stopped())
            return EX_TEMPFAIL;
        r = poll(&poll_fd, 1, 100);
        if (r > 0 && read(worker->answer_fd, &byte, 1) == 1)
            return outcome(worker, what);
        if (r > 0) {
            r = outcome(worker, what);
            if (r == 0)
                fprintf(stderr, "gwbench: %s: the process of rank %u is gone\n", what,
                        worker->rank);
            return r != 0 ? r : EX_SOFTWARE;
        }
        if (bench_now_ns() > until) {
            fprintf(stderr, "gwbench: %s: rank %u did not answer\n", what, worker->rank);
            return EX_TEMPFAIL;
        }
    }
}

int workers_run(struct worker *workers, uint32_t count, uint64_t iterations)
{
    int r = 0, one;

    for (uint32_t i = 0; i < count; i++)
        (void)!write(workers[i].order_fd, &iterations, sizeof iterations);
    /* A wrong value tells more than that others then failed. */
    for (uint32_t i = 0; i < count; i++) {
        one = worker_await(&workers[i], "round");
        if (r == 0 || one == EX_WRONG)
            r = one;
    }
    return r;
}

/* A closed pipe is the order to end. Who does not within 10 s is killed. */
void workers_stop(struct worker *workers, uint32_t count)
{
    uint64_t until = bench_now_ns() + 10000000000ull;

    for (uint32_t i = 0; i < count; i++) {
        if (workers[i].order_fd >= 0)
            close(workers[i].order_fd);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct worker *worker = &workers[i];

        while (worker->pid > 0 && waitpid(worker->pid, NULL, WNOHANG) == 0) {
            if (bench_now_ns() > until)
                kill(worker->pid, SIGKILL);
            bench_nap();
        }
        if (worker->answer_fd >= 0)
            close(worker->answer_fd);
        if (worker->share != NULL)
            munmap(worker->share, sizeof *worker->share);
        *worker = (struct worker){.order_fd = -1, .answer_fd = -1};
    }
}
