/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_cases PLUGIN CASE: the plug-in's device and fabric as an engine and three trainers use
 * them, all in one process, every wait of the step in streams (case events: where those cannot).
 * For test_faults.py, which plants mistakes (GRADWIRE_PLANT) and expects that this program or the
 * fake GPU sees each. Exit 1: wrong values, or something that did not come.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/pages.h"
#include "daemon/device/plugin.h"

#define RANKS 3u
#define SLICE 70001u /* large enough that copies go through scratch */
#define WHOLE (RANKS * SLICE)
#define STEPS 6u
#define SCALE 0.3f

static const struct device_ops *device_ops;
static const struct fabric_ops *fabric_ops;
static struct device *device;
static struct fabric *fabric;
static const uint32_t everyone[RANKS] = {0, 1, 2};
static uint64_t last_op, works, done_works, failed_works;
static bool words = true;     /* streams have memory operations */
static uint64_t deadline_ns; /* of $FAULT_DEADLINE_S: a fault that hangs need not hang long */

/* Floats in a rank's arena. */
enum {
    AT_SOURCE = 0,                     /* STEPS gradients, written at the start */
    AT_IN = AT_SOURCE + STEPS * WHOLE, /* two buffers */
    AT_OUT = AT_IN + 2 * WHOLE, /* per step: exact, then of order=fabric, the whole gathered */
    AT_FABRIC = AT_OUT + STEPS * SLICE,
    AT_GATHERED = AT_FABRIC + STEPS * SLICE,
    AT_POOL = AT_GATHERED + STEPS * WHOLE, /* the whole by the rank's own gather */
    FLOATS = AT_POOL + STEPS * WHOLE,
};

struct client {
    struct device_memory *arena, *page, *slots;
    CUcontext context;
    CUstream stream;
    CUdeviceptr word, slot; /* where streams reach the token, and slot 0 */
};

static struct client clients[RANKS];
static float *values; /* of one arena */

static void die(int line, const char *what)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    _exit(1); /* GPUs may hang: nothing is put in order */
}

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__LINE__, #condition);                                                             \
    } while (0)

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void nap(void)
{
    const struct timespec time = {0, 100000};

    nanosleep(&time, NULL);
}

/* One line to the server's control socket. */
static void control(const char *line)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char answer[64];

    snprintf(address.sun_path, sizeof(address.sun_path), "%s.ctl", getenv("FAKEGPU_SOCKET"));
    EXPECT(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
    dprintf(fd, "%s\n", line);
    shutdown(fd, SHUT_WR);
    EXPECT(read(fd, answer, sizeof(answer)) >= 2 && !memcmp(answer, "ok", 2));
    close(fd);
}

static void phase(const char *name)
{
    char line[64];

    snprintf(line, sizeof(line), "phase %s %d", name, (int)getpid());
    control(line);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void on_wake(void *user)
{
    (void)user;
}

static void plugin_open(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);
    const struct plugin *plugin = handle ? dlsym(handle, GW_PLUGIN_SYMBOL) : NULL;
    char text[GW_TEXT_MAX + 1] = "fewer GPUs than ranks";

    if (!plugin)
        die(__LINE__, dlerror());
    /* Before anything of CUDA: it asks for a hardware queue per stream. */
    if (plugin->probe(text) < (int)RANKS)
        die(__LINE__, text);
    device_ops = plugin->device_ops;
    fabric_ops = plugin->fabric_ops;
}

static float gradient(uint32_t rank, uint32_t step, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (rank * 16u + step) * 0xbf58476dul;

    x ^= x >> 31;
    x *= UINT64_C(0x94d049bb133111eb);
    return ldexpf((float)(int32_t)(uint32_t)(x >> 13), -31 + (int)(x >> 60));
}

static void fill_sources(uint32_t rank)
{
    for (uint64_t i = 0; i < FLOATS; i++)
        values[i] = NAN;
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint64_t i = 0; i < WHOLE; i++)
            values[AT_SOURCE + step * WHOLE + i] = gradient(rank, step, i);
    device_ops->copy(device, clients[rank].arena->base, values, FLOATS * sizeof(float));
}

static void place(uint32_t rank)
{
    struct device_place where;
    char text[GW_TEXT_MAX + 1] = "";
    CUuuid uuid;
    CUdevice gpu;

    EXPECT(!cuInit(0) && !cuDeviceGet(&gpu, (int)rank) && !cuDeviceGetUuid(&uuid, gpu));
    memcpy(where.gpu, &uuid, sizeof(where.gpu));
    if (device_ops->place(device, rank, &where, text))
        die(__LINE__, text);
    EXPECT(!cuDevicePrimaryCtxRetain(&clients[rank].context, gpu));
}

/* The trainer's side of a rank: pages, a stream of its own. */
static void client_new(uint32_t rank)
{
    struct client *client = &clients[rank];
    struct gw_client_page *page;
    struct gw_engine_page *slots;

    EXPECT(!pages_new(PAGES_SHARED, "client", GW_PAGE_BYTES, PAGES_ANYWHERE, &client->page));
    EXPECT(
        !pages_new(PAGES_SHARED, "engine", GW_ENGINE_PAGE_BYTES, PAGES_ANYWHERE, &client->slots));
    EXPECT(!device_ops->page_add(device, client->page->base, GW_PAGE_BYTES));
    EXPECT(!device_ops->page_add(device, client->slots->base, GW_ENGINE_PAGE_BYTES));
    EXPECT(!device_ops->memory_new(device, DEVICE_MEMORY_ARENA, rank, "arena",
                                   FLOATS * sizeof(float), &client->arena));
    fabric_ops->memory_added(fabric, rank, client->arena);
    page = client->page->base;
    slots = client->slots->base;
    EXPECT(!cuCtxSetCurrent(client->context));
    EXPECT(!cuStreamCreate(&client->stream, CU_STREAM_NON_BLOCKING));
    /* A page that is not registered has no address: as good as any, its use is told. */
    if (cuMemHostGetDevicePointer(&client->word, &page->timeline[0], 0))
        client->word = (CUdeviceptr)(uintptr_t)&page->timeline[0];
    if (cuMemHostGetDevicePointer(&client->slot, &slots->op[0].value, 0))
        client->slot = (CUdeviceptr)(uintptr_t)&slots->op[0].value;
    fill_sources(rank);
}

static void start(void)
{
    const struct device_config config = {.wake = on_wake};
    struct fabric_config fabric_config = {
        .world = RANKS, .op_timeout_ns = 4 * deadline_ns, .device_ops = device_ops};

    values = malloc(FLOATS * sizeof(float));
    EXPECT(values);
    EXPECT(!device_ops->device_new(&config, &device));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        place(rank);
    fabric_config.device = device;
    EXPECT(!fabric_ops->fabric_new(&fabric_config, &fabric));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        client_new(rank);
    EXPECT(!fabric_ops->form(fabric));
}

/* ---- works ----------------------------------------------------------------------------------- */

static float *at(uint32_t rank, uint64_t floats)
{
    return (float *)clients[rank].arena->base + floats;
}

static _Atomic uint64_t *word_of(uint32_t rank)
{
    return &((struct gw_client_page *)clients[rank].page->base)->timeline[0];
}

static struct gw_shm_slot *slot_of(uint32_t rank, uint32_t slot)
{
    return &((struct gw_engine_page *)clients[rank].slots->base)->op[slot];
}

static struct core_op op_of(enum core_op_kind kind)
{
    struct core_op op = {.kind = (uint8_t)kind,
                         .stream = CORE_STREAM_REDUCE,
                         .traffic = GW_KINDS,
                         .world = RANKS,
                         .members = everyone,
                         .numel = SLICE,
                         .scale = SCALE};

    return op;
}

/* token: of every member, 0: none; slot: raised to `value` for every member. */
static uint64_t launch(struct core_op *op, const void *const *in, void *const *out,
                       const struct fabric_segment *segments, uint32_t segment_count,
                       uint64_t token, uint32_t slot, uint64_t value)
{
    struct device_wait waits[RANKS];
    struct device_signal signals[RANKS];

    for (uint32_t i = 0; i < op->world; i++) {
        uint32_t rank = op->members[i];

        waits[i] = (struct device_wait){word_of(rank), token, rank};
        signals[i] = (struct device_signal){.slot = slot_of(rank, slot),
                                            .value = value,
                                            .rank = rank,
                                            .engine = clients[rank].slots->base,
                                            .client = clients[rank].page->base};
    }
    op->id = ++last_op;
    works++;
    EXPECT(!fabric_ops->launch(fabric, &(struct fabric_op){.op = op,
                                                           .in = in,
                                                           .out = out,
                                                           .segments = segments,
                                                           .segment_count = segment_count,
                                                           .waits = waits,
                                                           .wait_count = token ? op->world : 0,
                                                           .signals = signals,
                                                           .signal_count = op->world}));
    return op->id;
}

/* How many completions came; a fault is the caller's to see. */
static bool wait_works(char text[GW_TEXT_MAX + 1])
{
    uint64_t until_ns = now_ns() + deadline_ns;
    struct device_done done;

    text[0] = 0;
    while (done_works < works) {
        if (device_ops->take_fault(device, text))
            return false;
        if (device_ops->take_done(device, &done)) {
            done_works++;
            failed_works += done.failed;
            continue;
        }
        if (now_ns() > until_ns) {
            snprintf(text, GW_TEXT_MAX, "%llu of %llu works ended in time",
                     (unsigned long long)done_works, (unsigned long long)works);
            return false;
        }
        nap();
    }
    return true;
}

static void expect_works(int line)
{
    char text[GW_TEXT_MAX + 1];

    if (!wait_works(text))
        die(line, text);
}

static void stop(void)
{
    struct device_done done;

    fabric_ops->abort(fabric);
    device_ops->abort(device, DEVICE_ALL_RANKS);
    device_ops->drain(device);
    while (device_ops->take_done(device, &done))
        ;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct client *client = &clients[rank];

        EXPECT(!cuCtxSetCurrent(client->context) && !cuStreamSynchronize(client->stream));
        EXPECT(!cuStreamDestroy(client->stream));
        fabric_ops->memory_removed(fabric, rank, client->arena);
        device_ops->memory_free(device, client->arena);
        device_ops->page_remove(device, client->page->base);
        device_ops->page_remove(device, client->slots->base);
        pages_free(client->page);
        pages_free(client->slots);
    }
    EXPECT(!fabric_ops->fabric_free(fabric));
    EXPECT(!device_ops->device_free(device));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        cuDevicePrimaryCtxRelease((CUdevice)rank);
    free(values);
}

/* ---- the trainers ---------------------------------------------------------------------------- */

static void CUDA_CB raise_word(void *word)
{
    atomic_fetch_add((_Atomic uint64_t *)word, 1);
}

/* Until the stream may write the step's buffer again. */
static void wait_for_readers(uint32_t rank, uint32_t step)
{
    const struct client *client = &clients[rank];
    uint64_t until_ns = now_ns() + deadline_ns;

    if (words)
        EXPECT(
            !cuStreamWaitValue64(client->stream, client->slot, step - 1, CU_STREAM_WAIT_VALUE_GEQ));
    while (!words && atomic_load(&slot_of(rank, 0)->value) < step - 1) {
        EXPECT(now_ns() < until_ns);
        nap();
    }
}

/* Writes the step's gradient into its buffer once both reductions of two steps ago have read it,
 * and says so: all in the stream. */
static void produce(uint32_t rank, uint32_t step)
{
    struct client *client = &clients[rank];
    CUdeviceptr in = (CUdeviceptr)(uintptr_t)at(rank, AT_IN + step % 2 * WHOLE);
    CUdeviceptr source = (CUdeviceptr)(uintptr_t)at(rank, AT_SOURCE + step * WHOLE);

    EXPECT(!cuCtxSetCurrent(client->context));
    if (step >= 2)
        wait_for_readers(rank, step);
    EXPECT(!cuMemsetD8Async(in, 0xff, WHOLE * sizeof(float), client->stream));
    EXPECT(!cuMemcpyAsync(in, source, WHOLE * sizeof(float), client->stream));
    if (words)
        EXPECT(!cuStreamWriteValue64(client->stream, client->word, step + 1, 0));
    else
        EXPECT(!cuLaunchHostFunc(client->stream, raise_word, word_of(rank)));
}

/* ---- the engine ------------------------------------------------------------------------------ */

static uint64_t reduce(uint32_t step, uint64_t to, enum gw_order order, uint32_t slot)
{
    struct core_op op = op_of(CORE_OP_REDUCE_SCATTER);
    const void *in[RANKS];
    void *out[RANKS];

    op.order = (uint8_t)order;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        in[rank] = at(rank, AT_IN + step % 2 * WHOLE);
        out[rank] = at(rank, to + step * SLICE);
    }
    return launch(&op, in, out, NULL, 0, step + 1, slot, step + 1);
}

/* NCCL's all-gather of what the step has reduced. */
static void gather_all(uint32_t step)
{
    struct core_op op = op_of(CORE_OP_ALL_GATHER);
    const void *in[RANKS];
    void *out[RANKS];

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        in[rank] = at(rank, AT_OUT + step * SLICE);
        out[rank] = at(rank, AT_GATHERED + step * WHOLE);
    }
    launch(&op, in, out, NULL, 0, 0, 2, step + 1);
}

/* The same by one rank's own stream, behind the reduction. */
static void gather_one(uint32_t step, uint32_t rank, uint64_t after)
{
    struct fabric_segment segments[RANKS];
    struct core_op op = op_of(CORE_OP_GATHER);

    op.stream = CORE_STREAM_GATHER;
    op.rank = rank;
    op.world = 1;
    op.members = &everyone[rank];
    op.wait_ops = &after;
    op.wait_op_count = 1;
    for (uint32_t q = 0; q < RANKS; q++)
        segments[q] = (struct fabric_segment){at(rank, AT_POOL + step * WHOLE + q * SLICE),
                                              at(q, AT_OUT + step * SLICE), SLICE * sizeof(float),
                                              q};
    launch(&op, NULL, NULL, segments, RANKS, 0, 3, step + 1);
}

static float tree_of(uint32_t step, uint64_t i)
{
    float sum = gradient(0, step, i) + gradient(1, step, i);

    return (sum + gradient(2, step, i)) * SCALE;
}

static void expect_bits(const char *what, uint32_t rank, uint32_t step, uint64_t i, float got,
                        float want)
{
    if (!memcmp(&got, &want, sizeof(got)))
        return;
    fprintf(stderr, "%s, rank %u, step %u, element %llu: %.9g, should be %.9g\n", what, rank, step,
            (unsigned long long)i, (double)got, (double)want);
    _exit(1);
}

/* How many values of order=fabric are not the tree's. */
static uint64_t check_values(uint32_t rank)
{
    uint64_t differ = 0;

    device_ops->copy(device, values, clients[rank].arena->base, FLOATS * sizeof(float));
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < WHOLE; i++) {
            float want = tree_of(step, i);

            expect_bits("gathered", rank, step, i, values[AT_GATHERED + step * WHOLE + i], want);
            expect_bits("pool", rank, step, i, values[AT_POOL + step * WHOLE + i], want);
        }
        for (uint64_t i = 0; i < SLICE; i++) {
            uint64_t k = rank * SLICE + i;
            float want = tree_of(step, k), got = values[AT_FABRIC + step * SLICE + i];
            float most = fabsf(gradient(0, step, k)) + fabsf(gradient(1, step, k)) +
                         fabsf(gradient(2, step, k));

            expect_bits("slice", rank, step, i, values[AT_OUT + step * SLICE + i], want);
            if (!(fabsf(got - want) <= most * 1e-6f))
                expect_bits("order=fabric", rank, step, i, got, want);
            differ += got != want;
        }
    }
    return differ;
}

static void case_steps(void)
{
    uint64_t differ = 0;

    gather_all(0); /* behind the making of the communicators, which may block */
    expect_works(__LINE__);
    phase("step");
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t op;

        reduce(step, AT_FABRIC, GW_ORDER_FABRIC, 1);
        op = reduce(step, AT_OUT, GW_ORDER_EXACT, 0);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            gather_one(step, rank, op);
        gather_all(step);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            produce((rank + step) % RANKS, step);
    }
    expect_works(__LINE__);
    phase("setup");
    EXPECT(failed_works == 0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        differ += check_values(rank);
    EXPECT(differ > 0); /* another order of adding shows */
}

/* Nothing of what waits for rank 1, on the host or inside NCCL, stays; then all goes on. */
static void case_abort(void)
{
    uint64_t before;

    reduce(0, AT_FABRIC, GW_ORDER_FABRIC, 1);
    reduce(0, AT_OUT, GW_ORDER_EXACT, 0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != 1)
            produce(rank, 0);
    usleep(100000);
    EXPECT(atomic_load(&slot_of(0, 0)->value) == 0);
    fabric_ops->abort(fabric);
    device_ops->abort(device, DEVICE_ALL_RANKS);
    expect_works(__LINE__);
    EXPECT(failed_works == works);
    EXPECT(atomic_load(&slot_of(0, 0)->value) == 0);
    device_ops->drain(device);
    device_ops->resume(device);
    EXPECT(!fabric_ops->form(fabric));
    before = failed_works;
    produce(1, 0);
    reduce(0, AT_OUT, GW_ORDER_EXACT, 0);
    gather_all(0);
    expect_works(__LINE__);
    EXPECT(failed_works == before && atomic_load(&slot_of(2, 2)->value) == 1);
}

static void case_fault(void)
{
    struct core_op op = op_of(CORE_OP_BARRIER); /* the device's own calls alone */
    char text[GW_TEXT_MAX + 1];

    gather_all(0); /* behind the making of the communicators: NCCL would tell the fault there */
    expect_works(__LINE__);
    control("inject sticky all 1");
    launch(&op, NULL, NULL, NULL, 0, 0, 0, 1);
    EXPECT(!wait_works(text));
    fprintf(stderr, "%s\n", text);
    EXPECT(strstr(text, "CUDA_ERROR") != NULL);
    _exit(0); /* nothing of CUDA works any more */
}

/* ---- imports --------------------------------------------------------------------------------- */

#define IMPORT_OFFSET (UINT64_C(1) << 20)

struct exported {
    CUipcMemHandle handle;
    uint64_t bytes;
};

/* Another process, whose memory holds zeros and stays until the parent has closed the pipe. */
static void exporter(int to, int until)
{
    struct exported exported = {.bytes = 2 * IMPORT_OFFSET + WHOLE * sizeof(float)};
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    char byte;

    EXPECT(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
    EXPECT(!cuMemAlloc(&memory, exported.bytes));
    EXPECT(!cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT(!cuMemsetD8Async(memory, 0, exported.bytes, stream) && !cuStreamSynchronize(stream));
    EXPECT(!cuIpcGetMemHandle(&exported.handle, memory));
    EXPECT(write(to, &exported, sizeof(exported)) == (ssize_t)sizeof(exported));
    EXPECT(read(until, &byte, 1) == 0);
    EXPECT(!cuMemFree(memory) && !cuStreamDestroy(stream) && !cuDevicePrimaryCtxRelease(0));
    exit(0);
}

static int export_pipe[2], until_pipe[2];
static pid_t export_pid;

/* Before anything of CUDA: a fork inherits none of it. */
static void exporter_start(void)
{
    EXPECT(!pipe(export_pipe) && !pipe(until_pipe));
    export_pid = fork();
    if (!export_pid) {
        close(until_pipe[1]);
        exporter(export_pipe[1], until_pipe[0]);
    }
    close(until_pipe[0]);
}

/* Slices of rank 0's imported zeros and the others' gradients, summed. */
static void reduce_imported(const void *const *in, uint64_t slice, uint64_t turn)
{
    struct core_op op = op_of(CORE_OP_REDUCE_SCATTER);
    void *out[RANKS];

    for (uint32_t rank = 0; rank < RANKS; rank++)
        out[rank] = at(rank, AT_OUT);
    op.numel = slice;
    launch(&op, in, out, NULL, 0, 1, 0, turn);
}

/* By NCCL, which is not to take rank 0's for registered like the others'. */
static void gather_imported(const void *const *in, uint64_t slice, uint64_t turn)
{
    struct core_op op = op_of(CORE_OP_ALL_GATHER);
    void *out[RANKS];

    for (uint32_t rank = 0; rank < RANKS; rank++)
        out[rank] = at(rank, AT_GATHERED);
    op.numel = slice;
    launch(&op, in, out, NULL, 0, 0, 2, turn);
}

static void check_imported(uint64_t slice)
{
    expect_works(__LINE__);
    device_ops->copy(device, values, clients[1].arena->base, FLOATS * sizeof(float));
    for (uint64_t i = 0; i < slice; i++)
        expect_bits("imported", 1, 0, i, values[AT_OUT + i],
                    (0 + gradient(1, 0, slice + i) + gradient(2, 0, slice + i)) * SCALE);
}

/* Two buffers of one allocation; one goes while a reduction from the other waits. Large slices go
 * by copy engines; small ones are read in place where that is allowed, as it is not here. */
static void case_import(void)
{
    struct exported exported;
    struct device_import import = {.client = 7, .bytes = WHOLE * sizeof(float)};
    struct device_memory *buffers[2];
    char text[GW_TEXT_MAX + 1] = "";
    const void *in[RANKS];
    int status = 0;

    EXPECT(read(export_pipe[0], &exported, sizeof(exported)) == (ssize_t)sizeof(exported));
    memcpy(import.handle, &exported.handle, sizeof(import.handle));
    import.allocation_bytes = exported.bytes;
    for (uint32_t i = 0; i < 2; i++) {
        import.offset = (i + 1) * IMPORT_OFFSET;
        import.bytes = i ? WHOLE * sizeof(float) : IMPORT_OFFSET;
        if (device_ops->memory_import(device, 0, &import, &buffers[i], text))
            die(__LINE__, text);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        in[rank] = rank ? at(rank, AT_IN) : buffers[1]->base;
    reduce_imported(in, SLICE, 1);
    device_ops->memory_free(device, buffers[0]);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        produce(rank, 0);
    check_imported(SLICE);
    reduce_imported(in, SLICE / 100, 2);
    check_imported(SLICE / 100);
    gather_imported(in, SLICE / 100, 1);
    expect_works(__LINE__);
    device_ops->memory_free(device, buffers[1]);
    close(until_pipe[1]);
    waitpid(export_pid, &status, 0);
    EXPECT(!status);
}

/* Memory that goes while the communicators stay. */
static void case_register(void)
{
    struct device_memory *memory[RANKS];

    reduce(0, AT_FABRIC, GW_ORDER_FABRIC, 0); /* behind the making of the communicators */
    for (uint32_t rank = 0; rank < RANKS; rank++)
        produce(rank, 0);
    expect_works(__LINE__);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        EXPECT(!device_ops->memory_new(device, DEVICE_MEMORY_ARENA, rank, "more", 1 << 20,
                                       &memory[rank]));
        fabric_ops->memory_added(fabric, rank, memory[rank]);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        fabric_ops->memory_removed(fabric, rank, memory[rank]);
        device_ops->memory_free(device, memory[rank]);
    }
}

/* ---- choice ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
    const char *inject; /* before anything of CUDA; NULL: nothing */
} cases[] = {{"steps", case_steps, NULL},
             {"apart", case_steps, "inject peers 2"}, /* rank 2's GPU reaches no other */
             {"events", case_steps, "inject no-stream-memops"},
             {"abort", case_abort, NULL},
             {"import", case_import, NULL},
             {"register", case_register, NULL},
             {"fault", case_fault, NULL}};

int main(int argc, char **argv)
{
    const char *deadline = getenv("FAULT_DEADLINE_S");

    deadline_ns = strtoull(deadline ? deadline : "20", NULL, 10) * 1000000000u;
    for (size_t i = 0; argc == 3 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, argv[2]))
            continue;
        alarm(100); /* longer than every wait above */
        if (cases[i].inject)
            control(cases[i].inject);
        if (cases[i].run == case_import)
            exporter_start();
        words = strcmp(argv[2], "events") != 0;
        plugin_open(argv[1]);
        start();
        cases[i].run();
        stop();
        return 0;
    }
    fputs("usage: fault_cases PLUGIN CASE\n", stderr);
    return 2;
}
