/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgradwire-cuda: gradwire for a rank on an NVIDIA GPU.
 *
 * A rank hands a gw_device to gw_job_create or gw_job_join. From then on the job's bulk memory
 * (gradients, parameters, shards, buffers) lies on GPUs: every float pointer that the calls of
 * gradwire.h return is a device pointer, and the calls are ordered in the job's stream instead of
 * on the host:
 *  - gw_grad_acquire_sync enqueues a wait for the memory's last reader; it waits on the host only
 *    until that reader has been launched.
 *  - gw_grad_ready, gw_release, gw_step_end, gw_update_commit and collectives take everything that
 *    was enqueued on the job's stream before as done before them.
 *  - A token is waited for by gw_stream_wait, on the stream, or by gw_wait*, on the host.
 * So a step needs no host synchronization at all. Host memory given to *_put_sync and param_write
 * is copied; param_read copies back.
 *
 * Streams are CUstream or cudaStream_t, given as void *; NULL is the default stream. The library
 * uses the driver API of the calling process (libcuda.so.1), whatever runtime that is linked with.
 * Thread rules are those of gradwire.h; calls make the device's context current for their duration
 * only.
 */
#ifndef GRADWIRE_CUDA_H
#define GRADWIRE_CUDA_H

#include <gradwire/gradwire.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The GPU with this CUDA ordinal, by its primary context. Before the job; freed after it.
 * GW_E_NO_DEVICE: no driver, no such GPU, or one that lacks what gradwire needs (said in the text).
 */
GW_API int gw_cuda_device_new(int ordinal, struct gw_device **ret_device);
/* NULL is fine; returns NULL. GW_E_BUSY in gw_last_error and the device stays when jobs use it. */
GW_API struct gw_device *gw_cuda_device_free(struct gw_device *device);

/* The stream that the job's calls are ordered in, from the next call on; at first the default
 * stream. What was enqueued on the stream before is not ordered with the new one's work. */
GW_API int gw_cuda_set_stream(gw_job *job, void *stream);

/* Enqueues on `stream`: what comes after waits until the token is reached. When the job fails, the
 * stream goes on (words are raised), and the next call tells. */
GW_API int gw_stream_wait(gw_job *job, struct gw_token token, void *stream);
/* A token that is reached when all that was enqueued on `stream` before is done: for further
 * producers of a gradient (gw_grad_ready's tokens) beside the job's stream. */
GW_API int gw_record(gw_job *job, void *stream, struct gw_token *ret_token);

/* A buffer over the caller's own device memory (cudaMalloc), for collectives: no copy. The memory
 * must stay until gw_buffer_free has returned 0. Where the memory cannot be exported (expandable
 * segments, another PID namespace) a buffer of the service's memory stands in, ops copy to and from
 * it on the job's stream, gw_stats counts the bytes (staged_bytes), and *ret_staged is 1: allocate
 * with gw_buffer_new instead. gw_buffer_data returns the caller's pointer in both cases. Results in
 * a staged buffer are there after gw_stream_wait or gw_wait of the op's token (and for gw_wait, the
 * job's stream). Set-up call. */
GW_API int gw_cuda_buffer_import(gw_job *job, void *device_pointer, size_t size_bytes,
                                 gw_buffer **ret_buffer, int *ret_staged);

/* struct gw_verdict's values in device memory, written in stream order: valid for what waits for
 * the step's token (gw_stream_wait). An optimizer kernel reads them without the host. */
struct gw_cuda_verdict {
    uint64_t step;
    double norm;
    float clip_factor;
    uint32_t nonfinite;
    uint32_t first_bucket;
    uint32_t used_params;
    uint64_t digest;
};
GW_API int gw_cuda_verdict(gw_job *job, const struct gw_cuda_verdict **ret_device_pointer);

#ifdef __cplusplus
}
#endif
#endif
