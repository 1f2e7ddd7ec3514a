/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwctl: asks gradwired and prints. One thread, blocking, one request at a time.
 *
 * Functions that can fail print one line to stderr themselves and return the exit code (sysexits):
 * 64 usage, 65, 66 and 78 what plan reads (plan.h), 69 no gradwired, 75 no answer in time, 76 an
 * answer that makes no sense, 77 not permitted.
 */
#ifndef GW_CTL_CTL_H
#define GW_CTL_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

#define CTL_PATH_BYTES 108u /* sun_path */

struct ctl {
    char socket[CTL_PATH_BYTES];
    char admin_socket[CTL_PATH_BYTES];
    const char *used; /* the one that is connected */
    bool json;
    bool engines;
    int fd;
    uint32_t request;
};

struct ctl_jobs {
    struct wire_msg *status;
    struct wire_msg **pages;
    size_t pages_count;
    uint32_t shown;
};

void ctl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Command line, environment, default; as gradwired does it. NULL: not given. */
int ctl_find_sockets(struct ctl *ctl, const char *runtime_dir, const char *socket,
                     const char *admin_socket);

/* ---- channel.c ---- */

/* Administration socket; when it may not be used and `read_only`, the client socket. */
int ctl_connect(struct ctl *ctl, bool read_only);
/* Sends `request` and waits for the reply of type `want` (timeout_ms -1: for ever). *ret_reply:
 * wire_free. */
int ctl_ask(struct ctl *ctl, struct wire_msg *request, uint16_t want, int timeout_ms,
            struct wire_msg **ret_reply);
/* Waits until gradwired closes the connection: it does that last of all. */
int ctl_wait_end(struct ctl *ctl, int timeout_ms);

/* ---- show.c ---- */

int show_status(const struct wire_msg *status, bool json);
int show_jobs(const struct ctl_jobs *jobs, bool json);
/* "1.5 GiB" */
void human_bytes(uint64_t bytes, char *text, size_t text_bytes);
/* Takes over `value` (NULL: no memory). */
int print_json(json_t *value);

/* ---- plan.c ---- */

/* `gwctl plan`: needs no gradwired. Parses the command line by itself. */
int plan_main(int argc, char **argv);

/* ---- doctor.c ---- */

/* `gwctl doctor`: the same. */
int doctor_main(int argc, char **argv);

#endif
