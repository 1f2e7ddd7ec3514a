/* SPDX-License-Identifier: Apache-2.0 */
/* The host as device; see charlm_device.h. */
#include "client/examples/charlm_device.h"

#include <time.h>

int charlm_device_start(int gpu, uint32_t rank)
{
    (void)gpu;
    (void)rank;
    return 0;
}

void charlm_device_stop(void)
{
}

int charlm_device_new(struct gw_device **ret_device)
{
    *ret_device = NULL;
    return 0;
}

void charlm_device_free(struct gw_device *device)
{
    (void)device;
}

int charlm_device_attach(gw_job *job)
{
    (void)job;
    return 0;
}

int charlm_device_sealed(gw_job *job)
{
    (void)job;
    return 0;
}

/* A step that never ends is ended by the job's own deadlines. */
int charlm_device_wait(gw_job *job, struct gw_token token)
{
    return gw_wait(job, token, GW_FOREVER);
}

int charlm_device_norm(gw_job *job, double *to)
{
    struct gw_verdict verdict;
    int r = gw_wait_step(job, GW_FOREVER, &verdict);

    if (r == 0)
        *to = verdict.norm;
    return r;
}

void charlm_device_stamp(uint64_t *ret_ns)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    *ret_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void charlm_device_settle(void)
{
}

const char *charlm_device_name(void)
{
    return "host";
}

bool charlm_device_waited(double *ret_ns)
{
    (void)ret_ns;
    return false;
}
