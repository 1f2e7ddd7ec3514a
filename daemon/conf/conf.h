/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's configuration: one table of keys is parser, defaults, help and manual.
 *
 * Pure (text in, struct out; no files); any thread. configs/gradwired.conf and gradwired.conf(5)
 * are checked against it by tests/integration/test_supervisor_docs.py.
 */
#ifndef GW_CONF_CONF_H
#define GW_CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONF_PATH_BYTES 256u
#define CONF_NAME_BYTES 64u
#define CONF_SOCKET_MAX 107u /* bytes of a Unix socket's path */
#define CONF_ERROR_BYTES 512u
#define CONF_LINE_MAX 198u /* inih's line buffer, less newline and 0 */

#define CONF_BEATS_TO_LOST 4

/* 0, 0: any free port. */
struct conf_ports {
    uint16_t first, last;
};

enum conf_level { CONF_ERROR, CONF_WARNING, CONF_INFO, CONF_DEBUG };
enum conf_placement { CONF_PLACEMENT_AUTO, CONF_PLACEMENT_OFF };
enum conf_device { CONF_DEVICE_AUTO, CONF_DEVICE_HOST, CONF_DEVICE_CUDA };

struct conf {
    char runtime_dir[CONF_PATH_BYTES];
    char socket[CONF_PATH_BYTES];       /* "": gradwired.sock in runtime_dir */
    char admin_socket[CONF_PATH_BYTES]; /* "": admin.sock beside the client socket */
    char engine[CONF_PATH_BYTES];       /* "": looked for beside gradwired */
    char group[CONF_NAME_BYTES];
    char admin_group[CONF_NAME_BYTES];
    uint32_t log_level;            /* enum conf_level */
    uint32_t device;               /* enum conf_device: what jobs are offered */
    char plugins[CONF_PATH_BYTES]; /* "": beside the engine, or as installed */
    int64_t linger_ns;
    uint64_t memory_max_bytes; /* of one job; 0: no limit */
    int64_t stall_report_ns;
    uint32_t gpu_sharing; /* 1: several jobs may use one GPU */
    uint32_t worker_priority; /* enum priority */
    uint32_t placement;       /* enum conf_placement */
    char node_name[CONF_NAME_BYTES];      /* "": the host's */
    char star_interface[CONF_NAME_BYTES]; /* "": chosen by the engine */
    struct conf_ports star_ports;
    int64_t star_beat_ns;
    int64_t star_lost_ns; /* at least CONF_BEATS_TO_LOST beats */
    uint32_t max_jobs_per_user;
    uint32_t max_connections_per_user;
    uint32_t max_half_open;
};

enum conf_type { CONF_PATH, CONF_NAME, CONF_CHOICE, CONF_TIME, CONF_BYTES, CONF_COUNT, CONF_PORTS };

struct conf_key {
    const char *section;
    const char *name;
    const char *initial; /* default, as it would stand in the file */
    enum conf_type type;
    bool reload;       /* SIGHUP takes a new value; else it needs a restart */
    uint64_t min, max; /* CONF_TIME (ns), CONF_BYTES, CONF_COUNT; CONF_PATH: max bytes */
    size_t offset;
    const char *help;
    const char *const *choices; /* CONF_CHOICE: its values, from 0; then NULL */
};

extern const struct conf_key conf_keys[];
extern const size_t conf_keys_count;
/* "auto", "host", "cuda", NULL: by enum conf_device. */
extern const char *const conf_device_names[];

void conf_defaults(struct conf *ret_conf);
/* Applies `text` to *conf, which stays as it was on failure (GW_E_INVALID). `error` then holds
 * "file:line: what is wrong and what is allowed". */
int conf_parse(const char *text, size_t text_bytes, const char *file, struct conf *conf,
               char *error, size_t error_bytes);
/* Sets one key from its text: 0 or GW_E_INVALID. */
int conf_set(const struct conf_key *key, const char *value, struct conf *conf);
/* "a time: a whole number and ns, us, ms, s, min or h, ..." */
void conf_allowed(const struct conf_key *key, char *text, size_t text_bytes);
/* "46200-46399", as parse_ports reads it. */
#define CONF_PORTS_TEXT 12u
void conf_ports_text(const struct conf_ports *ports, char text[CONF_PORTS_TEXT]);
/* First key of which a and b differ, at or after `from`; NULL when there is none. */
const struct conf_key *conf_difference(const struct conf *a, const struct conf *b, size_t from);

#endif
