/* SPDX-License-Identifier: Apache-2.0 */
/* The client's own timelines: those of gw_timeline_new, and those that streams raise. */
#ifndef GW_CLIENT_TIMELINE_H
#define GW_CLIENT_TIMELINE_H

#include "client/lib/job.h"

/* Index of the next one. GW_E_LIMIT. */
int timeline_take(gw_job *job, uint32_t *ret_index);

#endif
