/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One message of every type with extreme values, for round trips, mutations and fuzz seeds; and
 * bodies written by hand, independent of the encoder. Each includer is one test program.
 */
#ifndef TESTS_UNIT_WIRE_SAMPLES_H
#define TESTS_UNIT_WIRE_SAMPLES_H

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

#define SAMPLES_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char samples_long_name[GW_NAME_MAX + 1];
static struct wire_param samples_params[GW_PARAMS_PER_FRAME];
static struct wire_ready_entry samples_entries[GW_READY_PER_FRAME];
static struct wire_job samples_jobs[WIRE_JOBS_PER_FRAME];
static char samples_wait[GW_TEXT_MAX + 1];
static uint8_t samples_hello[4000];
static struct wire_msg samples_all[72];
static size_t samples_used;

static struct wire_msg *sample_add(uint16_t type)
{
    struct wire_msg *msg = &samples_all[samples_used++];

    memset(msg, 0, sizeof(*msg));
    msg->type = type;
    msg->request = UINT32_MAX - (uint32_t)samples_used;
    return msg;
}

static const uint8_t samples_handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES] = {1, 0, 2};

static void samples_fill(char *text, size_t bytes)
{
    for (size_t i = 0; i + 1 < bytes; i++)
        text[i] = (char)(i % 2 ? 0xff : 1 + i % 100); /* not UTF-8, control characters */
    text[bytes - 1] = 0;
}

static void samples_counters(struct gw_counters *counters, uint64_t from)
{
    *counters = (struct gw_counters){from, from - 1, from - 2, from - 3, from - 4,
                                       from - 5};
}

static void samples_lists(void)
{
    samples_fill(samples_long_name, sizeof(samples_long_name));
    samples_fill(samples_wait, sizeof(samples_wait));
    memset(samples_hello, 0x80, sizeof(samples_hello));
    for (uint32_t i = 0; i < GW_PARAMS_PER_FRAME; i++)
        samples_params[i] = (struct wire_param){i % 2 ? "w" : samples_long_name,
                                                i % 2 ? samples_long_name : "",
                                                UINT64_MAX - i,
                                                ~i,
                                                i % 3,
                                                2 - i % 3,
                                                i % GW_GROUPS_MAX};
    for (uint32_t i = 0; i < GW_READY_PER_FRAME; i++) {
        struct wire_ready_entry *entry = &samples_entries[i];

        *entry = (struct wire_ready_entry){GW_PARAMS_MAX - 1 - i,
                                           UINT32_MAX - i,
                                           i % 4,
                                           i % 2 ? GW_NO_SLOT : i % 128,
                                           i % 5,
                                           {0},
                                           {0}};
        for (uint32_t k = 0; k < entry->tokens; k++) {
            entry->timeline[k] = GW_TIMELINES_MAX - 1 - k;
            entry->value[k] = UINT64_MAX - k;
        }
    }
    for (uint32_t i = 0; i < WIRE_JOBS_PER_FRAME; i++) {
        struct wire_job *job = &samples_jobs[i];

        *job = (struct wire_job){{0xff, (uint8_t)i},
                                 samples_long_name + GW_NAME_MAX - GW_LABEL_MAX,
                                 samples_wait,
                                 i % 2 ? "" : "cuda",
                                 i % 2 ? samples_long_name + GW_NAME_MAX - GW_LABEL_MAX : "",
                                 i % 3 ? "words" : "",
                                 i % 5 ? "nice" : "",
                                 i % 7 ? "" : "on 2 NUMA nodes",
                                 UINT32_MAX - i,
                                 i,
                                 5,
                                 64,
                                 64,
                                 UINT32_MAX,
                                 i,
                                 UINT64_MAX,
                                 1,
                                 2,
                                 {0},
                                 {0},
                                 {0},
                                 {0}};
        for (unsigned k = 0; k < GW_KINDS; k++) {
            job->calls[k] = UINT64_MAX - k;
            job->payload_bytes[k] = k;
            job->moved_bytes[k] = (uint64_t)k << 60;
            job->cross_node_bytes[k] = UINT64_MAX / (k + 1);
        }
    }
}

/* `count` tokens. */
static struct wire_after samples_after(uint32_t count)
{
    struct wire_after after = {.tokens = count};

    for (uint32_t i = 0; i < count; i++) {
        after.timeline[i] = GW_TIMELINES_MAX - 1 - i;
        after.value[i] = UINT64_MAX - i;
    }
    return after;
}

static void samples_session(void)
{
    struct wire_msg *msg;

    msg = sample_add(WIRE_HELLO);
    msg->u.hello.version_min = 1;
    msg->u.hello.version_max = UINT32_MAX;
    msg->u.hello.features = UINT64_MAX;
    msg->u.hello.tag_bytes = GW_TAG_BYTES;
    memset(msg->u.hello.tag, 0, GW_TAG_BYTES);
    samples_fill(msg->u.hello.client, sizeof(msg->u.hello.client));
    msg = sample_add(WIRE_WELCOME);
    msg->u.welcome.version = UINT32_MAX;
    msg->u.welcome.features = 1ull << 63;
    msg->u.welcome.engine_pid = 1;
    msg = sample_add(WIRE_CLOSE);
    msg->u.done.code = GW_E_DRAINING;
    samples_fill(msg->u.done.text, sizeof(msg->u.done.text));
    msg = sample_add(WIRE_DONE);
    msg->u.done.code = -4095;
    msg = sample_add(WIRE_JOB_CREATE);
    msg->u.job_create.rank = 63;
    msg->u.job_create.world = 64;
    msg->u.job_create.join_timeout_ns = INT64_MAX;
    msg->u.job_create.op_timeout_ns = 1;
    msg->u.job_create.linger_ns = -1;
    msg->u.job_create.link_bytes_per_s = UINT64_MAX;
    samples_fill(msg->u.job_create.name, sizeof(msg->u.job_create.name));
    msg->u.job_create.device = GW_DEVICE_CUDA;
    msg->u.job_create.gpu_bytes = GW_GPU_BYTES;
    memset(msg->u.job_create.gpu, 0, GW_GPU_BYTES);
    msg = sample_add(WIRE_JOIN);
    msg->u.join.rank = 0;
    msg->u.join.world = 1;
    msg->u.join.id_bytes = GW_ID_MAX;
    memset(msg->u.join.id, 0xa5, GW_ID_MAX);
    msg->u.join.device = GW_DEVICE_CUDA;
    msg->u.join.gpu_bytes = GW_GPU_BYTES;
    memset(msg->u.join.gpu, 0xff, GW_GPU_BYTES);
    msg = sample_add(WIRE_JOINED);
    msg->u.joined.generation = UINT32_MAX;
    msg->u.joined.id_bytes = 1;
    msg->u.joined.id[0] = 0;
    msg->u.joined.device = GW_DEVICE_CUDA;
}

/* All of them, the last one first. */
static const uint32_t *sample_ranks(void)
{
    static uint32_t ranks[GW_RANKS_MAX];

    for (uint32_t i = 0; i < GW_RANKS_MAX; i++)
        ranks[i] = GW_RANKS_MAX - 1 - i;
    return ranks;
}

static void samples_collectives(void)
{
    struct wire_msg *msg;

    msg = sample_add(WIRE_GROUP_NEW);
    msg->u.group_new.count = GW_RANKS_MAX;
    msg->u.group_new.ranks = sample_ranks();
    sample_add(WIRE_GROUP_MADE)->u.group_made.group = GW_GROUPS_MAX - 1;
    msg = sample_add(WIRE_BUFFER_NEW);
    msg->u.buffer_new.bytes = UINT64_MAX;
    msg->u.buffer_new.stands_in = WIRE_STANDS_IN_UNOPENED;
    msg = sample_add(WIRE_BUFFER_MADE);
    msg->u.buffer_made.buffer = UINT32_MAX;
    msg->u.buffer_made.bytes = 4;
    msg->u.buffer_made.mapped_bytes = UINT64_MAX;
    sample_add(WIRE_BUFFER_FREE)->u.buffer_free.buffer = 1;
    msg = sample_add(WIRE_BUFFER_IMPORT);
    memset(msg->u.buffer_import.handle, 0x5a, GW_IPC_HANDLE_BYTES);
    msg->u.buffer_import.allocation_bytes = UINT64_MAX;
    msg->u.buffer_import.offset = UINT64_MAX - 9;
    msg->u.buffer_import.bytes = 9;
    msg = sample_add(WIRE_TIMELINE_EVENTS);
    msg->u.timeline_events.timeline = GW_TIMELINES_MAX - 1;
    msg->u.timeline_events.handle_bytes = sizeof(samples_handles);
    msg->u.timeline_events.handles = samples_handles;
    msg = sample_add(WIRE_OP);
    msg->u.op =
        (struct wire_op){WIRE_OP_BARRIER, 63,       63,       UINT32_MAX,      1,
                         UINT64_MAX,      1,        UINT64_MAX, UINT64_MAX - 1,  -DBL_MIN,
                         DBL_MAX,         GW_ORDER_FABRIC, GW_DTYPE_BF16, {0}, ""};
    msg->u.op.after = samples_after(GW_READY_TOKENS);
    samples_fill(msg->u.op.name, sizeof(msg->u.op.name));
}

static void samples_zero(void)
{
    struct wire_msg *msg;

    msg = sample_add(WIRE_PARAM_GROUP);
    msg->u.param_group.count = GW_RANKS_MAX;
    msg->u.param_group.ranks = sample_ranks();
    msg->u.param_group.shard_ranks = GW_RANKS_MAX;
    msg = sample_add(WIRE_REGISTER);
    msg->u.reg.first = GW_PARAMS_MAX - GW_PARAMS_PER_FRAME;
    msg->u.reg.total = GW_PARAMS_MAX;
    msg->u.reg.count = GW_PARAMS_PER_FRAME;
    msg->u.reg.params = samples_params;
    sample_add(WIRE_SEAL)->u.seal = (struct wire_seal){
        3,          2,         1, 1, 1, 64, UINT32_MAX, 4096, UINT64_MAX, DBL_MAX, DBL_TRUE_MIN,
        UINT64_MAX, UINT64_MAX, GW_ORDER_FABRIC, GW_NORM_MAX, -DBL_MAX, GW_DTYPE_BF16, 1,
        GW_RANKS_MAX, UINT64_MAX, UINT64_MAX - 1, GW_RANKS_MAX, 1};
    msg = sample_add(WIRE_SEALED);
    memset(msg->u.sealed.layout_hash, 0xff, 32);
    msg->u.sealed.layout_bytes = UINT64_MAX;
    msg->u.sealed.board_bytes = 1;
    msg->u.sealed.steps = UINT64_MAX;
    msg = sample_add(WIRE_ARENA_GET);
    msg->u.arena_get.kind = GW_ARENA_BUFFER;
    msg->u.arena_get.index = UINT32_MAX;
    msg = sample_add(WIRE_ARENA);
    msg->u.arena.bytes = UINT64_MAX;
    msg->u.arena.mapped_bytes = UINT64_MAX - 1;
    msg->u.arena.device = GW_DEVICE_CUDA;
    msg = sample_add(WIRE_READY);
    msg->u.ready.count = GW_READY_PER_FRAME;
    msg->u.ready.entries = samples_entries;
    msg = sample_add(WIRE_ACQUIRE);
    msg->u.acquire.bucket = UINT32_MAX;
    msg->u.acquire.ordered = 1;
    msg = sample_add(WIRE_ACQUIRED);
    msg->u.acquired.slot = GW_RING_SLOTS_MAX + GW_OVERFLOW_MAX - 1;
    msg->u.acquired.launched = 1;
    sample_add(WIRE_MICRO_END)->u.after = samples_after(2);
    sample_add(WIRE_STEP_END)->u.after = samples_after(1);
    sample_add(WIRE_UPDATE_COMMIT)->u.after = samples_after(GW_READY_TOKENS);
    msg = sample_add(WIRE_FETCH);
    msg->u.unit.unit = UINT32_MAX;
    msg->u.unit.after = samples_after(2);
    sample_add(WIRE_RELEASE)->u.unit.after = samples_after(3);
    msg = sample_add(WIRE_PARAM_IO);
    msg->u.param_io.write = 1;
    msg->u.param_io.param = UINT32_MAX;
    msg->u.param_io.offset = UINT64_MAX;
    msg->u.param_io.count = GW_STAGING_BYTES / 4;
    msg = sample_add(WIRE_FREEZE);
    msg->u.freeze.params = samples_handles;
    msg->u.freeze.bytes = sizeof(samples_handles);
    msg = sample_add(WIRE_ARRAY_GET);
    msg->u.array_get.dtype = GW_DTYPE_BF16;
    samples_fill(msg->u.array_get.name, GW_LABEL_MAX + 1);
    msg = sample_add(WIRE_ARRAY_MADE);
    msg->u.array_made.index = GW_ARRAYS_MAX - 1;
    msg->u.array_made.numel = UINT64_MAX;
}

static void samples_admin(void)
{
    struct wire_msg *msg;

    msg = sample_add(WIRE_STATS);
    msg->u.stats.steps = UINT64_MAX;
    for (unsigned k = 0; k < GW_KINDS; k++)
        samples_counters(&msg->u.stats.kinds[k], UINT64_MAX - 10 * k);
    for (unsigned k = 0; k < GW_MEMORIES; k++)
        msg->u.stats.memory_bytes[k] = UINT64_MAX - k;
    msg->u.stats.prefetch_hits = 1;
    msg->u.stats.prefetch_drops = UINT64_MAX;
    msg->u.stats.comm_alone_ns = UINT64_MAX;
    msg = sample_add(WIRE_STATUS);
    samples_fill(msg->u.status.version, sizeof(msg->u.status.version));
    samples_fill(msg->u.status.socket, sizeof(msg->u.status.socket));
    msg->u.status.pid = UINT32_MAX;
    msg->u.status.draining = 1;
    msg->u.status.jobs = UINT32_MAX;
    msg->u.status.uptime_ns = UINT64_MAX;
    sample_add(WIRE_JOBS_GET)->u.jobs_get.first = UINT32_MAX;
    msg = sample_add(WIRE_JOBS);
    msg->u.jobs.total = UINT32_MAX;
    msg->u.jobs.count = WIRE_JOBS_PER_FRAME;
    msg->u.jobs.jobs = samples_jobs;
    sample_add(WIRE_STOP)->u.stop.engines = 1;
    msg = sample_add(WIRE_ENGINE_READY);
    msg->u.engine_ready.channel_version = UINT32_MAX;
    msg->u.engine_ready.pid = INT32_MAX;
    memset(msg->u.engine_ready.tag, 0xff, GW_TAG_BYTES);
    samples_fill(sample_add(WIRE_LEASE_GET)->u.lease_get.gpu, GW_LABEL_MAX + 1);
    msg = sample_add(WIRE_LEASE);
    msg->u.lease.code = GW_E_BUSY;
    msg->u.lease.known = 1;
    samples_fill(msg->u.lease.gpu, sizeof(msg->u.lease.gpu));
    samples_fill(msg->u.lease.text, sizeof(msg->u.lease.text));
    msg = sample_add(WIRE_HANDOVER);
    msg->u.handover.hello_bytes = sizeof(samples_hello);
    msg->u.handover.hello = samples_hello;
}

static inline void samples_star(void)
{
    static uint8_t values[GW_STAR_DATA_MAX];
    struct wire_msg *msg = sample_add(WIRE_STAR_HELLO);

    msg->u.star_hello.version = 1;
    msg->u.star_hello.uid = UINT32_MAX;
    samples_fill(msg->u.star_hello.name, GW_LABEL_MAX + 1);
    msg->u.star_hello.sent_ns = INT64_MAX;
    msg = sample_add(WIRE_STAR_WELCOME);
    msg->u.star_welcome.node = GW_NODES_MAX - 1;
    msg->u.star_welcome.world = GW_GPU_RANKS_MAX;
    msg->u.star_welcome.device = GW_DEVICE_CUDA;
    msg->u.star_welcome.sent_ns = 1;
    msg->u.star_welcome.now_ns = INT64_MAX;
    msg->u.star_welcome.join_timeout_ns = msg->u.star_welcome.op_timeout_ns = 1ull << 40;
    msg->u.star_welcome.linger_ns = -1;
    msg->u.star_welcome.link_bytes_per_s = UINT64_MAX;
    msg = sample_add(WIRE_STAR_NODE);
    msg->u.star_node.node = 3;
    msg->u.star_node.name[0] = 'n';
    msg->u.star_node.address_bytes = GW_FABRIC_ADDRESS_MAX;
    msg->u.star_node.address = values;
    msg = sample_add(WIRE_STAR_EVENT);
    msg->u.star_event.kind = 9;
    msg->u.star_event.now_ns = INT64_MAX;
    msg->u.star_event.cookie = msg->u.star_event.size_bytes = msg->u.star_event.op = UINT64_MAX;
    msg->u.star_event.rank = GW_RANKS_MAX - 1;
    msg->u.star_event.request = msg->u.star_event.index = UINT32_MAX;
    msg->u.star_event.code = -4095;
    msg->u.star_event.packet = 1;
    samples_fill(msg->u.star_event.text, GW_TEXT_MAX + 1);
    msg = sample_add(WIRE_STAR_DONE);
    msg->u.star_done.count = GW_STAR_DONE_MAX;
    for (uint32_t i = 0; i < GW_STAR_DONE_MAX; i++)
        msg->u.star_done.ops[i] = UINT64_MAX - i;
    msg = sample_add(WIRE_STAR_BUILT);
    msg->u.done.code = -7;
    samples_fill(msg->u.done.text, GW_TEXT_MAX + 1);
    msg = sample_add(WIRE_STAR_DATA);
    msg->u.star_data.read = 1;
    msg->u.star_data.offset = GW_STAGING_BYTES;
    msg->u.star_data.values = values;
    msg->u.star_data.value_bytes = sizeof(values);
}

/* Fills samples_all[0 .. samples_used). */
static inline void samples_make(void)
{
    static const uint16_t empty[] = {WIRE_WAIT_READY, WIRE_LEAVE,       WIRE_UPDATE_BEGIN,
                                     WIRE_MEASURE,    WIRE_STATS_GET,   WIRE_STATUS_GET,
                                     WIRE_DRAIN,      WIRE_ENGINE_STOP, WIRE_EVENT_GET,
                                     WIRE_LEASE_WANTED};

    samples_used = 0;
    samples_lists();
    samples_session();
    samples_collectives();
    samples_zero();
    samples_admin();
    samples_star();
    for (size_t i = 0; i < SAMPLES_COUNT(empty); i++)
        sample_add(empty[i]);
}

/* The sample as a packet. */
static inline size_t sample_packet(const struct wire_msg *msg, uint8_t *buffer)
{
    size_t bytes = 0;

    if (wire_encode(msg, buffer, GW_FRAME_MAX, &bytes) < 0)
        abort();
    return bytes;
}

#endif
