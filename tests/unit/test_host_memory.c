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

static struct device_memory *make(enum device_memory_kind kind, size_t bytes)
{
    struct device_memory *memory = NULL;

    assert_int_equal(device_host.memory_new(NULL, kind, 0, "test", bytes, &memory), 0);
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
    device_host.memory_free(NULL, memory);
}

static void nobody_can_change_its_size_or_seals(void **state)
{
    struct device_memory *memory = make(DEVICE_MEMORY_ARENA, 8192);

    (void)state;
    assert_int_equal(ftruncate(memory->fd, 4096), -1);
    assert_int_equal(ftruncate(memory->fd, 16384), -1);
    assert_int_equal(fcntl(memory->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    device_host.memory_free(NULL, memory);
}

static void a_client_can_write_arenas_but_only_read_pages_out(void **state)
{
    struct device_memory *arena = make(DEVICE_MEMORY_ARENA, 4096);
    struct device_memory *page = NULL;
    char *view;

    (void)state;
    assert_int_equal(pages_new(PAGES_OUT, "test", 4096, &page), 0);
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
    device_host.memory_free(NULL, arena);
}

static void what_cannot_be_had_is_told(void **state)
{
    struct device_memory *memory = NULL;

    (void)state;
    assert_int_equal(
        device_host.memory_new(NULL, DEVICE_MEMORY_ARENA, 0, "test", 1ull << 46, &memory),
        GW_E_NOMEM);
    assert_int_equal(
        device_host.memory_new(NULL, DEVICE_MEMORY_ARENA, 0, "test", SIZE_MAX, &memory),
        GW_E_NOMEM);
    assert_int_equal(device_host.memory_new(NULL, DEVICE_MEMORY_ARENA, 0, "test", 0, &memory),
                     GW_E_NOMEM);
    assert_null(memory);
    assert_null(device_host.memory_free(NULL, NULL));
    assert_int_equal(pages_new(PAGES_SHARED, "test", 0, &memory), GW_E_NOMEM);
    assert_null(pages_free(NULL));
}

static void core_files_hold_none_of_it(void **state)
{
    struct device_memory *memory = make(DEVICE_MEMORY_ARENA, 64 * 4096);
    char line[512], start[32];
    bool inside = false, found = false;
    FILE *maps = fopen("/proc/self/smaps", "re");

    (void)state;
    assert_non_null(maps);
    snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)memory->base);
    while (fgets(line, sizeof(line), maps)) {
        if (strncmp(line, start, strlen(start)) == 0)
            inside = true;
        if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            found = strstr(line, " dd") != NULL && strstr(line, " dc") != NULL;
            break;
        }
    }
    fclose(maps);
    assert_true(found);
    device_host.memory_free(NULL, memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_is_zero_and_really_there),
        cmocka_unit_test(nobody_can_change_its_size_or_seals),
        cmocka_unit_test(a_client_can_write_arenas_but_only_read_pages_out),
        cmocka_unit_test(what_cannot_be_had_is_told),
        cmocka_unit_test(core_files_hold_none_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
