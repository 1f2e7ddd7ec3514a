/* SPDX-License-Identifier: Apache-2.0 */
/* Runs gradwired from a resolved configuration until it is told to end. Main thread. */
#ifndef GW_SUPERVISOR_RUN_H
#define GW_SUPERVISOR_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/conf/conf.h"

struct supervisor_options {
    const struct conf *conf;      /* in force */
    const struct conf *file_conf; /* as the file says; SIGHUP compares with it */
    const char *config_path;
    bool config_optional; /* may be missing */
    const char *engine_path;
};

/* 0 at the end of service, or an EX_ code with the reason in error. */
int supervisor_run(const struct supervisor_options *options, char *error, size_t error_bytes);

#endif
