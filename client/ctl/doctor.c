/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl doctor: its command line and what it prints. See doctor.h. */
#include "client/ctl/doctor.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

const char *const doctor_verdict_names[4] = {"good", "note", "warn", "bad"};

static const char usage_text[] =
    "Usage: gwctl doctor [OPTION]...\n"
    "\n"
    "Looks at this node as gradwire will use it: processors, memory, limits, containers, security\n"
    "modules, gradwired, GPUs and their libraries. Each point gets a verdict, and advice where\n"
    "something can be done. Changes nothing. Ends with 69 when a point is bad.\n"
    "\n"
    "  --json              one JSON document\n"
    "  --runtime-dir DIR   of the gradwired to look at; also $GRADWIRE_RUNTIME_DIR\n"
    "  --plugins DIR       where gradwire-cuda.so is; also $GRADWIRE_PLUGINS\n"
    "  --help\n";

void doctor_add(struct doctor *doctor, const char *name, enum plugin_verdict verdict,
                const char *advice, const char *format, ...)
{
    struct doctor_point *points =
        reallocarray(doctor->points, doctor->count + 1, sizeof(*doctor->points));
    struct doctor_point *point;
    va_list list;

    if (points == NULL) {
        doctor->lost = true;
        return;
    }
    doctor->points = points;
    point = &points[doctor->count++];
    *point = (struct doctor_point){.verdict = verdict};
    (void)snprintf(point->name, sizeof(point->name), "%s", name);
    (void)snprintf(point->advice, sizeof(point->advice), "%s", advice != NULL ? advice : "");
    va_start(list, format);
    (void)vsnprintf(point->found, sizeof(point->found), format, list);
    va_end(list);
}

bool doctor_line(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "re");
    bool good = file != NULL && fgets(text, (int)text_bytes, file) != NULL;

    if (file != NULL)
        (void)fclose(file);
    if (good)
        text[strcspn(text, "\n")] = '\0';
    return good;
}

static unsigned count_bad(const struct doctor *doctor)
{
    unsigned bad = 0;

    for (size_t i = 0; i < doctor->count; i++)
        bad += doctor->points[i].verdict == PLUGIN_BAD;
    return bad;
}

static void print_text(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_point *point = &doctor->points[i];

        (void)printf("%-4s  %-18s %s\n", doctor_verdict_names[point->verdict], point->name,
                     point->found);
        if (point->advice[0] != '\0')
            (void)printf("      %-18s > %s\n", "", point->advice);
    }
}

static int print_points(const struct doctor *doctor)
{
    json_t *points = json_array();

    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_point *point = &doctor->points[i];

        (void)json_array_append_new(
            points, json_pack("{s:s, s:s, s:s, s:s}", "point", point->name, "verdict",
                              doctor_verdict_names[point->verdict], "found", point->found,
                              "advice", point->advice));
    }
    return print_json(json_pack("{s:i, s:o, s:b}", "schema", 1, "points", points, "good",
                                count_bad(doctor) == 0));
}

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'},
    {"runtime-dir", required_argument, NULL, 'r'},
    {"plugins", required_argument, NULL, 'p'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* -1: go on; else the exit code. */
static int parse(int argc, char **argv, struct doctor *doctor, const char **ret_runtime_dir)
{
    int option;

    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        switch (option) {
        case 'j':
            doctor->ctl->json = true;
            break;
        case 'r':
            *ret_runtime_dir = optarg;
            break;
        case 'p':
            doctor->plugins = optarg;
            break;
        case 'h':
            (void)fputs(usage_text, stdout);
            return EX_OK;
        default:
            return EX_USAGE;
        }
    }
    /* argv holds the command's name too. */
    if (optind + 1 < argc) {
        ctl_say("unexpected argument %s; see gwctl doctor --help", argv[optind + 1]);
        return EX_USAGE;
    }
    return -1;
}

int doctor_main(int argc, char **argv)
{
    struct ctl ctl = {.fd = -1};
    struct doctor doctor = {.ctl = &ctl};
    const char *runtime_dir = NULL;
    int r;

    doctor.plugins = getenv("GRADWIRE_PLUGINS");
    r = parse(argc, argv, &doctor, &runtime_dir);
    if (r >= 0)
        return r;
    r = ctl_find_sockets(&ctl, runtime_dir, NULL, NULL);
    if (r != 0)
        return r;
    doctor_host(&doctor);
    doctor_system(&doctor);
    doctor_plugin(&doctor);
    if (ctl.json)
        r = print_points(&doctor);
    else
        print_text(&doctor);
    if (doctor.lost) {
        ctl_say("no memory for all points");
        r = EX_OSERR;
    }
    if (r == 0 && count_bad(&doctor) > 0)
        r = EX_UNAVAILABLE;
    free(doctor.points);
    return r;
}
