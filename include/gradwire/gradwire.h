/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgradwire: the client side of gradwire, for one training process (one rank).
 *
 * Rules that hold for every call
 *  - Returns 0 or a negative GW_E_* value (errors.h). gw_last_error() has the thread's message:
 *    what happened, to whom, and what to do.
 *  - May be made from any thread. The library starts no thread, installs no signal handler, never
 *    exits, prints, or changes the environment.
 *  - Only gw_wait*, *_sync and set-up calls block; each takes timeout_ns (GW_FOREVER: the job's own
 *    deadlines alone bound it; 0: poll), or is bounded by gw_job_options.timeout_ns where it takes
 *    none. All other calls return at once; gw_job_close may wait a second to say good-bye.
 *  - Option structs start with struct_size = sizeof(struct). A zero field means its default.
 *  - Handles are dead in a forked child (GW_E_FORKED).
 *  - GRADWIRE_SOCKET names gradwired's socket; GRADWIRE_DEBUG=guard takes access to gradients and
 *    parameters away outside the windows in which they may be used (whole pages), for debugging.
 *  - Sizes of tensors are elements unless the name ends in _bytes.
 *
 * A rank's life: gw_job_create (rank 0) or gw_job_join (others, with rank 0's id) ->
 * gw_param_add... -> gw_seal -> gw_param_write_sync (initial values), gw_barrier -> steps ->
 * gw_job_close.
 *
 * A step: for each unit in forward order gw_fetch, gw_wait, use gw_param_ptr, gw_release; in
 * backward the same in reverse, and for each parameter gw_grad_acquire_sync, write, gw_grad_ready;
 * gw_step_end, gw_wait_step (verdict); gw_update_begin, gw_wait, write the shard's spans,
 * gw_update_commit. The same calls serve all stages.
 */
#ifndef GRADWIRE_GRADWIRE_H
#define GRADWIRE_GRADWIRE_H

#include <stddef.h>
#include <stdint.h>

#include <gradwire/errors.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GW_API __attribute__((visibility("default")))
#else
#define GW_API
#endif

#define GW_VERSION_MAJOR 0
#define GW_VERSION_MINOR 1
#define GW_VERSION_PATCH 0

#define GW_FOREVER INT64_MAX
#define GW_JOB_ID_MAX 256
#define GW_TAG_CHARS 17 /* 16 hex digits and the final 0 */

typedef struct gw_job gw_job;

/* A point on a timeline: a 64-bit word that only rises; reached once the word is >= value.
 * Plain data: copy it freely. A token with timeline 0 is always reached. */
struct gw_token {
    uint32_t timeline;
    uint32_t reserved;
    uint64_t value;
};

/* "0.1.0"; static storage. */
GW_API const char *gw_version(void);
/* "GW_E_TIMEOUT" and the table's message; static storage; "GW_E_?" for unknown values. */
GW_API const char *gw_error_name(int error);
GW_API const char *gw_error_message(int error);
/* Text of the calling thread's last failed call; valid until its next call. */
GW_API const char *gw_last_error(void);

/* Types of values. Sums are made in fp32 and rounded once, to nearest, ties to even. */
enum gw_dtype { GW_DTYPE_FP32 = 0, GW_DTYPE_FP16 = 1, GW_DTYPE_BF16 = 2, GW_DTYPES };

/* ---- job ------------------------------------------------------------------------------------ */

struct gw_job_id {
    uint32_t size_bytes;
    uint8_t bytes[GW_JOB_ID_MAX]; /* opaque; holds the job's secret: treat it like a key */
};

struct gw_device;

struct gw_job_options {
    size_t struct_size;
    const char *socket_path;  /* NULL: $GRADWIRE_SOCKET, else /run/gradwire/gradwired.sock */
    uint32_t rank;            /* 0 .. world-1 */
    uint32_t world;           /* ranks of the job, >= 1 */
    int64_t timeout_ns;       /* of this call, and of set-up calls that take none; default 30 s */
    int64_t join_timeout_ns;  /* creator only: all ranks must have joined; default 300 s */
    int64_t op_timeout_ns;    /* creator only: deadline of every op; default 1800 s */
    int64_t linger_ns;        /* creator only: engine's life after its last client; 0: the daemon's
                               * setting; negative: none. Less where all ranks have left in good
                               * order and another job wants a GPU of it */
    uint64_t link_bytes_per_s; /* creator only, tests and demo: simulated link per rank; 0: off */
    const char *name;         /* shown by gwctl, <= 63 bytes; default: program's name */
    struct gw_device *device; /* the rank's GPU (gradwire/cuda.h); NULL: host memory. All ranks of
                               * a job are on GPUs, or none */
    uint32_t nodes; /* creator only. 0, 1: all ranks are on this node. More: the job may span so
                     * many; the id then holds an address of this node, where its engine listens for
                     * the others (star_interface, star_ports of gradwired.conf). Until the job has
                     * formed, ranks may join on any node whose gradwired runs; later, on the same
                     * nodes again */
};

/* Starts a job and joins it as options->rank. Does not wait for the other ranks. */
GW_API int gw_job_create(const struct gw_job_options *options, gw_job **ret_job);
/* Joins the job that `id` names (also again, after GW_E_PEER_LOST: the job re-forms as the next
 * generation and shards are kept). Does not wait for the other ranks. Refuses another world size
 * than the creator's and a rank that is taken. */
GW_API int gw_job_join(const struct gw_job_options *options, const struct gw_job_id *id,
                       gw_job **ret_job);
/* Leaves the job and frees everything of the handle; NULL is fine; returns NULL. Pointers into
 * service memory die with it. */
GW_API gw_job *gw_job_close(gw_job *job);
GW_API int gw_job_get_id(gw_job *job, struct gw_job_id *ret_id);
/* The job's public name: 16 hex digits. */
GW_API int gw_job_tag(gw_job *job, char ret_tag[GW_TAG_CHARS]);
GW_API uint32_t gw_job_rank(const gw_job *job);
GW_API uint32_t gw_job_world(const gw_job *job);
GW_API uint32_t gw_job_generation(const gw_job *job);
/* Set-up: returns when all ranks have joined. */
GW_API int gw_job_wait_ready(gw_job *job, int64_t timeout_ns);
/* Descriptor that turns readable when any of the job's tokens is reached or the job fails; for
 * event loops. Owned by the job. Call gw_job_event_clear after each wake-up, then poll tokens.
 * Set-up call the first time. */
GW_API int gw_job_event_fd(gw_job *job, int *ret_fd);
GW_API int gw_job_event_clear(gw_job *job);

/* Passing the id through a file that only its owner can read. save: refuses an existing file
 * (O_EXCL|O_NOFOLLOW, mode 0600), complete or absent for readers. load: waits up to timeout_ns for
 * the file; refuses a file of another user or readable by others. */
GW_API int gw_job_id_save(const struct gw_job_id *id, const char *path);
GW_API int gw_job_id_load(const char *path, int64_t timeout_ns, struct gw_job_id *ret_id);
/* The id as hex digits and a 0, for stores that hold texts, and back. The text is as secret as the
 * id: not for logs or command lines. from_text: GW_E_INVALID for anything but such a text. */
#define GW_JOB_ID_TEXT_BYTES (2 * GW_JOB_ID_MAX + 1)
GW_API int gw_job_id_text(const struct gw_job_id *id, char ret_text[GW_JOB_ID_TEXT_BYTES]);
GW_API int gw_job_id_from_text(const char *text, struct gw_job_id *ret_id);

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Waits for one token. GW_E_TIMEOUT leaves it valid. Fails at once with the job's error when the
 * job has failed (GW_E_PEER_LOST, GW_E_MISMATCH, GW_E_ENGINE_LOST, ...), unless the token had been
 * reached before. */
GW_API int gw_wait(gw_job *job, struct gw_token token, int64_t timeout_ns);
/* First reached of `count` tokens; its index in *ret_index. */
GW_API int gw_wait_any(gw_job *job, const struct gw_token *tokens, size_t count,
                       int64_t timeout_ns, size_t *ret_index);
GW_API int gw_wait_all(gw_job *job, const struct gw_token *tokens, size_t count,
                       int64_t timeout_ns);
/* 1 reached, 0 not yet, negative: job failed. Never blocks. */
GW_API int gw_test(gw_job *job, struct gw_token token);

/* The caller's own timelines, for gradients that another thread of this process is still writing:
 * give {timeline, value} to gw_grad_ready, raise it when the writes are done. At most 64; values
 * are below 2^63 - 1. */
GW_API int gw_timeline_new(gw_job *job, uint32_t *ret_timeline);
GW_API int gw_timeline_raise(gw_job *job, uint32_t timeline, uint64_t value);

/* ---- collectives ------------------------------------------------------------------------------
 * Ops of all ranks on a group run in the order of the calls; the n-th call of each rank must be the
 * same op (kind, name, count, dtype, scale), or all ranks get one GW_E_MISMATCH naming both sides,
 * before any byte is summed. A rank has at most 64 ops in flight, counted from its oldest
 * unfinished one on (GW_E_AGAIN beyond). Sums are the fixed tree ((0+1)+(2+3))+..., in fp32, times
 * (float)(scale * pre_scale), rounded once to the dtype. In place is allowed where said.
 */

typedef struct gw_buffer gw_buffer;
enum { GW_GROUP_WORLD = 0 };

/* Ordered subset of the job's ranks; every member calls it with the same list, in the same order of
 * calls. Set-up call. */
GW_API int gw_group_new(gw_job *job, const uint32_t *ranks, uint32_t count, int64_t timeout_ns,
                        uint32_t *ret_group);
/* Zeroed memory made by the service and mapped here. Both are set-up calls. free is refused
 * (GW_E_BUSY) while an op uses the buffer; unless it returns 0, the buffer stays the caller's. */
GW_API int gw_buffer_new(gw_job *job, size_t size_bytes, gw_buffer **ret_buffer);
GW_API int gw_buffer_free(gw_job *job, gw_buffer *buffer);
GW_API void *gw_buffer_data(gw_buffer *buffer);
GW_API size_t gw_buffer_size(const gw_buffer *buffer);

struct gw_slice {
    gw_buffer *buffer;
    uint64_t offset; /* elements of the op's dtype */
};

/* How a sum over ranks is added up. exact: the fixed tree, the same bits on every device, placement
 * and repeat. fabric (CUDA only): as NCCL does it; repeatable for one layout, version and topology
 * only. */
enum gw_order { GW_ORDER_EXACT = 0, GW_ORDER_FABRIC = 1 };

struct gw_op_options {
    size_t struct_size;
    const char *name; /* <= 63 bytes; told when ranks differ */
    double scale;     /* 0: 1 */
    uint32_t group;
    uint32_t order;   /* enum gw_order */
    uint32_t dtype;   /* enum gw_dtype, of what is sent and received */
    double pre_scale; /* 0: 1 */
};

/* recv[count] = scale * sum over ranks of send[rank*count ...]; send holds count*group size. recv
 * may be the rank's own slice of send. */
GW_API int gw_reduce_scatter(gw_job *job, struct gw_slice send, struct gw_slice recv,
                             uint64_t count, const struct gw_op_options *options,
                             struct gw_token *ret_token);
/* recv[r*count ...] = send[count] of rank r; send may be the rank's own slice of recv. */
GW_API int gw_all_gather(gw_job *job, struct gw_slice send, struct gw_slice recv, uint64_t count,
                         const struct gw_op_options *options, struct gw_token *ret_token);
/* recv[count] = scale * sum of send[count]; recv may be send. */
GW_API int gw_all_reduce(gw_job *job, struct gw_slice send, struct gw_slice recv, uint64_t count,
                         const struct gw_op_options *options, struct gw_token *ret_token);
/* data[count] of group member `root` to all. */
GW_API int gw_broadcast(gw_job *job, struct gw_slice data, uint64_t count, uint32_t root,
                        const struct gw_op_options *options, struct gw_token *ret_token);
GW_API int gw_barrier(gw_job *job, const struct gw_op_options *options,
                      struct gw_token *ret_token);

/* ---- ZeRO: set-up ---------------------------------------------------------------------------- */

enum gw_accumulate { GW_ACCUMULATE_AUTO = 0, GW_ACCUMULATE_LOCAL = 1, GW_ACCUMULATE_SHARD = 2 };
enum gw_gather { GW_GATHER_PRIVATE = 0, GW_GATHER_MAPPED = 1 };
enum gw_unused { GW_UNUSED_ZERO = 0, GW_UNUSED_ERROR = 1 };
enum gw_norm { GW_NORM_2 = 0, GW_NORM_MAX = 1 };

struct gw_zero_options {
    size_t struct_size;
    uint32_t stage;             /* 0..3 */
    uint32_t accumulate;        /* enum gw_accumulate; auto: local in stages 0-1, shard in 2-3 */
    uint32_t gather;            /* enum gw_gather; mapped: stage 3, one node, host memory */
    uint32_t unused;            /* enum gw_unused: a parameter without gradient at step end */
    uint32_t overlap_off;       /* 1: nothing starts before all ranks' last gradient */
    uint32_t ring_slots;        /* bucket buffers per rank (stages 2-3 in shard mode); default 3 */
    uint32_t micro_steps;       /* gw_micro_step_end calls per step + 1, at most; default 1 */
    uint32_t shard_align_bytes; /* slices are multiples of it; power of 2, 4..4096; default 64 */
    uint64_t bucket_bytes;      /* of one bucket before padding; > 0, no default: say it */
    double scale;               /* of the sum; 0: 1/(members of the parameter's group): mean */
    double clip_norm;           /* 0: none; else clip factor min(1, clip_norm/(norm+1e-6)) */
    uint64_t gather_bytes;      /* stage 3: budget of gathered units per rank; 0: three largest */
    uint64_t prefetch_bytes;    /* stage 3: gathered ahead; 0: the largest unit */
    uint32_t order;             /* enum gw_order of the reductions */
    uint32_t norm;              /* enum gw_norm of the verdict, over all groups' shards */
    double pre_scale;           /* multiplied into scale; 0: 1 */
    uint32_t reduce_dtype;      /* fp16, bf16: each rank's gradient is rounded to it before the sum;
                                 * 0: summed as given */
    uint32_t accum_as_grads;    /* 1: reduced gradients and sums over micro-steps have the
                                 * gradients' dtype; 0: fp32 */
    uint32_t shard_ranks;       /* hybrid sharding of group 0 (gw_param_group_add): 0: none */
    uint64_t persist_bytes;     /* stage 3: parameters of at most so many bytes stay gathered from
                                 * update to update, all in one gather; 0: none */
    uint64_t reuse_bytes;       /* stage 3: a released unit stays gathered if, in the order
                                 * followed, less than so many bytes are fetched before it is
                                 * again, and the budget allows; 0: off */
    uint32_t secondary_ranks;   /* stage 3, private gather: each block of so many neighbouring
                                 * ranks (it divides the ranks; a node's, best) keeps a second
                                 * copy of group 0's shards, filled by the block's first gather of
                                 * a version; its later gathers stay inside the block; 0: none */
    uint32_t all_reduce;        /* stages 1-3: 1: each bucket's reduction is an all-reduce, in the
                                 * buffer that the gradients were given in, of which every owner
                                 * takes its slice: the same gradients for twice the bytes sent;
                                 * 0: a reduce-scatter */
};

/* Ranks that hold, reduce and update some of the parameters together: data-parallel groups beside
 * tensor, pipeline or expert parallelism. Group 0 is all ranks. ranks: in the order of the sum's
 * tree and of the slices; each once. shard_ranks: 0, or hybrid sharding: each run of so many
 * members (it divides count; stages 1-3) holds one copy of the shards; gradients are
 * reduce-scattered within a run, and once a step, when final, all-reduced in fp32 between the runs.
 * All ranks of the job, members or not, add the same groups in the same order, before the seal. */
GW_API int gw_param_group_add(gw_job *job, const uint32_t *ranks, uint32_t count,
                              uint32_t shard_ranks, uint32_t *ret_group);

struct gw_param_options {
    size_t struct_size;
    const char *unit;    /* groups neighbouring parameters that are fetched together (a layer);
                          * NULL: a unit of its own */
    uint32_t dtype;      /* enum gw_dtype of the values that are fetched. fp16, bf16: the shard is
                          * kept in fp32 (master) and rounded at every commit */
    uint32_t grad_dtype; /* enum gw_dtype of the gradients given */
    uint32_t group;      /* gw_param_group_add; ranks outside know the parameter, hold nothing */
};
/* Names the next parameter of the job (index = order of calls from 0). numel may be 0. All ranks
 * must register the same list. options NULL: all defaults. */
GW_API int gw_param_add(gw_job *job, const char *name, uint64_t numel,
                        const struct gw_param_options *options, uint32_t *ret_param);
/* Set-up: every rank calls it; returns when the layout is agreed and memory is mapped. Collectives
 * under way are finished first, and those that come meanwhile wait. On re-joining a job with the
 * same list and options, shards keep their values; GW_E_TORN if an owner died inside an update
 * (gw_last_error names the shard's rank; the job must be started anew). */
GW_API int gw_seal(gw_job *job, const struct gw_zero_options *options, int64_t timeout_ns);

struct gw_layout_info {
    uint32_t buckets;
    uint32_t units;       /* as registered, in order of first parameter */
    uint32_t fetch_units; /* stage 3: after merging small neighbours; else = units */
    uint32_t params;
    uint64_t numel;        /* sum of parameters */
    uint64_t padded_numel; /* sum of padded buckets */
    uint8_t hash[32];      /* BLAKE2b of the layout page; equal on all ranks */
};
struct gw_bucket_info {
    uint64_t offset;       /* of its first element in the flat, padded order */
    uint64_t numel;        /* without padding */
    uint64_t padded_numel; /* cut into as many slices as shard_ranks; the member at position i of
                            * the group owns slice i % shard_ranks */
    uint32_t fetch_unit;
    uint32_t group, members, shard_ranks; /* shard_ranks = members unless sharding is hybrid */
    uint32_t dtype, grad_dtype, accum_dtype; /* enum gw_dtype; accum: of the reduced gradient */
};
struct gw_piece_info { /* part of a parameter that lies in one bucket */
    uint32_t bucket;
    uint64_t bucket_offset; /* elements from the bucket's start */
    uint64_t param_offset;
    uint64_t numel;
};
GW_API int gw_layout(gw_job *job, struct gw_layout_info *ret_info);
GW_API int gw_layout_bucket(gw_job *job, uint32_t bucket, struct gw_bucket_info *ret_info);
/* Pieces of a parameter: 0 (zero-size), 1, or more where it is cut. */
GW_API int gw_param_pieces(gw_job *job, uint32_t param, uint32_t *ret_count);
GW_API int gw_param_piece(gw_job *job, uint32_t param, uint32_t piece,
                          struct gw_piece_info *ret_info);
GW_API int gw_param_unit(gw_job *job, uint32_t param, uint32_t *ret_unit);

/* Values into and out of the shards (all replicas, in stages 0-2), from any rank, any part, between
 * steps only (no unit fetched, no gradient of a new step declared). fp32 whatever the parameter's
 * dtype: what is moved are the masters, and what is fetched later are they, rounded. Other ranks
 * see a write after the next gw_barrier. */
GW_API int gw_param_write_sync(gw_job *job, uint32_t param, uint64_t offset, uint64_t count,
                               const float *values, int64_t timeout_ns);
GW_API int gw_param_read_sync(gw_job *job, uint32_t param, uint64_t offset, uint64_t count,
                              float *ret_values, int64_t timeout_ns);

/* ---- ZeRO: a step ---------------------------------------------------------------------------- */

/* Asks for the registered unit's parameters; the token is reached when they may be read, which is
 * at once (timeline 0) where they were gathered ahead: such a call makes no system call. Each fetch
 * needs one release. Any order, any subset of ranks. */
GW_API int gw_fetch(gw_job *job, uint32_t unit, struct gw_token *ret_token);
GW_API int gw_release(gw_job *job, uint32_t unit);
/* Read-only values of a parameter whose unit is fetched (token reached); numel elements of its
 * dtype, contiguous; valid until release. GW_E_NOT_FOUND: this rank is not in its group. */
GW_API int gw_param_ptr(gw_job *job, uint32_t param, const void **ret_values);

/* Where to write a piece's gradient: a view of service memory, valid until its gw_grad_ready. Waits
 * until an earlier reader of that memory is done. Buckets are reduced last one first in the first
 * step, then in the order of rank 0; who declares them in another order needs more ring_slots. */
GW_API int gw_grad_acquire_sync(gw_job *job, uint32_t param, uint32_t piece, int64_t timeout_ns,
                                void **ret_values, uint64_t *ret_count);

enum {
    GW_GRAD_FINAL = 0,           /* last contribution of this step */
    GW_GRAD_ACCUMULATE = 1u << 0, /* more micro-steps follow for this parameter */
    GW_GRAD_RUNNING = 1u << 1    /* the buffer holds the sum so far (accumulate local only) */
};
/* The piece's gradient is written, or will be once all of `tokens` (own timelines, at most 4) are
 * reached. Twice for a piece in one micro-step is GW_E_DUPLICATE. */
GW_API int gw_grad_ready(gw_job *job, uint32_t param, uint32_t piece, uint32_t flags,
                         const struct gw_token *tokens, size_t token_count);
/* Convenience: copies the whole parameter's gradient from the caller's memory, piece by piece, the
 * last one first (acquire, copy, ready). The copy is counted (gw_stats.copied_in_bytes). */
GW_API int gw_grad_put_sync(gw_job *job, uint32_t param, const void *values, uint32_t flags,
                            int64_t timeout_ns);
/* Ends a micro-step that is not the step's last. Missing gradients count as zero. */
GW_API int gw_micro_step_end(gw_job *job);

/* From the next step on exactly these parameters are frozen (none: count 0); a new layout epoch.
 * Frozen parameters have no gradients: a bucket is reduced once its other pieces are ready, and one
 * that is frozen as a whole is not reduced at all; its reduced gradient reads as zero and is in no
 * norm. They are fetched, updated and saved as ever. Set-up call that every rank makes, between
 * steps, with the same set; GW_E_MISMATCH names the first difference, and ends the job. Ends with
 * the seal: after a re-join nothing is frozen. No other call of the job's steps meanwhile.
 * GW_E_TIMEOUT: call again with the same set. */
GW_API int gw_freeze(gw_job *job, const uint32_t *params, size_t count, int64_t timeout_ns);

struct gw_verdict {
    uint64_t step;         /* from 1 */
    double norm;           /* of the reduced gradient, each shard once, rounded to fp32 */
    float clip_factor;     /* 1 without clip_norm */
    uint32_t nonfinite;    /* 1: an infinity or NaN was found; clip_factor is then 0 */
    uint32_t first_bucket; /* of the first non-finite value */
    uint32_t used_params;  /* parameters with a gradient on any rank */
    uint64_t digest;       /* of the step's ops, in their order */
};
/* Ends the step: missing gradients are zero-filled (or GW_E_UNUSED). The token is reached when the
 * verdict is in. */
GW_API int gw_step_end(gw_job *job, struct gw_token *ret_token);
/* Waits for the step's reductions and verdict (the same on all ranks). */
GW_API int gw_wait_step(gw_job *job, int64_t timeout_ns, struct gw_verdict *ret_verdict);
/* 1: the parameter had a gradient on some rank in the last step. */
GW_API int gw_param_used(gw_job *job, uint32_t param);

/* The rank's shard: one span per bucket of its groups. Stage 0: the whole bucket. */
struct gw_span {
    uint32_t bucket;
    uint64_t bucket_offset; /* of the span in its bucket */
    uint64_t shard_offset;  /* of the span in shard arrays */
    uint64_t numel;
    uint64_t valid_numel; /* the rest is padding */
    float *params;        /* write only between update begin (reached) and commit; the master,
                           * where parameters are fp16 or bf16 */
    const void *grads;    /* reduced gradient, from the verdict to commit; in stages 0-1 until a
                           * gradient of the next step is declared, if that is earlier */
    uint32_t grads_dtype; /* enum gw_dtype; fp32 unless accum_as_grads */
};
GW_API int gw_shard_spans(gw_job *job, const struct gw_span **ret_spans, uint32_t *ret_count);
/* Named array of the shard's shape (sum of span numels), zeroed when new; lives with the shard,
 * also over a re-join, then with the same dtype. Set-up call. */
GW_API int gw_shard_array(gw_job *job, const char *name, uint32_t dtype, void **ret_values,
                          uint64_t *ret_numel);

/* begin: reached when every rank's step has ended, so that nobody reads old values any more.
 * commit: the shard's new version may be served. A step may also end without an update: simply go
 * on with the next fetch or gradient. */
GW_API int gw_update_begin(gw_job *job, struct gw_token *ret_token);
GW_API int gw_update_commit(gw_job *job);

/* ---- saved state -------------------------------------------------------------------------------
 * A job's parameters and shard arrays as plain tensors with names, in safetensors files that other
 * programs open, and from them into a job of any world size, stage and layout, bit for bit. Nothing
 * in the files tells ranks, buckets or padding. Every rank moves the values it owns straight
 * between its shard and the file: no rank holds the model. All ranks see the file at `path`.
 *
 * Set-up calls that every rank makes, with the same options, between steps (as gw_param_read_sync);
 * they use two or three all-gathers of 512 bytes per rank to agree, which gw_stats counts. They
 * end alike on all ranks: with one error that names the rank it comes from.
 *
 * A parameter's tensor has its name; that of shard array a, "a.name": exp_avg.h.0.attn.weight. The
 * dtype is F32 (parameters: the masters), or the shard array's. File names are those of other
 * tools: `path` alone, or, where file_bytes cuts, model.safetensors becomes
 * model-00001-of-00003.safetensors ... and model.safetensors.index.json.
 */
#define GW_SHAPE_DIMS_MAX 8

struct gw_shape {
    uint32_t dims;
    uint64_t extents[GW_SHAPE_DIMS_MAX];
};
struct gw_state_options {
    size_t struct_size;
    const char *const *arrays; /* names of shard arrays; save: made on every rank, also where the
                                * shard is empty; load makes those that are not there yet, in the
                                * files' dtype */
    size_t array_count;
    const struct gw_shape *shapes; /* one per parameter, extents multiplied = its numel; for its
                                    * arrays too. NULL: saved as [numel], loaded from any shape */
    size_t shape_count;            /* 0 or the number of parameters */
    uint64_t file_bytes;           /* save: most bytes of tensors in a file (a larger one is alone
                                    * in its file); 0: one file */
    uint32_t params_off;           /* 1: shard arrays alone */
    uint32_t allow_other;          /* load: 1: tensors that nobody asked for are fine */
    /* Load: called for each difference between files and job, one line each, on every rank, before
     * the call fails with the first of them; nothing is loaded then. NULL: not wanted. */
    void (*difference)(void *arg, const char *line);
    void *arg;
};
/* Replaces what `path` named before once all of it is on the disk: files are written under
 * temporary names (*.partial) and renamed, the index last. GW_E_IO: what failed where (a full disk,
 * say); temporary files are removed, and the old ones are as they were. GW_E_MISMATCH: a rank asks
 * for something else. */
GW_API int gw_state_save_sync(gw_job *job, const char *path, const struct gw_state_options *options,
                              int64_t timeout_ns);
/* From the files of gw_state_save_sync or another program's: `path` is a safetensors file, or the
 * name that an index was written for, or the index (*.index.json). Names, shapes, dtypes and sizes
 * are checked before the first value is moved (GW_E_MISMATCH, nothing changed). Values are in all
 * replicas when the call returns. An error while values are moved leaves them partly loaded, and
 * says so. */
GW_API int gw_state_load_sync(gw_job *job, const char *path, const struct gw_state_options *options,
                              int64_t timeout_ns);

/* ---- loss scale --------------------------------------------------------------------------------
 * Dynamic loss scaling with DeepSpeed's semantics (DynamicLossScaler), for losses that are
 * multiplied before backward so that small fp16 gradients survive. Pure arithmetic on the caller's
 * struct: no job, no lock, no waiting. Verdicts are the same on all ranks, so scales are too.
 *
 *   overflow       if hysteresis is used up, scale = max(scale * backoff, min_scale); else one less
 *                  of hysteresis. The step is skipped.
 *   no overflow    the (window + 1)-th good step in a row, and every window-th after it, multiplies
 *                  the scale by `growth` and refills hysteresis.
 *
 * The norm and the clip factor of a verdict are those of the scaled gradient: seal with clip_norm 0
 * and give clip_norm here.
 */
struct gw_loss_scale_options {
    size_t struct_size;
    double static_scale;  /* > 0: never changes; overflows are skipped. 0: dynamic */
    double initial_scale; /* default 65536 */
    double growth;        /* > 1; default 2 */
    double backoff;       /* between 0 and 1; default 0.5 */
    double min_scale;     /* default 1 */
    double clip_norm;     /* of the gradient without scale; 0: none */
    uint32_t window;      /* good steps; default 1000 */
    uint32_t hysteresis;  /* overflows in a window until one backs off; default 2 */
    uint32_t consecutive_hysteresis; /* 1: every good step refills hysteresis */
    uint32_t stay_at_min; /* 1: overflows at min_scale are skipped for ever; 0: GW_E_LIMIT */
};
/* Plain data: copy it freely, and save it with the model (static fields apart, a scaler is scale,
 * good_steps, hysteresis_left, searching and probing). */
struct gw_loss_scale {
    struct gw_loss_scale_options options; /* defaults filled in */
    double scale;                         /* multiply the next step's loss by it */
    uint64_t good_steps;                  /* since the last overflow */
    uint32_t hysteresis_left;
    uint32_t searching; /* 1: not one window was good yet */
    uint32_t probing;   /* 1: the scale's last change was growth */
};
enum gw_loss_scale_cause {
    GW_LOSS_SCALE_GOOD = 0,
    GW_LOSS_SCALE_SEARCH = 1,  /* overflow while the start is searched from above: normal */
    GW_LOSS_SCALE_PROBE = 2,   /* overflow after growth, which tries what is possible: normal */
    GW_LOSS_SCALE_OVERFLOW = 3 /* any other */
};
struct gw_loss_scale_step {
    uint32_t skip;      /* 1: make no update with this step's gradient */
    uint32_t cause;     /* enum gw_loss_scale_cause */
    double grad_factor; /* multiply the gradient by it: 1/scale, times the clip factor
                         * min(1, clip_norm/(norm/scale + 1e-6)); 0 when skipped */
    double scale;       /* this step's; the next one's is in the struct */
    char text[256];     /* one line for the log; "" when nothing changed */
};
/* GW_E_INVALID: which option, and what it may be. */
GW_API int gw_loss_scale_init(struct gw_loss_scale *ret_scale,
                              const struct gw_loss_scale_options *options);
/* After gw_wait_step. GW_E_LIMIT: overflow at min_scale; nothing is changed. */
GW_API int gw_loss_scale_update(struct gw_loss_scale *scale, const struct gw_verdict *verdict,
                                struct gw_loss_scale_step *ret_step);

/* ---- figures --------------------------------------------------------------------------------- */

enum gw_kind {
    GW_KIND_ALL_REDUCE,
    GW_KIND_REDUCE_SCATTER,
    GW_KIND_ALL_GATHER,
    GW_KIND_BROADCAST,
    GW_KIND_CONTROL,
    GW_KINDS
};
enum gw_memory {
    GW_MEMORY_PARAMS,
    GW_MEMORY_GRADIENTS,
    GW_MEMORY_BUCKETS,
    GW_MEMORY_GATHERED,
    GW_MEMORY_OPTIMIZER,
    GW_MEMORIES
};
struct gw_counters {
    uint64_t calls;
    uint64_t payload_bytes; /* nccl-tests' size, without padding */
    uint64_t padding_bytes;
    uint64_t ring_bytes;  /* computed: what a ring would send per rank */
    uint64_t moved_bytes; /* added up inside the copy and sum loops for this rank */
    uint64_t cross_node_bytes; /* sent to other nodes; counted for one rank of the sending node, so
                                * that the sum over ranks is what crossed */
};
/* This rank's figures since the seal. Times are ns. */
struct gw_stats {
    size_t struct_size;
    uint64_t steps;
    struct gw_counters kinds[GW_KINDS];
    uint64_t memory_bytes[GW_MEMORIES];
    uint64_t prefetch_hits, prefetch_misses, prefetch_drops;
    uint64_t gathered_bytes_now, gathered_bytes_max;
    uint64_t overflow_slots;
    uint64_t copied_in_bytes;
    uint64_t comm_ns;       /* per step united intervals started..done of this rank's ops, summed */
    uint64_t comm_alone_ns; /* one step's ops, as measured by gw_measure_sync; 0: not measured */
    uint64_t late_ns, queued_ns, exposed_ns, wakeup_ns; /* the rank's waits, split without rest */
    uint64_t staged_bytes; /* copied because device memory could not be exported */
    uint64_t layout_epoch; /* calls of gw_freeze that counted, since the seal; on all ranks alike */
};
GW_API int gw_stats_sync(gw_job *job, int64_t timeout_ns, struct gw_stats *ret_stats);
/* Runs each op of a step three times while no rank computes, for comm_alone (medians). Every rank
 * calls it, after gw_seal and the initial values, before the first step; not counted elsewhere. */
GW_API int gw_measure_sync(gw_job *job, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
