/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers tell in the environment, as torchrun, srun and both mpiruns write it.
 * ctest: link=gw_client
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradwire/launch.h"

struct row {
    const char *environment[6]; /* NAME=value */
    int r;
    uint32_t rank, world, nodes;
    const char *words[2]; /* of the message */
};

static const struct row rows[] = {
    {{"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_WORLD_SIZE=4"},
     0,
     3,
     8,
     4,
     {NULL}},
    {{"RANK=0", "WORLD_SIZE=1"}, 0, 0, 1, 1, {NULL}},
    {{"RANK=3", "WORLD_SIZE=8", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_NNODES=4"},
     0,
     3,
     8,
     8,
     {NULL}}, /* srun starts a torchrun on each node */
    {{"SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_LOCALID=1", "SLURM_NNODES=2"}, 0, 5, 6, 2, {NULL}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=4"},
     0,
     1,
     4,
     1,
     {NULL}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     0,
     1,
     4,
     3,
     {NULL}}, /* the other two may be apart */
    {{"PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"}, 0, 2, 3, 3, {NULL}},
    {{NULL}, GW_E_NOT_FOUND, 0, 0, 0, {"SLURM_PROCID", "torchrun"}},
    {{"RANK=1"}, GW_E_INVALID, 0, 0, 0, {"RANK is set", "WORLD_SIZE is not"}},
    {{"RANK=x", "WORLD_SIZE=2"}, GW_E_INVALID, 0, 0, 0, {"RANK is 'x'", "number"}},
    {{"RANK=-1", "WORLD_SIZE=2"}, GW_E_INVALID, 0, 0, 0, {"RANK is '-1'", "number"}},
    {{"RANK=0", "WORLD_SIZE=0"}, GW_E_INVALID, 0, 0, 0, {"WORLD_SIZE is '0'", "from 1"}},
    {{"RANK=2", "WORLD_SIZE=2"}, GW_E_INVALID, 0, 0, 0, {"RANK is 2", "WORLD_SIZE is 2"}},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=1"},
     GW_E_INVALID,
     0,
     0,
     0,
     {"LOCAL_RANK is 1", "LOCAL_WORLD_SIZE is 1"}},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3"},
     GW_E_INVALID,
     0,
     0,
     0,
     {"LOCAL_WORLD_SIZE is", "WORLD_SIZE is 2"}},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_NNODES=3"},
     GW_E_INVALID,
     0,
     0,
     0,
     {"SLURM_NNODES is", "SLURM_NTASKS is 2"}},
};

static void set(const struct row *row)
{
    assert_int_equal(clearenv(), 0);
    for (size_t i = 0; i < 6 && row->environment[i]; i++) {
        char name[64];
        size_t bytes = strcspn(row->environment[i], "=");

        memcpy(name, row->environment[i], bytes);
        name[bytes] = 0;
        assert_int_equal(setenv(name, row->environment[i] + bytes + 1, 1), 0);
    }
}

static void each_launcher_is_understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gw_job_options options = {.struct_size = sizeof(options)};
        const struct row *row = &rows[i];
        int r;

        set(row);
        r = gw_launch_options(&options);
        if (r != row->r)
            fail_msg("row %zu: %d (%s), not %d", i, r, gw_last_error(), row->r);
        for (size_t k = 0; r < 0 && k < 2; k++)
            if (!strstr(gw_last_error(), row->words[k]))
                fail_msg("row %zu: no \"%s\" in: %s", i, row->words[k], gw_last_error());
        assert_int_equal(options.rank, row->rank);
        assert_int_equal(options.world, row->world);
        assert_int_equal(options.nodes, row->nodes);
    }
}

static void what_the_caller_says_must_fit(void **state)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .rank = 3, .nodes = 9};

    (void)state;
    set(&rows[0]);
    assert_int_equal(gw_launch_options(&options), 0);
    assert_int_equal(options.world, 8);
    assert_int_equal(options.nodes, 9); /* the caller's */
    options.world = 7;
    assert_int_equal(gw_launch_options(&options), GW_E_INVALID);
    assert_non_null(strstr(gw_last_error(), "options.world is 7, but WORLD_SIZE says 8"));
    options.struct_size = 8;
    assert_int_equal(gw_launch_options(&options), GW_E_INVALID);
    assert_int_equal(gw_launch_options(NULL), GW_E_INVALID);
}

static void a_place_for_the_id_is_asked_for(void **state)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .rank = 1, .world = 2};
    gw_job *job = NULL;

    (void)state;
    set(&rows[0]);
    assert_int_equal(gw_launch_join(&options, NULL, 0, &job), GW_E_NOT_FOUND);
    assert_non_null(strstr(gw_last_error(), "GRADWIRE_ID_FILE"));
    setenv("GRADWIRE_ID_DIR", "/tmp/there-is-no-such-directory", 1);
    assert_int_equal(gw_launch_join(&options, NULL, 0, &job), GW_E_NOT_FOUND);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    assert_int_equal(gw_launch_join(&options, NULL, 0, &job), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "/tmp/there-is-no-such-directory/gradwire-77-0.id"));
    setenv("TORCHELASTIC_RUN_ID", "../a/b", 1);
    assert_int_equal(gw_launch_join(&options, NULL, 0, &job), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "directory/gradwire-.._a_b-.id"));
    setenv("GRADWIRE_ID_FILE", "/tmp/there-is-no-such-directory/x", 1);
    assert_int_equal(gw_launch_join(&options, NULL, 0, &job), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "directory/x"));
    assert_int_equal(gw_launch_join(&options, "/tmp/there-is-no-such-directory/y", 0, &job),
                     GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), "directory/y"));
    assert_int_equal(gw_launch_join(&options, NULL, -1, &job), GW_E_INVALID);
    assert_null(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_launcher_is_understood),
        cmocka_unit_test(what_the_caller_says_must_fit),
        cmocka_unit_test(a_place_for_the_id_is_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
