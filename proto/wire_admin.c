/* SPDX-License-Identifier: Apache-2.0 */
/* Fields and bounds of figures, the admin channel, and the channel between gradwired and its
 * engines. Pure. */
#include "proto/wire_fields.h"

#define MSG struct wire_msg

/* ---- figures --------------------------------------------------------------------------------- */

WIRE_MESSAGE_EMPTY(stats_get);

static const struct wire_field counters[] = {
    WIRE_U64(Counters, struct gw_counters, , calls, UINT64_MAX),
    WIRE_U64(Counters, struct gw_counters, , payload_bytes, UINT64_MAX),
    WIRE_U64(Counters, struct gw_counters, , padding_bytes, UINT64_MAX),
    WIRE_U64(Counters, struct gw_counters, , ring_bytes, UINT64_MAX),
    WIRE_U64(Counters, struct gw_counters, , moved_bytes, UINT64_MAX),
    WIRE_U64(Counters, struct gw_counters, , cross_node_bytes, UINT64_MAX),
};
static WIRE_TABLE(table_counters, counters, counters, struct gw_counters, NULL);

static const struct wire_field stats[] = {
    WIRE_U64(Stats, MSG, u.stats., steps, UINT64_MAX),
    WIRE_LIST(WIRE_F_FIRST_ENTRIES, Stats, MSG, u.stats., kinds, WIRE_NO_COUNT, false, 0, GW_KINDS,
              &table_counters),
    WIRE_LIST(WIRE_F_FIRST_U64S, Stats, MSG, u.stats., memory_bytes, WIRE_NO_COUNT, false, 0,
              GW_MEMORIES, NULL),
    WIRE_U64(Stats, MSG, u.stats., prefetch_hits, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., prefetch_misses, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., prefetch_drops, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., gathered_bytes_now, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., gathered_bytes_max, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., overflow_slots, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., comm_ns, UINT64_MAX),
    WIRE_U64(Stats, MSG, u.stats., comm_alone_ns, UINT64_MAX),
};
WIRE_MESSAGE(stats, stats, NULL);

/* ---- admin ----------------------------------------------------------------------------------- */

WIRE_MESSAGE_EMPTY(status_get);
WIRE_MESSAGE_EMPTY(drain);

static const struct wire_field status[] = {
    WIRE_TEXT(Status, MSG, u.status., version, 0),
    WIRE_U32(Status, MSG, u.status., pid, 0, UINT32_MAX),
    WIRE_U64(Status, MSG, u.status., uptime_ns, UINT64_MAX),
    WIRE_U32(Status, MSG, u.status., draining, 0, 1),
    WIRE_U32(Status, MSG, u.status., jobs, 0, UINT32_MAX),
    WIRE_TEXT(Status, MSG, u.status., socket, 0),
    WIRE_TEXT(Status, MSG, u.status., devices, 0),
    WIRE_TEXT(Status, MSG, u.status., placement, 0),
};
WIRE_MESSAGE(status, status, NULL);

static const struct wire_field jobs_get[] = {
    WIRE_U32(JobsGet, MSG, u.jobs_get., first, 0, UINT32_MAX),
};
WIRE_MESSAGE(jobs_get, jobs_get, NULL);

/* state and stage come from an engine's page; of a newer one they may be unknown here. */
static const struct wire_field job[] = {
    WIRE_BYTES_EXACT(Job, struct wire_job, , tag),
    WIRE_TEXT_AT(Job, struct wire_job, , name, 0, GW_LABEL_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , wait, 0, GW_TEXT_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , device, 0, GW_LABEL_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , fabric, 0, GW_LABEL_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , ordering, 0, GW_LABEL_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , workers, 0, GW_LABEL_MAX),
    WIRE_TEXT_AT(Job, struct wire_job, , placement, 0, GW_TEXT_MAX),
    WIRE_U32(Job, struct wire_job, , uid, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , engine_pid, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , state, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , world, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , ranks_present, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , stage, 0, UINT32_MAX),
    WIRE_U32(Job, struct wire_job, , generation, 0, UINT32_MAX),
    WIRE_U64(Job, struct wire_job, , steps, UINT64_MAX),
    WIRE_U64(Job, struct wire_job, , age_ns, UINT64_MAX),
    WIRE_U64(Job, struct wire_job, , memory_bytes, UINT64_MAX),
    WIRE_LIST(WIRE_F_FIRST_U64S, Job, struct wire_job, , calls, WIRE_NO_COUNT, false, 0, GW_KINDS,
              NULL),
    WIRE_LIST(WIRE_F_FIRST_U64S, Job, struct wire_job, , payload_bytes, WIRE_NO_COUNT, false, 0,
              GW_KINDS, NULL),
    WIRE_LIST(WIRE_F_FIRST_U64S, Job, struct wire_job, , moved_bytes, WIRE_NO_COUNT, false, 0,
              GW_KINDS, NULL),
    WIRE_LIST(WIRE_F_FIRST_U64S, Job, struct wire_job, , cross_node_bytes, WIRE_NO_COUNT, false, 0,
              GW_KINDS, NULL),
};
static WIRE_TABLE(table_job, job, job, struct wire_job, NULL);

static const struct wire_field jobs[] = {
    WIRE_U32(Jobs, MSG, u.jobs., total, 0, UINT32_MAX),
    WIRE_LIST(WIRE_F_ENTRIES, Jobs, MSG, u.jobs., jobs, offsetof(MSG, u.jobs.count), false, 0,
              WIRE_JOBS_PER_FRAME, &table_job),
};
WIRE_MESSAGE(jobs, jobs, NULL);

static const struct wire_field stop[] = {
    WIRE_U32(Stop, MSG, u.stop., engines, 0, 1),
};
WIRE_MESSAGE(stop, stop, NULL);

/* ---- engine channel -------------------------------------------------------------------------- */

static const struct wire_field engine_ready[] = {
    WIRE_U32(EngineReady, MSG, u.engine_ready., channel_version, 1, UINT32_MAX),
    WIRE_U32(EngineReady, MSG, u.engine_ready., pid, 1, INT32_MAX),
    WIRE_BYTES_EXACT(EngineReady, MSG, u.engine_ready., tag),
};
WIRE_MESSAGE(engine_ready, engine_ready, NULL);

/* The Hello comes whole, and has to fit into the frame around it. */
#define HELLO_BYTES_MAX (GW_FRAME_MAX - GW_FRAME_HEADER - 8)

static const struct wire_field handover[] = {
    {.kind = WIRE_F_BYTES_AT,
     .from = offsetof(Gradwire__V1__Handover, hello),
     .at = offsetof(MSG, u.handover.hello),
     .count_at = offsetof(MSG, u.handover.hello_bytes),
     .min = GW_FRAME_HEADER,
     .max = HELLO_BYTES_MAX},
};
WIRE_MESSAGE(handover, handover, NULL);

WIRE_MESSAGE_EMPTY(engine_stop);

static const struct wire_field lease_get[] = {
    WIRE_TEXT(LeaseGet, MSG, u.lease_get., gpu, 1),
};
WIRE_MESSAGE(lease_get, lease_get, NULL);

static const struct wire_field lease[] = {
    WIRE_SCALAR(WIRE_F_S32, Lease, code, MSG, u.lease.code, -4095, 0),
    WIRE_TEXT(Lease, MSG, u.lease., gpu, 1),
    WIRE_TEXT(Lease, MSG, u.lease., text, 0),
    WIRE_U32(Lease, MSG, u.lease., known, 0, 1),
};
WIRE_MESSAGE(lease, lease, NULL);
WIRE_MESSAGE_EMPTY(lease_wanted);
