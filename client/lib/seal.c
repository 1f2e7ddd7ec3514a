/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_seal: the list goes to the engine in pages, SEAL follows, and the layout that comes back is
 * checked in full before anything of it is used. Set-up: one thread at a time; no lock is held
 * while waiting. A seal whose deadline passed can be called again and goes on where it stopped.
 */
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/options.h"
#include "client/lib/zero.h"

#define REGISTER_BYTES (GW_FRAME_MAX - 1024u) /* of one packet, with room for its frame */
#define ENTRY_BYTES 56u                       /* of an entry beside its names, at most */
#define RING_SLOTS_DEFAULT 3u

/* Also for one that is half built. */
struct zero *zero_free(struct zero *zero)
{
    struct zero_array *next;

    if (!zero)
        return NULL;
    for (struct zero_array *array = zero->arrays; array; array = next) {
        next = array->next;
        map_free(&array->map);
        free(array);
    }
    for (uint32_t i = 0; i < GW_OVERFLOW_MAX; i++)
        map_free(&zero->overflow[i]);
    map_free(&zero->staging);
    map_free(&zero->verdict);
    map_free(&zero->params_view);
    map_free(&zero->params);
    map_free(&zero->master);
    map_free(&zero->grads);
    map_free(&zero->grads_view);
    map_free(&zero->ring);
    map_free(&zero->acc);
    map_free(&zero->shard_grads);
    map_free(&zero->pool);
    map_free(&zero->board_map);
    ledger_free(zero->ledger);
    free(zero->fetches);
    free(zero->hits.touched);
    free(zero->hits.last);
    free(zero->releases);
    free(zero->used);
    free(zero->spans);
    free(zero->span_of);
    place_free(zero->place);
    free(zero->copy);
    free(zero);
    return NULL;
}

void zero_close(gw_job *job)
{
    zero_free(atomic_load(&job->zero));
    atomic_store(&job->zero, NULL);
    job->sealing = zero_free(job->sealing);
    params_free(job->params);
    job->params = NULL;
}

/* ---- what the engine sent ------------------------------------------------------------------- */

static int copy_layout(struct zero *zero, int fd, uint64_t bytes, const uint8_t hash[32])
{
    uint8_t own[32] = {0};
    struct map map = {0};
    int r;

    r = map_new(fd, bytes, PROT_READ, "layout page", &map);
    if (r < 0)
        return r;
    zero->copy = malloc((size_t)bytes);
    if (zero->copy)
        memcpy(zero->copy, map.base, (size_t)bytes);
    map_free(&map);
    if (!zero->copy)
        return err_set(GW_E_NOMEM, "no memory for the layout (%llu bytes)",
                       (unsigned long long)bytes);
    crypto_generichash_blake2b(own, sizeof(own), zero->copy, (size_t)bytes, NULL, 0);
    if (memcmp(own, hash, sizeof(own)) != 0)
        return err_set(GW_E_PROTOCOL, "the layout page and its hash differ");
    memcpy(zero->hash, own, sizeof(own));
    return 0;
}

/* The layout must be the one of our own list and options. */
static int check_layout(const gw_job *job, const struct zero *zero)
{
    const struct params *params = job->params;

    if (zero->page->stage != zero->options.stage || zero->page->world != job->world ||
        zero->page->params != params->count)
        return err_set(
            GW_E_PROTOCOL,
            "the layout is for stage %u, %u ranks and %u parameters; asked was stage %u, "
            "%u and %u",
            zero->page->stage, zero->page->world, zero->page->params, zero->options.stage,
            job->world, params->count);
    for (uint32_t i = 0; i < params->count; i++) {
        const struct gw_layout_param *got = &zero->view.params[i];
        const struct params_entry *given = &params->entries[i];

        if (got->numel != given->numel || got->dtype != given->dtype ||
            got->grad_dtype != given->grad_dtype || got->group != given->group ||
            strcmp(zero_param_name(zero, i), given->name) != 0)
            return err_set(GW_E_PROTOCOL, "the layout's parameter %u is not the %s that was added",
                           i, given->name);
    }
    return 0;
}

/* The engine only ever adds to a board's tail, so a longer one is fine. */
static int map_board(struct zero *zero, int fd, uint64_t bytes)
{
    uint64_t slots = (uint64_t)zero->page->buckets + zero->page->units;
    uint64_t used_bytes = ((uint64_t)zero->page->params + 7) / 8;
    uint64_t need = sizeof(struct gw_shm_board) + slots * sizeof(struct gw_shm_slot) + used_bytes;
    const struct gw_shm_board *board;
    int r;

    if (bytes < need)
        return err_set(GW_E_PROTOCOL, "the board has %llu bytes, the layout needs %llu",
                       (unsigned long long)bytes, (unsigned long long)need);
    r = map_new(fd, bytes, PROT_READ, "board", &zero->board_map);
    if (r < 0)
        return r;
    board = (const struct gw_shm_board *)(const void *)zero->board_map.base;
    if (board->header.magic != GW_SHM_MAGIC || board->header.version != GW_SHM_VERSION ||
        board->header.kind != GW_SHM_BOARD || board->buckets != zero->page->buckets ||
        board->units != zero->page->units || board->params != zero->page->params)
        return err_set(GW_E_PROTOCOL, "the board does not fit the layout");
    zero->board = board;
    zero->bucket_slots = board->slots;
    zero->unit_slots = board->slots + zero->page->buckets;
    zero->board_used = (const uint8_t *)(board->slots + slots);
    return 0;
}

/* Our counts begin where the words stand; after a re-join the steps go on. */
static int start_state(const gw_job *job, struct zero *zero, uint64_t steps)
{
    uint64_t groups = place_groups_of(zero->page, job->rank);
    int r;

    zero->fetches = calloc((size_t)zero->page->units + 1, sizeof(*zero->fetches));
    zero->releases = calloc((size_t)zero->page->units + 1, sizeof(*zero->releases));
    zero->hits.touched =
        calloc((size_t)zero->page->fetch_units + 1, sizeof(*zero->hits.touched));
    zero->hits.last = calloc((size_t)zero->page->units + 1, sizeof(*zero->hits.last));
    zero->used = calloc((size_t)zero->page->params / 8 + 1, 1);
    zero->spans = calloc((size_t)zero->page->buckets + 1, sizeof(*zero->spans));
    zero->span_of = calloc((size_t)zero->page->buckets + 1, sizeof(*zero->span_of));
    if (!zero->fetches || !zero->releases || !zero->hits.touched || !zero->hits.last ||
        !zero->used || !zero->spans || !zero->span_of)
        return err_set(GW_E_NOMEM, "no memory for rank %u's account of gradients", job->rank);
    r = place_new(zero->page, &zero->options, groups, &zero->place);
    if (r == 0)
        r = ledger_new(zero->page, zero->view.pieces, zero->view.buckets, groups,
                       place_ring(zero->place) ? zero->options.ring_slots : 0,
                       zero->options.micro_steps, place_local(zero->place), &zero->ledger);
    if (r < 0)
        return err_set(r, "no memory for rank %u's account of gradients", job->rank);
    for (uint32_t b = 0; b < zero->page->buckets; b++)
        zero->ledger->buckets[b].count = atomic_load(&zero->bucket_slots[b].value);
    for (uint32_t u = 0; u < zero->page->units; u++)
        zero->fetches[u] = zero->releases[u] = atomic_load(&zero->unit_slots[u].value);
    zero->steps = zero->first = zero->updated = steps;
    return 0;
}

/* Only what the client itself needs; the engine fills in the rest and is who checks them. */
static void fill_defaults(struct wire_seal *options)
{
    if (options->accumulate == GW_ACCUMULATE_AUTO)
        options->accumulate = options->stage <= 1 ? GW_ACCUMULATE_LOCAL : GW_ACCUMULATE_SHARD;
    options->ring_slots = options->ring_slots ? options->ring_slots : RING_SLOTS_DEFAULT;
    options->micro_steps = options->micro_steps ? options->micro_steps : 1;
}

/* In this order: nothing of the page is used before its hash and its check. */
int zero_new(gw_job *job, const struct wire_seal *options, struct reply *reply,
             struct zero **ret_zero)
{
    const struct wire_msg *msg = reply->msg;
    struct zero *zero = calloc(1, sizeof(*zero));
    const char *what = NULL;
    uint32_t fds = job->device ? 3 : 2;
    int r = 0;

    if (!zero)
        return err_set(GW_E_NOMEM, "no memory for the sealed job");
    zero->options = *options;
    fill_defaults(&zero->options);
    if (reply->fd_count != fds)
        r = err_set(GW_E_PROTOCOL, "the answer to the seal has %u descriptors, expected %u",
                    reply->fd_count, fds);
    if (r == 0)
        r = copy_layout(zero, reply->fds[0], msg->u.sealed.layout_bytes, msg->u.sealed.layout_hash);
    if (r == 0 &&
        layout_view(zero->copy, (size_t)msg->u.sealed.layout_bytes, &zero->view, &what) < 0)
        r = err_set(GW_E_PROTOCOL, "the layout page is damaged: %s", what);
    zero->page = zero->view.page;
    if (r == 0)
        zero->options.ring_slots =
            layout_ring_slots(zero->page, zero->options.ring_slots, zero->options.micro_steps);
    if (r == 0)
        r = check_layout(job, zero);
    if (r == 0)
        r = map_board(zero, reply->fds[1], msg->u.sealed.board_bytes);
    if (r == 0)
        r = start_state(job, zero, msg->u.sealed.steps);
    if (r == 0 && job->device)
        r = order_board(job, reply->fds[2],
                        GW_WAIT_BUCKETS + zero->page->buckets + zero->page->units);
    if (r < 0)
        zero_free(zero);
    else
        *ret_zero = zero;
    return r;
}

/* ---- what we send --------------------------------------------------------------------------- */

/* The next page: as many entries as one frame holds. */
static int register_page(gw_job *job, struct params *params, int64_t deadline)
{
    struct wire_param page[GW_PARAMS_PER_FRAME];
    struct wire_msg msg;
    uint32_t count = 0;
    size_t bytes = 0;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_REGISTER;
    while (count < GW_PARAMS_PER_FRAME && params->registered + count < params->count) {
        const struct params_entry *entry = &params->entries[params->registered + count];
        size_t add = strlen(entry->name) + strlen(entry->unit) + ENTRY_BYTES;

        if (bytes + add > REGISTER_BYTES)
            break;
        bytes += add;
        page[count++] = (struct wire_param){.name = entry->name,
                                            .unit = entry->unit,
                                            .numel = entry->numel,
                                            .dtype = entry->dtype,
                                            .grad_dtype = entry->grad_dtype,
                                            .group = entry->group};
    }
    msg.u.reg.first = params->registered;
    msg.u.reg.total = params->count;
    msg.u.reg.count = count;
    msg.u.reg.params = page;
    r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_SAME, deadline, NULL);
    if (r == 0)
        params->registered += count;
    return r;
}

static int register_group(gw_job *job, struct params *params, int64_t deadline)
{
    const struct params_group *group = &params->groups[params->groups_registered];
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_PARAM_GROUP;
    msg.u.param_group.count = group->count;
    msg.u.param_group.shard_ranks = group->shard_ranks;
    msg.u.param_group.ranks = group->ranks;
    r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_SAME, deadline, NULL);
    if (r == 0)
        params->groups_registered++;
    return r;
}

static int take_options(const struct gw_zero_options *given, struct wire_seal *ret_seal)
{
    struct gw_zero_options o;
    int r;

    r = options_take(&o, sizeof(o), given, offsetof(struct gw_zero_options, accumulate),
                     "gw_zero_options");
    if (r < 0)
        return r;
    if (!isfinite(o.scale) || !isfinite(o.clip_norm) || !isfinite(o.pre_scale))
        return err_set(GW_E_INVALID, "%s is not a finite number",
                       !isfinite(o.scale)       ? "scale"
                       : !isfinite(o.clip_norm) ? "clip_norm"
                                                : "pre_scale");
    if (o.stage > 3)
        return err_set(GW_E_INVALID, "there is no stage %u; stages are 0 to 3", o.stage);
    if (o.bucket_bytes == 0)
        return err_set(GW_E_INVALID, "bucket_bytes is 0; it has no default: say how large a bucket "
                                     "shall be");
    *ret_seal = (struct wire_seal){
        .stage = o.stage,
        .accumulate = o.accumulate,
        .gather = o.gather,
        .unused = o.unused,
        .overlap_off = o.overlap_off,
        .ring_slots = o.ring_slots,
        .micro_steps = o.micro_steps,
        .shard_align_bytes = o.shard_align_bytes,
        .bucket_bytes = o.bucket_bytes,
        .scale = o.scale,
        .clip_norm = o.clip_norm,
        .gather_bytes = o.gather_bytes,
        .prefetch_bytes = o.prefetch_bytes,
        .order = o.order,
        .norm = o.norm,
        .pre_scale = o.pre_scale,
        .reduce_dtype = o.reduce_dtype,
        .accum_as_grads = o.accum_as_grads,
        .shard_ranks = o.shard_ranks,
        .persist_bytes = o.persist_bytes,
        .reuse_bytes = o.reuse_bytes,
        .secondary_ranks = o.secondary_ranks,
        .all_reduce = o.all_reduce,
    };
    return 0;
}

/* What a kind of memory cannot do is refused to the caller alone. */
static int check_device(const gw_job *job, const struct wire_seal *seal)
{
    if (seal->order > GW_ORDER_FABRIC || (seal->order == GW_ORDER_FABRIC && !job->device))
        return err_set(GW_E_INVALID,
                       "order = %u: exact (0) everywhere, fabric (1) with GPUs, no other",
                       seal->order);
    if (seal->gather == GW_GATHER_MAPPED && job->device)
        return err_set(GW_E_INVALID, "gather = mapped is for host memory; a GPU needs private");
    return 0;
}

/* Each page is answered before the next is sent, so the engine never holds more than one. */
static int ask(gw_job *job, const struct wire_seal *seal, int64_t deadline)
{
    struct params *params = job->params;
    struct reply reply = {0};
    struct wire_msg msg;
    int r = 0;

    while (r == 0 && params->groups_registered < params->group_count)
        r = register_group(job, params, deadline);
    while (r == 0 && params->registered < params->count)
        r = register_page(job, params, deadline);
    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_SEAL;
    msg.u.seal = *seal;
    r = job_request(job, &msg, WIRE_SEALED, CHANNEL_PARK_SAME, deadline, &reply);
    if (r == 0)
        r = zero_new(job, seal, &reply, &job->sealing);
    reply_free(&job->channel, &reply);
    return r;
}

/* The list is frozen for good: a part of it may have reached the engine. */
static int begin(gw_job *job)
{
    int r = 0;

    pthread_mutex_lock(&job->lock);
    if (atomic_load(&job->zero))
        r = err_set(GW_E_STATE, "the job is sealed already");
    else if (!job->params || job->params->count == 0)
        r = err_set(GW_E_STATE, "no parameter was added; call gw_param_add before gw_seal");
    else if (job->params->sealing)
        r = err_set(GW_E_STATE, "another thread is inside gw_seal");
    else
        job->params->sealing = job->params->frozen = true;
    pthread_mutex_unlock(&job->lock);
    return r;
}

int gw_seal(gw_job *job, const struct gw_zero_options *options, int64_t timeout_ns)
{
    int64_t deadline = clock_deadline(timeout_ns);
    struct wire_seal seal;
    int r = job_check(job);

    if (r == 0)
        r = take_options(options, &seal);
    if (r == 0)
        r = check_device(job, &seal);
    if (r == 0)
        r = begin(job);
    if (r < 0)
        return r;
    if (!job->sealing)
        r = ask(job, &seal, deadline);
    if (r == 0)
        r = memory_map(job, job->sealing, deadline);
    pthread_mutex_lock(&job->lock);
    job->params->sealing = false;
    if (r == 0) {
        atomic_store_explicit(&job->zero, job->sealing, memory_order_release);
        job->sealing = NULL;
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}
