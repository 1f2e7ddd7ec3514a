/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining a gradwire job from an MPI program: the communicator's ranks are the job's.
 *
 * In a library of its own for each MPI, whose handles differ: libgradwire-mpich (pkg-config
 * gradwire-mpich) for MPICH and what shares its ABI, libgradwire-openmpi (gradwire-openmpi) for
 * Open MPI. Thread and error rules are those of gradwire.h; MPI must be initialised, and its rules
 * for threads hold too. MPI is used for the rendezvous alone: nothing of the job goes through it
 * later.
 *
 *   struct gw_job_options options = {.struct_size = sizeof(options)};
 *   gw_job *job;
 *   r = gw_mpi_join(MPI_COMM_WORLD, &options, &job);
 */
#ifndef GRADWIRE_MPI_H
#define GRADWIRE_MPI_H

#include <mpi.h>

#include <gradwire/gradwire.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over comm, as every MPI collective: all its ranks call it. comm's rank 0 creates the
 * job, the others join it; options->rank and world are comm's (leave them 0), what only the creator
 * says counts on rank 0. options->nodes 0: as many as MPI_COMM_TYPE_SHARED tells apart. All ranks
 * return alike: 0, or the error of the lowest rank that failed, whose message names it; then
 * nothing is left of the job anywhere. GW_E_IO: MPI itself failed. */
GW_API int gw_mpi_join(MPI_Comm comm, const struct gw_job_options *options, gw_job **ret_job);

#ifdef __cplusplus
}
#endif
#endif
