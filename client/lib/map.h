/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of service memory. Every one is checked (regular file, long enough, cannot shrink: so no
 * SIGBUS), MADV_DONTFORK (a forked child holds nothing) and MADV_DONTDUMP (a core file holds no
 * gradients). Any thread; one owner per struct map.
 */
#ifndef GW_CLIENT_MAP_H
#define GW_CLIENT_MAP_H

#include <stddef.h>
#include <stdint.h>

struct gw_device;

struct map {
    uint8_t *base; /* NULL: nothing mapped; a device address if there is a device */
    size_t bytes;
    struct gw_device *device;
    uint64_t mapped_bytes; /* on a device; 0: another struct map's mapping, seen once more */
};

/* Maps the first `bytes` (> 0) of the memfd with PROT_* `prot`; the descriptor stays the caller's.
 * `what` names it in errors. GW_E_PROTOCOL (not the memory that was promised), GW_E_NOMEM. */
int map_new(int fd, uint64_t bytes, int prot, const char *what, struct map *ret_map);
/* The same for memory of a device, `mapped_bytes` of it, readable and writable. */
int map_device(struct gw_device *device, int fd, uint64_t bytes, uint64_t mapped_bytes,
               const char *what, struct map *ret_map);
void map_free(struct map *map);

/* GRADWIRE_DEBUG=guard: access to [offset, offset + bytes). Closing touches whole pages inside the
 * range only (edge pages belong to a neighbour too and stay open), opening all pages of it. Never
 * fails: without it the program only goes on unguarded. */
void map_guard_close(const struct map *map, uint64_t offset, uint64_t bytes, int prot);
void map_guard_open(const struct map *map, uint64_t offset, uint64_t bytes, int prot);

#endif
