/* SPDX-License-Identifier: Apache-2.0 */
/* Every message there and back with extreme values; golden bytes; limits of the encoder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/wire_samples.h"

static uint8_t packet[GW_FRAME_MAX], again[GW_FRAME_MAX];

static const uint16_t all_types[] = {
#define TYPE(name, value, member, message, lower) value,
    WIRE_TYPE_MAP(TYPE)
#undef TYPE
};

static void every_type_has_a_sample_and_a_name(void **state)
{
    (void)state;
    assert_int_equal(samples_used, SAMPLES_COUNT(all_types));
    for (size_t i = 0; i < SAMPLES_COUNT(all_types); i++) {
        size_t found = 0;

        for (size_t k = 0; k < samples_used; k++)
            found += samples_all[k].type == all_types[i];
        assert_int_equal(found, 1);
        assert_string_not_equal(wire_type_name(all_types[i]), "?");
    }
    assert_string_equal(wire_type_name(WIRE_SEAL), "SEAL");
    assert_string_equal(wire_type_name(WIRE_ENGINE_STOP), "ENGINE_STOP");
    assert_string_equal(wire_type_name(0), "?");
    assert_string_equal(wire_type_name(5), "?");
    assert_string_equal(wire_type_name(UINT16_MAX), "?");
}

static void check_params(const struct wire_msg *want, const struct wire_msg *got)
{
    assert_int_equal(got->u.reg.first, want->u.reg.first);
    assert_int_equal(got->u.reg.total, want->u.reg.total);
    assert_int_equal(got->u.reg.count, want->u.reg.count);
    for (uint32_t i = 0; i < want->u.reg.count; i++) {
        assert_string_equal(got->u.reg.params[i].name, want->u.reg.params[i].name);
        assert_string_equal(got->u.reg.params[i].unit, want->u.reg.params[i].unit);
        assert_true(got->u.reg.params[i].numel == want->u.reg.params[i].numel);
        assert_int_equal(got->u.reg.params[i].flags, want->u.reg.params[i].flags);
    }
}

static void check_jobs(const struct wire_msg *want, const struct wire_msg *got)
{
    assert_int_equal(got->u.jobs.total, want->u.jobs.total);
    assert_int_equal(got->u.jobs.count, want->u.jobs.count);
    for (uint32_t i = 0; i < want->u.jobs.count; i++) {
        struct wire_job job = got->u.jobs.jobs[i];

        assert_string_equal(job.name, want->u.jobs.jobs[i].name);
        assert_string_equal(job.wait, want->u.jobs.jobs[i].wait);
        assert_string_equal(job.device, want->u.jobs.jobs[i].device);
        assert_string_equal(job.fabric, want->u.jobs.jobs[i].fabric);
        assert_string_equal(job.ordering, want->u.jobs.jobs[i].ordering);
        assert_string_equal(job.workers, want->u.jobs.jobs[i].workers);
        assert_string_equal(job.placement, want->u.jobs.jobs[i].placement);
        job.name = want->u.jobs.jobs[i].name;
        job.wait = want->u.jobs.jobs[i].wait;
        job.device = want->u.jobs.jobs[i].device;
        job.fabric = want->u.jobs.jobs[i].fabric;
        job.ordering = want->u.jobs.jobs[i].ordering;
        job.workers = want->u.jobs.jobs[i].workers;
        job.placement = want->u.jobs.jobs[i].placement;
        assert_memory_equal(&job, &want->u.jobs.jobs[i], sizeof(job));
    }
}

static void check_equal(const struct wire_msg *want, const struct wire_msg *got)
{
    assert_int_equal(got->type, want->type);
    assert_int_equal(got->request, want->request);
    switch (want->type) {
    case WIRE_GROUP_NEW:
        assert_int_equal(got->u.group_new.count, want->u.group_new.count);
        assert_memory_equal(got->u.group_new.ranks, want->u.group_new.ranks,
                            want->u.group_new.count * sizeof(*got->u.group_new.ranks));
        break;
    case WIRE_PARAM_GROUP:
        assert_int_equal(got->u.param_group.count, want->u.param_group.count);
        assert_int_equal(got->u.param_group.shard_ranks, want->u.param_group.shard_ranks);
        assert_memory_equal(got->u.param_group.ranks, want->u.param_group.ranks,
                            want->u.param_group.count * sizeof(*got->u.param_group.ranks));
        break;
    case WIRE_REGISTER:
        check_params(want, got);
        break;
    case WIRE_READY:
        assert_int_equal(got->u.ready.count, want->u.ready.count);
        assert_memory_equal(got->u.ready.entries, want->u.ready.entries,
                            want->u.ready.count * sizeof(*got->u.ready.entries));
        break;
    case WIRE_JOBS:
        check_jobs(want, got);
        break;
    case WIRE_TIMELINE_EVENTS:
        assert_int_equal(got->u.timeline_events.timeline, want->u.timeline_events.timeline);
        assert_int_equal(got->u.timeline_events.handle_bytes, want->u.timeline_events.handle_bytes);
        assert_memory_equal(got->u.timeline_events.handles, want->u.timeline_events.handles,
                            want->u.timeline_events.handle_bytes);
        break;
    case WIRE_FREEZE:
        assert_int_equal(got->u.freeze.bytes, want->u.freeze.bytes);
        assert_memory_equal(got->u.freeze.params, want->u.freeze.params, want->u.freeze.bytes);
        break;
    case WIRE_HANDOVER:
        assert_int_equal(got->u.handover.hello_bytes, want->u.handover.hello_bytes);
        assert_memory_equal(got->u.handover.hello, want->u.handover.hello,
                            want->u.handover.hello_bytes);
        break;
    case WIRE_STAR_NODE:
        assert_int_equal(got->u.star_node.node, want->u.star_node.node);
        assert_int_equal(got->u.star_node.address_bytes, want->u.star_node.address_bytes);
        assert_memory_equal(got->u.star_node.address, want->u.star_node.address,
                            want->u.star_node.address_bytes);
        break;
    case WIRE_STAR_DATA:
        assert_int_equal(got->u.star_data.read, want->u.star_data.read);
        assert_true(got->u.star_data.offset == want->u.star_data.offset);
        assert_int_equal(got->u.star_data.value_bytes, want->u.star_data.value_bytes);
        assert_memory_equal(got->u.star_data.values, want->u.star_data.values,
                            want->u.star_data.value_bytes);
        break;
    default:
        assert_memory_equal(got, want, sizeof(*got));
        break;
    }
}

static void every_message_comes_back_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < samples_used; i++) {
        const struct wire_msg want = samples_all[i];
        struct wire_msg *got = NULL;
        uint32_t request = 0;
        size_t bytes, bytes_again;

        assert_int_equal(wire_encode(&want, packet, sizeof(packet), &bytes), 0);
        assert_in_range(bytes, GW_FRAME_HEADER, GW_FRAME_MAX);
        assert_int_equal(wire_decode(packet, bytes, &got, &request), 0);
        assert_int_equal(request, want.request);
        check_equal(&want, got);
        assert_int_equal(wire_encode(got, again, sizeof(again), &bytes_again), 0);
        assert_int_equal(bytes_again, bytes);
        assert_memory_equal(again, packet, bytes);
        /* one byte of room less is too little */
        assert_int_equal(wire_encode(got, again, bytes - 1, &bytes_again), GW_E_LIMIT);
        assert_null(wire_free(got));
    }
    assert_null(wire_free(NULL));
}

/* Empty strings, empty lists, zeros: what proto3 leaves out on the wire. */
static void smallest_messages_come_back(void **state)
{
    struct wire_param param = {.name = "n"};
    struct wire_msg msg = {.type = WIRE_REGISTER, .u.reg = {0, 1, 1, &param}};
    struct wire_msg jobs = {.type = WIRE_JOBS};
    struct wire_msg op = {.type = WIRE_OP, .u.op = {.kind = 1, .sequence = 1, .scale = -0.0}};
    struct wire_msg *got;
    uint32_t request;
    size_t bytes;

    (void)state;
    assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(wire_decode(packet, bytes, &got, &request), 0);
    assert_string_equal(got->u.reg.params[0].name, "n");
    assert_string_equal(got->u.reg.params[0].unit, "");
    wire_free(got);
    assert_int_equal(wire_encode(&jobs, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(bytes, GW_FRAME_HEADER);
    assert_int_equal(wire_decode(packet, bytes, &got, &request), 0);
    assert_int_equal(got->u.jobs.count, 0);
    wire_free(got);
    assert_int_equal(wire_encode(&op, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(wire_decode(packet, bytes, &got, &request), 0);
    assert_int_equal(got->u.op.count, 0);
    wire_free(got);
}

/* By hand from control.proto and the protobuf encoding. */
static void golden_messages(void **state)
{
    static const uint8_t hello[] = {
        'W',  'G',  'R',  '1', 1, 0, 0, 0, 9, 0, 0, 0, 19, 0, 0, 0, /* frame */
        0x08, 1,                                                    /* version_min */
        0x10, 0xac, 0x02,                                           /* version_max 300 */
        0x22, 8,    1,    2,   3, 4, 5, 6, 7, 8,                    /* tag */
        0x2a, 2,    'g',  'o',                                      /* client */
    };
    static const uint8_t done[] = {
        'W',  'G', 'R', '1', 4, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, /* frame */
        0x08, 35,                                                /* sint32 -18, zigzag */
        0x12, 2,   'h', 'i',
    };
    static const uint8_t ready[] = {
        'W',  'G',  'R',  '1',  31,   0,    0,    0, 0,    0, 0, 0, 23,   0, 0,    0, /* frame */
        0x0a, 15,   0x08, 7,    0x18, 1,    0x20, 2, 0x2a, 2, 3, 4, 0x32, 3, 0x80, 1,
        9,    0x0a, 4,    0x08, 8,    0x10, 1,
    };
    struct wire_ready_entry entries[2] = {
        {7, 0, 1, 2, 2, {3, 4}, {128, 9}},
        {8, 1, 0, 0, 0, {0}, {0}},
    };
    struct wire_msg msg = {.type = WIRE_HELLO,
                           .request = 9,
                           .u.hello = {1, 300, 0, 8, {1, 2, 3, 4, 5, 6, 7, 8}, "go"}};
    struct wire_msg lost = {.type = WIRE_DONE, .request = 1, .u.done = {GW_E_PEER_LOST, "hi"}};
    struct wire_msg two = {.type = WIRE_READY, .u.ready = {2, entries}};
    size_t bytes;

    (void)state;
    assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(bytes, sizeof(hello));
    assert_memory_equal(packet, hello, sizeof(hello));
    assert_int_equal(wire_encode(&lost, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(bytes, sizeof(done));
    assert_memory_equal(packet, done, sizeof(done));
    assert_int_equal(wire_encode(&two, packet, sizeof(packet), &bytes), 0);
    assert_int_equal(bytes, sizeof(ready));
    assert_memory_equal(packet, ready, sizeof(ready));
}

static void encoder_keeps_the_bounds(void **state)
{
    struct wire_msg too_many = samples_all[0];
    size_t bytes = 77;

    (void)state;
    for (size_t i = 0; i < samples_used; i++) {
        struct wire_msg msg = samples_all[i];

        if (msg.type == WIRE_REGISTER) {
            msg.u.reg.count = GW_PARAMS_PER_FRAME + 1;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_READY) {
            msg.u.ready.count = 0;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_INVALID);
            msg.u.ready.count = GW_READY_PER_FRAME + 1;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_JOBS) {
            msg.u.jobs.count = WIRE_JOBS_PER_FRAME + 1;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_GROUP_NEW) {
            msg.u.group_new.count = GW_RANKS_MAX + 1;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_PARAM_GROUP) {
            msg.u.param_group.count = GW_RANKS_MAX + 1;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_OP) { /* no 0 in its text */
            memset(msg.u.op.name, 'x', sizeof(msg.u.op.name));
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        } else if (msg.type == WIRE_HANDOVER) {
            msg.u.handover.hello_bytes = GW_FRAME_MAX - GW_FRAME_HEADER;
            assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
        }
    }
    too_many.type = 5;
    assert_int_equal(wire_encode(&too_many, packet, sizeof(packet), &bytes), GW_E_INVALID);
    assert_int_equal(bytes, 77);
}

/* Whoever registers parameters sends fewer of them then. */
static void longest_names_need_two_frames(void **state)
{
    static struct wire_param params[GW_PARAMS_PER_FRAME];
    struct wire_msg msg = {.type = WIRE_REGISTER,
                           .u.reg = {0, GW_PARAMS_PER_FRAME, GW_PARAMS_PER_FRAME, params}};
    size_t bytes;

    (void)state;
    for (uint32_t i = 0; i < GW_PARAMS_PER_FRAME; i++)
        params[i] = (struct wire_param){.name = samples_long_name,
                                        .unit = samples_long_name,
                                        .numel = UINT64_MAX,
                                        .flags = UINT32_MAX};
    assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), GW_E_LIMIT);
    msg.u.reg.count = GW_PARAMS_PER_FRAME / 2;
    assert_int_equal(wire_encode(&msg, packet, sizeof(packet), &bytes), 0);
}

static int make_samples(void **state)
{
    (void)state;
    samples_make();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_a_sample_and_a_name),
        cmocka_unit_test(every_message_comes_back_the_same),
        cmocka_unit_test(smallest_messages_come_back),
        cmocka_unit_test(golden_messages),
        cmocka_unit_test(encoder_keeps_the_bounds),
        cmocka_unit_test(longest_names_need_two_frames),
    };

    return cmocka_run_group_tests(tests, make_samples, NULL);
}
