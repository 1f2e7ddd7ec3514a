/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job id as text, and through a file: complete or absent, readable by its owner alone.
 * ctest: link=gw_client
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradwire/gradwire.h"

static char directory[64];
static char path[128];

static int set_up(void **state)
{
    (void)state;
    snprintf(directory, sizeof(directory), "/tmp/gw-id-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof(path), "%s/job.id", directory);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory); /* fails if a temporary file was left */
}

static struct gw_job_id sample(void)
{
    struct gw_job_id id = {.size_bytes = 64};

    for (uint32_t i = 0; i < id.size_bytes; i++)
        id.bytes[i] = (uint8_t)(i * 7 + 1);
    return id;
}

static void what_is_saved_is_loaded(void **state)
{
    struct gw_job_id id = sample(), got = {0};
    struct stat stat_of;

    (void)state;
    assert_int_equal(gw_job_id_save(&id, path), 0);
    assert_int_equal(stat(path, &stat_of), 0);
    assert_int_equal(stat_of.st_mode & 07777, 0600);
    assert_int_equal(stat_of.st_size, 64);
    assert_int_equal(stat_of.st_nlink, 1);
    assert_int_equal(gw_job_id_load(path, 0, &got), 0);
    assert_int_equal(got.size_bytes, 64);
    assert_memory_equal(got.bytes, id.bytes, 64);
}

static void an_existing_file_is_left_alone(void **state)
{
    struct gw_job_id id = sample(), other = sample(), got = {0};

    (void)state;
    other.bytes[0] ^= 1;
    assert_int_equal(gw_job_id_save(&id, path), 0);
    assert_int_equal(gw_job_id_save(&other, path), GW_E_DUPLICATE);
    assert_non_null(strstr(gw_last_error(), path));
    assert_int_equal(gw_job_id_load(path, 0, &got), 0);
    assert_memory_equal(got.bytes, id.bytes, 64);
}

static void a_symbolic_link_is_not_followed(void **state)
{
    struct gw_job_id id = sample(), got;
    char target[160];

    (void)state;
    snprintf(target, sizeof(target), "%s/target", directory);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(gw_job_id_save(&id, path), GW_E_DUPLICATE);
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_DENIED);
}

static void readable_by_others_is_refused(void **state)
{
    struct gw_job_id id = sample(), got;

    (void)state;
    assert_int_equal(gw_job_id_save(&id, path), 0);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_DENIED);
    assert_non_null(strstr(gw_last_error(), "0640"));
    assert_int_equal(chmod(path, 0604), 0);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_DENIED);
    assert_int_equal(chmod(path, 0600), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 1, (gid_t)-1), 0);
        assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_DENIED);
        assert_non_null(strstr(gw_last_error(), "user 1"));
    }
}

static void what_is_no_id_is_refused(void **state)
{
    struct gw_job_id id = sample(), got;
    FILE *file = fopen(path, "w");

    (void)state;
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_INVALID); /* empty */
    for (int i = 0; i < 257; i++)
        fputc('x', file);
    fclose(file);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_INVALID); /* too long */
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_INVALID); /* and does not hang */
    id.size_bytes = 257;
    assert_int_equal(gw_job_id_save(&id, path), GW_E_INVALID);
    assert_int_equal(gw_job_id_save(NULL, path), GW_E_INVALID);
    assert_int_equal(gw_job_id_load(NULL, 0, &got), GW_E_INVALID);
}

static void an_absent_file_times_out(void **state)
{
    struct gw_job_id got;

    (void)state;
    assert_int_equal(gw_job_id_load(path, 30000000, &got), GW_E_TIMEOUT);
    assert_non_null(strstr(gw_last_error(), path));
    snprintf(path, sizeof(path), "%s/no/such/job.id", directory);
    assert_int_equal(gw_job_id_load(path, 0, &got), GW_E_TIMEOUT);
    assert_int_equal(gw_job_id_save(&(struct gw_job_id){.size_bytes = 1}, path), GW_E_IO);
}

static void an_id_is_its_hex_digits(void **state)
{
    static const char *const no_ids[] = {"", "0", "abc", "0g", "g0", "01 2", "0x01", "01\n"};
    struct gw_job_id some = {.size_bytes = 4, .bytes = {0x00, 0x9f, 0xff, 0x01}}, read = {0};
    char text[GW_JOB_ID_TEXT_BYTES], longer[GW_JOB_ID_TEXT_BYTES + 2];

    (void)state;
    assert_int_equal(gw_job_id_text(&some, text), 0);
    assert_string_equal(text, "009fff01");
    assert_int_equal(gw_job_id_from_text("009FfF01", &read), 0);
    assert_memory_equal(&read, &some, sizeof(some));
    some.size_bytes = GW_JOB_ID_MAX;
    memset(some.bytes, 0xa5, sizeof(some.bytes));
    assert_int_equal(gw_job_id_text(&some, text), 0);
    assert_int_equal(strlen(text), 2 * GW_JOB_ID_MAX);
    assert_int_equal(gw_job_id_from_text(text, &read), 0);
    assert_memory_equal(&read, &some, sizeof(some));
    snprintf(longer, sizeof(longer), "%sa5", text);
    assert_int_equal(gw_job_id_from_text(longer, &read), GW_E_INVALID);
    for (size_t i = 0; i < sizeof(no_ids) / sizeof(no_ids[0]); i++)
        assert_int_equal(gw_job_id_from_text(no_ids[i], &read), GW_E_INVALID);
    assert_memory_equal(&read, &some, sizeof(some)); /* as it was */
    some.size_bytes = 0;
    assert_int_equal(gw_job_id_text(&some, text), GW_E_INVALID);
    assert_int_equal(gw_job_id_text(NULL, text), GW_E_INVALID);
    assert_int_equal(gw_job_id_from_text(NULL, &read), GW_E_INVALID);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_saved_is_loaded),         TEST(an_existing_file_is_left_alone),
        TEST(a_symbolic_link_is_not_followed), TEST(readable_by_others_is_refused),
        TEST(what_is_no_id_is_refused),        TEST(an_absent_file_times_out),
        TEST(an_id_is_its_hex_digits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
