/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's job id: tag and secret, and an id that another node's engine learns from a JOIN.
 * ctest: label=unit link=gw_job
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/id.h"
#include "gradwire/errors.h"

/* Python: hashlib.blake2b(bytes(range(1, 33)), digest_size=8).hexdigest() */
static const uint8_t known_tag[8] = {0x2b, 0x21, 0xa6, 0x44, 0x7c, 0x4d, 0xf2, 0xc3};

static void make(uint8_t bytes[64], const struct job_address *address)
{
    for (unsigned i = 0; i < 32; i++)
        bytes[8 + i] = (uint8_t)(i + 1);
    job_id_start(bytes);
    if (address)
        job_id_set_address(bytes, address);
}

static void a_follower_learns_the_id_that_its_tag_is_of(void **state)
{
    struct job_address address = {4, 46200, {10, 0, 0, 1}};
    uint8_t bytes[64], other[64];
    struct id *id;

    (void)state;
    make(bytes, &address);
    assert_int_equal(id_follow(known_tag, &id), 0);
    assert_false(id->known);
    memcpy(other, bytes, 64);
    other[39] ^= 1;
    assert_int_equal(id_take(id, other, 64), GW_E_DENIED);
    assert_int_equal(id_take(id, bytes, 63), GW_E_DENIED);
    memcpy(other, bytes, 64);
    other[4] = 2;
    assert_int_equal(id_take(id, other, 64), GW_E_DENIED);
    assert_false(id->known);
    assert_int_equal(id_take(id, bytes, 64), 0);
    assert_true(id->known);
    assert_memory_equal(id->bytes, bytes, 64);
    id_free(id);
}

static void a_known_id_is_compared_whole(void **state)
{
    struct job_address address = {4, 46200, {10, 0, 0, 1}}, elsewhere = {4, 46200, {10, 0, 0, 2}};
    uint8_t bytes[64];
    struct id *id;

    (void)state;
    make(bytes, &address);
    assert_int_equal(id_follow(known_tag, &id), 0);
    assert_int_equal(id_take(id, bytes, 64), 0);
    assert_int_equal(id_take(id, bytes, 64), 0);
    make(bytes, &elsewhere);
    assert_int_equal(id_take(id, bytes, 64), GW_E_DENIED);
    make(bytes, NULL);
    assert_int_equal(id_take(id, bytes, 64), GW_E_DENIED);
    id_free(id);
}

static void a_new_id_is_known_and_its_tag_stays(void **state)
{
    struct job_address address = {6, 7, {0xfd, [15] = 1}};
    struct id *id, *follower;
    uint8_t tag[8];

    (void)state;
    assert_int_equal(id_new(&id), 0);
    assert_true(id->known && job_id_good(id->bytes, 64));
    memcpy(tag, id->tag, 8);
    id_set_address(id, &address);
    assert_memory_equal(id->tag, tag, 8);
    assert_int_equal(id_follow(tag, &follower), 0);
    assert_int_equal(id_take(follower, id->bytes, 64), 0);
    assert_memory_equal(follower->bytes, id->bytes, 64);
    id_free(follower);
    id_free(id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_follower_learns_the_id_that_its_tag_is_of),
        cmocka_unit_test(a_known_id_is_compared_whole),
        cmocka_unit_test(a_new_id_is_known_and_its_tag_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
