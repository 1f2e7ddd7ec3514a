/* SPDX-License-Identifier: Apache-2.0 */
/* Command line, environment and configuration file of gradwired. Before and beside the loop. */
#ifndef GW_SUPERVISOR_CONFIG_H
#define GW_SUPERVISOR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/conf/conf.h"

struct options {
    bool foreground, check_config, version, help;
    const char *socket, *runtime_dir, *engine, *config, *device, *plugins; /* NULL: not given */
};

/* 0 or EX_USAGE. */
int options_parse(int argc, char **argv, struct options *ret_options, char *error,
                  size_t error_bytes);
/* Prints --help, with the keys of the configuration. */
void options_help(void);

/* Reads the file over the defaults. A missing file is fine when `optional`. 0 or EX_CONFIG. */
int config_load(const char *path, bool optional, struct conf *ret_conf, char *error,
                size_t error_bytes);
/* Lays environment and command line over the file, and fills in what follows from the rest
 * (socket paths). Command line before environment before file. 0, EX_USAGE or EX_CONFIG. */
int config_resolve(const struct options *options, struct conf *conf, char *error,
                   size_t error_bytes);
/* Finds the engine's program: 0, or EX_OSFILE. */
int config_engine(const struct conf *conf, char *path, size_t path_bytes, char *error,
                  size_t error_bytes);

#endif
