/* SPDX-License-Identifier: Apache-2.0 */
/* From a socket path to a welcomed channel with both pages mapped. Set-up: blocks to a deadline. */
#ifndef GW_CLIENT_CONNECT_H
#define GW_CLIENT_CONNECT_H

#include "client/lib/job.h"

/* The option, else $GRADWIRE_SOCKET, else the default, into job->socket_path. */
int connect_path(gw_job *job, const char *option);
/* Connects, says hello (tag NULL: a new job) and takes the welcome. */
int connect_open(gw_job *job, const uint8_t *tag, int64_t deadline);

#endif
