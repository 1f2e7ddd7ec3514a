/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error codes of gradwire: one table is enum, name and message at once.
 *
 * Every call returns 0 or one of these negative values. The scope says what an error ends: the
 * call alone (op), the buffer, the client's connection, the job, or the node's service.
 */
#ifndef GRADWIRE_ERRORS_H
#define GRADWIRE_ERRORS_H

/* X(name, value, scope, message) */
#define GW_ERROR_MAP(X)                                                                            \
    X(INVALID, -1, OP, "an argument is wrong")                                                     \
    X(STATE, -2, OP, "the call does not fit the present state")                                    \
    X(NOMEM, -3, OP, "memory cannot be had")                                                       \
    X(TIMEOUT, -4, OP, "the deadline has passed")                                                  \
    X(AGAIN, -5, OP, "not now; wait and call again")                                               \
    X(NOT_FOUND, -6, OP, "no such thing")                                                          \
    X(DUPLICATE, -7, OP, "given twice")                                                            \
    X(LIMIT, -8, OP, "a limit would be exceeded")                                                  \
    X(UNIMPLEMENTED, -9, OP, "this release cannot do that")                                        \
    X(BUSY, -10, BUFFER, "the buffer is in use")                                                   \
    X(BUDGET, -11, OP, "fetched parameters exceed the gather budget")                              \
    X(IO, -12, OP, "a file or socket operation failed")                                            \
    X(PROTOCOL, -13, CLIENT, "malformed or unexpected message")                                    \
    X(VERSION, -14, CLIENT, "no common protocol version")                                          \
    X(DENIED, -15, CLIENT, "not allowed")                                                          \
    X(FORKED, -16, CLIENT, "the handle belongs to the parent process")                             \
    X(MISMATCH, -17, JOB, "the ranks do not agree")                                                \
    X(PEER_LOST, -18, JOB, "a rank of the job is gone")                                            \
    X(ENGINE_LOST, -19, JOB, "the job's engine is gone")                                           \
    X(TORN, -20, JOB, "a shard's owner died while updating it")                                    \
    X(UNUSED, -21, JOB, "a parameter has no gradient")                                             \
    X(INTERNAL, -22, JOB, "an internal check failed; please report it")                            \
    X(NO_DAEMON, -23, NODE, "gradwired does not answer")                                           \
    X(DRAINING, -24, NODE, "gradwired takes no new jobs")                                          \
    X(DEVICE, -25, JOB, "a GPU or its libraries failed")                                           \
    X(NO_DEVICE, -26, NODE, "this node offers no such device")

enum gw_error {
    GW_OK = 0,
#define GW_ERROR_ENUM(name, value, scope, message) GW_E_##name = value,
    GW_ERROR_MAP(GW_ERROR_ENUM)
#undef GW_ERROR_ENUM
        GW_ERROR_LAST = -27
};

#endif
