/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a job's id, as job_id.h draws them, and what is no id. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/job_id.h"

/* Bytes that nobody has cleared, with a secret of 1, 2, ... 32. */
static void make(uint8_t id[64])
{
    memset(id, 0xee, 64);
    for (unsigned i = 0; i < 32; i++)
        id[8 + i] = (uint8_t)(i + 1);
    job_id_start(id);
}

static void a_new_id_has_no_address(void **state)
{
    uint8_t want[64] = {'G', 'W', 'I', 'D', 1}, id[64];
    struct job_address address;

    (void)state;
    for (unsigned i = 0; i < 32; i++)
        want[8 + i] = (uint8_t)(i + 1);
    make(id);
    assert_memory_equal(id, want, 64);
    assert_true(job_id_good(id, 64));
    job_id_address(id, &address);
    assert_int_equal(address.family, 0);
}

static void an_address_lies_in_network_order(void **state)
{
    static const uint8_t secret[2] = {1, 32};
    struct job_address four = {4, 46200, {10, 0, 0, 1}}, six = {6, 1, {0xfd, [15] = 9}}, got;
    uint8_t id[64], want[16] = {10, 0, 0, 1};

    (void)state;
    make(id);
    job_id_set_address(id, &four);
    assert_int_equal(id[5], 4);
    assert_int_equal(id[6], 0xb4); /* 46200 = 0xb478 */
    assert_int_equal(id[7], 0x78);
    assert_memory_equal(id + 40, want, 16);
    job_id_set_address(id, &six);
    assert_true(job_id_good(id, 64));
    job_id_address(id, &got);
    assert_int_equal(got.family, 6);
    assert_int_equal(got.port, 1);
    assert_memory_equal(got.bytes, six.bytes, 16);
    assert_int_equal(id[8], secret[0]);
    assert_int_equal(id[39], secret[1]);
    for (unsigned i = 56; i < 64; i++)
        assert_int_equal(id[i], 0);
}

static void other_bytes_are_no_id(void **state)
{
    struct job_address address = {4, 1, {127, 0, 0, 1}};
    uint8_t id[64];

    (void)state;
    make(id);
    assert_false(job_id_good(id, 63));
    assert_false(job_id_good(id, 0));
    assert_false(job_id_good(id, 65));
    for (unsigned i = 0; i < 5; i++) {
        id[i]++;
        assert_false(job_id_good(id, 64));
        id[i]--;
    }
    for (unsigned family = 1; family < 256; family++) {
        address.family = (uint8_t)family;
        job_id_set_address(id, &address);
        assert_int_equal(job_id_good(id, 64), family == 4 || family == 6);
    }
    address.family = 6;
    address.port = 0;
    job_id_set_address(id, &address);
    assert_false(job_id_good(id, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_id_has_no_address),
        cmocka_unit_test(an_address_lies_in_network_order),
        cmocka_unit_test(other_bytes_are_no_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
