/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank's calls must keep by themselves: state, stream, buffers. Lock held. */
#include "tests/fakegpu/nccl_server.h"

static bool member_usable(struct request *r, const struct member *member, const char *call)
{
    const char *why = NULL;

    r->reply->v[0] = FGN_INVALID_ARGUMENT;
    if (member->unpolled) {
        violation(r->s, RULE_nccl_unpolled, r->p,
                  "%s on rank %u before its last call was polled to an end", call, member->rank);
        return member->result == FGN_SUCCESS;
    }
    if (member->result == FGN_IN_PROGRESS)
        why = "while an earlier call is in progress";
    else if (member->finalized)
        why = "after ncclCommFinalize";
    else if (member->revoked)
        why = "after ncclCommRevoke";
    if (why) {
        violation(r->s, RULE_nccl_use, r->p, "%s on rank %u %s", call, member->rank, why);
        return false;
    }
    /* After an error it is the caller's to abort: told, as NCCL does. */
    r->reply->v[0] = (uint64_t)member->result;
    return member->result == FGN_SUCCESS;
}

static bool arguments_valid(const struct member *member, const struct fgn_call *call)
{
    bool reduces = call->kind == FGN_ALL_REDUCE || call->kind == FGN_REDUCE_SCATTER ||
                   call->kind == FGN_REDUCE;

    if (call->kind >= FGN_CALL_KINDS || call->type >= FGN_TYPES ||
        call->root >= member->clique->ranks ||
        call->count > (UINT64_C(1) << 40) / member->clique->ranks)
        return false;
    if (!reduces)
        return true;
    if (call->op >= FGN_OP_FIRST &&
        (call->op - FGN_OP_FIRST >= N_OPERATORS_MAX ||
         member->operator_types[call->op - FGN_OP_FIRST] != call->type + 1))
        return false;
    return ring_reduces(call->type);
}

/* Which of the two this rank must give. */
static bool uses_send(const struct member *member, const struct fgn_call *call)
{
    return call->kind != FGN_RECV && (call->kind != FGN_BROADCAST || member->rank == call->root);
}

static bool uses_recv(const struct member *member, const struct fgn_call *call)
{
    return call->kind != FGN_SEND && (call->kind != FGN_REDUCE || member->rank == call->root);
}

static bool buffer_valid(struct request *r, const struct member *member, const char *call,
                         uint64_t address, uint64_t bytes, bool write)
{
    const struct map *map = map_find(r->s, r->p, address, bytes, true);
    uint64_t bit = UINT64_C(1) << member->gpu;

    if (!map || !address) {
        violation(r->s, RULE_out_of_bounds, r->p, "%s, rank %u: %llu bytes at %#llx", call,
                  member->rank, (unsigned long long)bytes, (unsigned long long)address);
        return false;
    }
    if (map->kind == MAP_VMM ? !((write ? map->writable : map->readable) & bit)
                             : map->gpu >= 0 && map->gpu != member->gpu) {
        violation(r->s, RULE_not_accessible, r->p, "%s, rank %u on GPU %d: memory of GPU %d", call,
                  member->rank, member->gpu, map->gpu);
        return false;
    }
    if (write && map->read_only) {
        violation(r->s, RULE_read_only, r->p, "%s, rank %u", call, member->rank);
        return false;
    }
    return true;
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a && b && a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

static bool in_place(const struct member *member, const struct fgn_call *call)
{
    uint64_t slice = call->count * fgn_type_bytes(call->type) * member->rank;

    switch (call->kind) {
    case FGN_REDUCE_SCATTER:
        return call->recv == call->send + slice;
    case FGN_ALL_GATHER:
        return call->send == call->recv + slice;
    default:
        return call->send == call->recv;
    }
}

/* Bytes that the rank's call reads and writes; 0 where it does not. */
static void call_bytes(const struct member *member, const struct fgn_call *call, uint64_t *ret_send,
                       uint64_t *ret_recv)
{
    uint32_t ranks = member->clique->ranks;

    *ret_send =
        uses_send(member, call) ? ring_send_bytes(call->kind, call->count, call->type, ranks) : 0;
    *ret_recv =
        uses_recv(member, call) ? ring_recv_bytes(call->kind, call->count, call->type, ranks) : 0;
}

static bool buffers_valid(struct request *r, const struct member *member,
                          const struct fgn_call *call)
{
    const char *name = call_name(call->kind);
    uint64_t send, recv;

    call_bytes(member, call, &send, &recv);
    if ((send && !buffer_valid(r, member, name, call->send, send, false)) ||
        (recv && !buffer_valid(r, member, name, call->recv, recv, true)))
        return false;
    if (overlap(call->send, send, call->recv, recv) && !in_place(member, call))
        violation(r->s, RULE_nccl_overlap, r->p,
                  "%s, rank %u: send at %#llx and receive at %#llx overlap, not in place", name,
                  member->rank, (unsigned long long)call->send, (unsigned long long)call->recv);
    return true;
}

/* Calls of one group run at the same time. */
static void pair_check(struct request *r, const struct member *member, const struct fgn_call *a,
                       const struct fgn_call *b)
{
    uint64_t a_send, a_recv, b_send, b_recv;

    call_bytes(member, a, &a_send, &a_recv);
    call_bytes(member, b, &b_send, &b_recv);
    if (overlap(a->recv, a_recv, b->recv, b_recv) || overlap(a->recv, a_recv, b->send, b_send) ||
        overlap(a->send, a_send, b->recv, b_recv))
        violation(r->s, RULE_nccl_overlap, r->p,
                  "rank %u: %s and %s of one group touch the same bytes, one writes", member->rank,
                  call_name(a->kind), call_name(b->kind));
}

static bool stream_valid(struct request *r, const struct member *member,
                         const struct fgn_call *call)
{
    struct stream *stream = stream_find(r->s, r->p, call->stream);

    if (!stream || stream->closed) {
        violation(r->s, RULE_stream_destroyed, r->p, "%s, rank %u", call_name(call->kind),
                  member->rank);
        return false;
    }
    if (stream->gpu != member->gpu) {
        violation(r->s, RULE_wrong_device, r->p, "%s, rank %u on GPU %d: a stream of GPU %d",
                  call_name(call->kind), member->rank, member->gpu, stream->gpu);
        return false;
    }
    nccl_behind(r->s, stream, call_name(call->kind));
    return true;
}

int calls_check(struct request *r, const struct fgn_call *calls, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct fgn_call *call = &calls[i];
        const struct member *member = member_of(r, call->comm, call_name(call->kind));

        if (!member || !member_usable(r, member, call_name(call->kind)))
            return (int)r->reply->v[0];
        if (!arguments_valid(member, call) || !stream_valid(r, member, call))
            return FGN_INVALID_ARGUMENT;
        if (!buffers_valid(r, member, call))
            return FGN_UNHANDLED_CUDA_ERROR;
        for (uint32_t j = 0; j < i; j++) {
            if (calls[j].comm != call->comm)
                continue;
            /* Allowed by NCCL, not made here: several streams, collectives beside sends. */
            if (calls[j].stream != call->stream ||
                (calls[j].kind < FGN_SEND) != (call->kind < FGN_SEND))
                return FGN_INVALID_USAGE;
            pair_check(r, member, &calls[j], call);
        }
    }
    return FGN_SUCCESS;
}

/* ---- registered memory ----------------------------------------------------------------------- */

const struct registration *registration_of(const struct member *member, uint64_t address,
                                           uint64_t bytes)
{
    for (uint32_t i = 0; i < N_REGISTRATIONS_MAX; i++) {
        const struct registration *registration = &member->registrations[i];

        if (registration->number && address >= registration->address &&
            address - registration->address + bytes <= registration->bytes)
            return registration;
    }
    return NULL;
}

struct registered { /* one side of a call, by rank */
    const struct registration *registration[N_RANKS_MAX];
    uint64_t offset[N_RANKS_MAX];
};

/* Slices in place are at another offset on each rank, by their rule. */
static void registered_find(const struct plan *plan, uint32_t at, bool recv,
                            struct registered *side)
{
    const struct fgn_call *call = &plan->calls[at];
    uint32_t rank = plan->member->rank, ranks = plan->member->clique->ranks;
    uint64_t before = rank * call->count * fgn_type_bytes(call->type);
    uint64_t address = recv ? call->recv : call->send;
    uint64_t bytes = recv ? ring_recv_bytes(call->kind, call->count, call->type, ranks)
                          : ring_send_bytes(call->kind, call->count, call->type, ranks);
    bool part = recv ? call->kind == FGN_REDUCE_SCATTER && address == call->send + before
                     : call->kind == FGN_ALL_GATHER && address == call->recv + before;
    const struct registration *found = registration_of(plan->member, address, bytes);

    side->registration[rank] = found;
    if (found)
        side->offset[rank] = address - found->address - (part ? before : 0);
}

void registered_check(struct server *s, struct plan *const *plans, uint32_t ranks, uint32_t at)
{
    const struct fgn_call *first = &plans[0]->calls[at];

    for (uint32_t recv = 0; recv < 2; recv++) {
        struct registered side = {0};

        if (first->kind == FGN_BROADCAST && !recv) /* the root's alone */
            continue;
        if (first->kind == FGN_REDUCE && recv)
            continue;
        for (uint32_t rank = 0; rank < ranks; rank++)
            registered_find(plans[rank], at, recv, &side);
        for (uint32_t rank = 1; rank < ranks; rank++) {
            const struct registration *a = side.registration[0], *b = side.registration[rank];

            if (!a == !b && (!a || (side.offset[0] == side.offset[rank] && a->window == b->window)))
                continue;
            violation(s, RULE_nccl_registered, plans[rank]->member->process,
                      "%s of %llu: rank 0's %s buffer is %s at %llu, rank %u's %s at %llu",
                      call_name(first->kind), (unsigned long long)first->count,
                      recv ? "receive" : "send", a ? "registered" : "not registered",
                      (unsigned long long)side.offset[0], rank, b ? "registered" : "not registered",
                      (unsigned long long)side.offset[rank]);
            return;
        }
    }
}
