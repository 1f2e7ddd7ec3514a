/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gwctl prints: aligned tables for people, JSON for programs. stdout only; keeps nothing.
 * Whatever came over the socket is made printable first.
 */
#include <inttypes.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "client/ctl/ctl.h"
#include "daemon/base/priority.h"
#include "daemon/base/tag.h"

#define CELL_BYTES 72u
#define KINDS_JSON 5

static const char *const state_names[] = {"starting", "forming", "sealed",
                                          "running",  "broken",  "lingering"};
static const char *const kind_names[KINDS_JSON] = {"all_reduce", "reduce_scatter", "all_gather",
                                                   "broadcast", "control"};
_Static_assert(GW_KINDS == KINDS_JSON, "a name per kind");

static const char *state_name(uint32_t state)
{
    return state < sizeof(state_names) / sizeof(state_names[0]) ? state_names[state] : "unknown";
}

static const char *printable(const char *text, char *buffer, size_t bytes)
{
    size_t i = 0;

    for (; text[i] != '\0' && i + 1 < bytes; i++)
        buffer[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    buffer[i] = '\0';
    return buffer;
}

void human_bytes(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(text, text_bytes, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void human_time(uint64_t ns, char *text, size_t text_bytes)
{
    uint64_t s = ns / 1000000000u;

    if (s < 60)
        (void)snprintf(text, text_bytes, "%" PRIu64 " s", s);
    else if (s < 3600)
        (void)snprintf(text, text_bytes, "%" PRIu64 " min", s / 60);
    else if (s < 86400)
        (void)snprintf(text, text_bytes, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else
        (void)snprintf(text, text_bytes, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
}

static json_t *json_u64(uint64_t value)
{
    return json_integer((json_int_t)(value > (uint64_t)INT64_MAX ? INT64_MAX : value));
}

static json_t *json_text(const char *text)
{
    char buffer[GW_TEXT_MAX + 1];

    return json_string(printable(text, buffer, sizeof(buffer)));
}

int print_json(json_t *value)
{
    int r = value == NULL ? -1 : json_dumpf(value, stdout, JSON_INDENT(2));

    json_decref(value);
    if (r < 0) {
        ctl_say("no memory for the answer");
        return EX_OSERR;
    }
    (void)putchar('\n');
    return 0;
}

/* ---- status -------------------------------------------------------------------------------- */

int show_status(const struct wire_msg *status, bool json)
{
    char version[sizeof(status->u.status.version)], socket[sizeof(status->u.status.socket)];
    char devices[sizeof(status->u.status.devices)], uptime[CELL_BYTES];
    char placement[sizeof(status->u.status.placement)];
    bool draining = status->u.status.draining != 0;

    (void)printable(status->u.status.version, version, sizeof(version));
    (void)printable(status->u.status.socket, socket, sizeof(socket));
    (void)printable(status->u.status.devices, devices, sizeof(devices));
    (void)printable(status->u.status.placement, placement, sizeof(placement));
    if (json)
        return print_json(json_pack("{s:s, s:I, s:o, s:b, s:I, s:s, s:s, s:s}", "version", version,
                                    "pid", (json_int_t)status->u.status.pid, "uptime_ns",
                                    json_u64(status->u.status.uptime_ns), "draining", (int)draining,
                                    "jobs", (json_int_t)status->u.status.jobs, "socket", socket,
                                    "devices", devices, "placement", placement));
    human_time(status->u.status.uptime_ns, uptime, sizeof(uptime));
    (void)printf("gradwired  %s, pid %" PRIu32 ", up %s\n"
                 "socket     %s\n"
                 "devices    %s\n"
                 "placement  %s\n"
                 "jobs       %" PRIu32 "%s\n",
                 version, status->u.status.pid, uptime, socket, devices, placement,
                 status->u.status.jobs, draining ? " (draining: no new ones)" : "");
    return 0;
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static json_t *json_kinds(const uint64_t values[GW_KINDS])
{
    json_t *object = json_object();

    for (unsigned i = 0; i < GW_KINDS; i++)
        (void)json_object_set_new(object, kind_names[i], json_u64(values[i]));
    return object;
}

static json_t *json_job(const struct wire_job *job)
{
    char tag[TAG_HEX_BYTES];
    json_t *ordering = job->ordering[0] != '\0' ? json_text(job->ordering) : json_null();
    json_t *workers = job->workers[0] != '\0' ? json_text(job->workers) : json_null();
    json_t *placement = job->placement[0] != '\0' ? json_text(job->placement) : json_null();
    json_t *stage = job->stage == UINT32_MAX ? json_null() : json_integer((json_int_t)job->stage);

    tag_to_hex(job->tag, tag);
    return json_pack(
        "{s:s, s:o, s:I, s:I, s:s, s:I, s:I, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:o, s:o}",
        "tag", tag, "name", json_text(job->name), "uid", (json_int_t)job->uid, "engine_pid",
        (json_int_t)job->engine_pid, "state", state_name(job->state), "world",
        (json_int_t)job->world, "ranks_present", (json_int_t)job->ranks_present, "stage", stage,
        "generation", (json_int_t)job->generation, "steps", json_u64(job->steps), "age_ns",
        json_u64(job->age_ns), "memory_bytes", json_u64(job->memory_bytes), "calls",
        json_kinds(job->calls), "payload_bytes", json_kinds(job->payload_bytes), "moved_bytes",
        json_kinds(job->moved_bytes), "cross_node_bytes", json_kinds(job->cross_node_bytes), "wait",
        json_text(job->wait), "device", json_text(job->device), "fabric", json_text(job->fabric),
        "ordering", ordering, "workers", workers, "placement", placement);
}

static uint32_t hidden_jobs(const struct ctl_jobs *jobs)
{
    uint32_t all = jobs->status->u.status.jobs;

    return all > jobs->shown ? all - jobs->shown : 0;
}

static int show_jobs_json(const struct ctl_jobs *jobs)
{
    json_t *list = json_array();

    for (size_t p = 0; p < jobs->pages_count; p++) {
        for (uint32_t i = 0; i < jobs->pages[p]->u.jobs.count; i++)
            (void)json_array_append_new(list, json_job(&jobs->pages[p]->u.jobs.jobs[i]));
    }
    return print_json(json_pack("{s:o, s:I, s:I}", "jobs", list, "total",
                                (json_int_t)jobs->status->u.status.jobs, "hidden",
                                (json_int_t)hidden_jobs(jobs)));
}

enum column {
    TAG,
    NAME,
    USER,
    STATE,
    RANKS,
    DEVICE,
    FABRIC,
    STAGE,
    STEPS,
    AGE,
    MEMORY,
    PID,
    COLUMNS
};
static const char *const heads[COLUMNS] = {"JOB",    "NAME",  "USER",  "STATE", "RANKS",  "DEVICE",
                                           "FABRIC", "STAGE", "STEPS", "AGE",   "MEMORY", "PID"};
static const bool right_aligned[COLUMNS] = {
    [RANKS] = true, [STAGE] = true, [STEPS] = true, [AGE] = true, [MEMORY] = true, [PID] = true};
typedef char row[COLUMNS][CELL_BYTES];

/* "host", with the priority of its sums where that is not the usual: "host, nice"; of GPUs also how
 * they and other processes wait for each other: "cuda, words". */
static void fill_device(const struct wire_job *job, char cell[CELL_BYTES])
{
    bool usual = strcmp(job->workers, priority_names[PRIORITY_EQUAL]) == 0;
    const char *more = job->ordering[0] != '\0' || usual ? job->ordering : job->workers;
    char text[2 * CELL_BYTES];

    (void)snprintf(text, sizeof(text), "%.63s%s%.63s", job->device[0] != '\0' ? job->device : "-",
                   more[0] != '\0' ? ", " : "", more);
    (void)printable(text, cell, CELL_BYTES);
}

static void fill_row(const struct wire_job *job, row cells)
{
    const struct passwd *user = getpwuid(job->uid);

    tag_to_hex(job->tag, cells[TAG]);
    (void)printable(job->name[0] != '\0' ? job->name : "-", cells[NAME], CELL_BYTES);
    if (user != NULL)
        (void)printable(user->pw_name, cells[USER], CELL_BYTES);
    else
        (void)snprintf(cells[USER], CELL_BYTES, "%" PRIu32, job->uid);
    (void)snprintf(cells[STATE], CELL_BYTES, "%s", state_name(job->state));
    (void)snprintf(cells[RANKS], CELL_BYTES, "%" PRIu32 "/%" PRIu32, job->ranks_present,
                   job->world);
    fill_device(job, cells[DEVICE]);
    (void)printable(job->fabric[0] != '\0' ? job->fabric : "-", cells[FABRIC], CELL_BYTES);
    if (job->stage == UINT32_MAX)
        (void)snprintf(cells[STAGE], CELL_BYTES, "-");
    else
        (void)snprintf(cells[STAGE], CELL_BYTES, "%" PRIu32, job->stage);
    (void)snprintf(cells[STEPS], CELL_BYTES, "%" PRIu64, job->steps);
    human_time(job->age_ns, cells[AGE], CELL_BYTES);
    human_bytes(job->memory_bytes, cells[MEMORY], CELL_BYTES);
    (void)snprintf(cells[PID], CELL_BYTES, "%" PRIu32, job->engine_pid);
}

static void print_row(row cells, const int widths[COLUMNS])
{
    for (int c = 0; c < COLUMNS; c++) {
        const char *gap = c + 1 < COLUMNS ? "  " : "\n";

        if (right_aligned[c])
            (void)printf("%*s%s", widths[c], cells[c], gap);
        else
            (void)printf("%-*s%s", widths[c], cells[c], gap);
    }
}

static void print_table(const struct ctl_jobs *jobs, row *rows)
{
    int widths[COLUMNS];
    char wait[GW_TEXT_MAX + 1];
    uint32_t at = 0;

    for (int c = 0; c < COLUMNS; c++) {
        (void)snprintf(rows[jobs->shown][c], CELL_BYTES, "%s", heads[c]);
        widths[c] = 0;
        for (uint32_t i = 0; i <= jobs->shown; i++) {
            int bytes = (int)strlen(rows[i][c]);

            widths[c] = bytes > widths[c] ? bytes : widths[c];
        }
    }
    print_row(rows[jobs->shown], widths);
    for (size_t p = 0; p < jobs->pages_count; p++) {
        for (uint32_t i = 0; i < jobs->pages[p]->u.jobs.count; i++) {
            const struct wire_job *job = &jobs->pages[p]->u.jobs.jobs[i];

            print_row(rows[at++], widths);
            if (job->wait[0] != '\0')
                (void)printf("  waits: %s\n", printable(job->wait, wait, sizeof(wait)));
        }
    }
}

int show_jobs(const struct ctl_jobs *jobs, bool json)
{
    uint32_t at = 0;
    row *rows;

    if (json)
        return show_jobs_json(jobs);
    if (jobs->shown > 0) {
        rows = calloc(jobs->shown + 1, sizeof(*rows)); /* the last: the heads */
        if (rows == NULL) {
            ctl_say("no memory for the answer");
            return EX_OSERR;
        }
        for (size_t p = 0; p < jobs->pages_count; p++) {
            for (uint32_t i = 0; i < jobs->pages[p]->u.jobs.count; i++)
                fill_row(&jobs->pages[p]->u.jobs.jobs[i], rows[at++]);
        }
        print_table(jobs, rows);
        free(rows);
    }
    if (hidden_jobs(jobs) > 0)
        (void)printf("%s%" PRIu32 " job%s starting or of other users\n",
                     jobs->shown > 0 ? "and " : "", hidden_jobs(jobs),
                     hidden_jobs(jobs) == 1 ? "" : "s");
    else if (jobs->shown == 0)
        (void)puts("no jobs");
    return 0;
}
