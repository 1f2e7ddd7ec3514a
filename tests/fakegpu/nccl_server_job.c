/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks do together: all ranks' kernels of one place are on their GPUs, or a send has met its
 * receive. Moves the bytes on a worker, without the lock. Lock held elsewhere.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/nccl_server.h"

struct job {
    struct clique *clique;
    struct slot *slot; /* NULL: a send and its receive */
    uint32_t plan_count, ring_count;
    struct plan *plans[N_RANKS_MAX];
    uint32_t call[2]; /* of the send in plans[0], of the receive in plans[1] */
    const unsigned char *from;
    unsigned char *to;
    uint64_t bytes;
    struct ring rings[];
};

/* The kernel is on its GPU: it holds CTAs and waits for its peers. */
void nccl_start(struct server *s, struct op *op)
{
    struct plan *plan = op->u.collective;
    struct slot *slot;

    if (!plan) {
        op_finish(s, op);
        return;
    }
    if (plan->member->aborted || plan->member->revoked) {
        plan_finish(s, plan);
        return;
    }
    plan->started = true;
    slot = plan->collective ? slot_find(plan->member->clique, plan->index) : NULL;
    if (slot && ++slot->started == plan->member->clique->ranks)
        slot->due_ns = now_ns() + nccl.inject.delay_ns +
                       random_delay_ns(s, 0x6a6f62, slot->index ^ plan->member->clique->id << 32);
    server_kick(s);
}

uint64_t job_tick(struct server *s, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    (void)s;
    for (const struct clique *clique = nccl.cliques; clique; clique = clique->next) {
        for (const struct slot *slot = clique->slots; slot; slot = slot->next) {
            if (slot->started == clique->ranks && !slot->taken && !slot->broken &&
                slot->due_ns > now && slot->due_ns < next)
                next = slot->due_ns;
        }
    }
    return next;
}

/* ---- what a job reads and writes ------------------------------------------------------------- */

/* Notes the access; NULL: the memory has gone, which ends the process. */
static void *touch(struct server *s, struct plan *plan, const struct fgn_call *call,
                   uint64_t address, uint64_t bytes, bool write)
{
    struct process *process = plan->member->process;
    const struct map *map = map_find(s, process, address, bytes, true);

    if (!map) {
        violation(s, RULE_use_after_free, process,
                  "%s, rank %u: %llu bytes at %#llx went before it ran", call_name(call->kind),
                  plan->member->rank, (unsigned long long)bytes, (unsigned long long)address);
        process_fault(s, process, E_ILLEGAL_ADDRESS, "NCCL kernel of rank %u", plan->member->rank);
        return NULL;
    }
    access_note(s, plan->op, address, bytes, write);
    return map_pointer(map, address);
}

/* One call of all ranks. False: a rank's memory has gone. */
static bool ring_make(struct server *s, const struct job *job, uint32_t at, struct ring *ring)
{
    const struct fgn_call *first = &job->plans[0]->calls[at];
    uint32_t ranks = job->clique->ranks;
    uint64_t in = ring_send_bytes(first->kind, first->count, first->type, ranks);
    uint64_t out = ring_recv_bytes(first->kind, first->count, first->type, ranks);

    *ring = (struct ring){.kind = first->kind,
                          .type = first->type,
                          .root = first->root,
                          .ranks = ranks,
                          .count = first->count,
                          .op = first->op < FGN_OP_FIRST ? first->op : FGN_SUM,
                          .random = random_of(s, 0x72696e67, job->slot->index << 8 | at)};
    if (first->op == FGN_AVG && first->type >= FGN_FLOAT16)
        ring->scaled = true;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct plan *plan = job->plans[rank];
        const struct fgn_call *call = &plan->calls[at];
        const struct member *member = plan->member;
        uint32_t op = call->op - FGN_OP_FIRST;

        ring->scale[rank] = ring_round(first->type, 1.0 / ranks);
        if (call->op >= FGN_OP_FIRST && op < N_OPERATORS_MAX) {
            ring->scaled = true;
            ring->scale[rank] = member->operators[op];
            if (member->operator_by_address[op]) {
                const void *scalar = touch(s, plan, call, member->operator_address[op],
                                           fgn_type_bytes(call->type), false);
                uint64_t bits = 0;

                if (!scalar)
                    return false;
                memcpy(&bits, scalar, fgn_type_bytes(call->type));
                ring->scale[rank] = ring_value(call->type, bits);
            }
        }
        if (call->kind != FGN_BROADCAST || rank == call->root) {
            ring->send[rank] = touch(s, plan, call, call->send, in, false);
            if (!ring->send[rank])
                return false;
        }
        if (call->kind != FGN_REDUCE || rank == call->root) {
            ring->recv[rank] = touch(s, plan, call, call->recv, out, true);
            if (!ring->recv[rank])
                return false;
        }
    }
    return true;
}

static void job_join(struct server *s, const struct job *job)
{
    struct op *ops[N_RANKS_MAX];

    for (uint32_t i = 0; i < job->plan_count; i++)
        ops[i] = job->plans[i]->op;
    ops_join(s, ops, job->plan_count);
}

/* A job that will not run after all. */
static void *job_drop(struct server *s, struct job *job)
{
    for (uint32_t i = 0; i < job->plan_count; i++) {
        struct plan *plan = job->plans[i];

        plan->running = false;
        if (plan->finished)
            plan_free(plan);
    }
    (void)s;
    free(job);
    return NULL;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void slot_fail(struct slot *slot, const struct clique *clique)
{
    for (uint32_t rank = 0; rank < clique->ranks; rank++) {
        if (nccl.inject.error_rank < 0 || nccl.inject.error_rank == (int)rank)
            clique->members[rank]->result = slot->error;
    }
    slot->broken = true;
}

static struct job *job_of_slot(struct server *s, struct clique *clique, struct slot *slot)
{
    uint32_t calls = slot->plans[0]->call_count;
    struct job *job = calloc(1, sizeof(*job) + calls * sizeof(job->rings[0]));

    if (!job)
        return NULL;
    job->clique = clique;
    job->slot = slot;
    job->plan_count = clique->ranks;
    for (uint32_t rank = 0; rank < clique->ranks; rank++) {
        job->plans[rank] = slot->plans[rank];
        job->plans[rank]->running = true;
    }
    job_join(s, job);
    for (uint32_t i = 0; i < calls; i++) {
        if (job->plans[0]->calls[i].kind < FGN_SEND)
            registered_check(s, job->plans, clique->ranks, i);
        if (job->plans[0]->calls[i].kind < FGN_SEND &&
            !ring_make(s, job, i, &job->rings[job->ring_count++])) {
            slot->broken = true;
            return job_drop(s, job);
        }
    }
    slot->taken = true;
    return job;
}

static struct job *take_collective(struct server *s, struct clique *clique, uint64_t now)
{
    for (struct slot *slot = clique->slots; slot; slot = slot->next) {
        if (slot->started < clique->ranks || slot->taken || slot->broken || slot->due_ns > now)
            continue;
        if (slot->error) {
            slot_fail(slot, clique);
            continue;
        }
        struct job *job = job_of_slot(s, clique, slot);

        if (job)
            return job;
    }
    return NULL;
}

/* ---- sends and receives ---------------------------------------------------------------------- */

/* The receive of `to` that is the counterpart of call `at` of a plan of rank `from`. */
static struct plan *receive_find(const struct plan *send, uint32_t at, uint32_t *ret_call)
{
    const struct member *to = send->member->clique->members[send->calls[at].root];

    for (struct plan *plan = to ? to->plans : NULL; plan; plan = plan->next) {
        for (uint32_t i = 0; i < plan->call_count; i++) {
            if (plan->calls[i].kind == FGN_RECV && plan->calls[i].root == send->member->rank &&
                plan->pair[i] == send->pair[at]) {
                *ret_call = i;
                return plan;
            }
        }
    }
    return NULL;
}

static struct job *job_of_pair(struct server *s, struct plan *send, uint32_t at,
                               struct plan *receive, uint32_t to)
{
    const struct fgn_call *out = &send->calls[at], *in = &receive->calls[to];
    struct job *job;

    if (out->count != in->count || out->type != in->type) {
        violation(s, RULE_nccl_mismatch, send->member->process,
                  "rank %u sends %llu of type %u, rank %u receives %llu of type %u",
                  send->member->rank, (unsigned long long)out->count, out->type,
                  receive->member->rank, (unsigned long long)in->count, in->type);
        send->pair[at] = receive->pair[to] = UINT64_MAX; /* told once; both hang */
        return NULL;
    }
    job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->clique = send->member->clique;
    job->plans[job->plan_count++] = send;
    if (receive != send)
        job->plans[job->plan_count++] = receive;
    job->call[0] = at;
    job->call[1] = to;
    send->running = receive->running = true;
    job_join(s, job);
    job->bytes = out->count * fgn_type_bytes(out->type);
    job->from = touch(s, send, out, out->send, job->bytes, false);
    if (job->from)
        job->to = touch(s, receive, in, in->recv, job->bytes, true);
    if (!job->to)
        return job_drop(s, job);
    return job;
}

static bool plan_open(const struct plan *plan)
{
    return plan->started && !plan->finished && !plan->running && plan->peers_left;
}

static struct job *take_pair(struct server *s, struct clique *clique)
{
    for (uint32_t rank = 0; rank < clique->ranks; rank++) {
        struct member *member = clique->members[rank];

        for (struct plan *plan = member ? member->plans : NULL; plan; plan = plan->next) {
            for (uint32_t i = 0; plan_open(plan) && i < plan->call_count; i++) {
                uint32_t to = 0;
                struct plan *receive = NULL;

                if (plan->calls[i].kind == FGN_SEND && plan->pair[i] != UINT64_MAX)
                    receive = receive_find(plan, i, &to);
                if (!receive || !plan_open(receive))
                    continue;
                struct job *job = job_of_pair(s, plan, i, receive, to);

                if (job)
                    return job;
                return NULL; /* the lists may have changed */
            }
        }
    }
    return NULL;
}

/* ---- what the server calls ------------------------------------------------------------------- */

void *nccl_take(struct server *s)
{
    uint64_t now = now_ns();

    for (struct clique *clique = nccl.cliques; clique; clique = clique->next) {
        struct job *job = take_collective(s, clique, now);

        if (!job)
            job = take_pair(s, clique);
        if (job)
            return job;
    }
    return NULL;
}

void nccl_run(void *job_)
{
    const struct job *job = job_;

    if (!job->slot)
        ring_send(job->from, job->to, job->bytes);
    for (uint32_t i = 0; i < job->ring_count; i++)
        ring_run(&job->rings[i]);
}

/* Whose memory it was. */
static void job_fault(struct server *s, const struct job *job, uint64_t address)
{
    for (uint32_t i = 0; i < job->plan_count; i++) {
        struct process *process = job->plans[i]->member->process;

        if (!process || job->plans[i]->finished)
            continue;
        violation(s, RULE_use_after_free, process, "NCCL kernel of rank %u touched %#llx",
                  job->plans[i]->member->rank, (unsigned long long)address);
        process_fault(s, process, E_ILLEGAL_ADDRESS, "NCCL kernel of rank %u",
                      job->plans[i]->member->rank);
    }
}

static void plan_step(struct server *s, struct plan *plan)
{
    plan->running = false;
    if (plan->finished) /* dropped or aborted meanwhile */
        plan_free(plan);
    else if ((plan->collectives_done && !plan->peers_left) || plan->member->aborted ||
             plan->member->revoked)
        plan_finish(s, plan);
}

void nccl_finish(struct server *s, void *job_, uint64_t faulted)
{
    struct job *job = job_;
    struct slot *slot = job->slot;

    if (faulted) {
        job_fault(s, job, faulted);
        if (slot)
            slot->broken = true;
    } else if (!slot) {
        struct plan *receive = job->plans[job->plan_count - 1];

        job->plans[0]->pair[job->call[0]] = UINT64_MAX;
        receive->pair[job->call[1]] = UINT64_MAX;
        job->plans[0]->peers_left--;
        receive->peers_left--;
    }
    for (uint32_t i = 0; i < job->plan_count; i++) {
        struct plan *plan = job->plans[i];

        if (slot && !faulted)
            plan->collectives_done = true;
        if (slot)
            slot->plans[plan->member->rank] = NULL;
        plan_step(s, plan);
    }
    if (slot && !faulted)
        slot_remove(job->clique, slot);
    free(job);
}

void nccl_memory_going(struct server *s, const struct map *map)
{
    for (struct member *member = nccl.members; member; member = member->next) {
        if (member->process != map->process || member->state != MEMBER_LIVE)
            continue;
        for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
            uint64_t address = member->registrations[i].address;

            if (member->registrations[i].number && address - map->address < map->bytes)
                violation(s, RULE_unmap_busy, map->process,
                          "memory at %#llx is registered with rank %u of a communicator",
                          (unsigned long long)address, member->rank);
        }
        for (const struct plan *plan = member->plans; plan; plan = plan->next) {
            for (uint32_t i = 0; i < plan->call_count; i++) {
                const struct fgn_call *call = &plan->calls[i];

                if (call->send - map->address < map->bytes ||
                    call->recv - map->address < map->bytes)
                    violation(s, RULE_unmap_busy, map->process,
                              "memory at %#llx: rank %u's %s still uses it",
                              (unsigned long long)map->address, member->rank,
                              call_name(call->kind));
            }
        }
    }
}
