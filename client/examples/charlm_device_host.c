/* SPDX-License-Identifier: Apache-2.0 */
/* The host as device; see charlm_device.h. */
#include "client/examples/charlm_device.h"

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

/* A step that never ends is ended by the job's own deadlines. */
int charlm_device_wait(gw_job *job, struct gw_token token)
{
    return gw_wait(job, token, GW_FOREVER);
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
