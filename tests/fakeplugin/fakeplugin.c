/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plug-in without CUDA: the host's device and the local fabric under the name cuda. It holds the
 * engine to the order that the tables ask for, and ends it (abort) when that is broken: a rank has
 * memory before it has a place, an op is launched before the fabric has formed, the device is
 * aborted before the fabric, a page or memory is not given back. One job per process.
 *
 * GRADWIRE_FAKEPLUGIN: words, with commas
 *   gpus=N     so many GPUs, named by the last byte of their UUID (2)
 *   none       no driver
 *   version    tables of another version
 *   fault=F    the device fails when somebody rings its bell and file F is there
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/pages.h"
#include "daemon/device/plugin.h"

#define PAGES_MAX 512

static struct {
    unsigned gpus;
    bool none;
    char fault[256];
    bool fault_told;
    struct device_config config;
    uint64_t placed;
    struct device_place places[GW_GPU_RANKS_MAX];
    void *pages[PAGES_MAX];
    unsigned memories, announced;
    bool formed, sealed;
} fake = {.gpus = 2};

__attribute__((format(printf, 1, 2))) static _Noreturn void broken(const char *format, ...)
{
    va_list list;

    fputs("fakeplugin: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    abort();
}

/* ---- device ---------------------------------------------------------------------------------- */

static int fake_device_new(const struct device_config *config, struct device **ret_device)
{
    fake.config = *config;
    return device_host.device_new(config, ret_device);
}

static struct device *fake_device_free(struct device *device)
{
    for (unsigned i = 0; i < PAGES_MAX; i++)
        if (fake.pages[i])
            broken("a page was not taken back");
    if (fake.memories || fake.announced)
        broken("%u memories are left, %u are known to the fabric", fake.memories, fake.announced);
    return device_host.device_free(device);
}

static int fake_place(struct device *device, uint32_t rank, const struct device_place *place,
                      char text[GW_TEXT_MAX + 1])
{
    static const uint8_t zeros[GW_GPU_BYTES - 1];

    (void)device;
    if (memcmp(place->gpu, zeros, sizeof(zeros)) != 0 ||
        place->gpu[GW_GPU_BYTES - 1] >= fake.gpus) {
        snprintf(text, GW_TEXT_MAX + 1, "rank %u names a GPU that is not here", rank);
        return GW_E_NO_DEVICE;
    }
    for (uint32_t other = 0; other < GW_GPU_RANKS_MAX; other++) {
        if (fake.placed >> other & 1 && memcmp(&fake.places[other], place, sizeof(*place)) == 0) {
            snprintf(text, GW_TEXT_MAX + 1, "rank %u is on the GPU of rank %u", rank, other);
            return GW_E_BUSY;
        }
    }
    fake.placed |= 1ull << rank;
    fake.places[rank] = *place;
    return 0;
}

static int fake_page_add(struct device *device, void *base, size_t bytes)
{
    (void)device;
    (void)bytes;
    for (unsigned i = 0; i < PAGES_MAX; i++) {
        if (!fake.pages[i]) {
            fake.pages[i] = base;
            return 0;
        }
    }
    return GW_E_LIMIT;
}

static bool is_known(const void *base)
{
    for (unsigned i = 0; i < PAGES_MAX; i++)
        if (fake.pages[i] == base)
            return true;
    return false;
}

static void fake_page_remove(struct device *device, void *base)
{
    (void)device;
    for (unsigned i = 0; i < PAGES_MAX; i++) {
        if (fake.pages[i] == base) {
            fake.pages[i] = NULL;
            return;
        }
    }
    broken("a page was taken back that was not given");
}

static void check_place(uint32_t rank)
{
    if (rank != DEVICE_NO_RANK && !(fake.placed >> rank & 1))
        broken("rank %u has memory before it has a place", rank);
}

static int fake_memory_new(struct device *device, enum device_memory_kind kind, uint32_t rank,
                           const char *name, size_t bytes, struct device_memory **ret_memory)
{
    int r = device_host.memory_new(device, kind, rank, name, bytes, ret_memory);

    check_place(rank);
    fake.memories += r == 0;
    return r;
}

/* A handle of 'F's is some memory; no other is any. */
static int fake_memory_import(struct device *device, uint32_t rank,
                              const struct device_import *import, struct device_memory **ret_memory,
                              char text[GW_TEXT_MAX + 1])
{
    uint8_t good[GW_IPC_HANDLE_BYTES];
    struct device_memory *memory;
    int r;

    (void)device;
    check_place(rank);
    memset(good, 'F', sizeof(good));
    if (import->client == 0)
        broken("an import of nobody");
    if (memcmp(import->handle, good, sizeof(good)) != 0) {
        snprintf(text, GW_TEXT_MAX + 1, "the handle is of no memory");
        return GW_E_INVALID;
    }
    r = pages_new(PAGES_SHARED, "import", import->bytes, PAGES_ANYWHERE, &memory);
    if (r < 0)
        return r;
    (void)close(memory->fd);
    memory->fd = -1;
    fake.memories++;
    *ret_memory = memory;
    return 0;
}

static struct device_memory *fake_memory_free(struct device *device, struct device_memory *memory)
{
    fake.memories--;
    return device_host.memory_free(device, memory);
}

static int fake_signal_after(struct device *device, uint64_t op, const struct device_signal *signal)
{
    if (!is_known(signal->engine))
        broken("a signal of rank %u to a page that the device does not know", signal->rank);
    return device_host.signal_after(device, op, signal);
}

static void fake_kick(struct device *device)
{
    if (fake.fault[0] && !fake.fault_told && access(fake.fault, F_OK) == 0)
        fake.config.wake(fake.config.user);
    device_host.kick(device);
}

static bool fake_take_fault(struct device *device, char text[GW_TEXT_MAX + 1])
{
    (void)device;
    if (!fake.fault[0] || fake.fault_told || access(fake.fault, F_OK) != 0)
        return false;
    fake.fault_told = true;
    snprintf(text, GW_TEXT_MAX + 1, "GPU 0 has fallen off the bus");
    return true;
}

static void fake_device_abort(struct device *device, const struct ranks *ranks)
{
    if (fake.formed)
        broken("the device is aborted before the fabric");
    device_host.abort(device, ranks);
}

/* ---- fabric ---------------------------------------------------------------------------------- */

static int fake_form(struct fabric *fabric)
{
    (void)fabric;
    if (fake.formed)
        broken("the fabric is formed twice");
    fake.formed = true;
    return 0;
}

static void fake_abort(struct fabric *fabric)
{
    (void)fabric;
    fake.formed = false;
}

static void fake_memory_added(struct fabric *fabric, uint32_t rank,
                              const struct device_memory *memory)
{
    (void)fabric;
    (void)memory;
    check_place(rank);
    fake.announced++;
}

static void fake_memory_removed(struct fabric *fabric, uint32_t rank,
                                const struct device_memory *memory)
{
    (void)fabric;
    (void)memory;
    check_place(rank);
    fake.announced--;
}

static int fake_sealed(struct fabric *fabric, const struct gw_layout_page *page)
{
    fake.sealed = true;
    return fabric_local.sealed(fabric, page);
}

static int fake_launch(struct fabric *fabric, const struct fabric_op *op)
{
    const struct core_op *what = op->op;

    if (!fake.formed)
        broken("an op before the fabric has formed");
    if (what->kind == CORE_OP_VERDICT) {
        if (!fake.sealed)
            broken("a step before its layout is sealed");
        for (uint32_t i = 0; i < what->world; i++)
            if (!op->verdicts || !op->verdicts[i])
                broken("no verdict in the memory of rank %u", what->members[i]);
    }
    for (uint32_t i = 0; i < op->signal_count; i++)
        if (!op->signals[i].mirror)
            broken("a signal of rank %u that streams cannot wait for", op->signals[i].rank);
    return fabric_local.launch(fabric, op);
}

static const char *fake_order_name(uint32_t order)
{
    return order == GW_ORDER_FABRIC ? "fake fabric" : "fake exact";
}

/* ---- plug-in --------------------------------------------------------------------------------- */

static int fake_probe(char text[GW_TEXT_MAX + 1])
{
    if (!fake.none)
        return (int)fake.gpus;
    snprintf(text, GW_TEXT_MAX + 1, "no NVIDIA driver: this is a fake");
    return GW_E_NO_DEVICE;
}

static void fake_doctor(plugin_point *point, void *user)
{
    point(user, "fake", PLUGIN_NOTE, "a plug-in without CUDA", NULL);
}

static struct device_ops fake_device_ops;
static struct fabric_ops fake_fabric_ops;

extern struct plugin gradwire_plugin;
__attribute__((visibility("default"))) struct plugin gradwire_plugin = {
    .version = GW_PLUGIN_VERSION,
    .device = GW_DEVICE_CUDA,
    .name = "cuda",
    .device_ops = &fake_device_ops,
    .fabric_ops = &fake_fabric_ops,
    .probe = fake_probe,
    .doctor = fake_doctor,
};

static void take_word(const char *word)
{
    if (strncmp(word, "gpus=", 5) == 0)
        fake.gpus = (unsigned)strtoul(word + 5, NULL, 10);
    else if (strncmp(word, "fault=", 6) == 0)
        snprintf(fake.fault, sizeof(fake.fault), "%s", word + 6);
    else if (strcmp(word, "none") == 0)
        fake.none = true;
    else if (strcmp(word, "version") == 0)
        gradwire_plugin.version = GW_PLUGIN_VERSION + 1;
}

__attribute__((constructor)) static void start(void)
{
    const char *words = getenv("GRADWIRE_FAKEPLUGIN");
    char copy[512], *next = NULL;

    fake_device_ops = device_host;
    fake_device_ops.name = "cuda";
    fake_device_ops.device_new = fake_device_new;
    fake_device_ops.device_free = fake_device_free;
    fake_device_ops.place = fake_place;
    fake_device_ops.page_add = fake_page_add;
    fake_device_ops.page_remove = fake_page_remove;
    fake_device_ops.memory_new = fake_memory_new;
    fake_device_ops.memory_import = fake_memory_import;
    fake_device_ops.memory_free = fake_memory_free;
    fake_device_ops.signal_after = fake_signal_after;
    fake_device_ops.kick = fake_kick;
    fake_device_ops.take_fault = fake_take_fault;
    fake_device_ops.abort = fake_device_abort;
    fake_fabric_ops = fabric_local;
    fake_fabric_ops.name = "fake";
    fake_fabric_ops.form = fake_form;
    fake_fabric_ops.abort = fake_abort;
    fake_fabric_ops.memory_added = fake_memory_added;
    fake_fabric_ops.memory_removed = fake_memory_removed;
    fake_fabric_ops.sealed = fake_sealed;
    fake_fabric_ops.launch = fake_launch;
    fake_fabric_ops.order_name = fake_order_name;
    snprintf(copy, sizeof(copy), "%s", words ? words : "");
    for (char *word = strtok_r(copy, ",", &next); word; word = strtok_r(NULL, ",", &next))
        take_word(word);
}
