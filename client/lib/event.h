/* SPDX-License-Identifier: Apache-2.0 */
/* The job's readable descriptor for event loops (gw_job_event_fd). */
#ifndef GW_CLIENT_EVENT_H
#define GW_CLIENT_EVENT_H

#include "client/lib/job.h"

void event_close(gw_job *job);
/* A word that the engine does not raise has risen: one of the caller's own timelines. */
void event_raise(gw_job *job);

#endif
