/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting a job from what a launcher tells its processes in their environment. Rules of gradwire.h
 * hold.
 *
 *   struct gw_job_options options = {.struct_size = sizeof(options)};
 *   gw_job *job;
 *   r = gw_launch_options(&options);
 *   if (r == 0)
 *       r = gw_launch_join(&options, NULL, 60000000000, &job);
 */
#ifndef GRADWIRE_LAUNCH_H
#define GRADWIRE_LAUNCH_H

#include <gradwire/gradwire.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills rank, world and nodes from the first of these whose rank is set:
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE (nodes)
 *   Slurm     SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NNODES
 *   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   PMI       PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 * Where the number of nodes is not told: as many as there can be, one for each rank that is not on
 * this one. What options has already (not 0) must be the same. GW_E_NOT_FOUND: no launcher's
 * variables; GW_E_INVALID: a value is no number, is missing, or contradicts another; both are
 * named. */
GW_API int gw_launch_options(struct gw_job_options *options);

/* Rank 0 creates the job and saves its id (gw_job_id_save), the others load it and join; returns
 * when all have joined, and the file is removed then. It is at `path`; if that is NULL at
 * $GRADWIRE_ID_FILE; else in the directory $GRADWIRE_ID_DIR, which all nodes see, under a name made
 * of TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT, or SLURM_JOB_ID and SLURM_STEP_ID. A file
 * that is there already is refused on rank 0: another job's, or one that did not start.
 * timeout_ns: of the whole. */
GW_API int gw_launch_join(const struct gw_job_options *options, const char *path,
                          int64_t timeout_ns, gw_job **ret_job);

#ifdef __cplusplus
}
#endif
#endif
