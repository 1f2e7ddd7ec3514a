/* SPDX-License-Identifier: Apache-2.0 */
/* See device_kit.h. The driver's double is called by the names that cuda.h gives its functions. */
#include "tests/fakegpu/device_kit.h"

#include <cuda.h>
#include <dlfcn.h>
#include <linux/futex.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_NS (60 * UINT64_C(1000000000))

#define CALLS(CALL)                                                                                \
    CALL(cuInit)                                                                                   \
    CALL(cuDeviceGet)                                                                              \
    CALL(cuDevicePrimaryCtxRetain)                                                                 \
    CALL(cuDevicePrimaryCtxRelease)                                                                \
    CALL(cuCtxSetCurrent)                                                                          \
    CALL(cuMemsetD32Async)                                                                         \
    CALL(cuMemcpyAsync)                                                                            \
    CALL(cuMemcpyDtoH)                                                                             \
    CALL(cuStreamCreate)                                                                           \
    CALL(cuStreamDestroy)                                                                          \
    CALL(cuStreamSynchronize)                                                                      \
    CALL(cuStreamWriteValue64)                                                                     \
    CALL(cuStreamWaitValue64)                                                                      \
    CALL(cuMemHostRegister)                                                                        \
    CALL(cuMemHostUnregister)                                                                      \
    CALL(cuMemHostGetDevicePointer)                                                                \
    CALL(cuMemAlloc)                                                                               \
    CALL(cuMemFree)                                                                                \
    CALL(cuIpcGetMemHandle)                                                                        \
    CALL(cuMemImportFromShareableHandle)                                                           \
    CALL(cuMemAddressReserve)                                                                      \
    CALL(cuMemAddressFree)                                                                         \
    CALL(cuMemMap)                                                                                 \
    CALL(cuMemUnmap)                                                                               \
    CALL(cuMemSetAccess)                                                                           \
    CALL(cuMemRelease)

#define FIELD(call) __typeof__(&call) call;
#define TEXT(call) #call
#define NAME(call) TEXT(call)
#define LOAD(call) *(void **)&cu.call = dlsym(driver, NAME(call));

static struct {
    CALLS(FIELD)
} cu;
static const struct plugin *plugin;
static uint8_t uuids[GPUS][GW_GPU_BYTES];

static bool driver_open(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);

    if (!driver)
        return false;
    CALLS(LOAD)
    return cu.cuInit && cu.cuMemRelease && cu.cuInit(0) == CUDA_SUCCESS;
}

bool kit_open(void)
{
    plugin = alone_plugin(GPUS, uuids);
    return plugin && driver_open();
}

const uint8_t *kit_uuid(uint32_t rank)
{
    return uuids[rank];
}

uint64_t kit_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void kit_phase(const char *name)
{
    static const char *now = "setup";
    char line[64];

    if (strcmp(name, now) == 0)
        return;
    now = name;
    snprintf(line, sizeof(line), "phase %s %d", name, (int)getpid());
    assert_true(alone_control(line));
}

/* ---- a device -------------------------------------------------------------------------------- */

static void on_wake(void *user)
{
    ((struct kit *)user)->wakes++;
}

static void *page_new(struct kit *kit, uint32_t rank, int which, size_t bytes)
{
    struct device_memory *page = NULL;

    assert_int_equal(pages_new(which == 1 ? PAGES_OUT : PAGES_SHARED, "test-page", bytes,
                               PAGES_ANYWHERE, &page),
                     0);
    assert_int_equal(kit->ops->page_add(kit->device, page->base, page->mapped_bytes), 0);
    kit->pages[rank][which] = page;
    return page->base;
}

void kit_device(struct kit *kit)
{
    kit->ops = plugin->device_ops;
    assert_int_equal(
        kit->ops->device_new(&(struct device_config){.wake = on_wake, .user = kit}, &kit->device),
        0);
}

int kit_setup(void **state)
{
    struct kit *kit = calloc(1, sizeof(*kit));
    char *text = kit->place_text;

    kit->to_client = kit->from_client = -1;
    kit->started_ns = kit_now_ns();
    kit_device(kit);
    /* Some before the GPUs, some after. */
    assert_int_equal(kit->ops->stream_new(kit->device, "a", &kit->lane[0]), 0);
    kit->client[0] = page_new(kit, 0, 0, GW_PAGE_BYTES);
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        struct device_place place;
        memcpy(place.gpu, uuids[rank], sizeof(place.gpu));
        if (kit->ops->place(kit->device, rank, &place, text) != 0)
            fail_msg("rank %u: %s", rank, text);
    }
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        if (rank > 0)
            kit->client[rank] = page_new(kit, rank, 0, GW_PAGE_BYTES);
        kit->engine[rank] = page_new(kit, rank, 1, GW_ENGINE_PAGE_BYTES);
        kit->waits[rank] = page_new(kit, rank, 2, GW_WAIT_BYTES(GW_OPS_IN_FLIGHT));
    }
    for (int lane = 1; lane < LANES; lane++)
        assert_int_equal(kit->ops->stream_new(kit->device, "b", &kit->lane[lane]), 0);
    *state = kit;
    return 0;
}

int kit_teardown(void **state)
{
    struct kit *kit = *state;

    kit_phase("setup");
    if (kit->device) {
        struct device_done done;
        kit->ops->abort(kit->device, DEVICE_ALL_RANKS);
        kit->ops->drain(kit->device);
        while (kit->ops->take_done(kit->device, &done))
            ;
        for (uint32_t i = 0; i < kit->arena_count; i++)
            kit->ops->memory_free(kit->device, kit->arenas[i]);
        for (uint32_t rank = 0; rank < GPUS; rank++)
            for (int which = 0; which < 3; which++)
                kit->ops->page_remove(kit->device, kit->pages[rank][which]->base);
        kit->device = kit->ops->device_free(kit->device);
    }
    for (uint32_t rank = 0; rank < GPUS; rank++)
        for (int which = 0; which < 3; which++)
            pages_free(kit->pages[rank][which]);
    free(kit);
    return 0;
}

struct device_memory *kit_arena(struct kit *kit, uint32_t rank, size_t bytes)
{
    struct device_memory *memory = NULL;

    kit_phase("setup");
    assert_int_equal(
        kit->ops->memory_new(kit->device, DEVICE_MEMORY_ARENA, rank, "test", bytes, &memory), 0);
    kit->arenas[kit->arena_count++] = memory;
    return memory;
}

/* ---- works ----------------------------------------------------------------------------------- */

/* What daemon/device/cuda/native.h says; its header needs no CUDA, but is not for tests. */
struct native {
    struct device *device;
    uint32_t rank;
    int gpu;
    void *stream;
};

static void run(void *arg, void *native)
{
    struct kit_item *item = arg;
    const struct native *part = native;
    const struct device_memory *memory = item->memory[part->rank];
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr to;
    size_t bytes;

    item->kit->runs++;
    if (!memory)
        return;
    to = (CUdeviceptr)(uintptr_t)memory->base + item->at;
    bytes = item->bytes ? item->bytes : memory->bytes;
    if (item->from)
        result = cu.cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)item->from->base + item->from_at,
                                  bytes, part->stream);
    else
        result = cu.cuMemsetD32Async(to, item->word, bytes / 4, part->stream);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "work %llu: error %d\n", (unsigned long long)item->id, (int)result);
}

static void release(void *arg)
{
    struct kit_item *item = arg;

    item->kit->released++;
    free(item);
}

struct kit_item *kit_item(struct kit *kit, uint64_t id, struct device_memory *memory, uint32_t word)
{
    struct kit_item *item = calloc(1, sizeof(*item));

    *item = (struct kit_item){.kit = kit, .id = id, .word = word};
    for (uint32_t rank = 0; rank < GPUS; rank++)
        item->memory[rank] = rank == 0 || !memory ? memory : NULL;
    return item;
}

void kit_enqueue(struct kit *kit, int lane, struct kit_item *item, struct device_work *work)
{
    kit_phase("step");
    work->op = item->id;
    work->arg = item;
    work->run = run;
    work->release = release;
    if (work->ranks.word[0] == 2) /* alone: its memory is what was named */
        item->memory[1] = item->memory[0];
    assert_int_equal(kit->ops->enqueue(kit->lane[lane], work), 0);
}

struct device_signal kit_signal(struct kit *kit, uint32_t rank, uint32_t slot, uint64_t value)
{
    return (struct device_signal){.slot = &kit->engine[rank]->op[slot],
                                  .value = value,
                                  .offset = value * 10,
                                  .rank = rank,
                                  .engine = kit->engine[rank],
                                  .client = kit->client[rank],
                                  .mirror = &kit->waits[rank]->word[slot]};
}

void kit_raise(struct kit *kit, uint32_t rank, uint32_t timeline, uint64_t value)
{
    atomic_store(&kit->client[rank]->timeline[timeline], value);
    kit->ops->kick(kit->device);
}

struct device_done kit_done(struct kit *kit)
{
    uint64_t until_ns = kit_now_ns() + DEADLINE_NS;
    struct device_done done = {0};
    char text[GW_TEXT_MAX + 1];

    while (kit_now_ns() < until_ns) {
        if (kit->ops->take_done(kit->device, &done))
            return done;
        if (kit->ops->take_fault(kit->device, text))
            fail_msg("fault: %s", text);
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    fail_msg("no completion came");
    return done;
}

bool kit_quiet(struct kit *kit)
{
    struct device_done done;
    char text[GW_TEXT_MAX + 1];

    return !kit->ops->take_done(kit->device, &done) && !kit->ops->take_fault(kit->device, text);
}

void kit_pause(struct kit *kit)
{
    (void)kit;
    nanosleep(&(struct timespec){0, 30000000}, NULL);
}

void kit_holds(struct kit *kit, const struct device_memory *memory, uint32_t word)
{
    uint32_t *words = malloc(memory->bytes);

    kit_phase("setup");
    kit->ops->copy(kit->device, words, memory->base, memory->bytes);
    for (size_t i = 0; i < memory->bytes / 4; i++)
        if (words[i] != word)
            fail_msg("word %zu of %zu is %08x, not %08x", i, memory->bytes / 4, words[i], word);
    free(words);
}

/* ---- clients --------------------------------------------------------------------------------- */

void *kit_sleeper(void *arg)
{
    struct kit *kit = arg;
    struct gw_engine_page *engine = kit->engine[0];
    struct gw_client_page *client = kit->client[0];
    uint32_t line = gw_wake_line(&engine->op[2]);
    uint64_t until_ns = kit_now_ns() + DEADLINE_NS;

    for (uint64_t round = 1; kit_now_ns() < until_ns; round++) {
        uint64_t rounds = 0;
        while (atomic_load(&engine->op[2].value) < round && kit_now_ns() < until_ns) {
            const struct timespec most = {(time_t)(kit_now_ns() / 1000000000u) + 2, 0};
            uint32_t wake;
            atomic_fetch_add(&client->waiting[line], 1);
            wake = atomic_load(&engine->wake);
            if (atomic_load(&engine->op[2].value) < round)
                (void)syscall(SYS_futex, &engine->wake, FUTEX_WAIT_BITSET, wake, &most, NULL,
                              1u << line);
            atomic_fetch_sub(&client->waiting[line], 1);
        }
        atomic_store(&client->timeline[1], round);
        kit->ops->kick(kit->device);
        while ((rounds = atomic_load(&client->timeline[2])) == 0 && kit_now_ns() < until_ns)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        if (round >= rounds)
            break;
    }
    return NULL;
}

void kit_client_start(struct kit *kit, const char *what, const struct device_memory *memory)
{
    char program[512], arguments[4][16];
    char *argv[] = {
        program, (char *)(uintptr_t)what, arguments[0], arguments[1], arguments[2], arguments[3],
        NULL};
    posix_spawn_file_actions_t actions;
    int in[2], out[2], fds[4];
    pid_t child;
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

    assert_true(n > 0);
    program[n] = 0;
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    fds[0] = kit->pages[0][0]->fd;
    fds[1] = kit->pages[0][2]->fd;
    fds[2] = memory ? memory->fd : kit->pages[0][0]->fd;
    fds[3] = 0;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 3; i++) {
        posix_spawn_file_actions_adddup2(&actions, fds[i], 60 + i);
        snprintf(arguments[i], sizeof(arguments[i]), "%d", 60 + i);
    }
    snprintf(arguments[3], sizeof(arguments[3]), "%zu", memory ? memory->mapped_bytes : 0);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    kit->to_client = in[1];
    kit->from_client = out[0];
    kit->child = child;
}

void kit_client_read(struct kit *kit, void *to, size_t bytes)
{
    assert_int_equal(read(kit->from_client, to, bytes), bytes);
}

void kit_client_end(struct kit *kit)
{
    uint64_t until_ns = kit_now_ns() + DEADLINE_NS;
    int status = -1;

    assert_int_equal(write(kit->to_client, "!", 1), 1);
    while (waitpid(kit->child, &status, WNOHANG) == 0 && kit_now_ns() < until_ns)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    close(kit->to_client);
    close(kit->from_client);
    assert_int_equal(status, 0);
}

/* ---- the client's side ----------------------------------------------------------------------- */

static void must(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "client: %s: error %d\n", call, (int)result);
    exit(3);
}
#define MUST(call, ...) must(#call, cu.call(__VA_ARGS__))

static CUdeviceptr map_page(int fd, size_t bytes, void **ret_page)
{
    CUdeviceptr alias = 0;

    *ret_page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*ret_page == MAP_FAILED)
        exit(4);
    MUST(cuMemHostRegister, *ret_page, bytes,
         CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    MUST(cuMemHostGetDevicePointer, &alias, *ret_page, 0);
    return alias;
}

static void wait_for_parent(void)
{
    char byte;

    if (read(0, &byte, 1) != 1)
        exit(5);
}

/* Fills the arena, raises timeline 0; after slot 0's word, fills it again. */
static void client_map(int client_fd, int waits_fd, int arena_fd, size_t bytes, CUstream stream)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base, client, waits;
    void *pages[2];

    client = map_page(client_fd, GW_PAGE_BYTES, &pages[0]);
    waits = map_page(waits_fd, GW_PAGE_BYTES, &pages[1]);
    MUST(cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)arena_fd,
         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    MUST(cuMemAddressReserve, &base, bytes, 0, 0, 0);
    MUST(cuMemMap, base, bytes, 0, handle, 0);
    MUST(cuMemRelease, handle);
    MUST(cuMemSetAccess, base, bytes, &access, 1);
    MUST(cuMemsetD32Async, base, 0x5a5a5a5a, bytes / 4, stream);
    MUST(cuStreamWriteValue64, stream, client + offsetof(struct gw_client_page, timeline), 1,
         CU_STREAM_WRITE_VALUE_DEFAULT);
    MUST(cuStreamWaitValue64, stream, waits + offsetof(struct gw_wait_page, word), 1,
         CU_STREAM_WAIT_VALUE_GEQ);
    MUST(cuMemsetD32Async, base, 0x66666666, bytes / 4, stream);
    MUST(cuStreamSynchronize, stream);
    wait_for_parent();
    MUST(cuMemUnmap, base, bytes);
    MUST(cuMemAddressFree, base, bytes);
    for (int i = 0; i < 2; i++)
        MUST(cuMemHostUnregister, pages[i]);
}

static void client_lend(void)
{
    uint64_t bytes = 1u << 20;
    uint32_t word = 0;
    CUipcMemHandle handle;
    CUdeviceptr base;

    MUST(cuMemAlloc, &base, bytes);
    MUST(cuIpcGetMemHandle, &handle, base);
    if (write(1, &handle, sizeof(handle)) != sizeof(handle) ||
        write(1, &bytes, sizeof(bytes)) != sizeof(bytes))
        exit(6);
    wait_for_parent();
    MUST(cuMemcpyDtoH, &word, base + 4096 + 8188, 4);
    if (word != 0x33333333)
        exit(7);
    MUST(cuMemFree, base);
}

int kit_client_main(int argc, char **argv)
{
    CUcontext context;
    CUstream stream;
    CUdevice gpu;
    bool lend;

    if (argc < 6 || !driver_open())
        return 2;
    lend = strcmp(argv[1], "lend") == 0;
    MUST(cuDeviceGet, &gpu, lend ? 1 : 0);
    MUST(cuDevicePrimaryCtxRetain, &context, gpu);
    MUST(cuCtxSetCurrent, context);
    MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (lend)
        client_lend();
    else
        client_map((int)strtol(argv[2], NULL, 10), (int)strtol(argv[3], NULL, 10),
                   (int)strtol(argv[4], NULL, 10), strtoull(argv[5], NULL, 10), stream);
    MUST(cuStreamDestroy, stream);
    MUST(cuDevicePrimaryCtxRelease, gpu);
    return 0;
}
