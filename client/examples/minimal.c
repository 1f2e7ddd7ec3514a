/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest client: each of N ranks gives 4 numbers per rank, and gets the mean of its own 4.
 *
 *   minimal 0 2 /tmp/id & minimal 1 2 /tmp/id     (rank, world, a file that does not exist yet)
 */
#include <gradwire/gradwire.h>
#include <stdio.h>
#include <stdlib.h>

#define SECONDS 1000000000ll
#define TRY(call)                                                                                  \
    if ((call) < 0)                                                                                \
    return fprintf(stderr, "%s: %s\n", #call, gw_last_error()), 1

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: %s RANK WORLD ID_FILE\n", argv[0]), 2;
    struct gw_job_options options = {.struct_size = sizeof(options),
                                     .rank = (uint32_t)strtoul(argv[1], NULL, 10),
                                     .world = (uint32_t)strtoul(argv[2], NULL, 10)};
    struct gw_job_id id;
    gw_job *job;
    gw_buffer *buffer;
    struct gw_token done;

    if (options.rank == 0) { /* rank 0 starts the job; its id lets the others in */
        TRY(gw_job_create(&options, &job));
        TRY(gw_job_get_id(job, &id));
        TRY(gw_job_id_save(&id, argv[3]));
    } else {
        TRY(gw_job_id_load(argv[3], 30 * SECONDS, &id));
        TRY(gw_job_join(&options, &id, &job));
    }
    TRY(gw_buffer_new(job, options.world * 4 * sizeof(float), &buffer)); /* the service's memory */
    float *values = gw_buffer_data(buffer);
    for (uint32_t i = 0; i < options.world * 4; i++)
        values[i] = (float)((options.rank + 1) * (i + 1));
    struct gw_slice all = {buffer, 0}, mine = {buffer, options.rank * 4};
    struct gw_op_options mean = {.struct_size = sizeof(mean), .scale = 1.0 / options.world};
    TRY(gw_reduce_scatter(job, all, mine, 4, &mean, &done));
    TRY(gw_wait(job, done, 30 * SECONDS));
    printf("rank %u: %g %g %g %g\n", options.rank, values[mine.offset], values[mine.offset + 1],
           values[mine.offset + 2], values[mine.offset + 3]);
    gw_job_close(job);
    return 0;
}
