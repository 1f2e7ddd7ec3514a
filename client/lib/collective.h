/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives layer: groups, registered buffers, ops. State in struct gw_job, under its lock. */
#ifndef GW_CLIENT_COLLECTIVE_H
#define GW_CLIENT_COLLECTIVE_H

#include "client/lib/job.h"

/* Unmaps all buffers. */
void collective_close(gw_job *job);

#endif
