/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of an MPI program that joins a job by gw_mpi_join; test_mpi.py compiles and launches it.
 *
 *   sum      all ranks' numbers added up by the service, compared with MPI's own sum
 *   halves   two communicators at once, each a job of its own
 *   numbers  rank 2 says that it is rank 1
 *   null     rank 1 gives no place for the job
 *   nodes A B ...   rank i goes to the gradwired at the i-th socket; says its rank and generation,
 *            and whether the job's id holds an address
 * "ok" from rank 0, or from every rank the error's name and text.
 */
#include <gradwire/mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 1000
#define LIMIT 20000000000ll

static int world_rank;

static void fail(const char *call, int r)
{
    printf("rank %d %s %s: %s\n", world_rank, call, gw_error_name(r), gw_last_error());
    MPI_Finalize();
    exit(0);
}

static void check(const char *call, int r)
{
    if (r < 0)
        fail(call, r);
}

/* Small whole numbers: any order of the sum gives the same. */
static void add_up(MPI_Comm comm, gw_job *job)
{
    float own[COUNT], expected[COUNT], *values;
    struct gw_token token;
    gw_buffer *buffer;
    int rank;

    MPI_Comm_rank(comm, &rank);
    for (int i = 0; i < COUNT; i++)
        own[i] = (float)((world_rank + 1) * (i % 97));
    MPI_Allreduce(own, expected, COUNT, MPI_FLOAT, MPI_SUM, comm);
    check("gw_buffer_new", gw_buffer_new(job, sizeof(own), &buffer));
    values = gw_buffer_data(buffer);
    memcpy(values, own, sizeof(own));
    check("gw_all_reduce", gw_all_reduce(job, (struct gw_slice){buffer, 0},
                                         (struct gw_slice){buffer, 0}, COUNT, NULL, &token));
    check("gw_wait", gw_wait(job, token, LIMIT));
    if (memcmp(values, expected, sizeof(expected)) != 0 || gw_job_rank(job) != (uint32_t)rank)
        printf("rank %d: wrong\n", world_rank);
    check("gw_barrier", gw_barrier(job, NULL, &token));
    check("gw_wait", gw_wait(job, token, LIMIT));
}

/* Sockets of other gradwireds on this machine, which MPI takes for one node. */
static int join_apart(struct gw_job_options options, int sockets, char **socket)
{
    struct gw_job_id id;
    gw_job *job = NULL;

    options.nodes = (uint32_t)sockets;
    options.socket_path = socket[world_rank % sockets];
    check("gw_mpi_join", gw_mpi_join(MPI_COMM_WORLD, &options, &job));
    check("gw_job_wait_ready", gw_job_wait_ready(job, LIMIT));
    check("gw_job_get_id", gw_job_get_id(job, &id));
    add_up(MPI_COMM_WORLD, job);
    printf("rank %u of generation %u, %s\n", gw_job_rank(job), gw_job_generation(job),
           id.bytes[5] ? "nodes" : "one node");
    gw_job_close(job);
    MPI_Finalize();
    return 0;
}

int main(int argc, char **argv)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .linger_ns = -1};
    const char *what = argc > 1 ? argv[1] : "sum";
    MPI_Comm comm = MPI_COMM_WORLD;
    gw_job *job = NULL;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &world_rank);
    if (strcmp(what, "nodes") == 0)
        return join_apart(options, argc - 2, argv + 2);
    if (strcmp(what, "halves") == 0)
        MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &comm);
    if (strcmp(what, "numbers") == 0 && world_rank == 2)
        options.rank = 1;
    check("gw_mpi_join", gw_mpi_join(comm, &options,
                                     strcmp(what, "null") == 0 && world_rank == 1 ? NULL : &job));
    add_up(comm, job);
    gw_job_close(job);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        printf("ok\n");
    MPI_Finalize();
    return 0;
}
