/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the nccl fabric: what its files share. Not for users of the fabric table.
 *
 * Threads. The loop thread owns the fabric, the list of groups, ops and tasks. The issuing thread
 * of a rank's GPU runs that rank's parts of ops and tasks, and alone touches what is marked as its
 * own (comm[rank], handle). Everything else a part reads is written before it is handed
 * over.
 *
 * One generation of communicators is a struct nccl_world; ops, tasks and the fabric refer to it, so
 * that what was enqueued before an abort finds its own communicators gone, not the next one's.
 */
#ifndef GW_FABRIC_NCCL_NCCL_H
#define GW_FABRIC_NCCL_NCCL_H

#include <nccl.h>
#include <stdatomic.h>

#include "daemon/device/cuda/kernels.h"
#include "daemon/device/cuda/native.h"
#include "daemon/fabric/figures.h"
#include "daemon/fabric/nccl/parts.h"

/* The trainer computes on the same GPU: what the fabric takes of its SMs is bounded.
 *  - NCCL's CTAs: 8 of an H100's 132 SMs. Full NVLink speed wants about 16 (NCCL 2.28's default for
 *    its rings), which an engine beside a trainer must not take.
 *  - Threads of a kernel: 32 blocks of 256.
 * Neither is measured yet. */
#define NCCL_CTAS_MAX 8
#define NCCL_THREADS (32u * GW_K_BLOCK)

/* Per rank, beside its arenas: other GPUs' inputs on their way to the sum, and lanes of squares. */
#define NCCL_INPUT_BYTES (32u << 20)
#define NCCL_PIECE_MAX (16u << 20) /* elements that one kernel sums: what the lanes are for */
#define NCCL_LANE_BYTES ((uint64_t)NCCL_PIECE_MAX / GW_K_CHUNK * GW_K_LANES * 16u)
#define NCCL_SCRATCH_BYTES (NCCL_INPUT_BYTES + NCCL_LANE_BYTES)
/* Behind the scratch, per lane, for ranks of several nodes to meet. */
#define NCCL_WORD_BYTES 256u
#define NCCL_WORDS_BYTES (3u * NCCL_WORD_BYTES)
/* A job of several nodes: unique ids that its first node makes at its start, one per generation. */
#define NCCL_IDS 16u
/* Of one copy: a copy engine serves others (the trainer's) between two. */
#define NCCL_COPY_BYTES (8u << 20)
/* From so many bytes per rank on, an all-gather goes by copies of our own where all GPUs reach each
 * other: no CTA at all, with any NCCL and for any buffers. Below, it is NCCL's, which takes none
 * either between windows (window.c), and for other buffers one kernel, which costs less than the
 * copies do. Not measured yet. */
#define NCCL_GATHER_BYTES (128u << 10)
/* Up to so many bytes of other GPUs' inputs a kernel reads them in place; see exact.c. */
#define NCCL_DIRECT_BYTES (256u << 10)

#define NCCL_VERSION_MIN 22800 /* what the plug-in is written for */
#define NCCL_TIMEOUT_NS (1800 * UINT64_C(1000000000))
#define NCCL_SETTLE_NS (20 * UINT64_C(1000000000)) /* for an issuing thread to come to a task */

struct nccl_fabric;

/* What the plug-in can do without; NULL, false: missing. Each pair is whole or not there. */
struct nccl_library {
    int version;   /* 22809 */
    bool zero_cta; /* the communicator's CTAPolicy may be NCCL_CTA_POLICY_ZERO */
    ncclResult_t (*comm_register)(const ncclComm_t comm, void *base, size_t bytes, void **handle);
    ncclResult_t (*comm_deregister)(const ncclComm_t comm, void *handle);
    ncclResult_t (*window_register)(ncclComm_t comm, void *base, size_t bytes, ncclWindow_t *window,
                                    int flags);
    ncclResult_t (*window_deregister)(ncclComm_t comm, ncclWindow_t window);
};

/* Communicators over an ordered list of ranks. */
struct nccl_group {
    struct nccl_group *next; /* constant */
    uint32_t lane; /* enum core_stream of what runs on it, where nodes are several; else 0 */
    uint32_t count;
    uint32_t members[GW_GPU_RANKS_MAX];
    ncclComm_t comm[GW_GPU_RANKS_MAX]; /* by rank of the job; its issuing thread's own */
};

enum { NCCL_ID_NONE, NCCL_ID_READY, NCCL_ID_FAILED };

struct nccl_world {
    struct device *device;
    struct nccl_library library;
    uint64_t timeout_ns;
    uint32_t references;             /* loop thread */
    uint32_t count;                  /* ranks */
    uint64_t here;                   /* bit per rank: on this node, so driven by this process */
    bool spans;                      /* some are not; `id` is there from the start then */
    atomic_bool aborted; /* nothing waits for another rank any more */
    atomic_uint left;    /* ranks whose communicators are still to be aborted, then */
    atomic_int id_state;
    ncclUniqueId id; /* rank 0's issuing thread, before id_state */
    /* From which groups are split: no collective ever runs on it, for ncclCommSplit must find none
     * in flight. */
    ncclComm_t parent[GW_GPU_RANKS_MAX];
    _Atomic(struct nccl_group *) groups; /* loop thread adds in front */
    struct nccl_group *everyone;
    struct nccl_group *registered; /* everyone too: window.c. NULL: NCCL can register nothing */
    struct nccl_idle {
        struct nccl_world *world;
        uint32_t rank;
    } idle[GW_GPU_RANKS_MAX];
};

/* Memory that fabrics are told of. */
struct nccl_memory {
    struct nccl_memory *next;
    const struct device_memory *memory;
    uint32_t rank;
    void *base;
    size_t bytes;
    struct nccl_window *window; /* NULL: none yet */
    void *handle; /* the rank's issuing thread's: registered in its generation; NULL: not */
};

struct nccl_window {
    struct nccl_window *next;
    struct nccl_memory *memory[GW_GPU_RANKS_MAX]; /* by rank */
    atomic_uint ready; /* ranks that have registered theirs in this generation */
};

/* An op on its way; one allocation, arrays behind it. Parts of several ranks read it at once. */
struct nccl_op {
    struct nccl_fabric *fabric;
    struct nccl_world *world;
    struct nccl_group *group; /* NULL: no communicator needed */
    struct core_op op;        /* its arrays: copies, or NULL where the fabric has no use for them */
    const void **in;
    void **out;
    struct fabric_segment *segments;
    uint32_t segment_count;
    struct gw_k_partial *partials; /* pinned; of op.bucket; NULL: not asked for */
    uint64_t **boards;             /* VERDICT: by member; where GPUs reach them; NULL: none */
    uint8_t **board_bits;
    uint64_t **verdicts;
    uint64_t ring_bytes, hold_ns;
    uint64_t lent_in, lent_out; /* bit per member: in[] or out[] is a client's own memory */
    uint64_t here;   /* bit per member: on this node */
    uint64_t absent; /* bit per member: its input is zeros, wherever it is */
    bool crosses;    /* its ranks are on several nodes */
    bool nothing;    /* none is here */
    bool exact;  /* sums in the fixed order */
    bool copies; /* ALL_GATHER without a communicator */
};

/* What VERDICT needs on a rank's GPU; made when a layout is sealed. */
struct nccl_staging {
    void *base; /* one block: */
    struct gw_k_partial *partials;
    struct gw_k_bucket *buckets; /* constant: into `partials` */
    uint32_t *bits;
};

struct nccl_fabric {
    struct fabric_config config;
    struct nccl_library library;
    /* Lanes: two streams each on every GPU, which has 32 hardware queues, whatever the number of
     * ranks. One lane does for the gathers of all: each is of one rank, and a lane orders nothing
     * between works that have no rank in common. */
    struct device_stream *reduce, *control, *gather;
    uint32_t formed; /* times, with several nodes: which id is next */
    struct nccl_world *world; /* NULL: not formed */
    struct nccl_world *last;  /* aborted, perhaps not everywhere yet; NULL: none */
    struct nccl_memory *memory;
    struct nccl_window *windows; /* oldest first: in this order they are registered */
    struct {
        char *base; /* NCCL_SCRATCH_BYTES; used by the reduce lane only, which is in order */
        int gpu;
    } scratch[GW_GPU_RANKS_MAX];
    /* Of the sealed layout. One set of partials for all steps: the core lets a step's first
     * reduction wait for the verdict before it. */
    uint32_t buckets, params;
    uint64_t *starts; /* parts_partials */
    uint64_t *slice_numel;
    uint32_t *slices; /* by bucket: members of its group */
    struct gw_k_partial *partials; /* pinned: every GPU writes its slices', every verdict reads */
    struct nccl_staging staging[GW_GPU_RANKS_MAX];
    struct fabric_counters counters;
};

static inline struct nccl_fabric *nccl_of(struct fabric *fabric)
{
    return (struct nccl_fabric *)(void *)fabric;
}

/* One rank's part of an op, while it is issued. */
struct nccl_part {
    const struct nccl_op *op;
    const struct cuda_native *native;
    uint32_t index;  /* of the rank in op.members */
    char *scratch;
    uint64_t moved;
    bool failed; /* told; nothing more is issued */
};

/* library.c */
int nccl_library_find(struct nccl_library *library, char text[GW_TEXT_MAX + 1]);

/* comms.c: loop thread but for what it says. */
/* Also after an error there is a world, NULL only for want of memory: what some issuing threads
 * have begun is to be aborted and settled like any other. */
int nccl_world_new(struct nccl_fabric *fabric, struct nccl_world **ret_world);
struct nccl_world *nccl_world_unref(struct nccl_world *world);
void nccl_world_abort(struct nccl_world *world);
/* After an abort: waits until it has been done everywhere, so that memory may go and another world
 * come. A GPU that does not come to it is the device's fault. */
void nccl_world_settle(struct nccl_world *world);
/* The group of these members, made if it is new. */
int nccl_group_get(struct nccl_world *world, const uint32_t *members, uint32_t count, uint32_t lane,
                   struct nccl_group **ret_group);
/* Issuing thread: the call on the communicator returned `result`: polled until it is over, so that
 * what it enqueues is on the stream. False: failed and told, or the world was aborted; the
 * communicator has been aborted then, and *comm is NULL. */
bool nccl_settled(struct nccl_world *world, uint32_t rank, ncclComm_t *comm, ncclResult_t result,
                  const char *call);

/* window.c: loop thread. Registers all with a new generation. */
int nccl_windows_register(struct nccl_fabric *fabric);
/* Memory of that size has come: perhaps of the last rank that had none. */
int nccl_window_try(struct nccl_fabric *fabric, size_t bytes);
/* Waits until NCCL has let go of it. False: it is not known to be over, so the memory may still be
 * in use. */
bool nccl_window_end(struct nccl_fabric *fabric, struct nccl_window *window);
/* All buffers of the op are registered, at equal offsets: its group is world->registered. */
bool nccl_alike(const struct nccl_op *op);

/* task.c: what issuing threads do beside works. Posted by the loop thread. */
struct nccl_task {
    struct nccl_world *world;
    struct nccl_group *group;
    struct nccl_memory *memory;
    uint32_t rank;
    void (*run)(struct nccl_task *task);
    struct nccl_finish *finish; /* task.c's; NULL: nobody waits */
};
/* Copies it; behind what the thread has to do already. */
int nccl_task_post(const struct nccl_task *task);
/* The same, and waits for its end. False: it has not come within NCCL_SETTLE_NS, which is told, or
 * will not, for the device is broken. */
bool nccl_task_wait(const struct nccl_task *task);

/* op.c: loop thread. */
int nccl_op_new(struct nccl_fabric *fabric, const struct fabric_op *from, struct nccl_op **ret_op);
void nccl_op_free(void *arg);

/* seal.c: loop thread. */
int nccl_seal(struct nccl_fabric *fabric, const struct gw_layout_page *page);
void nccl_unseal(struct nccl_fabric *fabric);

/* run.c: issuing threads. */
void nccl_run(void *arg, void *native);
/* Each issues calls on the part's stream; a failure is told and marks the part. */
struct nccl_side { /* of a copy */
    const void *at;
    uint32_t rank; /* whose memory; the host's: the part's own */
    bool lent;     /* a client's own */
};
void nccl_copy(struct nccl_part *part, struct nccl_side to, struct nccl_side from, uint64_t bytes);
void nccl_check(struct nccl_part *part, int code, const char *call);
/* The part's GPU may use that memory: its kernels can read it in place. */
bool nccl_reaches(const struct nccl_part *part, const struct nccl_side *side);
/* Elements from `first` on of a member's input or output, or what is the part's own. */
struct nccl_side nccl_in(const struct nccl_op *op, uint32_t index, uint64_t first);
struct nccl_side nccl_out(const struct nccl_op *op, uint32_t index, uint64_t first);
static inline struct nccl_side nccl_own(const struct nccl_part *part, const void *at)
{
    return (struct nccl_side){at, part->native->rank, false};
}
/* What the lanes hold of `count` values to the partials from chunk `chunk` on of the part's slice.
 * */
void nccl_squares(struct nccl_part *part, uint64_t chunk, uint64_t count);
struct gw_k_partial *nccl_lanes(const struct nccl_part *part);

/* exact.c, ring.c: issuing threads. */
void nccl_exact_reduce_scatter(struct nccl_part *part);
void nccl_exact_all_reduce(struct nccl_part *part);
void nccl_ring_reduce_scatter(struct nccl_part *part);
void nccl_ring_all_reduce(struct nccl_part *part);
void nccl_all_gather(struct nccl_part *part);
void nccl_broadcast(struct nccl_part *part);

/* places.c: loop and issuing threads. */
bool nccl_is_here(const struct nccl_fabric *fabric, uint32_t rank);
bool nccl_crosses(const struct nccl_fabric *fabric, const struct core_op *op);
/* Bit per rank whose GPU does something for the op. */
uint64_t nccl_parts_here(const struct nccl_fabric *fabric, const struct core_op *op);
/* UINT32_MAX: none is. */
uint32_t nccl_first_here(const struct nccl_fabric *fabric, const uint32_t *ranks, uint32_t count);
/* span.c: issuing threads. Between begin and end, calls of one group; members by their index. */
void nccl_exchange_begin(struct nccl_part *part);
void nccl_send(struct nccl_part *part, uint32_t to, const void *from, uint64_t bytes);
void nccl_receive(struct nccl_part *part, uint32_t from, void *to, uint64_t bytes);
void nccl_exchange_end(struct nccl_part *part, bool began);
/* Of a sum's result: what member `index` adds up. */
struct parts_range nccl_share(const struct core_op *op, uint32_t index);
/* In an exchange: from `at` on `room` elements of each share that is added up elsewhere. */
void nccl_span_send_inputs(struct nccl_part *part, uint64_t at, uint64_t room);
void nccl_span_spread(struct nccl_part *part);
/* All-reduce to shards: the part's piece of its slice, and the others' at the same place of theirs,
 * between inputs on several nodes. */
void nccl_span_put_back(struct nccl_part *part, const char *own, uint64_t at, uint64_t bytes);
void nccl_span_gather(struct nccl_part *part);
void nccl_span_fill(struct nccl_part *part);
void nccl_span_meet(struct nccl_part *part);
void nccl_span_partials(struct nccl_part *part, void *partials, uint64_t bytes);

/* verdict.c: issuing threads. */
void nccl_verdict(struct nccl_part *part);

extern const struct fabric_ops fabric_nccl;

#endif
