/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of a client in streams share: a service of one thread that answers requests and
 * does nothing, and a GPU that is none: waits are only noted, raises and copies happen at once.
 * Both write what they are asked into one list of lines, in the order in which the client asked:
 *
 *   wait s0 b1 >= 2        stream 0 waits for the word of bucket 1 (op3, u0, step, update, t0: the
 *                          client's own timeline 0)
 *   raise s0 t0 = 1        stream 0 raises timeline 0
 *   record s0 = 1          the same by an event (sv_open_events), after EVENTS t0 2048
 *   wait s0 e2 >= 1        stream 0 waits for an event of the client's
 *   copy s0 32             32 bytes in stream 0
 *   READY p1.0 slot 2 t0=1 piece 0 of parameter 1, in ring slot 2, with one token
 *   STEP_END t0=2, UPDATE_COMMIT, FETCH u0, RELEASE u0, OP 1, ACQUIRE b0 ordered, IMPORT 64+32, ...
 *
 * Streams are small numbers; the library's own are 100 and up.
 */
#ifndef GW_TEST_CLIENT_SERVICE_H
#define GW_TEST_CLIENT_SERVICE_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/lib/device.h"
#include "daemon/core/layout.h"
#include "gradwire/cuda.h"
#include "proto/job_id.h"
#include "proto/shm.h"
#include "proto/submit.h"
#include "proto/wire.h"

#define SV_LINES 256u
#define SV_LINE 96u
#define SV_PARAMS 16u
#define SV_ARENA_BYTES 65536u
#define SV_DEADLINE_S 20

struct sv_grant {
    uint32_t slot, launched;
};

/* One at a time. */
static struct {
    pthread_mutex_t lock;
    int listener, fd;
    pthread_t thread;
    char path[64];
    char lines[SV_LINES][SV_LINE];
    unsigned count;
    char text[SV_LINES * SV_LINE];

    /* how it behaves */
    uint32_t device; /* that JOINED names */
    int import_code; /* of BUFFER_IMPORT */
    int export_code; /* of the device */
    bool hold;       /* streams do not come to their raises, and are never idle */
    unsigned busy;   /* looks at a stream before it is idle */
    bool raise_fails;
    int events_code; /* of TIMELINE_EVENTS */
    struct sv_grant grants[8];
    unsigned grant_count, granted;

    /* what it has */
    uint32_t param_count;
    uint64_t numel[SV_PARAMS];
    char names[SV_PARAMS][16], units[SV_PARAMS][16];
    struct layout *layout;
    struct gw_client_page *client; /* NULL before WELCOME */
    struct gw_engine_page *engine;
    struct gw_job_page *common; /* NULL before JOINED, and with a device */
    struct submit_reader submit;
    int bell;
    struct gw_shm_board *board;
    struct gw_wait_page *op_words, *board_words;

    /* the device's */
    uint8_t *pages[3]; /* ops, client, board */
    unsigned page_count, mapped, streams, rings;
    struct gw_device_events *last_events;
    const void *device_memory; /* of the caller's */
} sv;

/* ---- lines ----------------------------------------------------------------------------------- */

static inline void sv_add(const char *line) /* lock held */
{
    assert(sv.count < SV_LINES);
    snprintf(sv.lines[sv.count++], SV_LINE, "%s", line);
}

/* Until the service has read all that was sent. */
static inline void sv_sync(void)
{
    time_t end = time(NULL) + SV_DEADLINE_S;

    for (;;) {
        char byte;
        bool empty;

        pthread_mutex_lock(&sv.lock);
        empty = sv.fd < 0 || (recv(sv.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0 &&
                              (!sv.client || submit_seen(&sv.submit) == sv.submit.at));
        pthread_mutex_unlock(&sv.lock);
        if (empty)
            return;
        assert(time(NULL) < end);
        sched_yield();
    }
}

static inline void sv_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void sv_note(const char *format, ...)
{
    char line[SV_LINE];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    sv_sync();
    pthread_mutex_lock(&sv.lock);
    sv_add(line);
    pthread_mutex_unlock(&sv.lock);
}

/* All lines since the last call, each with a newline. */
static inline const char *sv_lines(void)
{
    size_t at = 0;

    sv_sync();
    pthread_mutex_lock(&sv.lock);
    sv.text[0] = 0;
    for (unsigned i = 0; i < sv.count; i++)
        at += (size_t)snprintf(sv.text + at, sizeof(sv.text) - at, "%s\n", sv.lines[i]);
    sv.count = 0;
    pthread_mutex_unlock(&sv.lock);
    return sv.text;
}

#define sv_expect(expected) assert_string_equal(sv_lines(), expected)

/* ---- the device ------------------------------------------------------------------------------ */

static inline void sv_word_name(uint64_t address, char name[32])
{
    const uint8_t *word = (const uint8_t *)(uintptr_t)address;
    uint32_t buckets = sv.layout ? layout_page(sv.layout)->buckets : 0;
    size_t at;

    for (unsigned i = 0; i < sv.page_count; i++) {
        if (word < sv.pages[i] || word >= sv.pages[i] + GW_PAGE_BYTES)
            continue;
        at = (size_t)(word - sv.pages[i] - 64) / 8;
        if (i != 2)
            snprintf(name, 32, "%s%zu", i == 1 ? "t" : "op", at);
        else if (at < 2)
            snprintf(name, 32, "%s", at ? "update" : "step");
        else
            snprintf(name, 32, "%s%zu", at - 2 < buckets ? "b" : "u",
                     at - 2 < buckets ? at - 2 : at - 2 - buckets);
        return;
    }
    snprintf(name, 32, "?");
}

static inline unsigned sv_stream(const void *stream)
{
    return (unsigned)(uintptr_t)stream;
}

static int sv_map(struct gw_device *device, int fd, uint64_t mapped_bytes, void **ret_base)
{
    void *base = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    (void)device;
    if (base == MAP_FAILED)
        return gw_private_error(GW_E_DEVICE, "no mapping");
    sv.mapped++;
    *ret_base = base;
    return 0;
}

static void sv_unmap(struct gw_device *device, void *base, uint64_t mapped_bytes)
{
    (void)device;
    munmap(base, mapped_bytes);
    sv.mapped--;
}

static int sv_page_add(struct gw_device *device, void *base, size_t bytes, uint64_t *ret_address)
{
    (void)device;
    (void)bytes;
    assert(sv.page_count < 3);
    sv.pages[sv.page_count++] = base;
    *ret_address = (uint64_t)(uintptr_t)base;
    return 0;
}

static void sv_page_remove(struct gw_device *device, void *base)
{
    (void)device;
    for (unsigned i = 0; i < 3; i++) {
        if (sv.pages[i] == base) {
            sv.pages[i] = NULL;
            sv.page_count--;
        }
    }
}

static int sv_stream_check(struct gw_device *device, void *stream)
{
    (void)device;
    return sv_stream(stream) == 99 ? gw_private_error(GW_E_INVALID, "one per thread") : 0;
}

static int sv_stream_new(struct gw_device *device, void **ret_stream)
{
    (void)device;
    *ret_stream = (void *)(uintptr_t)(100 + sv.streams++);
    return 0;
}

static void sv_stream_free(struct gw_device *device, void *stream)
{
    (void)device;
    (void)stream;
    sv.streams--;
}

static int sv_stream_wait(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    char name[32];

    (void)device;
    sv_word_name(address, name);
    sv_note("wait s%u %s >= %llu", sv_stream(stream), name, (unsigned long long)value);
    return 0;
}

static int sv_stream_raise(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    char name[32];

    (void)device;
    if (sv.raise_fails)
        return gw_private_error(GW_E_DEVICE, "the GPU is broken");
    sv_word_name(address, name);
    sv_note("raise s%u %s = %llu", sv_stream(stream), name, (unsigned long long)value);
    if (!sv.hold)
        __atomic_store_n((uint64_t *)(uintptr_t)address, value, __ATOMIC_SEQ_CST);
    return 0;
}

struct gw_device_events {
    unsigned number;
};

static int sv_events_new(struct gw_device *device,
                         uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES],
                         struct gw_device_events **ret_events)
{
    (void)device;
    memset(handles, 9, GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES);
    *ret_events = malloc(sizeof(**ret_events));
    assert(*ret_events);
    (*ret_events)->number = sv.rings++;
    sv.last_events = *ret_events;
    return 0;
}

static void sv_events_free(struct gw_device *device, struct gw_device_events *events)
{
    (void)device;
    sv.rings--;
    free(events);
}

static int sv_events_record(struct gw_device *device, struct gw_device_events *events,
                            void *stream, uint64_t value)
{
    (void)device;
    (void)events;
    sv_note("record s%u = %llu", sv_stream(stream), (unsigned long long)value);
    return 0;
}

static int sv_events_wait(struct gw_device *device, struct gw_device_events *events, void *stream,
                          uint64_t value)
{
    (void)device;
    sv_note("wait s%u e%u >= %llu", sv_stream(stream), events->number, (unsigned long long)value);
    return 0;
}

static int sv_events_passed(struct gw_device *device, struct gw_device_events *events,
                            uint64_t value)
{
    (void)device;
    (void)events;
    (void)value;
    return sv.hold ? GW_E_AGAIN : 0;
}

static int sv_stream_idle(struct gw_device *device, void *stream)
{
    (void)device;
    if (sv.busy == 0 && !sv.hold)
        sv_note("idle s%u", sv_stream(stream));
    if (sv.busy > 0)
        sv.busy--;
    else if (!sv.hold)
        return 0;
    return GW_E_AGAIN;
}

static bool sv_on_device(struct gw_device *device, const void *base)
{
    (void)device;
    return base == sv.device_memory;
}

static int sv_copy(struct gw_device *device, void *stream, void *to, const void *from, size_t bytes)
{
    (void)device;
    sv_note("copy s%u %zu", sv_stream(stream), bytes);
    memmove(to, from, bytes);
    return 0;
}

static int sv_host_new(struct gw_device *device, size_t bytes, void **ret_base)
{
    (void)device;
    *ret_base = malloc(bytes);
    return *ret_base ? 0 : GW_E_NOMEM;
}

static void sv_host_free(struct gw_device *device, void *base)
{
    (void)device;
    free(base);
}

static int sv_export(struct gw_device *device, const void *base, size_t bytes,
                     struct gw_device_export *ret_export)
{
    (void)device;
    (void)base;
    if (sv.export_code < 0)
        return gw_private_error(sv.export_code, "no handle of that");
    memset(ret_export->handle, 7, sizeof(ret_export->handle));
    ret_export->allocation_bytes = 64 + bytes;
    ret_export->offset = 64;
    return 0;
}

static const struct gw_device_ops sv_ops = {
    .version = GW_DEVICE_TABLE,
    .kind = GW_DEVICE_CUDA,
    .map = sv_map,
    .unmap = sv_unmap,
    .page_add = sv_page_add,
    .page_remove = sv_page_remove,
    .stream_check = sv_stream_check,
    .stream_new = sv_stream_new,
    .stream_free = sv_stream_free,
    .stream_wait = sv_stream_wait,
    .stream_raise = sv_stream_raise,
    .stream_idle = sv_stream_idle,
    .on_device = sv_on_device,
    .copy = sv_copy,
    .host_new = sv_host_new,
    .host_free = sv_host_free,
    .export_memory = sv_export,
};

static const struct gw_device_ops sv_event_ops = {
    .version = GW_DEVICE_TABLE,
    .kind = GW_DEVICE_CUDA,
    .map = sv_map,
    .unmap = sv_unmap,
    .page_add = sv_page_add,
    .page_remove = sv_page_remove,
    .stream_check = sv_stream_check,
    .events_new = sv_events_new,
    .events_free = sv_events_free,
    .events_record = sv_events_record,
    .events_wait = sv_events_wait,
    .events_passed = sv_events_passed,
    .stream_idle = sv_stream_idle,
    .on_device = sv_on_device,
    .copy = sv_copy,
    .host_new = sv_host_new,
    .host_free = sv_host_free,
    .export_memory = sv_export,
};

static struct gw_device sv_device = {.ops = &sv_ops};

/* ---- the service ----------------------------------------------------------------------------- */

static inline int sv_memory(size_t bytes, void **ret_base)
{
    int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    bytes = (bytes + GW_PAGE_BYTES - 1) / GW_PAGE_BYTES * GW_PAGE_BYTES;
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        abort();
    *ret_base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*ret_base == MAP_FAILED)
        abort();
    return fd;
}

static inline int sv_page(uint32_t kind, size_t bytes, void **ret_base)
{
    int fd = sv_memory(bytes, ret_base);

    *(struct gw_shm_header *)*ret_base = (struct gw_shm_header){
        .magic = GW_SHM_MAGIC, .version = GW_SHM_VERSION, .kind = kind, .size = (uint32_t)bytes};
    return fd;
}

static inline int sv_wait_page(uint32_t words, struct gw_wait_page **ret_page)
{
    void *base = NULL;
    int fd = sv_page(GW_SHM_WAITS, GW_WAIT_BYTES(words), &base);

    *ret_page = base;
    (*ret_page)->count = words;
    return fd;
}

/* Takes the descriptors over. */
static inline void sv_send(const struct wire_msg *msg, const int *fds, size_t fd_count)
{
    static uint8_t buffer[GW_FRAME_MAX];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    struct iovec io = {.iov_base = buffer};
    struct msghdr out = {.msg_iov = &io, .msg_iovlen = 1};

    if (wire_encode(msg, buffer, sizeof(buffer), &io.iov_len) < 0)
        abort();
    if (fd_count > 0) {
        out.msg_control = &control;
        out.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
    }
    (void)!sendmsg(sv.fd, &out, MSG_NOSIGNAL);
    for (size_t i = 0; i < fd_count; i++)
        close(fds[i]);
}

static inline void sv_welcome(void)
{
    struct wire_msg msg = {.type = WIRE_WELCOME};
    void *base = NULL;
    int fds[3];

    msg.u.welcome.version = GW_PROTOCOL_VERSION;
    msg.u.welcome.engine_pid = 1234;
    fds[0] = sv_page(GW_SHM_CLIENT, GW_CLIENT_PAGE_BYTES, &base);
    sv.client = base;
    fds[1] = sv_page(GW_SHM_ENGINE, GW_ENGINE_PAGE_BYTES, &base);
    sv.engine = base;
    submit_reader_start(&sv.submit, sv.client, sv.engine);
    fds[2] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sv.bell = dup(fds[2]);
    sv_send(&msg, fds, 3);
}

static inline void sv_joined(const struct wire_msg *asked)
{
    struct wire_msg msg = {.type = WIRE_JOINED, .request = asked->request};
    char line[SV_LINE];
    void *base = NULL;
    int fd;

    snprintf(line, sizeof(line), "CREATE device %u gpu %u:%02x", asked->u.job_create.device,
             asked->u.job_create.gpu_bytes, asked->u.job_create.gpu[0]);
    sv_add(line);
    msg.u.joined.generation = 1;
    msg.u.joined.id_bytes = JOB_ID_BYTES;
    memset(msg.u.joined.id, 0x5a, JOB_ID_BYTES);
    job_id_start(msg.u.joined.id);
    msg.u.joined.device = sv.device;
    fd = sv.device ? sv_wait_page(GW_OPS_IN_FLIGHT, &sv.op_words)
                   : sv_page(GW_SHM_JOB, GW_PAGE_BYTES, &base);
    sv.common = base;
    sv_send(&msg, &fd, 1);
}

static inline void sv_register(const struct wire_msg *asked)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = asked->request};

    for (uint32_t i = 0; i < asked->u.reg.count; i++) {
        snprintf(sv.names[sv.param_count], 16, "%s", asked->u.reg.params[i].name);
        snprintf(sv.units[sv.param_count], 16, "%s", asked->u.reg.params[i].unit);
        sv.numel[sv.param_count++] = asked->u.reg.params[i].numel;
    }
    sv_send(&msg, NULL, 0);
}

static inline void sv_sealed(const struct wire_msg *asked)
{
    struct layout_param params[SV_PARAMS];
    struct layout_options options = {.stage = asked->u.seal.stage,
                                     .world = 2,
                                     .bucket_bytes = asked->u.seal.bucket_bytes,
                                     .align_bytes = 4};
    struct wire_msg msg = {.type = WIRE_SEALED, .request = asked->request};
    uint32_t wrong = 0, slots;
    void *base = NULL;
    int fds[3];

    for (uint32_t i = 0; i < sv.param_count; i++)
        params[i] =
            (struct layout_param){.name = sv.names[i], .unit = sv.units[i], .numel = sv.numel[i]};
    if (layout_new(&options, params, sv.param_count, &sv.layout, &wrong) < 0)
        abort();
    msg.u.sealed.layout_bytes = layout_page(sv.layout)->size_bytes;
    crypto_generichash_blake2b(msg.u.sealed.layout_hash, sizeof(msg.u.sealed.layout_hash),
                               (const uint8_t *)layout_page(sv.layout), msg.u.sealed.layout_bytes,
                               NULL, 0);
    fds[0] = sv_memory(msg.u.sealed.layout_bytes, &base);
    memcpy(base, layout_page(sv.layout), msg.u.sealed.layout_bytes);
    slots = layout_page(sv.layout)->buckets + layout_page(sv.layout)->units;
    msg.u.sealed.board_bytes =
        sizeof(struct gw_shm_board) + slots * sizeof(struct gw_shm_slot) + 64;
    fds[1] = sv_page(GW_SHM_BOARD, msg.u.sealed.board_bytes, &base);
    sv.board = base;
    sv.board->buckets = layout_page(sv.layout)->buckets;
    sv.board->units = layout_page(sv.layout)->units;
    sv.board->params = sv.param_count;
    fds[2] = sv.device ? sv_wait_page(GW_WAIT_BUCKETS + slots, &sv.board_words) : -1;
    sv_send(&msg, fds, sv.device ? 3 : 2);
}

static inline void sv_arena(const struct wire_msg *asked)
{
    struct wire_msg msg = {.type = WIRE_ARENA, .request = asked->request};
    void *base = NULL;
    int fd = sv_memory(SV_ARENA_BYTES, &base);

    munmap(base, SV_ARENA_BYTES);
    msg.u.arena.bytes = msg.u.arena.mapped_bytes = SV_ARENA_BYTES;
    if (asked->u.arena_get.kind == GW_ARENA_STAGING) { /* host memory, of its size */
        close(fd);
        fd = sv_memory(GW_STAGING_BYTES, &base);
        munmap(base, GW_STAGING_BYTES);
        msg.u.arena.bytes = msg.u.arena.mapped_bytes = GW_STAGING_BYTES;
    } else {
        msg.u.arena.device = sv.device;
    }
    sv_send(&msg, &fd, 1);
}

static inline void sv_buffer(const struct wire_msg *asked)
{
    static uint32_t id;
    struct wire_msg msg = {.type = WIRE_BUFFER_MADE, .request = asked->request};
    char line[SV_LINE];
    void *base = NULL;
    int fd = -1;

    msg.u.buffer_made.buffer = ++id;
    if (asked->type == WIRE_BUFFER_NEW) {
        if (asked->u.buffer_new.stands_in) {
            snprintf(line, sizeof(line), "STANDS IN %u", asked->u.buffer_new.stands_in);
            sv_add(line);
        }
        fd = sv_memory(SV_ARENA_BYTES, &base);
        munmap(base, SV_ARENA_BYTES);
        msg.u.buffer_made.bytes = msg.u.buffer_made.mapped_bytes = SV_ARENA_BYTES;
        sv_send(&msg, &fd, 1);
        return;
    }
    snprintf(line, sizeof(line), "IMPORT %llu+%llu",
             (unsigned long long)asked->u.buffer_import.offset,
             (unsigned long long)asked->u.buffer_import.bytes);
    sv_add(line);
    if (sv.import_code < 0) {
        msg = (struct wire_msg){.type = WIRE_DONE, .request = asked->request};
        msg.u.done.code = sv.import_code;
    }
    sv_send(&msg, NULL, 0);
}

static inline void sv_events(const struct wire_msg *asked)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = asked->request};
    char line[SV_LINE];

    snprintf(line, sizeof(line), "EVENTS t%u %zu", asked->u.timeline_events.timeline,
             asked->u.timeline_events.handle_bytes);
    sv_add(line);
    msg.u.done.code = sv.events_code;
    sv_send(&msg, NULL, 0);
}

static inline void sv_acquired(const struct wire_msg *asked)
{
    struct wire_msg msg = {.type = WIRE_ACQUIRED, .request = asked->request};
    char line[SV_LINE];

    snprintf(line, sizeof(line), "ACQUIRE b%u%s", asked->u.acquire.bucket,
             asked->u.acquire.ordered ? " ordered" : "");
    sv_add(line);
    if (sv.granted == sv.grant_count)
        return; /* the client waits */
    msg.u.acquired.slot = sv.grants[sv.granted].slot;
    msg.u.acquired.launched = sv.grants[sv.granted++].launched;
    sv_send(&msg, NULL, 0);
}

static inline void sv_after(char *line, uint32_t tokens, const uint32_t *timeline,
                            const uint64_t *value)
{
    for (uint32_t i = 0; i < tokens; i++)
        snprintf(line + strlen(line), SV_LINE - strlen(line), " t%u=%llu", timeline[i],
                 (unsigned long long)value[i]);
}

static inline void sv_ready(const struct wire_msg *msg)
{
    for (uint32_t i = 0; i < msg->u.ready.count; i++) {
        const struct wire_ready_entry *e = &msg->u.ready.entries[i];
        char line[SV_LINE];

        snprintf(line, sizeof(line), "READY p%u.%u slot %d", e->param, e->piece, (int)e->slot);
        sv_after(line, e->tokens, e->timeline, e->value);
        sv_add(line);
    }
}

static inline void sv_one_way(const struct wire_msg *msg)
{
    const struct wire_after *after = &msg->u.after;
    char line[SV_LINE];

    snprintf(line, sizeof(line), "%s", wire_type_name(msg->type));
    if (msg->type == WIRE_FETCH || msg->type == WIRE_RELEASE) {
        snprintf(line, sizeof(line), "%s u%u", wire_type_name(msg->type), msg->u.unit.unit);
        after = &msg->u.unit.after;
    } else if (msg->type == WIRE_OP) {
        snprintf(line, sizeof(line), "OP %llu", (unsigned long long)msg->u.op.sequence);
        after = &msg->u.op.after;
    }
    if (msg->type != WIRE_UPDATE_BEGIN && msg->type != WIRE_LEAVE)
        sv_after(line, after->tokens, after->timeline, after->value);
    sv_add(line);
}

static inline void sv_handle(const struct wire_msg *msg)
{
    struct wire_msg done = {.type = WIRE_DONE, .request = msg->request};

    switch (msg->type) {
    case WIRE_HELLO:
        sv_welcome();
        break;
    case WIRE_JOB_CREATE:
        sv_joined(msg);
        break;
    case WIRE_REGISTER:
        sv_register(msg);
        break;
    case WIRE_SEAL:
        sv_sealed(msg);
        break;
    case WIRE_ARENA_GET:
        sv_arena(msg);
        break;
    case WIRE_BUFFER_NEW:
    case WIRE_BUFFER_IMPORT:
        sv_buffer(msg);
        break;
    case WIRE_ACQUIRE:
        sv_acquired(msg);
        break;
    case WIRE_READY:
        sv_ready(msg);
        break;
    case WIRE_PARAM_IO:
        sv_add("PARAM_IO");
        sv_send(&done, NULL, 0);
        break;
    case WIRE_TIMELINE_EVENTS:
        sv_events(msg);
        break;
    case WIRE_BUFFER_FREE:
        sv_send(&done, NULL, 0);
        break;
    case WIRE_STATS_GET:
        done.type = WIRE_STATS;
        sv_send(&done, NULL, 0);
        break;
    default:
        sv_one_way(msg);
    }
}

static inline void sv_frame(const uint8_t *frame, size_t bytes)
{
    struct wire_msg *msg = NULL;
    uint32_t request = 0;

    if (wire_decode(frame, bytes, &msg, &request) < 0)
        abort();
    sv_handle(msg);
    wire_free(msg);
}

/* Everything that lies there. False: the socket has ended, and the ring is empty. */
static inline bool sv_take(void)
{
    static uint8_t frame[GW_FRAME_MAX];
    ssize_t bytes = recv(sv.fd, frame, sizeof(frame), MSG_DONTWAIT);
    bool ended = bytes == 0 || (bytes < 0 && errno != EAGAIN);
    uint64_t rings;

    if (bytes > 0)
        sv_frame(frame, (size_t)bytes);
    if (sv.client && read(sv.bell, &rings, sizeof(rings)) < 0 && errno != EAGAIN)
        abort();
    while (sv.client && (bytes = submit_take(&sv.submit, submit_seen(&sv.submit), frame)) != 0) {
        if (bytes < 0)
            abort();
        sv_frame(frame, (size_t)bytes);
    }
    return !ended;
}

/* Asleep anew each time, so that it is rung for each time. */
static inline bool sv_sleep(void)
{
    if (!sv.client)
        return true;
    atomic_store(&sv.engine->sleeps, (atomic_load(&sv.engine->sleeps) + 2) | 1);
    return submit_seen(&sv.submit) == sv.submit.at;
}

static void *sv_serve(void *unused)
{
    struct pollfd ready[2] = {{.fd = accept4(sv.listener, NULL, NULL, SOCK_CLOEXEC)}};
    bool more = true, empty = true;

    pthread_mutex_lock(&sv.lock);
    sv.fd = ready[0].fd;
    while (more) {
        ready[0].events = ready[1].events = POLLIN;
        ready[1].fd = sv.client ? sv.bell : -1;
        empty = sv_sleep();
        pthread_mutex_unlock(&sv.lock);
        (void)poll(ready, 2, empty ? -1 : 0);
        pthread_mutex_lock(&sv.lock);
        more = sv_take();
    }
    close(sv.fd);
    if (sv.client)
        close(sv.bell);
    sv.fd = -1;
    pthread_mutex_unlock(&sv.lock);
    return unused;
}

/* ---- for tests ------------------------------------------------------------------------------- */

static inline void sv_open(uint32_t device)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(&sv, 0, sizeof(sv));
    pthread_mutex_init(&sv.lock, NULL);
    sv.device = device;
    sv.fd = -1;
    snprintf(sv.path, sizeof(sv.path), "/tmp/gw-service-%ld.sock", (long)getpid());
    memcpy(address.sun_path, sv.path, sizeof(sv.path));
    sv.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    unlink(sv.path);
    assert_int_equal(bind(sv.listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(sv.listener, 8), 0);
    assert_int_equal(pthread_create(&sv.thread, NULL, sv_serve, NULL), 0);
    memset(sv_device.gpu, 0xab, sizeof(sv_device.gpu));
    atomic_store(&sv_device.stuck, false);
    sv_device.ops = &sv_ops;
}

/* On a GPU whose streams have no memory operations. */
static inline void sv_open_events(void)
{
    sv_open(GW_DEVICE_CUDA);
    sv_device.ops = &sv_event_ops;
}

static inline gw_job *sv_job(void)
{
    struct gw_job_options options = {.struct_size = sizeof(options),
                                     .socket_path = sv.path,
                                     .world = 2,
                                     .timeout_ns = 10000000000ll,
                                     .device = sv.device ? &sv_device : NULL};
    gw_job *job = NULL;

    assert_int_equal(gw_job_create(&options, &job), 0);
    return job;
}

/* Parameters of 4 elements, each a unit and a bucket. */
static inline gw_job *sv_sealed_job(uint32_t params, struct gw_zero_options *options)
{
    gw_job *job = sv_job();
    char name[16];

    options->struct_size = sizeof(*options);
    options->bucket_bytes = options->bucket_bytes ? options->bucket_bytes : 16;
    for (uint32_t i = 0; i < params; i++) {
        snprintf(name, sizeof(name), "p%u", i);
        assert_int_equal(gw_param_add(job, name, 4, NULL, NULL), 0);
    }
    if (gw_seal(job, options, GW_FOREVER) < 0)
        fail_msg("%s", gw_last_error());
    sv_lines();
    return job;
}

/* The engine raises a bucket's word. */
static inline void sv_consume(uint32_t bucket, uint64_t value)
{
    atomic_store(&sv.board->slots[bucket].value, value);
}

static inline void sv_fail(int code, const char *text)
{
    snprintf(sv.engine->failure.text, sizeof(sv.engine->failure.text), "%s", text);
    atomic_store(&sv.engine->error, code);
}

static inline void sv_hang_up(void)
{
    pthread_mutex_lock(&sv.lock);
    shutdown(sv.fd, SHUT_RDWR);
    pthread_mutex_unlock(&sv.lock);
}

static inline void sv_close(gw_job *job)
{
    gw_job_close(job);
    pthread_join(sv.thread, NULL);
    close(sv.listener);
    unlink(sv.path);
    layout_free(sv.layout);
    munmap(sv.client, GW_CLIENT_PAGE_BYTES);
    munmap(sv.engine, GW_ENGINE_PAGE_BYTES);
}

#endif
