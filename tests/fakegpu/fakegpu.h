/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between the doubles of libcuda, libcudart and libnccl and the server `fakegpu`,
 * and what libcuda's double exports to the other two.
 *
 * One SEQPACKET connection per process carries calls: a request, then its reply, nothing else.
 * The server answers every request at once; what blocks in CUDA is polled by the library, so no
 * thread of a process can hold up another. A second connection of the process, read by a helper
 * thread, carries host functions (struct fg_hostfn) to it and their ends back.
 */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <stddef.h>
#include <stdint.h>

/* Addresses of device memory and of host memory made by the double, unique over all processes. */
#define FG_VA_BASE UINT64_C(0x200000000000)
#define FG_VA_END UINT64_C(0x2f0000000000)

#define FG_GPUS_MAX 64
#define FG_PAYLOAD_MAX 60000 /* bytes behind a request */
#define FG_ARG_MAX 4096      /* a kernel's one argument */

#define FG_BUSY 1000001     /* error of a reply: ask again later */
#define FG_PAGEABLE 1000002 /* copy: the host address is not pinned, v[0]: 1 destination, 2 source,
                             * 3 both */

/* Kinds of request: name and arguments a[] -> results v[]. Streams and events are named by
 * server-wide numbers > 0; device is the server's number of the GPU (over all nodes). */
enum fg_kind {
    FG_HELLO = 1,   /* pid, node, channel (0 calls, 1 host functions: process id in a[3]), flags,
                     * hardware queues (0: 8) -> process id, GPUs per node, first GPU of the node */
    FG_BYE,         /* leave in an orderly way: leaks are looked for */
    FG_DEVICE,      /* -> total bytes, free bytes, FG_CAP_* and more (FG_MODE_SHIFT, ...), bit per
                     * GPU whose memory it reaches */
    FG_CONTEXT,     /* 1 made, 0 destroyed */
    FG_ALLOC,       /* bytes -> address */
    FG_FREE,        /* address */
    FG_HOST_ALLOC,  /* bytes -> address, + fd */
    FG_HOST_FREE,   /* address */
    FG_REGISTER,    /* host address, bytes, read-only, offset in fd; + fd -> device address */
    FG_UNREGISTER,  /* host address */
    FG_POINTER,     /* address -> base, bytes, FG_MEM_* | device << 8, device address */
    FG_IPC_EXPORT,  /* address -> two words that name the allocation */
    FG_IPC_OPEN,    /* the two words -> address, bytes */
    FG_IPC_CLOSE,   /* address */
    FG_VMM_CREATE,  /* bytes, exportable -> handle */
    FG_VMM_RELEASE, /* handle */
    FG_VMM_RESERVE, /* bytes, alignment -> address */
    FG_VMM_UNRESERVE, /* address, bytes */
    FG_VMM_MAP,       /* address, bytes, offset, handle */
    FG_VMM_UNMAP,     /* address, bytes */
    FG_VMM_ACCESS,    /* address, bytes, 0 none / 1 read / 3 read and write; device */
    FG_VMM_EXPORT,    /* handle -> + fd */
    FG_VMM_IMPORT,    /* + fd -> handle, bytes */
    FG_STREAM_NEW,    /* flags (1 non-blocking, 2 a thread's own), priority -> stream */
    FG_STREAM_FREE,   /* stream */
    FG_STREAM_NULL,   /* -> the device's NULL stream of this process */
    FG_EVENT_NEW,     /* flags -> event */
    FG_EVENT_FREE,    /* event */
    FG_EVENT_RECORD,  /* stream, event */
    FG_EVENT_WAIT,    /* stream, event */
    FG_EVENT_ELAPSED, /* event, event -> nanoseconds (signed) */
    FG_EVENT_EXPORT,  /* event -> two words */
    FG_EVENT_OPEN,    /* two words -> event */
    FG_QUERY,         /* FG_SCOPE_*, number -> FG_BUSY or 0 */
    FG_KERNEL_FIND,   /* payload: name -> number + 1, argument bytes */
    FG_LAUNCH,        /* stream, kernel, blocks, threads per block; payload: the argument */
    FG_COPY,          /* stream, to, from, bytes, 0 or GPU + 1 of both contexts: to | from << 8 */
    FG_FILL,          /* stream, to, value, width (1, 2, 4), count */
    FG_MEMOP,         /* stream; payload: struct fg_memop */
    FG_HOSTFN,        /* stream, function, argument */
    FG_PEER,          /* peer device: `device` may reach its memory from now on */
    FG_SYNC,          /* payload: name of a call that blocks the host or may */
    FG_VIOLATION,     /* payload: rule, space, text */
    FG_NCCL_FIRST = 1000, /* these belong to the NCCL double: nccl_*.h */
    FG_NCCL_LAST = 1099,
};

enum { FG_SCOPE_STREAM, FG_SCOPE_EVENT, FG_SCOPE_DEVICE };
enum { FG_MEM_NONE, FG_MEM_DEVICE, FG_MEM_HOST, FG_MEM_REGISTERED };
/* Bits 32.. of FG_POINTER's third word. */
enum { FG_MAP_MALLOC, FG_MAP_IPC, FG_MAP_VMM, FG_MAP_HOST, FG_MAP_REGISTERED };
enum { FG_CAP_MEMOPS = 1, FG_CAP_IPC = 2, FG_CAP_MPS = 4 };
/* Beside the FG_CAP_*: the compute mode, 8 bits, and how many GPUs share faster links (0: all). */
enum { FG_MODE_SHIFT = 8, FG_LINKS_SHIFT = 16 };
enum { FG_HELLO_NO_LEAKS = 1 }; /* leaks of this process are not reported */
enum { FG_MEMOP_WAIT, FG_MEMOP_WRITE };
enum { FG_WAIT_GEQ, FG_WAIT_EQ, FG_WAIT_AND, FG_WAIT_NOR };

struct fg_memop { /* of a 64-bit word */
    uint32_t kind;    /* FG_MEMOP_* */
    uint32_t compare; /* FG_WAIT_* */
    uint64_t address, value;
};

struct fg_request {
    uint32_t kind;
    uint32_t device;
    uint64_t a[6];
    uint32_t payload_bytes;
    uint32_t reserved;
};

struct fg_reply {
    int32_t error; /* a CUresult, FG_BUSY, FG_PAGEABLE */
    uint32_t reserved;
    uint64_t v[4];
};

/* Server to helper thread; the thread sends back `op` when the function has returned. */
struct fg_hostfn {
    uint64_t op, function, argument;
};

/* ---- exported by libcuda's double to the doubles of libcudart and libnccl ------------------- */

/* A CUresult; a reply's value otherwise. Thread-safe. `reply` may be NULL. */
int fg_call(struct fg_request *request, const void *payload, struct fg_reply *ret_reply);
/* The same with a descriptor to the server (-1: none) and one back (NULL: none; close-on-exec). */
int fg_call_fd(struct fg_request *request, const void *payload, int fd, struct fg_reply *ret_reply,
               int *ret_fd);
/* The server's number of what a CUstream/cudaStream_t means to the calling thread: also NULL,
 * legacy (1) and per-thread (2). 0: no such stream. device: of the NULL stream. */
uint64_t fg_stream(void *stream);
/* The calling thread's current GPU as the server numbers it; makes device 0's primary context
 * current where none is, as the runtime does. -1: there is no GPU. */
int fg_current_gpu(void);
/* The server's number of a CUDA ordinal (CUDA_VISIBLE_DEVICES); -1: none. */
int fg_gpu_of_ordinal(int ordinal);
int fg_gpu_count(void);
int fg_ordinal_of_gpu(int gpu);
/* cudaSetDevice. */
int fg_set_device(int ordinal);
/* Breaks a rule that the library itself sees. */
void fg_violation(const char *rule, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Tells the server that a call blocks the host, or may. */
void fg_note_sync(const char *call);

#endif
