/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's directory:
 *
 *   <runtime>/gradwired.lock       held by the one gradwired; its pid
 *   <runtime>/gradwired.sock       clients
 *   <runtime>/admin.sock           administration
 *   <runtime>/engines/<tag>/lock   held by the engine as long as it lives; "uid started_ns"
 *   <runtime>/engines/<tag>/sock   where a new gradwired connects
 *   <runtime>/engines/<tag>.<uid>/ the same of an engine that follows another node's: anybody can
 *                                  name a tag, so that one user's must not stand in another's way
 *   <runtime>/engines/new-XXXXXX/  an engine whose tag is not known yet
 *   <runtime>/gpus/<name>          held by the engine that uses the GPU; "tag uid" of its job
 *
 * Errors of rundir_open and rundir_listen are sysexits codes, because they end the program.
 * Loop thread only.
 */
#ifndef GW_SUPERVISOR_RUNDIR_H
#define GW_SUPERVISOR_RUNDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/tag.h"

#define RUNDIR_ENTRY_BYTES 28u
#define RUNDIR_SOCKET_MAX 107u /* sun_path, less its 0 */

struct rundir;

/* Makes what is missing and takes the lock. 0 or an EX_ code, with the message in error. */
int rundir_open(const char *path, bool privileged, struct rundir **ret_dir, char *error,
                size_t error_bytes);
/* Removes the sockets and the lock, and the directories where they are empty and ours. */
struct rundir *rundir_free(struct rundir *dir);
/* Listens on a socket file at `path`; replaces a stale one. group: may use it (-1: nobody else). */
int rundir_listen(struct rundir *dir, const char *path, gid_t group, int *ret_fd, char *error,
                  size_t error_bytes);

/* The entry's name when the tag is known. */
void rundir_entry_name(const uint8_t tag[TAG_BYTES], bool follows, uid_t uid,
                       char ret_entry[RUNDIR_ENTRY_BYTES]);
/* What such a name says; false: it is none. */
bool rundir_entry_parse(const char *entry, uint8_t ret_tag[TAG_BYTES], bool *ret_follows);
/* Name of an engine's socket in sun_path. */
void rundir_engine_socket(const struct rundir *dir, const char *entry, char *path,
                          size_t path_bytes);
/* A new entry with a lock that is held by *ret_lock_fd (inherit it) and a listening socket. */
int rundir_entry_make(struct rundir *dir, uid_t uid, uint64_t started_ns,
                      char ret_entry[RUNDIR_ENTRY_BYTES], int *ret_lock_fd, int *ret_listen_fd);
/* Gives the entry its final name. GW_E_DUPLICATE, GW_E_IO. */
int rundir_entry_rename(struct rundir *dir, const char *from, const char *to);
void rundir_entry_remove(struct rundir *dir, const char *entry);
/* Is somebody holding its lock? Reads what the lock says on the way (both may be NULL). */
bool rundir_entry_alive(struct rundir *dir, const char *entry, uid_t *ret_uid,
                        uint64_t *ret_started_ns);
/* Locks the GPU's file: *ret_fd, to be passed on, holds the lock. GW_E_BUSY: somebody else does;
 * ret_holder: what the file says of that. GW_E_LIMIT: too many GPUs are named; GW_E_IO. */
#define RUNDIR_HOLDER_BYTES 48u
int rundir_gpu_lock(struct rundir *dir, const char *gpu, const char *tag, uid_t uid, int *ret_fd,
                    char ret_holder[RUNDIR_HOLDER_BYTES]);
/* Calls fn for each entry; fn may remove it. */
void rundir_entries(struct rundir *dir, void (*fn)(void *user, const char *entry), void *user);

#endif
