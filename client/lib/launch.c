/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers' variables, and the rendezvous by a file. The calling thread's; keeps nothing; reads
 * the environment and changes nothing in it.
 */
#include "gradwire/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "daemon/base/parse.h"
#include "proto/limits.h"

#define PATH_BYTES 4096

/* NULL: the launcher does not say it. */
struct launcher {
    const char *rank, *world, *local_rank, *local_world, *nodes;
};

static const struct launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_NNODES"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
};

/* 1: it is set, and *ret_value has it; 0: not, or an error. */
static int number(const char *name, uint64_t min, uint64_t *ret_value)
{
    const char *text = name ? getenv(name) : NULL;

    if (!text || !*text)
        return 0;
    if (parse_u64(text, min, UINT32_MAX, ret_value) < 0)
        return err_set(GW_E_INVALID, "%s is '%.60s', not a number from %u", name, text,
                       (unsigned)min);
    return 1;
}

/* `small` must be below `large` where both are said. */
static int below(const char *small, uint64_t value, const char *large, uint64_t limit)
{
    if (value < limit)
        return 0;
    return err_set(GW_E_INVALID, "%s is %llu, but %s is %llu", small, (unsigned long long)value,
                   large, (unsigned long long)limit);
}

struct said {
    uint64_t rank, world, local_rank, local_world, nodes;
};

static int check(const struct launcher *l, const struct said *said)
{
    int r = below(l->rank, said->rank, l->world, said->world);

    if (r == 0 && said->local_world)
        r = below(l->local_world, said->local_world - 1, l->world, said->world);
    if (r == 0 && said->local_world)
        r = below(l->local_rank, said->local_rank, l->local_world, said->local_world);
    if (r == 0 && l->nodes)
        r = below(l->nodes, said->nodes ? said->nodes - 1 : 0, l->world, said->world);
    return r;
}

static int read_launcher(const struct launcher *l, struct said *said)
{
    int r = number(l->world, 1, &said->world);

    if (r == 0)
        return err_set(GW_E_INVALID, "%s is set, but %s is not: one launcher sets both", l->rank,
                       l->world);
    if (r > 0)
        r = number(l->local_rank, 0, &said->local_rank);
    if (r >= 0)
        r = number(l->local_world, 1, &said->local_world);
    if (r >= 0)
        r = number(l->nodes, 1, &said->nodes);
    if (r < 0)
        return r;
    r = check(l, said);
    if (r < 0)
        return r;
    if (!said->nodes)
        said->nodes = said->world - (said->local_world ? said->local_world : 1) + 1;
    if (said->nodes > GW_NODES_MAX)
        said->nodes = GW_NODES_MAX;
    return 0;
}

static int fill(uint32_t *field, const char *what, uint64_t value, const char *name)
{
    if (*field != 0 && *field != value)
        return err_set(GW_E_INVALID, "options.%s is %u, but %s says %llu", what, *field, name,
                       (unsigned long long)value);
    *field = (uint32_t)value;
    return 0;
}

int gw_launch_options(struct gw_job_options *options)
{
    int r;

    if (!options || options->struct_size != sizeof(*options))
        return err_set(GW_E_INVALID, "options is NULL, or its struct_size not gw_job_options'");
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const struct launcher *l = &launchers[i];
        struct said said = {0};

        r = number(l->rank, 0, &said.rank);
        if (r == 0)
            continue;
        if (r > 0)
            r = read_launcher(l, &said);
        if (r == 0)
            r = fill(&options->rank, "rank", said.rank, l->rank);
        if (r == 0)
            r = fill(&options->world, "world", said.world, l->world);
        if (r == 0 && options->nodes == 0)
            options->nodes = (uint32_t)said.nodes;
        return r;
    }
    return err_set(GW_E_NOT_FOUND, "none of RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK and PMI_RANK "
                                   "is set: start the ranks by torchrun, srun or mpirun, or fill "
                                   "options yourself");
}

/* Of a name: what could lead out of the directory becomes '_'. */
static void add_part(char *name, size_t bytes, const char *variable)
{
    const char *text = getenv(variable);
    size_t used = strlen(name);

    snprintf(name + used, bytes - used, "-%.100s", text ? text : "");
    for (char *c = name + used; *c; c++)
        if (*c == '/')
            *c = '_';
}

static int find_path(const char *given, char path[PATH_BYTES])
{
    const char *directory = getenv("GRADWIRE_ID_DIR");
    const char *run = getenv("TORCHELASTIC_RUN_ID"), *slurm = getenv("SLURM_JOB_ID");
    char name[256] = "gradwire";
    int length;

    given = given ? given : getenv("GRADWIRE_ID_FILE");
    if (!given && (!directory || (!run && !slurm)))
        return err_set(GW_E_NOT_FOUND, "no place for the job's id: give a path, or set "
                                       "GRADWIRE_ID_FILE, or GRADWIRE_ID_DIR to a directory that "
                                       "all nodes see (with TORCHELASTIC_RUN_ID or SLURM_JOB_ID)");
    add_part(name, sizeof(name), run ? "TORCHELASTIC_RUN_ID" : "SLURM_JOB_ID");
    add_part(name, sizeof(name), run ? "TORCHELASTIC_RESTART_COUNT" : "SLURM_STEP_ID");
    length = given ? snprintf(path, PATH_BYTES, "%s", given)
                   : snprintf(path, PATH_BYTES, "%s/%s.id", directory, name);
    return length < PATH_BYTES ? 0 : err_set(GW_E_INVALID, "the path of the id file is too long");
}

static int64_t left(int64_t deadline)
{
    int64_t now = clock_now();

    return deadline == GW_FOREVER ? GW_FOREVER : deadline > now ? deadline - now : 0;
}

static int create(const struct gw_job_options *options, const char *path, int64_t deadline,
                  gw_job **ret_job)
{
    struct gw_job_id id;
    int r = gw_job_create(options, ret_job);

    if (r == 0)
        r = gw_job_get_id(*ret_job, &id);
    if (r == 0)
        r = gw_job_id_save(&id, path);
    if (r < 0)
        return r;
    r = gw_job_wait_ready(*ret_job, left(deadline));
    unlink(path);
    return r;
}

static int join(const struct gw_job_options *options, const char *path, int64_t deadline,
                gw_job **ret_job)
{
    struct gw_job_id id;
    int r = gw_job_id_load(path, left(deadline), &id);

    if (r == 0)
        r = gw_job_join(options, &id, ret_job);
    return r < 0 ? r : gw_job_wait_ready(*ret_job, left(deadline));
}

int gw_launch_join(const struct gw_job_options *options, const char *path, int64_t timeout_ns,
                   gw_job **ret_job)
{
    int64_t deadline = clock_deadline(timeout_ns);
    char place[PATH_BYTES], text[GW_TEXT_MAX + 1];
    gw_job *job = NULL;
    int r;

    if (!options || !ret_job || timeout_ns < 0)
        return err_set(GW_E_INVALID, "%s",
                       !options   ? "options is NULL"
                       : !ret_job ? "ret_job is NULL"
                                  : "timeout_ns is negative");
    r = find_path(path, place);
    if (r < 0)
        return r;
    r = options->rank == 0 ? create(options, place, deadline, &job)
                           : join(options, place, deadline, &job);
    if (r == 0) {
        *ret_job = job;
        return 0;
    }
    snprintf(text, sizeof(text), "%s", gw_last_error());
    gw_job_close(job);
    return err_set(r, "%s", text);
}
