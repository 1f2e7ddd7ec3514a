/* SPDX-License-Identifier: Apache-2.0 */
/* Rings by hand, a block at a time; see nccl_server_ring.h. Any worker, without the lock. */
#include "tests/fakegpu/nccl_server_ring.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define BLOCK 512u /* elements at a time */

/* Elements of a block in a type that holds any of the class exactly. */
union block {
    float f[BLOCK];
    double d[BLOCK];
    uint64_t i[BLOCK]; /* modulo 2^64; signed ones sign-extended */
};

enum type_class { CLASS_FLOAT, CLASS_DOUBLE, CLASS_INT };

static enum type_class class_of(uint32_t type)
{
    if (type == FGN_FLOAT64)
        return CLASS_DOUBLE;
    return type == FGN_FLOAT16 || type == FGN_FLOAT32 || type == FGN_BFLOAT16 ? CLASS_FLOAT
                                                                              : CLASS_INT;
}

static bool is_signed(uint32_t type)
{
    return type == FGN_INT8 || type == FGN_INT32 || type == FGN_INT64;
}

bool ring_reduces(uint32_t type)
{
    return type < FGN_FLOAT8_E4M3;
}

uint64_t ring_send_bytes(uint32_t kind, uint64_t count, uint32_t type, uint32_t ranks)
{
    uint64_t bytes = count * fgn_type_bytes(type);

    if (kind == FGN_RECV)
        return 0;
    return kind == FGN_REDUCE_SCATTER ? bytes * ranks : bytes;
}

uint64_t ring_recv_bytes(uint32_t kind, uint64_t count, uint32_t type, uint32_t ranks)
{
    uint64_t bytes = count * fgn_type_bytes(type);

    if (kind == FGN_SEND)
        return 0;
    return kind == FGN_ALL_GATHER ? bytes * ranks : bytes;
}

/* ---- types ----------------------------------------------------------------------------------- */

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

static uint16_t bf16_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40); /* quiet */
    bits += 0x7fff + (bits >> 16 & 1);        /* to nearest, ties to even */
    return (uint16_t)(bits >> 16);
}

static void load(uint32_t type, const unsigned char *from, uint32_t n, union block *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t raw = 0;

        memcpy(&raw, from + (size_t)i * fgn_type_bytes(type), fgn_type_bytes(type));
        switch (type) {
        case FGN_FLOAT16: {
            _Float16 half;

            memcpy(&half, &raw, sizeof(half));
            ret->f[i] = (float)half;
            break;
        }
        case FGN_BFLOAT16:
            ret->f[i] = bf16_value((uint16_t)raw);
            break;
        case FGN_FLOAT32:
            memcpy(&ret->f[i], &raw, sizeof(float));
            break;
        case FGN_INT8:
            ret->i[i] = (uint64_t)(int64_t)(int8_t)raw;
            break;
        case FGN_INT32:
            ret->i[i] = (uint64_t)(int64_t)(int32_t)raw;
            break;
        default: /* doubles too: the union's other view */
            ret->i[i] = raw;
            break;
        }
    }
}

static void store(uint32_t type, const union block *block, uint32_t n, unsigned char *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t raw = 0;

        if (type == FGN_FLOAT16) {
            _Float16 half = (_Float16)block->f[i];

            memcpy(&raw, &half, sizeof(half));
        } else if (type == FGN_BFLOAT16) {
            raw = bf16_bits(block->f[i]);
        } else if (type == FGN_FLOAT32) {
            memcpy(&raw, &block->f[i], sizeof(float));
        } else {
            raw = block->i[i];
        }
        memcpy(to + (size_t)i * fgn_type_bytes(type), &raw, fgn_type_bytes(type));
    }
}

/* A hop leaves its result in the type: float is wide enough that rounding twice does no harm. */
static void round_to(uint32_t type, union block *block, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (type == FGN_FLOAT16)
            block->f[i] = (float)(_Float16)block->f[i];
        else if (type == FGN_BFLOAT16)
            block->f[i] = bf16_value(bf16_bits(block->f[i]));
    }
}

double ring_value(uint32_t type, uint64_t bits)
{
    union block block;

    load(type, (const unsigned char *)&bits, 1, &block);
    if (class_of(type) == CLASS_FLOAT)
        return (double)block.f[0];
    if (class_of(type) == CLASS_DOUBLE)
        return block.d[0];
    return is_signed(type) ? (double)(int64_t)block.i[0] : (double)block.i[0];
}

double ring_round(uint32_t type, double value)
{
    union block block;

    if (class_of(type) != CLASS_FLOAT)
        return value;
    block.f[0] = (float)value;
    round_to(type, &block, 1);
    return (double)block.f[0];
}

/* ---- operators ------------------------------------------------------------------------------- */

static uint64_t int_of(uint32_t op, uint64_t a, uint64_t b, bool sign)
{
    bool less = sign ? (int64_t)a < (int64_t)b : a < b;

    switch (op) {
    case FGN_PROD:
        return a * b;
    case FGN_MAX:
        return less ? b : a;
    case FGN_MIN:
        return less ? a : b;
    default:
        return a + b;
    }
}

static double double_of(uint32_t op, double a, double b)
{
    switch (op) {
    case FGN_PROD:
        return a * b;
    case FGN_MAX:
        return fmax(a, b);
    case FGN_MIN:
        return fmin(a, b);
    default:
        return a + b;
    }
}

static float float_of(uint32_t op, float a, float b)
{
    switch (op) {
    case FGN_PROD:
        return a * b;
    case FGN_MAX:
        return fmaxf(a, b);
    case FGN_MIN:
        return fminf(a, b);
    default:
        return a + b;
    }
}

static void combine(const struct ring *ring, union block *sum, const union block *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        switch (class_of(ring->type)) {
        case CLASS_FLOAT:
            sum->f[i] = float_of(ring->op, sum->f[i], x->f[i]);
            break;
        case CLASS_DOUBLE:
            sum->d[i] = double_of(ring->op, sum->d[i], x->d[i]);
            break;
        case CLASS_INT:
            sum->i[i] = int_of(ring->op, sum->i[i], x->i[i], is_signed(ring->type));
            break;
        }
    }
    round_to(ring->type, sum, n);
}

/* The input of one rank, its factor applied in the type, as NCCL's PreMulSum does. */
static void input(const struct ring *ring, uint32_t rank, uint64_t at, uint32_t n, union block *ret)
{
    load(ring->type, ring->send[rank] + at * fgn_type_bytes(ring->type), n, ret);
    if (!ring->scaled)
        return;
    for (uint32_t i = 0; i < n; i++) {
        switch (class_of(ring->type)) {
        case CLASS_FLOAT:
            ret->f[i] *= (float)ring->scale[rank];
            break;
        case CLASS_DOUBLE:
            ret->d[i] *= ring->scale[rank];
            break;
        case CLASS_INT:
            ret->i[i] *= (uint64_t)(int64_t)ring->scale[rank];
            break;
        }
    }
    round_to(ring->type, ret, n);
}

/* Averages of integers are divided last. */
static void divide(const struct ring *ring, union block *block, uint32_t n)
{
    if (ring->op != FGN_AVG || class_of(ring->type) != CLASS_INT)
        return;
    for (uint32_t i = 0; i < n; i++)
        block->i[i] = is_signed(ring->type)
                          ? (uint64_t)((int64_t)block->i[i] / (int64_t)ring->ranks)
                          : block->i[i] / ring->ranks;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Sometimes: whoever touches the buffers meanwhile has time to do harm. */
static void pause_sometimes(uint64_t random)
{
    struct timespec time = {.tv_nsec = (long)(random % 7) * 30000};

    if (random % 7 < 4)
        nanosleep(&time, NULL);
}

/* Elements [begin, end) of the inputs along the ring that ends at `last`, to recv at `to`. */
static void reduce_part(const struct ring *ring, uint32_t last, uint64_t begin, uint64_t end,
                        uint64_t to)
{
    uint32_t bytes = fgn_type_bytes(ring->type);

    for (uint64_t at = begin; at < end; at += BLOCK) {
        uint32_t n = end - at < BLOCK ? (uint32_t)(end - at) : BLOCK;
        union block sum, x;

        input(ring, (last + 1) % ring->ranks, at, n, &sum);
        for (uint32_t hop = 2; hop <= ring->ranks; hop++) {
            input(ring, (last + hop) % ring->ranks, at, n, &x);
            combine(ring, &sum, &x, n);
        }
        divide(ring, &sum, n);
        if (ring->kind == FGN_ALL_REDUCE) {
            for (uint32_t rank = 0; rank < ring->ranks; rank++)
                store(ring->type, &sum, n, ring->recv[rank] + at * bytes);
        } else {
            store(ring->type, &sum, n, ring->recv[last] + (to + at - begin) * bytes);
        }
    }
}

static void run_part(const struct ring *ring, uint32_t part)
{
    uint64_t bytes = ring->count * fgn_type_bytes(ring->type), n = ring->ranks;

    switch (ring->kind) {
    case FGN_ALL_REDUCE:
        reduce_part(ring, part, ring->count * part / n, ring->count * (part + 1) / n, 0);
        break;
    case FGN_REDUCE_SCATTER:
        reduce_part(ring, part, ring->count * part, ring->count * (part + 1), 0);
        break;
    case FGN_REDUCE:
        reduce_part(ring, ring->root, ring->count * part / n, ring->count * (part + 1) / n,
                    ring->count * part / n);
        break;
    case FGN_ALL_GATHER: /* part: whose */
        for (uint32_t to = 0; to < n; to++)
            memmove(ring->recv[to] + bytes * part, ring->send[part], bytes);
        break;
    case FGN_BROADCAST: /* part: to whom */
        memmove(ring->recv[part], ring->send[ring->root], bytes);
        break;
    default:
        break;
    }
}

/* Outputs hold no old values that could look right: NaN in every float type. */
static void poison(const struct ring *ring)
{
    for (uint32_t rank = 0; rank < ring->ranks; rank++) {
        uint64_t out = ring_recv_bytes(ring->kind, ring->count, ring->type, ring->ranks);
        uint64_t in = ring_send_bytes(ring->kind, ring->count, ring->type, ring->ranks);
        const unsigned char *send = ring->send[rank], *recv = ring->recv[rank];

        if (recv && (!send || recv + out <= send || send + in <= recv))
            memset(ring->recv[rank], 0xff, out);
    }
}

void ring_run(const struct ring *ring)
{
    uint32_t first = (uint32_t)(ring->random % ring->ranks);

    poison(ring);
    for (uint32_t i = 0; i < ring->ranks; i++) {
        if (i == ring->ranks / 2)
            pause_sometimes(ring->random >> 8);
        run_part(ring, (first + i) % ring->ranks);
    }
}

void ring_send(const unsigned char *from, unsigned char *to, uint64_t bytes)
{
    memmove(to, from, bytes);
}
