/* SPDX-License-Identifier: Apache-2.0 */
/* Which address of this node the star's root listens at, and addresses as sockets want them.
 * Any thread. Knows sockets and interfaces, nothing of the star. */
#ifndef GW_ENGINE_STAR_ADDRESS_H
#define GW_ENGINE_STAR_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "proto/job_id.h"
#include "proto/limits.h"

/* "[", an IPv6 address, "]:65535" */
#define STAR_ADDRESS_TEXT 64u

struct addrinfo;

/* *ret_address without a port: interface is an interface's name, an address, a host's name, or NULL
 * (see star_config). Only a name that is no interface's is looked up, which may take seconds. */
int star_address_choose(const char *interface, struct job_address *ret_address,
                        char text[GW_TEXT_MAX + 1]);
/* Of a host's addresses the first that is this node's; loopback's only if there is no other. */
bool star_address_pick(const struct addrinfo *list, struct job_address *ret_address);
/* A listening socket (non-blocking, close-on-exec) at the first free port; sets address->port. */
int star_address_listen(struct job_address *address, uint16_t port_first, uint16_t port_last,
                        int *ret_fd, char text[GW_TEXT_MAX + 1]);
/* false: it has neither family. */
bool star_address_socket(const struct job_address *address, struct sockaddr_storage *ret_socket);
bool star_address_of(const struct sockaddr *socket_address, struct job_address *ret_address);

#endif
