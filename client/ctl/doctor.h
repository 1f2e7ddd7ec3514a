/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwctl doctor: what this node offers gradwire, point by point, and what to do about it. Looks,
 * measures for a moment, changes nothing. One thread, and one child for the device plug-in.
 *
 *   doctor.c         command line, the list of points, text and exit code
 *   doctor_host.c    processors, memory, limits
 *   doctor_system.c  containers, security modules, gradwired itself
 *   doctor_plugin.c  GPUs, asked of gradwire-cuda.so in a child that may hang or die
 */
#ifndef GW_CTL_DOCTOR_H
#define GW_CTL_DOCTOR_H

#include <stddef.h>

#include "client/ctl/ctl.h"
#include "daemon/device/plugin.h"

struct doctor_point {
    char name[GW_LABEL_MAX + 1];
    enum plugin_verdict verdict;
    char found[GW_TEXT_MAX + 1];
    char advice[GW_TEXT_MAX + 1]; /* "": nothing to do */
};

struct doctor {
    struct ctl *ctl;     /* sockets to try */
    const char *plugins; /* directory; NULL: where the engine would look */
    struct doctor_point *points;
    size_t count;
    bool lost; /* no memory for a point */
};

extern const char *const doctor_verdict_names[4]; /* good, note, warn, bad */

/* advice NULL: nothing to do. */
void doctor_add(struct doctor *doctor, const char *name, enum plugin_verdict verdict,
                const char *advice, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

void doctor_host(struct doctor *doctor);
void doctor_system(struct doctor *doctor);
void doctor_plugin(struct doctor *doctor);

/* The first line of a file without its end; false: it cannot be read. */
bool doctor_line(const char *path, char *text, size_t text_bytes);

#endif
