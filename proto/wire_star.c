/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields and bounds of the messages between the engines of a job's nodes. The other side has proved
 * that it knows the job's secret, and is believed no further than these bounds. Pure.
 */
#include "proto/wire_fields.h"

#define MSG struct wire_msg

static const struct wire_field star_hello[] = {
    WIRE_U32(StarHello, MSG, u.star_hello., version, 1, UINT32_MAX),
    WIRE_U32(StarHello, MSG, u.star_hello., uid, 0, UINT32_MAX),
    WIRE_TEXT(StarHello, MSG, u.star_hello., name, 1),
    WIRE_U64(StarHello, MSG, u.star_hello., sent_ns, INT64_MAX),
};
WIRE_MESSAGE(star_hello, star_hello, NULL);

static const struct wire_field star_welcome[] = {
    WIRE_U32(StarWelcome, MSG, u.star_welcome., node, 1, GW_NODES_MAX - 1),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., sent_ns, INT64_MAX),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., now_ns, INT64_MAX),
    WIRE_U32(StarWelcome, MSG, u.star_welcome., world, 1, GW_RANKS_MAX),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., join_timeout_ns, INT64_MAX),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., op_timeout_ns, INT64_MAX),
    WIRE_SCALAR(WIRE_F_S64, StarWelcome, linger_ns, MSG, u.star_welcome.linger_ns, -1, INT64_MAX),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., link_bytes_per_s, UINT64_MAX),
    WIRE_U64(StarWelcome, MSG, u.star_welcome., stall_report_ns, INT64_MAX),
    WIRE_U32(StarWelcome, MSG, u.star_welcome., device, 0, GW_DEVICE_KINDS - 1),
    WIRE_TEXT(StarWelcome, MSG, u.star_welcome., name, 0),
};

static int check_star_welcome(const void *checked)
{
    const struct wire_msg *msg = checked;
    bool host = msg->u.star_welcome.device == GW_DEVICE_HOST;

    return host || msg->u.star_welcome.world <= GW_GPU_RANKS_MAX ? 0 : GW_E_INVALID;
}

WIRE_MESSAGE(star_welcome, star_welcome, check_star_welcome);

static const struct wire_field star_node[] = {
    WIRE_U32(StarNode, MSG, u.star_node., node, 0, GW_NODES_MAX - 1),
    WIRE_TEXT(StarNode, MSG, u.star_node., name, 1),
    {.kind = WIRE_F_BYTES_AT,
     .from = offsetof(Gradwire__V1__StarNode, address),
     .at = offsetof(MSG, u.star_node.address),
     .count_at = offsetof(MSG, u.star_node.address_bytes),
     .min = 0,
     .max = GW_FABRIC_ADDRESS_MAX},
};
WIRE_MESSAGE(star_node, star_node, NULL);

static const struct wire_field star_event[] = {
    WIRE_U32(StarEvent, MSG, u.star_event., kind, 0, UINT8_MAX),
    WIRE_U64(StarEvent, MSG, u.star_event., now_ns, INT64_MAX),
    WIRE_U32(StarEvent, MSG, u.star_event., node, 0, GW_NODES_MAX - 1),
    WIRE_U64(StarEvent, MSG, u.star_event., cookie, UINT64_MAX),
    WIRE_U32(StarEvent, MSG, u.star_event., rank, 0, GW_RANKS_MAX - 1),
    WIRE_U32(StarEvent, MSG, u.star_event., request, 0, UINT32_MAX),
    WIRE_U32(StarEvent, MSG, u.star_event., world, 0, GW_RANKS_MAX),
    WIRE_U32(StarEvent, MSG, u.star_event., index, 0, UINT32_MAX),
    WIRE_SCALAR(WIRE_F_S32, StarEvent, code, MSG, u.star_event.code, -4095, 0),
    WIRE_U64(StarEvent, MSG, u.star_event., size_bytes, UINT64_MAX),
    WIRE_U64(StarEvent, MSG, u.star_event., op, UINT64_MAX),
    WIRE_U64(StarEvent, MSG, u.star_event., started_ns, UINT64_MAX),
    WIRE_U64(StarEvent, MSG, u.star_event., done_ns, UINT64_MAX),
    WIRE_TEXT(StarEvent, MSG, u.star_event., text, 0),
    WIRE_U32(StarEvent, MSG, u.star_event., packet, 0, 1),
};
WIRE_MESSAGE(star_event, star_event, NULL);

static const struct wire_field star_done[] = {
    WIRE_LIST(WIRE_F_U64S, StarDone, MSG, u.star_done., ops, offsetof(MSG, u.star_done.count),
              false, 1, GW_STAR_DONE_MAX, NULL),
};
WIRE_MESSAGE(star_done, star_done, NULL);

static const struct wire_field star_built[] = {
    WIRE_SCALAR(WIRE_F_S32, StarBuilt, code, MSG, u.done.code, -4095, 0),
    WIRE_TEXT(StarBuilt, MSG, u.done., text, 0),
};
WIRE_MESSAGE(star_built, star_built, NULL);

static const struct wire_field star_data[] = {
    WIRE_U32(StarData, MSG, u.star_data., rank, 0, GW_RANKS_MAX - 1),
    WIRE_U32(StarData, MSG, u.star_data., request, 0, UINT32_MAX),
    WIRE_U32(StarData, MSG, u.star_data., read, 0, 1),
    WIRE_U64(StarData, MSG, u.star_data., offset, GW_STAGING_BYTES),
    {.kind = WIRE_F_BYTES_AT,
     .from = offsetof(Gradwire__V1__StarData, values),
     .at = offsetof(MSG, u.star_data.values),
     .count_at = offsetof(MSG, u.star_data.value_bytes),
     .min = 1,
     .max = GW_STAR_DATA_MAX},
};
WIRE_MESSAGE(star_data, star_data, NULL);
