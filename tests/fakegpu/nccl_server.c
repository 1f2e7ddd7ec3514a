/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of libnccl's double, the end of communicators, injected faults. Lock held. */
#include "tests/fakegpu/nccl_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nccl nccl = {.inject = {.error_rank = -1}};

const char *call_name(uint32_t kind)
{
    static const char *const names[FGN_CALL_KINDS] = {
        "ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
        "ncclReduce",    "ncclSend",          "ncclRecv",
    };

    return kind < FGN_CALL_KINDS ? names[kind] : "an unknown call";
}

struct member *member_find(uint64_t number)
{
    for (struct member *member = nccl.members; member; member = member->next) {
        if (member->number == number)
            return member;
    }
    return NULL;
}

struct member *member_of(struct request *r, uint64_t number, const char *call)
{
    struct member *member = member_find(number);

    if (!member || member->process != r->p) {
        violation(r->s, RULE_nccl_use, r->p, "%s: no communicator of this process", call);
    } else if (member->state != MEMBER_LIVE) {
        violation(r->s, RULE_nccl_use, r->p, "%s: rank %u of a communicator that was %s", call,
                  member->rank, member->aborted ? "aborted" : "destroyed");
    } else {
        return member;
    }
    r->reply->v[0] = FGN_INVALID_ARGUMENT;
    return NULL;
}

bool members_quiet(const struct clique *clique, const struct process *process)
{
    for (uint32_t rank = 0; clique && rank < clique->ranks; rank++) {
        struct member *member = clique->members[rank];

        if (!member || member->process != process)
            continue;
        for (struct plan *plan = member->plans; plan; plan = plan->next) {
            if (!plan->finished)
                return false;
        }
    }
    return true;
}

/* ---- state and ends -------------------------------------------------------------------------- */

static bool plans_left(const struct member *member)
{
    for (struct plan *plan = member->plans; plan; plan = plan->next) {
        if (!plan->finished)
            return true;
    }
    return false;
}

static void request_state(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclCommGetAsyncError");

    if (!member)
        return;
    /* Finalized, revoked: done when nothing runs any more. */
    if (member->result == FGN_IN_PROGRESS && (member->finalized || member->revoked) &&
        member->due_ns && now_ns() >= member->due_ns && !plans_left(member)) {
        member->result = FGN_SUCCESS;
        member->due_ns = 0;
    }
    if (member->result != FGN_IN_PROGRESS)
        member->unpolled = 0;
    r->reply->v[0] = (uint64_t)member->result;
    r->reply->v[1] = member->rank;
    r->reply->v[2] = member->clique ? member->clique->ranks : 0;
    r->reply->v[3] = (uint64_t)member->gpu;
}

/* NCCL's "ready": nothing in progress. Sets the reply otherwise. */
static bool member_ready(struct request *r, const struct member *member, const char *call)
{
    if (member->result == FGN_IN_PROGRESS)
        violation(r->s, RULE_nccl_use, r->p, "%s on rank %u while an earlier call is in progress",
                  call, member->rank);
    else if (member->result == FGN_SUCCESS)
        return true;
    r->reply->v[0] =
        member->result == FGN_IN_PROGRESS ? FGN_INVALID_ARGUMENT : (uint64_t)member->result;
    return false;
}

static void request_finalize(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclCommFinalize");

    if (!member || !member_ready(r, member, "ncclCommFinalize"))
        return;
    if (member->finalized || member->revoked) {
        violation(r->s, RULE_nccl_use, r->p, "ncclCommFinalize on rank %u a second time",
                  member->rank);
        r->reply->v[0] = FGN_INVALID_ARGUMENT;
        return;
    }
    member->finalized = true;
    member->result = FGN_IN_PROGRESS;
    member->due_ns = now_ns() + random_delay_ns(r->s, 0x66696e, member->number) + 1;
    r->reply->v[0] = FGN_SUCCESS;
}

/* Communicators of one process share what they hold: the last one to go waits for all (NCCL's
 * commReclaim). */
static void leave(struct request *r, struct member *member)
{
    struct clique *clique = member->clique;

    member->state = MEMBER_LEAVING;
    for (uint32_t rank = 0; clique && rank < clique->ranks; rank++) {
        struct member *other = clique->members[rank];

        if (other && other->process == r->p && other->state == MEMBER_LIVE)
            return;
    }
    if (!members_quiet(clique, r->p)) {
        r->reply->error = FG_BUSY;
        return;
    }
    member->state = MEMBER_GONE;
    for (uint32_t rank = 0; clique && rank < clique->ranks; rank++) {
        struct member *other = clique->members[rank];

        if (other && other->process == r->p)
            other->state = MEMBER_GONE;
    }
}

static void registrations_check(struct request *r, const struct member *member)
{
    for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
        if (member->registrations[i].number)
            violation(r->s, RULE_nccl_leak, r->p,
                      "rank %u destroyed with %llu bytes at %#llx still registered", member->rank,
                      (unsigned long long)member->registrations[i].bytes,
                      (unsigned long long)member->registrations[i].address);
    }
}

/* A second request for the same end: the caller was told to ask again. */
static bool leaving_again(struct request *r)
{
    struct member *member = member_find(r->q->a[0]);

    if (!member || member->process != r->p || member->state != MEMBER_LEAVING || !r->q->a[1])
        return false;
    leave(r, member);
    return true;
}

static void request_destroy(struct request *r)
{
    struct member *member;

    if (leaving_again(r))
        return;
    member = member_of(r, r->q->a[0], "ncclCommDestroy");
    if (!member || !member_ready(r, member, "ncclCommDestroy"))
        return;
    registrations_check(r, member);
    leave(r, member);
}

static void request_abort(struct request *r)
{
    struct member *member;

    if (leaving_again(r))
        return;
    member = member_of(r, r->q->a[0], "ncclCommAbort");
    if (!member)
        return;
    member->aborted = true;
    member->unpolled = 0;
    plans_abort(r->s, member);
    leave(r, member);
}

static void request_revoke(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclCommRevoke");

    if (!member)
        return;
    if (member->finalized || member->revoked) {
        r->reply->v[0] = FGN_INVALID_ARGUMENT;
        return;
    }
    member->revoked = true;
    member->result = FGN_IN_PROGRESS;
    member->due_ns = now_ns() + 1;
    plans_abort(r->s, member);
    r->reply->v[0] = FGN_SUCCESS;
}

/* ---- registrations and operators ------------------------------------------------------------- */

/* Until every rank has registered its n-th, the call is in progress for all. */
static void window_join(struct request *r, struct member *member, struct registration *registration)
{
    struct clique *clique = member->clique;

    registration->window = ++member->windows;
    member->result = FGN_IN_PROGRESS;
    member->due_ns = 0;
    for (uint32_t rank = 0; rank < clique->ranks; rank++) {
        struct member *other = clique->members[rank];

        if (other->windows < member->windows)
            return;
        for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
            if (other->registrations[i].number &&
                other->registrations[i].window == registration->window &&
                other->registrations[i].bytes != registration->bytes)
                violation(r->s, RULE_nccl_mismatch, r->p,
                          "window %llu: rank %u registers %llu bytes, rank %u %llu",
                          (unsigned long long)registration->window, member->rank,
                          (unsigned long long)registration->bytes, rank,
                          (unsigned long long)other->registrations[i].bytes);
        }
    }
    for (uint32_t rank = 0; rank < clique->ranks; rank++)
        clique->members[rank]->due_ns =
            now_ns() + 1 + random_delay_ns(r->s, 0x77696e, clique->members[rank]->number);
}

static void request_register(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclCommRegister");
    uint64_t address = r->q->a[1], bytes = r->q->a[2];
    const struct map *map;

    if (!member || !member_ready(r, member, "ncclCommRegister"))
        return;
    r->reply->v[0] = FGN_INVALID_ARGUMENT;
    map = map_find(r->s, r->p, address, bytes, true);
    if (!map || !bytes) {
        violation(r->s, RULE_out_of_bounds, r->p, "ncclCommRegister of %llu bytes at %#llx",
                  (unsigned long long)bytes, (unsigned long long)address);
        return;
    }
    /* Windows want memory of cuMem*: elsewhere NCCL says yes and gives none. */
    if (r->q->a[3] != FGN_REGISTER_BUFFER && map->kind != MAP_VMM) {
        r->reply->v[0] = FGN_SUCCESS;
        return;
    }
    for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
        struct registration *registration = &member->registrations[i];

        if (registration->number)
            continue;
        *registration = (struct registration){.number = ++nccl.next_registration,
                                              .address = address,
                                              .bytes = bytes,
                                              .kind = (uint32_t)r->q->a[3]};
        r->reply->v[0] = FGN_SUCCESS;
        r->reply->v[1] = registration->number;
        if (registration->kind != FGN_REGISTER_BUFFER)
            window_join(r, member, registration);
        return;
    }
    r->reply->v[0] = FGN_INTERNAL_ERROR;
}

static void request_deregister(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclCommDeregister");

    if (!member)
        return;
    for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
        struct registration *registration = &member->registrations[i];

        if (r->q->a[1] && registration->number == r->q->a[1]) {
            registration->number = 0;
            return;
        }
    }
    violation(r->s, RULE_nccl_use, r->p, "ncclCommDeregister of what is not registered");
    r->reply->v[0] = FGN_INVALID_ARGUMENT;
}

static void request_premul(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclRedOpCreatePreMulSum");
    uint32_t type = (uint32_t)r->q->a[1];

    if (!member || !member_ready(r, member, "ncclRedOpCreatePreMulSum"))
        return;
    r->reply->v[0] = FGN_INVALID_ARGUMENT;
    for (uint32_t i = 0; ring_reduces(type) && i < N_OPERATORS_MAX; i++) {
        if (member->operator_types[i])
            continue;
        member->operator_types[i] = (uint8_t)(type + 1);
        member->operator_by_address[i] = !r->q->a[2];
        member->operator_address[i] = r->q->a[3];
        if (r->q->a[2])
            member->operators[i] = ring_value(type, r->q->a[3]);
        r->reply->v[0] = FGN_SUCCESS;
        r->reply->v[1] = FGN_OP_FIRST + i;
        return;
    }
}

static void request_premul_free(struct request *r)
{
    struct member *member = member_of(r, r->q->a[0], "ncclRedOpDestroy");
    uint64_t i = r->q->a[1] - FGN_OP_FIRST;

    if (!member)
        return;
    if (r->q->a[1] < FGN_OP_FIRST || i >= N_OPERATORS_MAX || !member->operator_types[i])
        r->reply->v[0] = FGN_INVALID_ARGUMENT;
    else
        member->operator_types[i] = 0;
}

/* ---- what the server calls ------------------------------------------------------------------- */

void nccl_request(struct server *s, struct process *p, const struct fg_request *request,
                  const void *payload, struct fg_reply *reply)
{
    static void (*const handlers[])(struct request * r) = {
        [FGN_UNIQUE_ID] = request_unique_id,
        [FGN_INIT] = request_init,
        [FGN_SPLIT] = request_split,
        [FGN_STATE] = request_state,
        [FGN_GROUP] = request_group,
        [FGN_FINALIZE] = request_finalize,
        [FGN_DESTROY] = request_destroy,
        [FGN_ABORT] = request_abort,
        [FGN_REVOKE] = request_revoke,
        [FGN_REGISTER] = request_register,
        [FGN_DEREGISTER] = request_deregister,
        [FGN_PREMUL] = request_premul,
        [FGN_PREMUL_FREE] = request_premul_free,
    };
    struct request r = {s, p, request, payload, reply};
    uint32_t kind = request->kind - FG_NCCL_FIRST;

    *reply = (struct fg_reply){0};
    if (kind >= sizeof(handlers) / sizeof(handlers[0]) || !handlers[kind]) {
        reply->error = E_INVALID_VALUE;
        return;
    }
    nccl_tick(s, now_ns());
    handlers[kind](&r);
    server_kick(s);
}

uint64_t nccl_tick(struct server *s, uint64_t now)
{
    uint64_t next = init_tick(s, now), other = plan_tick(s, now);

    next = other < next ? other : next;
    other = job_tick(s, now);
    return other < next ? other : next;
}

/* The others of its cliques wait on: for an abort, as on a real node. */
void nccl_process_gone(struct server *s, struct process *p, bool bye)
{
    for (struct member *member = nccl.members; member; member = member->next) {
        if (member->process != p)
            continue;
        if (bye && !p->no_leaks && member->state != MEMBER_GONE)
            violation(s, RULE_nccl_leak, p, "rank %u of %u: neither destroyed nor aborted%s",
                      member->rank, member->clique ? member->clique->ranks : 0,
                      member->state == MEMBER_LEAVING ? " by all ranks of the process" : "");
        plans_abort(s, member);
        member->aborted = true;
        member->state = MEMBER_GONE;
        member->unpolled = 0;
        member->process = NULL;
    }
}

bool nccl_behind(struct server *s, struct stream *stream, const char *what)
{
    if (nccl.issuing)
        return false;
    for (struct member *member = nccl.members; member; member = member->next) {
        if (member->state != MEMBER_LIVE || !member->unpolled ||
            member->unpolled != (uint64_t)stream->index + 1)
            continue;
        violation(s, RULE_nccl_unpolled, stream->process,
                  "%s recorded behind an unpolled non-blocking call of rank %u: its kernel may "
                  "not be in the stream yet",
                  what, member->rank);
        return true;
    }
    return false;
}

bool nccl_inject(struct server *s, const char *kind, const char *args)
{
    struct nccl_inject *inject = &nccl.inject;
    long long a = 0, b = 0, c = -1;
    int n = args ? sscanf(args, "%lld %lld %lld", &a, &b, &c) : 0;

    (void)s;
    if (!strcmp(kind, "nccl-hang")) { /* [AFTER] */
        inject->hang = (uint32_t)(n > 0 ? a : 0) + 1;
    } else if (!strcmp(kind, "nccl-error")) { /* CODE [AFTER [RANK]] */
        inject->error_code = n > 0 ? (int)a : FGN_REMOTE_ERROR;
        inject->error = (uint32_t)(n > 1 ? b : 0) + 1;
        inject->error_rank = n > 2 ? (int)c : -1;
    } else if (!strcmp(kind, "nccl-init-hang")) { /* [AFTER] */
        inject->init_hang = (uint32_t)(n > 0 ? a : 0) + 1;
    } else if (!strcmp(kind, "nccl-init-error")) { /* CODE [AFTER] */
        inject->init_code = n > 0 ? (int)a : FGN_SYSTEM_ERROR;
        inject->init_error = (uint32_t)(n > 1 ? b : 0) + 1;
    } else if (!strcmp(kind, "nccl-call-error")) { /* CODE [AFTER] */
        inject->call_code = n > 0 ? (int)a : FGN_UNHANDLED_CUDA_ERROR;
        inject->call_error = (uint32_t)(n > 1 ? b : 0) + 1;
    } else if (!strcmp(kind, "nccl-delay")) { /* NANOSECONDS */
        inject->delay_ns = n > 0 ? (uint64_t)a : 0;
    } else {
        return false;
    }
    return true;
}
