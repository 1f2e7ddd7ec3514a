/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the plug-in's fabric: a device and fabric of it beside `host` and `local` with the
 * same memory, and one op on both, whose results and figures are to be alike. One thread.
 */
#ifndef FAKEGPU_FABRIC_KIT_H
#define FAKEGPU_FABRIC_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/device/plugin.h"
#include "tests/fakegpu/alone.h"

#define RANKS 4u
#define ROOM 165000u /* floats in each of a rank's three arenas */
#define DEADLINE_NS (60 * UINT64_C(1000000000))

/* Set by main, before anything else. */
extern const struct plugin *plugin;
extern uint8_t uuids[RANKS][GW_GPU_BYTES];
extern const uint32_t everyone[RANKS]; /* 0, 1, ... */

enum { IN, OUT, OTHER, AREAS };

struct side {
    const struct device_ops *device_ops;
    const struct fabric_ops *fabric_ops;
    struct device *device;
    struct fabric *fabric;
    struct device_memory *memory[RANKS][AREAS];
    struct device_memory *boards[RANKS], *verdicts[RANKS];
    uint64_t ops;
};

struct rig {
    uint32_t world;
    uint64_t room[AREAS]; /* floats */
    struct side host, cuda;
    float *values; /* of one area */
};

struct place {
    uint32_t area;
    uint64_t offset;
    bool none;
};

struct trial {
    struct core_op op;
    uint32_t ins, outs;
    struct place in[RANKS], out[RANKS];
};

uint64_t now_ns(void);
/* What fill() puts there: of different magnitudes, so that another order of adding shows. */
float value_of(uint32_t rank, uint32_t area, uint64_t i);
float *base_of(const struct side *side, uint32_t rank, uint32_t area);
void fill(struct rig *rig);
struct device_done wait_for(struct side *side, uint64_t op);
/* What issuing threads were told before is done. */
void settle(struct rig *rig);
struct rig *start_with(uint32_t world, uint64_t in, uint64_t out);
struct rig *start(uint32_t world);
void stop(struct rig *rig);
/* While an op is launched and runs, nothing may wait for a GPU. */
void launch_one(struct side *side, const struct fabric_op *op);
void launch(struct side *side, const struct trial *trial);
float *area_of(struct rig *rig, struct side *side, uint32_t rank, uint32_t area);
void assert_figures(struct rig *rig, const char *name);
void name_of(const struct trial *trial, char name[128]);
/* On both sides: then all memory of all ranks, and the figures. */
void compare(struct rig *rig, const struct trial *trial);

/* Elements per rank. */
extern const uint64_t sizes[5];
#define SIZES(rig) ((rig)->world <= 2 ? 5u : 4u)

struct trial trial_of(struct rig *rig, enum core_op_kind kind, uint64_t numel);
void in_own_slices(struct trial *trial);
void each_world(void (*run)(struct rig *rig));

#endif
