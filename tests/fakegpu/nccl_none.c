/* SPDX-License-Identifier: Apache-2.0 */
/* The server's NCCL part where there is none: every request for it is refused. */
#include "tests/fakegpu/server.h"

void nccl_request(struct server *s, struct process *p, const struct fg_request *request,
                  const void *payload, struct fg_reply *reply)
{
    (void)s, (void)p, (void)request, (void)payload;
    reply->error = E_NOT_SUPPORTED;
}

void nccl_start(struct server *s, struct op *op)
{
    op_finish(s, op);
}

void *nccl_take(struct server *s)
{
    (void)s;
    return NULL;
}

void nccl_run(void *job)
{
    (void)job;
}

void nccl_finish(struct server *s, void *job, uint64_t faulted)
{
    (void)s, (void)job, (void)faulted;
}

void nccl_drop(struct server *s, struct op *op)
{
    (void)s, (void)op;
}

uint64_t nccl_tick(struct server *s, uint64_t now)
{
    (void)s, (void)now;
    return UINT64_MAX;
}

void nccl_process_gone(struct server *s, struct process *p, bool bye)
{
    (void)s, (void)p, (void)bye;
}

bool nccl_behind(struct server *s, struct stream *stream, const char *what)
{
    (void)s, (void)stream, (void)what;
    return false;
}

void nccl_memory_going(struct server *s, const struct map *map)
{
    (void)s, (void)map;
}

bool nccl_inject(struct server *s, const char *kind, const char *args)
{
    (void)s, (void)kind, (void)args;
    return false;
}
