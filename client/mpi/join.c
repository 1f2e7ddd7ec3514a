/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_mpi_join: rank 0 creates, its id is broadcast, the others join, and all agree on the outcome,
 * so that no rank is left waiting for one that has failed. Compiled once for each MPI. The calling
 * thread's; keeps nothing.
 */
#include <gradwire/mpi.h>

#include <stdio.h>
#include <string.h>

#include "client/lib/device.h" /* gw_private_error */

#define TEXT_BYTES 496

/* What rank 0 tells the others. */
struct invitation {
    int32_t code;
    struct gw_job_id id;
};

static int mpi_error(const char *call, int error)
{
    char what[MPI_MAX_ERROR_STRING] = "", text[TEXT_BYTES];
    int length = 0;

    (void)MPI_Error_string(error, what, &length);
    (void)snprintf(text, sizeof(text), "%s: %.400s", call, what);
    return gw_private_error(GW_E_IO, text);
}

static int check(const char *call, int error)
{
    return error == MPI_SUCCESS ? 0 : mpi_error(call, error);
}

/* The same answer on all ranks: the error of the lowest one that failed. r: this rank's. */
static int agree(MPI_Comm comm, int rank, int size, int r)
{
    char text[TEXT_BYTES] = "", told[TEXT_BYTES + 32];
    int first = r < 0 ? rank : size, lowest = size, code = r;
    int m;

    if (r < 0)
        (void)snprintf(text, sizeof(text), "%.490s", gw_last_error());
    m = check("MPI_Allreduce", MPI_Allreduce(&first, &lowest, 1, MPI_INT, MPI_MIN, comm));
    if (m < 0 || lowest == size)
        return m;
    m = check("MPI_Bcast", MPI_Bcast(&code, 1, MPI_INT, lowest, comm));
    if (m == 0)
        m = check("MPI_Bcast", MPI_Bcast(text, sizeof(text), MPI_CHAR, lowest, comm));
    if (m < 0)
        return m;
    (void)snprintf(told, sizeof(told), "rank %d: %s", lowest, text);
    return gw_private_error(code, told);
}

/* How many nodes the ranks are on: as many as ranks that are the first of theirs. */
static int count_nodes(MPI_Comm comm, int *ret_nodes)
{
    MPI_Comm node;
    int place = 0, first;
    int r;

    r = check("MPI_Comm_split_type",
              MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    if (r < 0)
        return r;
    r = check("MPI_Comm_rank", MPI_Comm_rank(node, &place));
    MPI_Comm_free(&node);
    first = place == 0;
    if (r == 0)
        r = check("MPI_Allreduce", MPI_Allreduce(&first, ret_nodes, 1, MPI_INT, MPI_SUM, comm));
    return r;
}

/* A copy with the communicator's numbers. */
static int take_options(const struct gw_job_options *given, int rank, int size, int nodes,
                        struct gw_job_options *ret_options)
{
    char text[TEXT_BYTES];
    size_t known = given ? given->struct_size : 0;

    if (known < sizeof(known) || known > sizeof(*ret_options))
        return gw_private_error(GW_E_INVALID, "options.struct_size is not that of gw_job_options, "
                                              "or options is NULL");
    memset(ret_options, 0, sizeof(*ret_options));
    memcpy(ret_options, given, known);
    if ((ret_options->rank != 0 && ret_options->rank != (uint32_t)rank) ||
        (ret_options->world != 0 && ret_options->world != (uint32_t)size)) {
        (void)snprintf(text, sizeof(text),
                       "options name rank %u of %u, the communicator rank %d of %d: leave both 0",
                       ret_options->rank, ret_options->world, rank, size);
        return gw_private_error(GW_E_INVALID, text);
    }
    ret_options->struct_size = sizeof(*ret_options);
    ret_options->rank = (uint32_t)rank;
    ret_options->world = (uint32_t)size;
    if (ret_options->nodes == 0)
        ret_options->nodes = (uint32_t)nodes;
    return 0;
}

static int create(const struct gw_job_options *options, struct gw_job_id *id, gw_job **ret_job)
{
    int r = gw_job_create(options, ret_job);

    return r < 0 ? r : gw_job_get_id(*ret_job, id);
}

/* Everything between two agreements. *ret_job may be set though the call fails. */
static int meet(MPI_Comm comm, const struct gw_job_options *options, gw_job **ret_job)
{
    struct invitation invitation;
    int r = 0, m;

    memset(&invitation, 0, sizeof(invitation));
    if (options->rank == 0)
        r = invitation.code = create(options, &invitation.id, ret_job);
    m = check("MPI_Bcast", MPI_Bcast(&invitation, sizeof(invitation), MPI_BYTE, 0, comm));
    if (r == 0)
        r = m;
    if (r == 0 && options->rank > 0)
        r = invitation.code < 0 ? 0 : gw_job_join(options, &invitation.id, ret_job);
    return r;
}

/* The error's text outlives the call that closes. */
static int give_up(gw_job *job, int r)
{
    char text[TEXT_BYTES + 32];

    (void)snprintf(text, sizeof(text), "%s", gw_last_error());
    gw_job_close(job);
    return gw_private_error(r, text);
}

int gw_mpi_join(MPI_Comm comm, const struct gw_job_options *options, gw_job **ret_job)
{
    struct gw_job_options taken;
    int rank = 0, size = 0, nodes = 0, ready = 0;
    gw_job *job = NULL;
    int r;

    r = check("MPI_Initialized", MPI_Initialized(&ready));
    if (r == 0 && !ready)
        return gw_private_error(GW_E_STATE, "MPI is not initialised: call MPI_Init first");
    if (r == 0)
        r = check("MPI_Comm_rank", MPI_Comm_rank(comm, &rank));
    if (r == 0)
        r = check("MPI_Comm_size", MPI_Comm_size(comm, &size));
    if (r < 0)
        return r;
    r = count_nodes(comm, &nodes);
    if (r == 0 && !ret_job)
        r = gw_private_error(GW_E_INVALID, "ret_job is NULL");
    if (r == 0)
        r = take_options(options, rank, size, nodes, &taken);
    r = agree(comm, rank, size, r);
    if (r < 0)
        return r;
    r = agree(comm, rank, size, meet(comm, &taken, &job));
    if (r < 0)
        return give_up(job, r);
    *ret_job = job;
    return 0;
}
