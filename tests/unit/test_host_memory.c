/* SPDX-License-Identifier: Apache-2.0 */
/* Shared pages and memory of the host device: sizes and seals that no client can get around.
 * ctest: label=unit timeout=60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/device/pages.h"
#include "gradwire/errors.h"

static struct device *device;

static struct device_memory *make(enum device_memory_kind kind, size_t bytes)
{
    struct device_memory *memory = NULL;

    assert_int_equal(device_host.memory_new(device, kind, 0, "test", bytes, &memory), 0);
    return memory;
}

static void an_arena_is_zero_and_really_there(void **state)
{
    struct device_memory *memory = make(DEVICE_MEMORY_ARENA, 3u << 20 | 5);
    const char *bytes = memory->base;
    struct stat status;

    (void)state;
    assert_int_equal(memory->bytes, 3u << 20 | 5);
    assert_int_equal(memory->mapped_bytes % 4096, 0);
    for (size_t i = 0; i < memory->bytes; i += 4096)
        assert_int_equal(bytes[i], 0);
    assert_int_equal(fstat(memory->fd, &status), 0);
    assert_true((size_t)status.st_blocks * 512 >= memory->mapped_bytes);
    assert_true(fcntl(memory->fd, F_GETFD) & FD_CLOEXEC);
    device_host.memory_free(device, memory);
}

static void nobody_can_change_its_size_or_seals(void **state)
{
    struct device_memory *memory = make(DEVICE_MEMORY_ARENA, 8192);

    (void)state;
    assert_int_equal(ftruncate(memory->fd, 4096), -1);
    assert_int_equal(ftruncate(memory->fd, 16384), -1);
    assert_int_equal(fcntl(memory->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    device_host.memory_free(device, memory);
}

static void a_client_can_write_arenas_but_only_read_pages_out(void **state)
{
    struct device_memory *arena = make(DEVICE_MEMORY_ARENA, 4096);
    struct device_memory *page = NULL;
    char *view;

    (void)state;
    assert_int_equal(pages_new(PAGES_OUT, "test", 4096, PAGES_ANYWHERE, &page), 0);
    view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd, 0);
    assert_ptr_not_equal(view, MAP_FAILED);
    munmap(view, 4096);
    view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
    assert_ptr_equal(view, MAP_FAILED);
    assert_int_equal(pwrite(page->fd, "x", 1, 0), -1);
    view = mmap(NULL, 4096, PROT_READ, MAP_SHARED, page->fd, 0);
    assert_ptr_not_equal(view, MAP_FAILED);
    assert_int_equal(mprotect(view, 4096, PROT_READ | PROT_WRITE), -1);
    ((char *)page->base)[7] = 'x'; /* ours still writes */
    assert_int_equal(view[7], 'x');
    munmap(view, 4096);
    assert_null(pages_free(page));
    device_host.memory_free(device, arena);
}

static void what_cannot_be_had_is_told(void **state)
{
    struct device_memory *memory = NULL;

    (void)state;
    assert_int_equal(
        device_host.memory_new(device, DEVICE_MEMORY_ARENA, 0, "test", 1ull << 46, &memory),
        GW_E_NOMEM);
    assert_int_equal(
        device_host.memory_new(device, DEVICE_MEMORY_ARENA, 0, "test", SIZE_MAX, &memory),
        GW_E_NOMEM);
    assert_int_equal(device_host.memory_new(device, DEVICE_MEMORY_ARENA, 0, "test", 0, &memory),
                     GW_E_NOMEM);
    assert_null(memory);
    assert_null(device_host.memory_free(NULL, NULL));
    assert_int_equal(pages_new(PAGES_SHARED, "test", 0, PAGES_ANYWHERE, &memory), GW_E_NOMEM);
    assert_null(pages_free(NULL));
}

/* The line of a file of /proc/self about the memory: the first from its own on that begins so. */
static bool line_of(const struct device_memory *memory, const char *path, const char *begin,
                    char line[512])
{
    bool inside = false, found = false;
    char start[32];
    FILE *maps = fopen(path, "re");

    if (!maps)
        return false;
    snprintf(start, sizeof(start), "%lx", (unsigned long)(uintptr_t)memory->base);
    begin = *begin ? begin : start;
    while (!found && fgets(line, 512, maps)) {
        inside = inside || strncmp(line, start, strlen(start)) == 0;
        found = inside && strncmp(line, begin, strlen(begin)) == 0;
    }
    fclose(maps);
    return found;
}

static void core_files_hold_none_of_it(void **state)
{
    struct device_memory *memory = make(DEVICE_MEMORY_ARENA, 64 * 4096);
    char line[512];

    (void)state;
    assert_true(line_of(memory, "/proc/self/smaps", "VmFlags:", line));
    assert_true(strstr(line, " dd") != NULL && strstr(line, " dc") != NULL);
    device_host.memory_free(device, memory);
}

static void large_pages_are_asked_for_where_one_fits(void **state)
{
    struct device_memory *large = make(DEVICE_MEMORY_ARENA, 4 << 20);
    struct device_memory *small = make(DEVICE_MEMORY_ARENA, 1 << 20);
    char line[512];

    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) < 0) {
        print_message("SKIP: this kernel has no large pages\n");
        skip();
    }
    assert_true(line_of(large, "/proc/self/smaps", "VmFlags:", line));
    assert_non_null(strstr(line, " hg"));
    assert_true(line_of(small, "/proc/self/smaps", "VmFlags:", line));
    assert_null(strstr(line, " hg"));
    device_host.memory_free(device, large);
    device_host.memory_free(device, small);
}

/* Node 0 is everywhere; what the kernel was told is what it shows. */
static void memory_is_asked_for_on_its_nodes(void **state)
{
    static const struct {
        uint64_t nodes;
        const char *policy;
    } rows[] = {{PAGES_ANYWHERE, "default"}, {1, "prefer"}};
    struct device_memory *memory;
    char line[512];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(pages_new(PAGES_SHARED, "test", 8192, rows[i].nodes, &memory), 0);
        if (memory->place_error == EPERM || memory->place_error == ENOSYS ||
            !line_of(memory, "/proc/self/numa_maps", "", line)) {
            print_message("SKIP: no NUMA policies may be set or seen here\n");
            assert_null(pages_free(memory));
            skip();
        }
        assert_int_equal(memory->place_error, 0);
        if (!strstr(line, rows[i].policy))
            fail_msg("%s, not %s", line, rows[i].policy);
        assert_null(pages_free(memory));
    }
    /* A wish that cannot be told is no error. */
    assert_int_equal(pages_new(PAGES_SHARED, "test", 8192, 1ull << 63, &memory), 0);
    assert_int_not_equal(memory->place_error, 0);
    ((char *)memory->base)[8191] = 'x';
    assert_null(pages_free(memory));
}

static void no_wake(void *user)
{
    (void)user;
}

static int start(void **state)
{
    (void)state;
    return device_host.device_new(&(struct device_config){.wake = no_wake}, &device);
}

static int end(void **state)
{
    (void)state;
    device = device_host.device_free(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_is_zero_and_really_there),
        cmocka_unit_test(nobody_can_change_its_size_or_seals),
        cmocka_unit_test(a_client_can_write_arenas_but_only_read_pages_out),
        cmocka_unit_test(what_cannot_be_had_is_told),
        cmocka_unit_test(core_files_hold_none_of_it),
        cmocka_unit_test(large_pages_are_asked_for_where_one_fits),
        cmocka_unit_test(memory_is_asked_for_on_its_nodes),
    };
    return cmocka_run_group_tests(tests, start, end);
}
