/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of the cuda device share: a device with GPUS ranks and their pages, works that fill
 * memory on their streams, and a client in a process of its own.
 */
#ifndef FAKEGPU_DEVICE_KIT_H
#define FAKEGPU_DEVICE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/pages.h"
#include "gradwire/errors.h"
#include "tests/fakegpu/alone.h"

#define GPUS 2u
#define LANES 3

struct kit {
    const struct device_ops *ops;
    struct device *device;
    struct device_stream *lane[LANES];
    struct device_memory *pages[GPUS][3];
    struct gw_client_page *client[GPUS];
    struct gw_engine_page *engine[GPUS];
    struct gw_wait_page *waits[GPUS];
    struct device_memory *arenas[16];
    uint32_t arena_count;
    _Atomic int wakes, released, runs;
    uint64_t started_ns;
    char place_text[GW_TEXT_MAX + 1]; /* what place said of the last rank */
    int to_client, from_client;       /* pipes */
    int child;
};

/* A work that fills memory[rank] with a word, or copies `from` to it: all, or `bytes` at an offset
 * of each. */
struct kit_item {
    struct kit *kit;
    uint64_t id;
    struct device_memory *memory[GPUS], *from;
    size_t at, from_at, bytes;
    uint32_t word;
};

bool kit_open(void); /* the plug-in and the driver; once */
const uint8_t *kit_uuid(uint32_t rank);
void kit_device(struct kit *kit); /* without ranks; ops->device_free ends it */
int kit_setup(void **state);
int kit_teardown(void **state);
uint64_t kit_now_ns(void);
/* "step": no call of this process may block now; "setup". Works are enqueued in steps. */
void kit_phase(const char *name);

struct device_memory *kit_arena(struct kit *kit, uint32_t rank, size_t bytes);
/* Of rank 0's memory if `memory`. */
struct kit_item *kit_item(struct kit *kit, uint64_t id, struct device_memory *memory,
                          uint32_t word);
void kit_enqueue(struct kit *kit, int lane, struct kit_item *item, struct device_work *work);
struct device_signal kit_signal(struct kit *kit, uint32_t rank, uint32_t slot, uint64_t value);
void kit_raise(struct kit *kit, uint32_t rank, uint32_t timeline, uint64_t value);
/* Fails after a deadline, and on a fault. */
struct device_done kit_done(struct kit *kit);
bool kit_quiet(struct kit *kit);
/* Long enough for what must not happen to happen, mostly. */
void kit_pause(struct kit *kit);
/* All 32-bit words of it. */
void kit_holds(struct kit *kit, const struct device_memory *memory, uint32_t word);

/* Thread: sleeps until op slot 2 of rank 0 rises, answers on timeline 1; as many rounds as timeline
 * 2 says. */
void *kit_sleeper(void *kit);
void kit_client_start(struct kit *kit, const char *what, const struct device_memory *memory);
void kit_client_read(struct kit *kit, void *to, size_t bytes);
void kit_client_end(struct kit *kit); /* it is told to look, and must be content */
int kit_client_main(int argc, char **argv);

#endif
