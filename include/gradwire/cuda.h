/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwire for a rank on an NVIDIA GPU.
 *
 * A rank hands a gw_device to gw_job_create or gw_job_join. From then on the job's bulk memory
 * (gradients, parameters, shards, buffers) lies on GPUs: every float pointer that the calls of
 * gradwire.h return is a device pointer, and the calls are ordered in the job's stream instead of
 * on the host:
 *  - gw_grad_acquire_sync enqueues a wait for the memory's last reader; it waits on the host only
 *    until that reader has been launched.
 *  - gw_grad_ready, gw_micro_step_end, gw_release, gw_step_end, gw_update_commit and collectives
 *    take everything that was enqueued on the job's stream before as done before them. gw_fetch
 *    depends on nothing: it overlaps what is enqueued.
 *  - A token is waited for by gw_stream_wait, on a stream, or by gw_wait*, on the host. Written
 *    spans need the window's token (gw_update_begin) waited for in a stream before
 *    gw_update_commit.
 *  - gw_param_ptr may be called before the fetch's token is reached; what reads the values comes
 *    behind a stream wait for it. In stage 3 the call waits on the host, at most
 *    gw_job_options.timeout_ns (then GW_E_STATE), until the gather has been launched: until the
 *    other ranks have made their calls, never for a GPU.
 * So a step needs no host synchronization at all.
 *
 * GPUs, drivers and virtual GPUs without 64-bit stream memory operations (gwctl doctor says so)
 * cannot let a stream wait for another process' word. There interprocess events tell the service
 * what streams have done, and the host waits for what the service does: gw_grad_acquire_sync and
 * gw_stream_wait return once the token is reached (gw_stream_wait within gw_job_options.timeout_ns,
 * then GW_E_TIMEOUT), and enqueue nothing. CUDA says nothing of a stream that waits for a dead
 * process' event; no stream ever does here. So the calls of the ranks must be such that hosts can
 * wait, as in a job in host memory: until the others have made their calls and their GPUs have done
 * what these depend on. Works begin when a host has seen their gradients, up to half a millisecond
 * later, and are not enqueued ahead. A stream's first use in a job asks the service and waits for
 * its answer; both processes must see one /dev/shm (containers: one IPC namespace). All GPUs of a
 * job are of one kind.
 *
 * gw_grad_put_sync copies in the job's stream, from memory of the GPU, which may be written again
 * behind it in that stream, or from host memory, which goes through pinned memory of the library's
 * and may be written again at once. gw_param_write_sync and gw_param_read_sync move values to and
 * from host memory, after everything on the job's stream. Views are not write-protected, and
 * GRADWIRE_DEBUG=guard guards nothing: both are for host memory.
 *
 * Streams are CUstream or cudaStream_t, given as void *; NULL is the legacy default stream. The
 * per-thread default stream is refused: it is one per thread. A job works with at most 16 streams,
 * each of which takes one of its 64 timelines (gw_timeline_new); one that was given to a call must
 * stay until gw_job_close has returned. On one stream, calls and work of several threads must be in
 * an order, as with CUDA itself; streams are not captured into graphs.
 *
 * When a job fails, its engine dies included, streams that wait for it go on and the next call
 * tells. What was computed behind such a wait is worth nothing: look at a call's result (gw_wait of
 * the step) before you keep it. gw_job_close waits until the streams that were given to the job's
 * calls are idle, two seconds at most; if one is not by then, the job's memory stays mapped to the
 * end of the process.
 *
 * Libraries: gw_cuda_device_new and _free are in libgradwire-cuda, all else in libgradwire
 * (pkg-config gradwire-cuda has both). Neither links CUDA: the driver of the calling process
 * (libcuda.so.1) is used, whatever runtime is linked with. Thread and fork rules are those of
 * gradwire.h; calls make the device's primary context current for their duration only.
 */
#ifndef GRADWIRE_CUDA_H
#define GRADWIRE_CUDA_H

#include <gradwire/gradwire.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The GPU with this CUDA ordinal, by its primary context. Before the job; freed after it.
 * GW_E_NO_DEVICE: no driver, no such GPU, or one that lacks what gradwire needs (said in the text):
 * neither stream memory operations nor interprocess events, for example. */
GW_API int gw_cuda_device_new(int ordinal, struct gw_device **ret_device);
/* NULL is fine; returns NULL. While jobs use the device it stays, and gw_last_error says so. */
GW_API struct gw_device *gw_cuda_device_free(struct gw_device *device);

/* The stream that the job's calls are ordered in, from the next call on; at first the default
 * stream. What was enqueued on the stream before is not ordered with the new one's work.
 * GW_E_LIMIT: the 17th stream. */
GW_API int gw_cuda_set_stream(gw_job *job, void *stream);

/* Enqueues on `stream`: what comes after waits until the token is reached. Nothing is enqueued if
 * it is reached already. Any token of the job's, own timelines included. Sends first what the token
 * may depend on; if the engine takes no messages, that may wait for it (gw_job_options.timeout_ns,
 * then GW_E_AGAIN). Without stream memory operations the host waits for a token of the service's
 * (see above; then GW_E_TIMEOUT, and the token stays valid). */
GW_API int gw_stream_wait(gw_job *job, struct gw_token token, void *stream);
/* A token that is reached when all that was enqueued on `stream` before is done: for further
 * producers of a gradient beside the job's stream (gw_grad_ready's tokens: at most 3 on a GPU, for
 * the job's stream adds its own). */
GW_API int gw_record(gw_job *job, void *stream, struct gw_token *ret_token);

/* A buffer over the caller's own device memory (cudaMalloc) on the job's GPU, for collectives: no
 * copy. The memory must stay until gw_buffer_free has returned 0. Where the memory cannot be
 * exported (stream-ordered pools, expandable segments, another PID namespace) a buffer of the
 * service's memory stands in: ops copy from the caller's memory on the job's stream and back on a
 * stream of the library's, gw_stats counts the bytes (staged_bytes), *ret_staged (may be NULL) is
 * 1, and the first such buffer of a job is a warning in the engine's log, with rank, reason and
 * remedy: allocate with gw_buffer_new instead (without stream memory operations:
 * GW_E_UNIMPLEMENTED). gw_buffer_data returns the caller's pointer in both cases, and an op's
 * results are in its memory once the op's token is reached. GW_E_INVALID: no device memory, or of
 * another GPU. Set-up call. */
GW_API int gw_cuda_buffer_import(gw_job *job, void *device_pointer, size_t size_bytes,
                                 gw_buffer **ret_buffer, int *ret_staged);

/* struct gw_verdict's values in device memory, written in stream order: valid for what waits for
 * the step's token (gw_stream_wait), until the rank's gw_update_commit or its first call of the
 * next step. An optimizer kernel reads them without the host. */
struct gw_cuda_verdict {
    uint64_t step;
    double norm;
    float clip_factor;
    uint32_t nonfinite;
    uint32_t first_bucket;
    uint32_t used_params;
    uint64_t digest;
};
/* A bit for each parameter, lowest first, lies behind it, at (const uint8_t *)(verdict + 1): 1: it
 * had a gradient on some rank (gw_param_used). After gw_seal; set-up the first time. The pointer
 * stays the same. */
GW_API int gw_cuda_verdict_ptr(gw_job *job, const struct gw_cuda_verdict **ret_device_pointer);

#ifdef __cplusplus
}
#endif
#endif
