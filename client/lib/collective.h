/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives layer: groups, registered buffers, ops. State in struct gw_job, under its lock. */
#ifndef GW_CLIENT_COLLECTIVE_H
#define GW_CLIENT_COLLECTIVE_H

#include "client/lib/job.h"

/* A buffer of the service's memory, not in the list yet; into the list. */
int buffer_make(gw_job *job, size_t size_bytes, enum wire_stands_in why, gw_buffer **ret_buffer);
void buffer_keep(gw_job *job, gw_buffer *buffer);

/* Staged buffers (import.c): `numel` elements from `offset` on go into the service's memory before
 * the op is declared, and come back behind op `sequence`, in a stream of ours; the token counts.
 * Both under job->lock. */
int import_copy_in(gw_job *job, const struct gw_slice *slice, uint64_t numel, uint32_t size);
int import_copy_out(gw_job *job, const struct gw_slice *slice, uint64_t numel, uint32_t size,
                    uint64_t sequence,                    struct gw_token *ret_token);
/* The copy behind that op is done. */
bool import_copied(gw_job *job, uint64_t sequence);

/* Unmaps all buffers. */
void collective_close(gw_job *job);

#endif
