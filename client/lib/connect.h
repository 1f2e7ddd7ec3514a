/* SPDX-License-Identifier: Apache-2.0 */
/* From a socket path to a welcomed channel with both pages mapped. Set-up: blocks to a deadline. */
#ifndef GW_CLIENT_CONNECT_H
#define GW_CLIENT_CONNECT_H

#include "client/lib/job.h"

/* The option, else $GRADWIRE_SOCKET, else the default, into job->socket_path. */
int connect_path(gw_job *job, const char *option);
/* The job that is meant; all zero: a new one. */
struct connect_to {
    bool join;
    bool spans; /* it may have no engine on this node yet */
    uint8_t tag[GW_TAG_BYTES];
};

/* Connects, says hello and takes the welcome. */
int connect_open(gw_job *job, const struct connect_to *to, int64_t deadline);
/* Of a job in host memory, that comes with JOINED; the descriptor stays the caller's. */
int connect_job_page(gw_job *job, int fd);

#endif
