/* SPDX-License-Identifier: Apache-2.0 */
/* What session.c and session_in.c ask of each other. Loop thread. */
#ifndef GW_ENGINE_SESSION_INTERNAL_H
#define GW_ENGINE_SESSION_INTERNAL_H

#include "daemon/engine/engine.h"

/* Of a session that is closed and not on the stack. */
void session_free(struct session *session);
/* The socket is watched for what is wanted of it by now. */
void session_watch(struct session *session);

/* watch_fn's of its socket and its pidfd. */
void session_on_socket(void *owner, int events);
void session_on_process(void *owner, int events);

#endif
