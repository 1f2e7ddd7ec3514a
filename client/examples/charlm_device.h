/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a rank's arithmetic works and what is waited for: charlm_math.c computes on the host and
 * the host waits (charlm_device_host.c); charlm_math_cuda.c computes on a GPU and its stream waits
 * (charlm_math_cuda.c). Functions return 0 or what libgradwire says.
 */
#ifndef CHARLM_DEVICE_H
#define CHARLM_DEVICE_H

#include <stdbool.h>

#include <gradwire/gradwire.h>

/* Once, before anything of charlm_math.h: 0, or an exit code after a message. gpu: CUDA ordinal, or
 * -1: the rank's number over the number of GPUs. */
int charlm_device_start(int gpu, uint32_t rank);
void charlm_device_stop(void);
/* NULL on the host. */
int charlm_device_new(struct gw_device **ret_device);
void charlm_device_free(struct gw_device *device);
/* The job's calls come in the order of the arithmetic. */
int charlm_device_attach(gw_job *job);
/* After gw_seal: what is set up once. */
int charlm_device_sealed(gw_job *job);
int charlm_device_wait(gw_job *job, struct gw_token token);
/* The norm of the step whose end was waited for last; `to` is of math_alloc. */
int charlm_device_norm(gw_job *job, double *to);
/* *ret_ns: when all that was asked for before is done; written by charlm_device_settle at last. */
void charlm_device_stamp(uint64_t *ret_ns);
/* The end of the run: waits for all that was asked for. */
void charlm_device_settle(void);
/* "host", or the GPU's name. */
const char *charlm_device_name(void);
/* Nanoseconds that the stream stood in all charlm_device_wait, after charlm_device_settle; false:
 * the host waits, and gradwire's figures tell. */
bool charlm_device_waited(double *ret_ns);

#endif
