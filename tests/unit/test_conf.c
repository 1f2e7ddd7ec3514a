/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's configuration: defaults, every type of value, and errors with file and line. Values
 * are written out by hand from gradwired.conf(5).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/conf/conf.h"
#include "gradwire/errors.h"

static char error[CONF_ERROR_BYTES];

static int parse(const char *text, struct conf *conf)
{
    conf_defaults(conf);
    return conf_parse(text, strlen(text), "g.conf", conf, error, sizeof(error));
}

static void defaults_are_those_of_the_manual(void **state)
{
    struct conf conf;

    (void)state;
    conf_defaults(&conf);
    assert_string_equal(conf.runtime_dir, "/run/gradwire");
    assert_string_equal(conf.socket, "");
    assert_string_equal(conf.admin_socket, "");
    assert_string_equal(conf.engine, "");
    assert_string_equal(conf.group, "gradwire");
    assert_string_equal(conf.admin_group, "gradwire-admin");
    assert_int_equal(conf.log_level, CONF_INFO);
    assert_int_equal(conf.linger_ns, 60000000000);
    assert_int_equal(conf.device, CONF_DEVICE_AUTO);
    assert_string_equal(conf.plugins, "");
    assert_int_equal(conf.stall_report_ns, 10000000000);
    assert_int_equal(conf.gpu_sharing, 0);
    assert_int_equal(conf.worker_priority, 0);
    assert_int_equal(conf.placement, CONF_PLACEMENT_AUTO);
    assert_int_equal(conf.memory_max_bytes, 0);
    assert_string_equal(conf.node_name, "");
    assert_string_equal(conf.star_interface, "");
    assert_int_equal(conf.star_ports.first, 46200);
    assert_int_equal(conf.star_ports.last, 46399);
    assert_int_equal(conf.star_beat_ns, 100000000);
    assert_int_equal(conf.star_lost_ns, 800000000);
    assert_int_equal(conf.max_jobs_per_user, 64);
    assert_int_equal(conf.max_connections_per_user, 256);
    assert_int_equal(conf.max_half_open, 64);
}

static void an_empty_text_changes_nothing(void **state)
{
    static const char *const texts[] = {"", "\n\n", "# nothing\n; nothing\n", "[job]\n", "[job]"};
    struct conf conf, defaults;

    (void)state;
    conf_defaults(&defaults);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(parse(texts[i], &conf), 0);
        assert_null(conf_difference(&conf, &defaults, 0));
    }
}

static void every_key_is_taken(void **state)
{
    struct conf conf;

    (void)state;
    assert_int_equal(parse("[daemon]\n"
                           "runtime_dir = /srv/gw\n"
                           "socket=/srv/a.sock\n"
                           "  admin_socket : /srv/b.sock   ; a remark\n"
                           "\tengine = /opt/engine with blanks\n"
                           "group = 4711\n"
                           "admin_group = ops\n"
                           "log_level = debug\n"
                           "device = cuda\n"
                           "[job]\r\n"
                           "linger = 1.5min\r\n"
                           "stall_report = 250ms\n"
                           "gpu_sharing = on\n"
                           "worker_priority = idle\n"
                           "placement = off\n"
                           "memory_max_bytes = 64GiB\n"
                           "[nodes]\n"
                           "node_name = n1\n"
                           "star_interface = fd00::1\n"
                           "star_ports = 1024-2047\n"
                           "star_beat = 10ms\n"
                           "star_lost = 40ms\n"
                           "[limits]\n"
                           "max_jobs_per_user = 1\n"
                           "max_connections_per_user = 65536\n"
                           "max_half_open = 007",
                           &conf),
                     0);
    assert_string_equal(conf.runtime_dir, "/srv/gw");
    assert_string_equal(conf.socket, "/srv/a.sock");
    assert_string_equal(conf.admin_socket, "/srv/b.sock");
    assert_string_equal(conf.engine, "/opt/engine with blanks");
    assert_string_equal(conf.group, "4711");
    assert_string_equal(conf.admin_group, "ops");
    assert_int_equal(conf.log_level, CONF_DEBUG);
    assert_int_equal(conf.linger_ns, 90000000000);
    assert_int_equal(conf.device, CONF_DEVICE_CUDA);
    assert_int_equal(conf.stall_report_ns, 250000000);
    assert_int_equal(conf.gpu_sharing, 1);
    assert_int_equal(conf.worker_priority, 2);
    assert_int_equal(conf.placement, CONF_PLACEMENT_OFF);
    assert_int_equal(conf.memory_max_bytes, 68719476736);
    assert_string_equal(conf.node_name, "n1");
    assert_string_equal(conf.star_interface, "fd00::1");
    assert_int_equal(conf.star_ports.first, 1024);
    assert_int_equal(conf.star_ports.last, 2047);
    assert_int_equal(conf.star_beat_ns, 10000000);
    assert_int_equal(conf.star_lost_ns, 40000000);
    assert_int_equal(conf.max_jobs_per_user, 1);
    assert_int_equal(conf.max_connections_per_user, 65536);
    assert_int_equal(conf.max_half_open, 7);
}

struct bad {
    const char *text;
    const char *start; /* of the message */
    const char *word;  /* in it */
};

static void errors_name_file_line_and_what_is_allowed(void **state)
{
    static const struct bad bad[] = {
        {"[job]\nlingr = 1s\n", "g.conf:2: unknown key 'lingr' in [job]", " linger"},
        {"\n\n[jobs]\nlinger = 1s\n", "g.conf:4: unknown key 'linger' in [jobs]",
         "[daemon] [job] [nodes] [limits]"},
        {"linger = 1s\n", "g.conf:1: key 'linger' stands before any section", "[job]"},
        {"[daemon]\ndevice = gpu\n", "g.conf:2: bad value 'gpu' for 'device'",
         "one of auto, host, cuda"},
        {"[job]\ngpu_sharing = yes\n", "g.conf:2: bad value 'yes' for 'gpu_sharing'", "off, on"},
        {"[job]\nworker_priority = low\n", "g.conf:2: bad value 'low' for 'worker_priority'",
         "equal, nice, idle"},
        {"[job]\nlinger = 1 fortnight\n", "g.conf:2: bad value '1 fortnight' for 'linger'", "60s"},
        {"[job]\nlinger = -1s\n", "g.conf:2: bad value '-1s'", "60s"},
        {"[job]\nlinger =\n", "g.conf:2: bad value ''", "60s"},
        {"[job]\nlinger = 9000h\n", "g.conf:2: bad value '9000h'", "8760 h"},
        {"[job]\nmemory_max_bytes = lots\n", "g.conf:2: bad value 'lots'", "64MiB"},
        {"[job]\nmemory_max_bytes = 99999999999999999999\n", "g.conf:2: bad value", "64MiB"},
        {"[nodes]\nstar_ports = 46399-46200\n", "g.conf:2: bad value '46399-46200'", "0: any"},
        {"[nodes]\nstar_beat = 0\n", "g.conf:2: bad value '0'", "from 1 ms to 1 h"},
        {"[nodes]\nnode_name = 1234567890123456789012345678901234567890123456789012345678901234\n",
         "g.conf:2: bad value '1234567890", "a name or number of 0 to 63 bytes"},
        {"[nodes]\nstar_lost = 399ms\n", "g.conf: star_lost must be at least 4 times star_beat",
         "late"},
        {"[nodes]\nstar_beat = 201ms\n", "g.conf: star_lost must be", "late"},
        {"[limits]\nmax_half_open = 0\n", "g.conf:2: bad value '0'", "from 1 to 65536"},
        {"[limits]\nmax_half_open = 65537\n", "g.conf:2: bad value '65537'", "from 1 to 65536"},
        {"[limits]\nmax_half_open = 1e3\n", "g.conf:2: bad value '1e3'", "from 1 to 65536"},
        {"[limits]\nmax_half_open = 4294967297\n", "g.conf:2: bad value", "from 1 to 65536"},
        {"[daemon]\nlog_level = INFO\n", "g.conf:2: bad value 'INFO'", "warning"},
        {"[daemon]\nruntime_dir = here\n", "g.conf:2: bad value 'here'", "absolute path"},
        {"[daemon]\nruntime_dir =\n", "g.conf:2: bad value ''", "absolute path"},
        {"[daemon]\ngroup =\n", "g.conf:2: bad value ''", "name or number"},
        {"[job]\nlinger = 1s\n  linger = 2s\n", "g.conf:3: 'linger' in [job] is given twice",
         "line 2"},
        {"[job\nlinger = 1s\n", "g.conf:1: neither", "[section]"},
        {"# a\nsome words\n[job]\nnonsense = 1\n", "g.conf:2: neither", "key = value"},
        {"[job]\nnonsense = 1\nsome words\n", "g.conf:2: unknown key 'nonsense'", "linger"},
    };
    struct conf conf, defaults;

    (void)state;
    conf_defaults(&defaults);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int r = parse(bad[i].text, &conf);

        if (r != GW_E_INVALID || strncmp(error, bad[i].start, strlen(bad[i].start)) != 0 ||
            strstr(error, bad[i].word) == NULL)
            fail_msg("\"%s\": %d \"%s\", expected \"%s...%s\"", bad[i].text, r, error, bad[i].start,
                     bad[i].word);
        /* All or nothing. */
        assert_null(conf_difference(&conf, &defaults, 0));
    }
}

static void bytes_that_are_no_text_are_refused(void **state)
{
    struct conf conf;

    (void)state;
    conf_defaults(&conf);
    assert_int_equal(conf_parse("[job]\nlin\0ger=1s\n", 16, "g.conf", &conf, error, sizeof(error)),
                     GW_E_INVALID);
    assert_memory_equal(error, "g.conf:2: a NUL byte", 20);
}

static void long_lines_are_refused_not_cut(void **state)
{
    char text[600] = "[daemon]\n#";
    struct conf conf;

    (void)state;
    memset(text + 10, 'x', 300);
    memcpy(text + 310, "\nlog_level = debug\n", 20);
    assert_int_equal(parse(text, &conf), GW_E_INVALID);
    assert_memory_equal(error, "g.conf:2: a line of more than 198 bytes", 39);
    /* The longest that is taken: 198 with its newline. */
    memmove(text + 10 + 196, text + 310, 21);
    assert_int_equal(parse(text, &conf), 0);
    assert_int_equal(conf.log_level, CONF_DEBUG);
}

static void a_small_error_buffer_is_not_overrun(void **state)
{
    char guarded[16];
    struct conf conf;

    (void)state;
    for (size_t bytes = 1; bytes < sizeof(guarded); bytes++) {
        memset(guarded, '#', sizeof(guarded));
        conf_defaults(&conf);
        assert_int_equal(conf_parse("[job]\nx=1\n", 10, "g.conf", &conf, guarded, bytes),
                         GW_E_INVALID);
        assert_true(strlen(guarded) < bytes);
        assert_int_equal(guarded[bytes], '#');
    }
}

static void difference_finds_each_changed_key(void **state)
{
    struct conf a, b;
    const struct conf_key *key;

    (void)state;
    conf_defaults(&a);
    assert_int_equal(
        parse("[limits]\nmax_half_open = 3\n[daemon]\ngroup = x\n[job]\nlinger = 1s", &b), 0);
    key = conf_difference(&a, &b, 0);
    assert_string_equal(key->name, "group");
    assert_false(key->reload);
    key = conf_difference(&a, &b, (size_t)(key - conf_keys) + 1);
    assert_string_equal(key->name, "linger");
    assert_true(key->reload);
    key = conf_difference(&a, &b, (size_t)(key - conf_keys) + 1);
    assert_string_equal(key->name, "max_half_open");
    assert_null(conf_difference(&a, &b, (size_t)(key - conf_keys) + 1));
}

static void ports_are_written_as_they_are_read(void **state)
{
    const struct conf_ports any = {0, 0}, all = {10000, 65535};
    char text[CONF_PORTS_TEXT];
    struct conf a, b;

    (void)state;
    conf_ports_text(&any, text);
    assert_string_equal(text, "0");
    conf_ports_text(&all, text);
    assert_string_equal(text, "10000-65535");
    conf_defaults(&a);
    assert_int_equal(parse("[nodes]\nstar_ports = 46200-46398\n", &b), 0);
    assert_string_equal(conf_difference(&a, &b, 0)->name, "star_ports");
}

static void every_key_has_help_and_a_default_that_is_allowed(void **state)
{
    char allowed[128];
    struct conf conf;

    (void)state;
    conf_defaults(&conf);
    for (size_t i = 0; i < conf_keys_count; i++) {
        assert_int_equal(conf_set(&conf_keys[i], conf_keys[i].initial, &conf), 0);
        assert_true(strlen(conf_keys[i].help) > 20);
        conf_allowed(&conf_keys[i], allowed, sizeof(allowed));
        assert_true(strlen(allowed) > 10 && strlen(allowed) < sizeof(allowed) - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_manual),
        cmocka_unit_test(an_empty_text_changes_nothing),
        cmocka_unit_test(every_key_is_taken),
        cmocka_unit_test(errors_name_file_line_and_what_is_allowed),
        cmocka_unit_test(bytes_that_are_no_text_are_refused),
        cmocka_unit_test(long_lines_are_refused_not_cut),
        cmocka_unit_test(a_small_error_buffer_is_not_overrun),
        cmocka_unit_test(difference_finds_each_changed_key),
        cmocka_unit_test(ports_are_written_as_they_are_read),
        cmocka_unit_test(every_key_has_help_and_a_default_that_is_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
