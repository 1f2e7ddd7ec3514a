/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of every message: the last value inside is taken, the first outside is refused.
 * Bodies are written by hand (wire_body.h), from control.proto and limits.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "proto/wire.h"
#include "tests/unit/wire_body.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define GOOD 0
#define BAD GW_E_PROTOCOL

struct row {
    uint16_t type;
    int r;
    const char *body;
};

/* sint32 -1 is varint 1, -4095 is 8189, -4096 is 8191, +1 is 2 (zigzag) */
static const struct row session[] = {
    {WIRE_HELLO, GOOD, "1=1 2=1"},
    {WIRE_HELLO, GOOD, "1=1 2=0xffffffff 3=0xffffffffffffffff 4=t8 5=t63"},
    {WIRE_HELLO, BAD, "2=1"},
    {WIRE_HELLO, BAD, "1=1"},
    {WIRE_HELLO, BAD, "1=2 2=1"},
    {WIRE_HELLO, BAD, "1=1 2=1 4=t7"},
    {WIRE_HELLO, BAD, "1=1 2=1 4=t9"},
    {WIRE_HELLO, BAD, "1=1 2=1 4=t1"},
    {WIRE_HELLO, BAD, "1=1 2=1 5=t64"},
    {WIRE_HELLO, BAD, "1=1 2=1 5=z"},
    {WIRE_HELLO, BAD, "1=1 2=1 5=z 5=t1"}, /* the last one counts, and still */
    {WIRE_WELCOME, GOOD, "1=1"},
    {WIRE_WELCOME, BAD, "3=1"},
    {WIRE_CLOSE, GOOD, "1=8189 2=t495"},
    {WIRE_CLOSE, BAD, "1=8191"},
    {WIRE_CLOSE, BAD, "1=2"},
    {WIRE_CLOSE, BAD, "1=1 2=t496"},
    {WIRE_CLOSE, BAD, "1=1 2=z"},
    {WIRE_DONE, GOOD, ""},
    {WIRE_DONE, GOOD, "1=1 2=t495"},
    {WIRE_DONE, BAD, "1=2"},
    {WIRE_DONE, BAD, "1=8191"},
    {WIRE_DONE, BAD, "2=t496"},
    {WIRE_DONE, BAD, "2=z"},
    {WIRE_JOB_CREATE, GOOD, "2=1"},
    {WIRE_JOB_CREATE, GOOD, "1=1023 2=1024 3=0x7fffffffffffffff 4=0x7fffffffffffffff 5=1 7=t63"},
    {WIRE_JOB_CREATE, GOOD, "1=0 2=1 5=0xfffffffffffffffe"}, /* linger 2^63-1 */
    {WIRE_JOB_CREATE, BAD, ""},
    {WIRE_JOB_CREATE, BAD, "1=0 2=1025"},
    {WIRE_JOB_CREATE, BAD, "1=1024 2=1024"},
    {WIRE_JOB_CREATE, BAD, "1=1 2=1"},
    {WIRE_JOB_CREATE, BAD, "2=1 3=0x8000000000000000"},
    {WIRE_JOB_CREATE, BAD, "2=1 4=0x8000000000000000"},
    {WIRE_JOB_CREATE, BAD, "2=1 5=3"}, /* linger -2 */
    {WIRE_JOB_CREATE, BAD, "2=1 7=t64"},
    {WIRE_JOB_CREATE, BAD, "2=1 7=z"},
    {WIRE_JOB_CREATE, GOOD, "2=1 8=1 9=t16"},
    {WIRE_JOB_CREATE, BAD, "2=1 8=1"},
    {WIRE_JOB_CREATE, BAD, "2=1 8=1 9=t15"},
    {WIRE_JOB_CREATE, BAD, "2=1 8=1 9=t17"},
    {WIRE_JOB_CREATE, BAD, "2=1 9=t16"},
    {WIRE_JOB_CREATE, BAD, "2=1 8=2 9=t16"},
    {WIRE_JOIN, GOOD, "1=t1 3=1"},
    {WIRE_JOIN, GOOD, "1=t1 3=1 4=1 5=t16"},
    {WIRE_JOIN, BAD, "1=t1 3=1 4=1"},
    {WIRE_JOIN, BAD, "1=t1 3=1 5=t16"},
    {WIRE_JOIN, BAD, "1=t1 3=1 4=1 5=t17"},
    {WIRE_JOIN, BAD, "1=t1 3=1 4=2 5=t16"},
    {WIRE_JOIN, GOOD, "1=t256 2=1023 3=1024"},
    {WIRE_JOIN, BAD, "3=1"},
    {WIRE_JOIN, BAD, "1=t257 3=1"},
    {WIRE_JOIN, BAD, "1=t64"},
    {WIRE_JOIN, BAD, "1=t64 3=1025"},
    {WIRE_JOIN, BAD, "1=t64 2=4 3=4"},
    {WIRE_JOINED, GOOD, ""},
    {WIRE_JOINED, GOOD, "1=t256 2=0xffffffff"},
    {WIRE_JOINED, GOOD, "3=1"},
    {WIRE_JOINED, BAD, "1=t257"},
    {WIRE_JOINED, BAD, "3=2"},
    {WIRE_BUFFER_IMPORT, GOOD, "1=t64 2=8 3=4 4=4"},
    {WIRE_BUFFER_IMPORT, GOOD, "1=t64 2=0xffffffffffffffff 3=0 4=0xffffffffffffffff"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t63 2=8 4=4"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t65 2=8 4=4"},
    {WIRE_BUFFER_IMPORT, BAD, "2=8 4=4"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t64 2=8"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t64 2=8 3=5 4=4"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t64 2=8 3=9 4=4"},
    {WIRE_BUFFER_IMPORT, BAD, "1=t64 2=8 3=8 4=0xffffffffffffffff"},
    {WIRE_TIMELINE_EVENTS, GOOD, ""},
    {WIRE_TIMELINE_EVENTS, GOOD, "1=63 2=t2048"},
    {WIRE_TIMELINE_EVENTS, BAD, "1=64 2=t2048"},
    {WIRE_TIMELINE_EVENTS, BAD, "1=63 2=t2047"},
    {WIRE_TIMELINE_EVENTS, BAD, "1=63 2=t2049"},
    {WIRE_TIMELINE_EVENTS, BAD, "1=63 2=t64"},
    {WIRE_GROUP_NEW, GOOD, "1=0"},
    {WIRE_GROUP_NEW, GOOD, "1=1023 1=0"},
    {WIRE_GROUP_NEW, BAD, ""},
    {WIRE_GROUP_NEW, BAD, "1=1024"},
    {WIRE_GROUP_MADE, GOOD, "1=63"},
    {WIRE_GROUP_MADE, BAD, "1=64"},
    {WIRE_OP, GOOD, "1=1 3=1"},
    {WIRE_OP, GOOD, "1=5 2=63 3=0xffffffffffffffff 4=t63 5=d-1e308 11=1023"},
    {WIRE_OP, BAD, "3=1"},
    {WIRE_OP, BAD, "1=6 3=1"},
    {WIRE_OP, BAD, "1=1 2=64 3=1"},
    {WIRE_OP, BAD, "1=1"},
    {WIRE_OP, BAD, "1=1 3=1 4=t64"},
    {WIRE_OP, BAD, "1=1 3=1 4=z"},
    {WIRE_OP, BAD, "1=1 3=1 5=dnan"},
    {WIRE_OP, BAD, "1=1 3=1 5=dinf"},
    {WIRE_OP, BAD, "1=1 3=1 5=d-inf"},
    {WIRE_OP, BAD, "1=1 3=1 11=1024"},
    {WIRE_OP, GOOD, "1=1 3=1 12=63 12=0 12=1 12=2 13=1 13=2 13=3 13=4 14=1"},
    {WIRE_OP, BAD, "1=1 3=1 12=64 13=1"},
    {WIRE_OP, BAD, "1=1 3=1 12=1"},
    {WIRE_OP, BAD, "1=1 3=1 13=1"},
    {WIRE_OP, BAD, "1=1 3=1 12=0 12=1 12=2 12=3 12=4 13=1 13=2 13=3 13=4 13=5"},
    {WIRE_OP, BAD, "1=1 3=1 14=2"},
    {WIRE_OP, GOOD, "1=1 3=1 15=2 16=d2"},
    {WIRE_OP, BAD, "1=1 3=1 15=3"},
    {WIRE_OP, BAD, "1=1 3=1 16=dnan"},
};

static const struct row zero[] = {
    {WIRE_REGISTER, GOOD, "2=1 3=(1=t1)"},
    {WIRE_REGISTER, GOOD, "2=128 3=(1=t1)*128"},
    {WIRE_REGISTER, GOOD, "1=1048575 2=1048576 3=(1=t255 3=t255)"},
    {WIRE_REGISTER, BAD, ""},
    {WIRE_REGISTER, BAD, "2=1"},
    {WIRE_REGISTER, BAD, "3=(1=t1)"},
    {WIRE_REGISTER, BAD, "2=129 3=(1=t1)*129"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1)*2"},
    {WIRE_REGISTER, BAD, "1=1 2=1 3=(1=t1)"},
    {WIRE_REGISTER, BAD, "1=1048576 2=1048576 3=(1=t1)"},
    {WIRE_REGISTER, BAD, "1=0xffffffff 2=1 3=(1=t1)"},
    {WIRE_REGISTER, BAD, "2=1048577 3=(1=t1)"},
    {WIRE_REGISTER, BAD, "2=1 3=()"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t256)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=z)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1 3=t256)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1 3=z)"},
    {WIRE_REGISTER, GOOD, "2=1 3=(1=t1 5=2 6=2 7=63)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1 5=3)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1 6=3)"},
    {WIRE_REGISTER, BAD, "2=1 3=(1=t1 7=64)"},
    {WIRE_PARAM_GROUP, GOOD, "1=1023 1=0 2=1024"},
    {WIRE_PARAM_GROUP, BAD, ""},
    {WIRE_PARAM_GROUP, BAD, "1=1024"},
    {WIRE_PARAM_GROUP, BAD, "1=0 2=1025"},
    {WIRE_SEAL, GOOD, "15=1 16=d2 17=2 18=1 19=1024 20=0xffffffffffffffff 21=1"},
    {WIRE_SEAL, BAD, "15=2"},
    {WIRE_SEAL, BAD, "16=dinf"},
    {WIRE_SEAL, BAD, "17=3"},
    {WIRE_SEAL, BAD, "18=2"},
    {WIRE_SEAL, BAD, "19=1025"},
    {WIRE_SEAL, GOOD, ""},
    {WIRE_SEAL, GOOD, "1=3 2=2 3=1 4=1 5=1 6=64 8=4096 10=d1e308 11=d1"},
    {WIRE_SEAL, GOOD, "8=4"},
    {WIRE_SEAL, BAD, "1=4"},
    {WIRE_SEAL, BAD, "2=3"},
    {WIRE_SEAL, BAD, "3=2"},
    {WIRE_SEAL, BAD, "4=2"},
    {WIRE_SEAL, BAD, "5=2"},
    {WIRE_SEAL, BAD, "6=65"},
    {WIRE_SEAL, BAD, "8=2"},
    {WIRE_SEAL, BAD, "8=12"},
    {WIRE_SEAL, BAD, "8=8192"},
    {WIRE_SEAL, BAD, "10=dnan"},
    {WIRE_SEAL, BAD, "10=dinf"},
    {WIRE_SEAL, BAD, "11=dinf"},
    {WIRE_SEAL, BAD, "11=d-1"},
    {WIRE_SEAL, GOOD, "14=1"},
    {WIRE_SEAL, BAD, "14=2"},
    {WIRE_SEALED, GOOD, "1=t32"},
    {WIRE_SEALED, BAD, ""},
    {WIRE_SEALED, BAD, "1=t31"},
    {WIRE_SEALED, BAD, "1=t33"},
    {WIRE_ARENA_GET, GOOD, "1=1"},
    {WIRE_ARENA_GET, GOOD, "1=12 2=0xffffffff"},
    {WIRE_ARENA_GET, BAD, "1=0"},
    {WIRE_ARENA_GET, GOOD, "1=13"},
    {WIRE_ARENA_GET, BAD, "1=14"},
    {WIRE_ARENA, GOOD, "1=4 2=4096 3=1"},
    {WIRE_ARENA, BAD, "3=2"},
    {WIRE_READY, GOOD, "1=()"},
    {WIRE_READY, GOOD, "1=()*256"},
    {WIRE_READY, GOOD, "1=(1=1048575 3=3 4=63 5=63 5=0 5=1 5=2 6=1 6=2 6=3 6=4)"},
    {WIRE_READY, GOOD, "1=(4=0xffffffff)"},
    {WIRE_READY, BAD, ""},
    {WIRE_READY, BAD, "1=()*257"},
    {WIRE_READY, BAD, "1=(1=1048576)"},
    {WIRE_READY, BAD, "1=(3=4)"},
    {WIRE_READY, BAD, "1=(5=64 6=1)"},
    {WIRE_READY, BAD, "1=(5=1)"},
    {WIRE_READY, BAD, "1=(6=1)"},
    {WIRE_READY, BAD, "1=(5=1 6=1 6=2)"},
    {WIRE_READY, BAD, "1=(5=1 5=2 5=3 5=4 5=5 6=1 6=2 6=3 6=4 6=5)"},
    {WIRE_ACQUIRED, GOOD, "1=0"},
    {WIRE_ACQUIRED, GOOD, "1=0xffffffff"},
    {WIRE_ACQUIRED, BAD, "1=0xfffffffe"},
    {WIRE_ACQUIRED, GOOD, "1=7 2=1"},
    {WIRE_ACQUIRED, BAD, "1=7 2=2"},
    {WIRE_ACQUIRED, BAD, "1=0xffffffff 2=1"}, /* which slot, then? */
    {WIRE_ACQUIRE, GOOD, "1=0xffffffff 2=1"},
    {WIRE_ACQUIRE, BAD, "2=2"},
    {WIRE_MICRO_END, GOOD, ""},
    {WIRE_MICRO_END, GOOD, "1=63 2=1"},
    {WIRE_MICRO_END, BAD, "1=64 2=1"},
    {WIRE_STEP_END, GOOD, ""},
    {WIRE_STEP_END, GOOD, "1=63 1=1 1=1 1=0 2=1 2=0 2=0xffffffffffffffff 2=3"},
    {WIRE_STEP_END, BAD, "1=64 2=1"},
    {WIRE_STEP_END, BAD, "1=1"},
    {WIRE_STEP_END, BAD, "2=1"},
    {WIRE_STEP_END, BAD, "1=1 1=1 1=1 1=1 1=1 2=1 2=1 2=1 2=1 2=1"},
    {WIRE_UPDATE_COMMIT, GOOD, "1=63 2=1"},
    {WIRE_UPDATE_COMMIT, BAD, "1=64 2=1"},
    {WIRE_UPDATE_COMMIT, BAD, "1=1 2=1 2=2"},
    {WIRE_FETCH, GOOD, "1=0xffffffff 2=63 3=1"},
    {WIRE_FETCH, BAD, "2=64 3=1"},
    {WIRE_FETCH, BAD, "2=1"},
    {WIRE_FETCH, BAD, "2=1 2=1 2=1 2=1 2=1 3=1 3=1 3=1 3=1 3=1"},
    {WIRE_RELEASE, GOOD, "1=5 2=0 3=0"},
    {WIRE_RELEASE, BAD, "2=64 3=1"},
    {WIRE_RELEASE, BAD, "3=1"},
    {WIRE_PARAM_IO, GOOD, "1=1 4=131072"},
    {WIRE_PARAM_IO, BAD, "1=2"},
    {WIRE_PARAM_IO, BAD, "4=131073"},
    {WIRE_ARRAY_GET, GOOD, "1=t63"},
    {WIRE_ARRAY_GET, GOOD, "1=t1 2=2"},
    {WIRE_ARRAY_GET, BAD, "1=t1 2=3"},
    {WIRE_ARRAY_GET, BAD, ""},
    {WIRE_ARRAY_GET, BAD, "1=t64"},
    {WIRE_ARRAY_GET, BAD, "1=z"},
    {WIRE_ARRAY_MADE, GOOD, "1=63"},
    {WIRE_ARRAY_MADE, BAD, "1=64"},
};

static const struct row admin[] = {
    {WIRE_STATS, GOOD, ""},
    {WIRE_STATS, GOOD, "2=(1=1)*5 3=1 3=2 3=3 3=4 3=5"},
    {WIRE_STATS, GOOD, "2=(1=1)*9 3=1 3=2 3=3 3=4 3=5 3=6"}, /* a newer peer's further kinds */
    {WIRE_STATUS, GOOD, "1=t31 4=1 6=t127"},
    {WIRE_STATUS, BAD, "1=t32"},
    {WIRE_STATUS, BAD, "1=z"},
    {WIRE_STATUS, BAD, "4=2"},
    {WIRE_STATUS, BAD, "6=t128"},
    {WIRE_JOBS, GOOD, ""},
    {WIRE_JOBS, GOOD, "2=(1=t8 2=t63 16=t495)*32"},
    {WIRE_JOBS, BAD, "2=(1=t8)*33"},
    {WIRE_JOBS, BAD, "2=(1=t7)"},
    {WIRE_JOBS, BAD, "2=()"},
    {WIRE_JOBS, BAD, "2=(1=t8 2=t64)"},
    {WIRE_JOBS, BAD, "2=(1=t8 2=z)"},
    {WIRE_JOBS, BAD, "2=(1=t8 16=t496)"},
    {WIRE_JOBS, BAD, "2=(1=t8 16=z)"},
    {WIRE_STOP, GOOD, "1=1"},
    {WIRE_STOP, BAD, "1=2"},
    {WIRE_ENGINE_READY, GOOD, "1=1 2=t8 3=0x7fffffff"},
    {WIRE_ENGINE_READY, BAD, "2=t8 3=1"},
    {WIRE_ENGINE_READY, BAD, "1=1 3=1"},
    {WIRE_ENGINE_READY, BAD, "1=1 2=t7 3=1"},
    {WIRE_ENGINE_READY, BAD, "1=1 2=t8"},
    {WIRE_ENGINE_READY, BAD, "1=1 2=t8 3=0x80000000"},
    {WIRE_JOBS, GOOD, "2=(1=t8 17=t63 18=t63)"},
    {WIRE_JOBS, BAD, "2=(1=t8 17=t64)"},
    {WIRE_JOBS, BAD, "2=(1=t8 18=t64)"},
    {WIRE_LEASE_GET, GOOD, "1=t63"},
    {WIRE_LEASE_GET, BAD, ""},
    {WIRE_LEASE_GET, BAD, "1=t64"},
    {WIRE_LEASE_GET, BAD, "1=z"},
    {WIRE_LEASE, GOOD, "2=t1"},
    {WIRE_LEASE, GOOD, "1=8189 2=t63 3=t495"},
    {WIRE_LEASE, BAD, "1=8191 2=t1"},
    {WIRE_LEASE, BAD, "1=2 2=t1"},
    {WIRE_LEASE, BAD, "1=1"},
    {WIRE_LEASE, BAD, "2=t64"},
    {WIRE_LEASE, BAD, "2=t1 3=t496"},
    {WIRE_HANDOVER, GOOD, "1=t16"},
    {WIRE_HANDOVER, GOOD, "1=t65512"},
    {WIRE_HANDOVER, BAD, "1=t15"},
    {WIRE_HANDOVER, BAD, "1=t65516"},
    {WIRE_HELLO, BAD, "1=1 2=1 6=2"},
    {WIRE_STAR_HELLO, GOOD, "1=1 3=t63"},
    {WIRE_STAR_HELLO, BAD, "3=t63"},
    {WIRE_STAR_HELLO, BAD, "1=1"},
    {WIRE_STAR_HELLO, BAD, "1=1 3=t64"},
    {WIRE_STAR_WELCOME, GOOD, "1=1023 4=1024"},
    {WIRE_STAR_WELCOME, GOOD, "1=1 4=64 10=1"},
    {WIRE_STAR_WELCOME, BAD, "1=1 4=65 10=1"}, /* on GPUs */
    {WIRE_STAR_WELCOME, BAD, "4=1"},
    {WIRE_STAR_WELCOME, BAD, "1=1024 4=1"},
    {WIRE_STAR_WELCOME, BAD, "1=1"},
    {WIRE_STAR_WELCOME, BAD, "1=1 4=1025"},
    {WIRE_STAR_NODE, GOOD, "2=t1 3=t4096"},
    {WIRE_STAR_NODE, BAD, "2=t1 3=t4097"},
    {WIRE_STAR_NODE, BAD, "1=1024 2=t1"},
    {WIRE_STAR_NODE, BAD, ""},
    {WIRE_STAR_EVENT, GOOD, ""},
    {WIRE_STAR_EVENT, BAD, "1=256"},
    {WIRE_STAR_EVENT, BAD, "3=1024"},
    {WIRE_STAR_EVENT, BAD, "5=1024"},
    {WIRE_STAR_EVENT, BAD, "7=1025"},
    {WIRE_STAR_EVENT, BAD, "15=2"},
    {WIRE_STAR_DONE, BAD, ""},
    {WIRE_STAR_BUILT, GOOD, ""},
    {WIRE_STAR_BUILT, BAD, "1=2"},
    {WIRE_STAR_DATA, GOOD, "1=1023 3=1 5=t49152"},
    {WIRE_STAR_DATA, BAD, "5=t49153"},
    {WIRE_STAR_DATA, BAD, "3=1"},
    {WIRE_STAR_DATA, BAD, "3=2 5=t1"},
};

static struct body body;

static void check_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct wire_msg *msg = NULL;
        uint32_t request = 0;
        int r;

        body_packet(&body, rows[i].type, 77, rows[i].body);
        r = wire_decode(body.bytes, body.used, &msg, &request);
        /* the request comes back, so that the refusal can be answered; not of what is no frame */
        if (r != rows[i].r || request != (body.used > GW_FRAME_MAX ? 0 : 77))
            fail_msg("%s \"%s\": %d (request %u), not %d", wire_type_name(rows[i].type),
                     rows[i].body, r, request, rows[i].r);
        if (r < 0)
            assert_null(msg);
        wire_free(msg);
    }
}

static void bounds_of_session_messages(void **state)
{
    (void)state;
    check_rows(session, COUNT(session));
}

static void bounds_of_zero_messages(void **state)
{
    (void)state;
    check_rows(zero, COUNT(zero));
}

static void bounds_of_admin_messages(void **state)
{
    (void)state;
    check_rows(admin, COUNT(admin));
}

/* Ring and overflow slots are numbered in one row. */
static void last_slot(void **state)
{
    char inside[32], outside[32], ready_inside[32], ready_outside[32];
    const unsigned slots = GW_RING_SLOTS_MAX + GW_OVERFLOW_MAX;
    const struct row rows[] = {
        {WIRE_ACQUIRED, GOOD, inside},
        {WIRE_ACQUIRED, BAD, outside},
        {WIRE_READY, GOOD, ready_inside},
        {WIRE_READY, BAD, ready_outside},
    };

    (void)state;
    snprintf(inside, sizeof(inside), "1=%u", slots - 1);
    snprintf(outside, sizeof(outside), "1=%u", slots);
    snprintf(ready_inside, sizeof(ready_inside), "1=(4=%u)", slots - 1);
    snprintf(ready_outside, sizeof(ready_outside), "1=(4=%u)", slots);
    check_rows(rows, COUNT(rows));
}

/* Repeated numbers come packed or one by one; both at once add up. */
static void lists_of_ranks(void **state)
{
    uint8_t ranks[GW_RANKS_MAX + 1];
    struct wire_msg *msg;
    uint32_t request;

    (void)state;
    memset(ranks, 7, sizeof(ranks));
    for (size_t count = GW_RANKS_MAX - 1; count <= GW_RANKS_MAX + 1; count++) {
        const int want = count <= GW_RANKS_MAX ? GOOD : BAD;

        body.used = GW_FRAME_HEADER;
        body_bytes(&body, 1, ranks, count - 1);
        body_write(&body, "1=5");
        gw_frame_header(body.bytes, WIRE_GROUP_NEW, 1, body.used - GW_FRAME_HEADER);
        assert_int_equal(wire_decode(body.bytes, body.used, &msg, &request), want);
        if (want < 0)
            continue;
        assert_int_equal(msg->u.group_new.count, count);
        assert_int_equal(msg->u.group_new.ranks[count - 2], 7);
        assert_int_equal(msg->u.group_new.ranks[count - 1], 5);
        wire_free(msg);
    }
}

static void known_kinds_of_a_longer_list_are_taken(void **state)
{
    struct wire_msg *msg;
    uint32_t request;

    (void)state;
    body_packet(&body, WIRE_STATS, 1, "2=(1=1 5=9) 2=(1=2)*8 3=1 3=2 3=3 3=4 3=5 3=6");
    assert_int_equal(wire_decode(body.bytes, body.used, &msg, &request), 0);
    assert_int_equal(msg->u.stats.kinds[0].moved_bytes, 9);
    assert_int_equal(msg->u.stats.kinds[GW_KINDS - 1].calls, 2);
    assert_int_equal(msg->u.stats.memory_bytes[4], 5);
    assert_int_equal(msg->u.stats.prefetch_hits, 0);
    wire_free(msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_of_session_messages),
        cmocka_unit_test(bounds_of_zero_messages),
        cmocka_unit_test(bounds_of_admin_messages),
        cmocka_unit_test(last_slot),
        cmocka_unit_test(lists_of_ranks),
        cmocka_unit_test(known_kinds_of_a_longer_list_are_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
