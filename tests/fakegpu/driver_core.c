/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the server, contexts, and the thread that runs host functions. One per process;
 * a forked child has none, as with the real driver.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakegpu/driver.h"

struct CUctx_st {
    uint32_t gpu;
    int ordinal;
    uint32_t retained;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int call_fd = -1;
static bool tried, forked;
static CUresult open_result = CUDA_ERROR_NO_DEVICE;
static uint32_t process_id, first_gpu;
static int ordinal_count;
static uint32_t ordinals[FG_GPUS_MAX]; /* to the server's numbers */
static struct CUctx_st contexts[FG_GPUS_MAX]; /* primary, by the server's numbers */
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local CUcontext stack[CONTEXT_DEPTH];
static _Thread_local int depth;
static _Thread_local bool inside_hostfn;

/* ---- packets -------------------------------------------------------------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Under the lock. */
static bool exchange(int socket_fd, struct fg_request *request, const void *payload, int fd,
                     struct fg_reply *reply, int *ret_fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec parts[2] = {{request, sizeof(*request)},
                             {(void *)(uintptr_t)payload, request->payload_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = request->payload_bytes ? 2 : 1};
    ssize_t bytes;

    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);

        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    while ((bytes = sendmsg(socket_fd, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    if (bytes < 0)
        return false;
    message = (struct msghdr){.msg_iov = &(struct iovec){reply, sizeof(*reply)}, .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof(control.bytes)};
    while ((bytes = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
    }
    if (bytes != (ssize_t)sizeof(*reply))
        return false;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    if (ret_fd && header && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(int));
    return true;
}

int fg_call_fd(struct fg_request *request, const void *payload, int fd, struct fg_reply *ret_reply,
               int *ret_fd)
{
    struct fg_reply reply = {.error = CUDA_ERROR_UNKNOWN};

    if (ret_fd)
        *ret_fd = -1;
    if (inside_hostfn && request->kind != FG_VIOLATION) {
        fg_violation("call_in_hostfn", "request %u", request->kind);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    if (call_fd < 0)
        reply.error = CUDA_ERROR_NOT_INITIALIZED;
    else if (!exchange(call_fd, request, payload, fd, &reply, ret_fd))
        reply.error = CUDA_ERROR_DEVICE_UNAVAILABLE; /* the server has gone */
    pthread_mutex_unlock(&lock);
    if (ret_reply)
        *ret_reply = reply;
    return reply.error;
}

int fg_call(struct fg_request *request, const void *payload, struct fg_reply *ret_reply)
{
    return fg_call_fd(request, payload, -1, ret_reply, NULL);
}

CUresult core_call(enum fg_kind kind, uint32_t gpu, const uint64_t args[4],
                   struct fg_reply *ret_reply)
{
    struct fg_request request = {.kind = kind, .device = gpu};

    memcpy(request.a, args, 4 * sizeof(*args));
    return (CUresult)fg_call(&request, NULL, ret_reply);
}

void core_nap(uint32_t *us)
{
    struct timespec time = {.tv_nsec = (long)*us * 1000};

    nanosleep(&time, NULL);
    if (*us < 400)
        *us += *us / 4 + 1;
}

CUresult core_call_wait(enum fg_kind kind, uint32_t gpu, const uint64_t args[4],
                        struct fg_reply *ret_reply)
{
    struct fg_request request = {.kind = kind, .device = gpu};
    struct fg_reply reply = {0};
    uint32_t us = 20;

    memcpy(request.a, args, 4 * sizeof(*args));
    while (fg_call(&request, NULL, &reply) == FG_BUSY) {
        request.a[5] = reply.v[0];
        core_nap(&us);
    }
    if (ret_reply)
        *ret_reply = reply;
    return (CUresult)reply.error;
}

CUresult core_call_name(enum fg_kind kind, const char *name, struct fg_reply *ret_reply)
{
    struct fg_request request = {.kind = kind, .payload_bytes = (uint32_t)strlen(name)};

    request.device = core_first_gpu();
    return (CUresult)fg_call(&request, name, ret_reply);
}

void fg_violation(const char *rule, const char *format, ...)
{
    char text[400];
    int used = snprintf(text, sizeof(text), "%s ", rule);
    va_list args;

    va_start(args, format);
    vsnprintf(text + used, sizeof(text) - (size_t)used, format, args);
    va_end(args);
    core_call_name(FG_VIOLATION, text, NULL);
}

void fg_note_sync(const char *call)
{
    core_call_name(FG_SYNC, call, NULL);
}

/* ---- host functions ------------------------------------------------------------------------- */

static void *hostfn_thread(void *arg)
{
    int fd = (int)(intptr_t)arg;
    struct fg_hostfn message;

    while (recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message)) {
        CUhostFn function = (CUhostFn)(uintptr_t)message.function;

        inside_hostfn = true;
        function((void *)(uintptr_t)message.argument);
        inside_hostfn = false;
        if (send(fd, &message, sizeof(message), MSG_NOSIGNAL) < 0)
            break;
    }
    return NULL;
}

static bool hostfn_open(const char *path, uint32_t process, uint64_t node)
{
    struct fg_request request = {.kind = FG_HELLO, .a = {(uint64_t)getpid(), node, 1, process}};
    struct fg_reply reply;
    int fd = connect_to(path);
    sigset_t all, before;
    pthread_t thread;
    bool good;

    if (fd < 0 || !exchange(fd, &request, NULL, -1, &reply, NULL) || reply.error)
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    good = pthread_create(&thread, NULL, hostfn_thread, (void *)(intptr_t)fd) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good)
        pthread_detach(thread);
    return good;
}

/* ---- start and end -------------------------------------------------------------------------- */

static void in_child(void)
{
    forked = true;
    if (call_fd >= 0)
        close(call_fd);
    call_fd = -1;
}

/* CUDA_VISIBLE_DEVICES: indices, up to the first that is none. */
static void choose_gpus(uint32_t count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    ordinal_count = 0;
    for (uint32_t i = 0; !visible && i < count; i++)
        ordinals[ordinal_count++] = first_gpu + i;
    while (visible && *visible && ordinal_count < FG_GPUS_MAX) {
        char *end;
        unsigned long index = strtoul(visible, &end, 10);

        if (end == visible || index >= count)
            break;
        ordinals[ordinal_count++] = first_gpu + (uint32_t)index;
        visible = *end == ',' ? end + 1 : end;
    }
    for (uint32_t i = 0; i < FG_GPUS_MAX; i++)
        contexts[i].gpu = i;
    for (int i = 0; i < ordinal_count; i++)
        contexts[ordinals[i]].ordinal = i;
}

static CUresult open_now(void)
{
    /* Of root's environment, gradwired passes on to engines what begins with CUDA_. */
    const char *path = getenv(getenv("FAKEGPU_SOCKET") ? "FAKEGPU_SOCKET" : "CUDA_FAKEGPU_SOCKET");
    const char *node = getenv(getenv("FAKEGPU_NODE") ? "FAKEGPU_NODE" : "CUDA_FAKEGPU_NODE");
    const char *leaks = getenv("FAKEGPU_LEAKS"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    struct fg_request request = {.kind = FG_HELLO};
    struct fg_reply reply;
    int fd = path ? connect_to(path) : -1;

    if (fd < 0)
        return CUDA_ERROR_NO_DEVICE;
    request.a[0] = (uint64_t)getpid();
    request.a[1] = node ? strtoull(node, NULL, 10) : 0;
    request.a[3] = leaks && !strcmp(leaks, "off") ? FG_HELLO_NO_LEAKS : 0;
    request.a[4] = queues ? strtoull(queues, NULL, 10) : 0;
    if (!exchange(fd, &request, NULL, -1, &reply, NULL) || reply.error) {
        close(fd);
        return CUDA_ERROR_NO_DEVICE;
    }
    process_id = (uint32_t)reply.v[0];
    first_gpu = (uint32_t)reply.v[2];
    choose_gpus((uint32_t)reply.v[1]);
    if (!ordinal_count || !hostfn_open(path, process_id, request.a[1])) {
        close(fd);
        return CUDA_ERROR_NO_DEVICE;
    }
    call_fd = fd;
    pthread_atfork(NULL, NULL, in_child);
    return CUDA_SUCCESS;
}

CUresult core_open(void)
{
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    if (!tried)
        open_result = open_now();
    tried = true;
    pthread_mutex_unlock(&lock);
    return open_result;
}

__attribute__((destructor)) static void leave(void)
{
    struct fg_request bye = {.kind = FG_BYE};

    if (call_fd < 0 || forked)
        return;
    copy_end();
    fg_call(&bye, NULL, NULL);
}

/* ---- devices and contexts ------------------------------------------------------------------- */

uint32_t core_first_gpu(void)
{
    return first_gpu;
}

int fg_gpu_count(void)
{
    return core_open() == CUDA_SUCCESS ? ordinal_count : 0;
}

int fg_gpu_of_ordinal(int ordinal)
{
    return ordinal >= 0 && ordinal < fg_gpu_count() ? (int)ordinals[ordinal] : -1;
}

int fg_ordinal_of_gpu(int gpu)
{
    return gpu >= 0 && gpu < FG_GPUS_MAX ? contexts[gpu].ordinal : -1;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    int gpu = fg_gpu_of_ordinal(device);
    CUresult r = CUDA_SUCCESS;

    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    if (!contexts[gpu].retained)
        r = core_call(FG_CONTEXT, (uint32_t)gpu, ARGS(1), NULL);
    contexts[gpu].retained += r == CUDA_SUCCESS;
    pthread_mutex_unlock(&context_lock);
    if (!r)
        *context = &contexts[gpu];
    return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    int gpu = fg_gpu_of_ordinal(device);
    CUresult r = CUDA_SUCCESS;

    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    if (!contexts[gpu].retained)
        r = CUDA_ERROR_INVALID_CONTEXT;
    else if (!--contexts[gpu].retained)
        r = core_call(FG_CONTEXT, (uint32_t)gpu, ARGS(0), NULL);
    pthread_mutex_unlock(&context_lock);
    return r;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult r = core_open();

    if (r)
        return r;
    if (context && (context < contexts || context >= contexts + FG_GPUS_MAX ||
                    !context->retained))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    CUresult r = core_open();

    if (r)
        return r;
    if (!context || depth == CONTEXT_DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

/* Where CUcontext pointers are known: the context of a GPU. */
CUcontext core_context_of(uint32_t gpu)
{
    return &contexts[gpu];
}

uint32_t core_gpu_of(CUcontext context)
{
    return context->gpu;
}

CUresult core_context(uint32_t *ret_gpu)
{
    CUresult r = core_open();

    if (r)
        return r == CUDA_ERROR_NO_DEVICE ? CUDA_ERROR_NOT_INITIALIZED : r;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ret_gpu)
        *ret_gpu = stack[depth - 1]->gpu;
    return CUDA_SUCCESS;
}

/* As the runtime does: the device's primary context becomes current. Retained once per process. */
int fg_set_device(int ordinal)
{
    static bool held[FG_GPUS_MAX];
    int gpu = fg_gpu_of_ordinal(ordinal);
    CUcontext context;
    CUresult r = CUDA_SUCCESS;

    if (gpu < 0)
        return fg_gpu_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NO_DEVICE;
    if (!__atomic_exchange_n(&held[gpu], true, __ATOMIC_ACQ_REL))
        r = cuDevicePrimaryCtxRetain(&context, ordinal);
    if (r) {
        __atomic_store_n(&held[gpu], false, __ATOMIC_RELEASE);
        return r;
    }
    return cuCtxSetCurrent(&contexts[gpu]);
}

int fg_current_gpu(void)
{
    if (!depth && fg_set_device(0))
        return -1;
    return (int)stack[depth - 1]->gpu;
}
