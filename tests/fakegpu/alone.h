/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test program that brings its own server: it starts one, then itself again under the doubles'
 * libraries, and fails if the test does or any rule was broken. $GRADWIRE_BUILD names the build;
 * $FAKEGPU_SEED the first server's seed (1), each later one has the next; with $FAKEGPU_NCCL=old
 * the library is lib/old's.
 */
#ifndef FAKEGPU_ALONE_H
#define FAKEGPU_ALONE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/plugin.h"

/* Whether this process is the one that runs the tests. */
bool alone_inside(void);
/* Else: starts server and test, returns main's value. */
int alone_run(char **argv, uint32_t gpus);
/* The same under as many seeds as every case on the doubles has. */
#define ALONE_SEEDS 5
int alone_seeds(char **argv, uint32_t gpus);
/* One line to the control socket, as fakegpu-ctl. False: it was refused. */
bool alone_control(const char *line);
/* What the server has counted under that name in its report; UINT64_MAX: nothing. */
uint64_t alone_count(const char *name);
/* The plug-in of the build, and the UUIDs of its GPUs. NULL: why not is on stderr. */
const struct plugin *alone_plugin(uint32_t gpus, uint8_t (*ret_uuids)[GW_GPU_BYTES]);

#endif
