/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside libnccl's double. Communicators are never freed, so that who uses one after its end is
 * told. Groups are a thread's own; a communicator belongs to the thread that is in a call on it.
 */
#ifndef FAKEGPU_NCCL_LIB_H
#define FAKEGPU_NCCL_LIB_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/fakegpu/nccl_proto.h"

struct ncclComm {
    uint64_t magic;
    struct ncclComm *next;   /* all of the process */
    _Atomic uint64_t number; /* the server's; 0: not there yet */
    int ranks, rank, device;
    int gpu; /* the server's number */
    bool blocking;
    struct ncclComm *parent; /* of a split, until it is called */
    int color, key;
    uint64_t max_ctas, flags;
    uint64_t id[2];
    void *window; /* being registered; where its handle is wanted, NULL: not any more */
    ncclWindow_t *window_to;
    _Atomic int initial;    /* before there is a number: how it stands; its failure stays */
    _Atomic bool ended;     /* destroyed or aborted */
    _Atomic uint64_t owner; /* thread in a call on it; 0: none */
    _Atomic uint32_t depth; /* of its calls */
};

/* ncclInvalidArgument where it is none. */
ncclResult_t comm_check(struct ncclComm *comm);
ncclResult_t comm_new(struct ncclComm **ret_comm);
/* The calling thread uses it from here; another one that does so too breaks a rule. */
void comm_enter(struct ncclComm *comm, const char *call);
void comm_leave(struct ncclComm *comm);
/* One request about the communicator; a result. */
ncclResult_t comm_ask(uint32_t kind, uint64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                      struct fg_reply *ret_reply);
ncclResult_t comm_state(struct ncclComm *comm);
/* Polls to an end, as blocking communicators do. */
ncclResult_t comm_wait(struct ncclComm *comm);
/* The communicator's state is known: a window that it was registering has its handle now. */
void comm_window_given(struct ncclComm *comm, ncclResult_t state);
/* A text for ncclGetLastError of this thread; gives the result back. */
ncclResult_t nccl_error(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum group_init { GROUP_INIT, GROUP_SPLIT };

/* Both within an implicit group of their own where there is none. */
ncclResult_t group_call(struct ncclComm *comm, const struct fgn_call *call);
ncclResult_t group_init(struct ncclComm *comm);
void sleep_a_little(void);

#endif
