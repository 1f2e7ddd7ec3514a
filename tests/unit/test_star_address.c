/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a root listens: interfaces, addresses, ports, and what is said when none will do. Asks
 * nothing of the machine but a loopback; parts that want IPv6 or namespaces say so and skip.
 * ctest: link=gw_star
 */
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "tests/unit/star_kit.h"

static char text[GW_TEXT_MAX + 1];

static const char *shown(const struct job_address *address)
{
    static char buffer[STAR_ADDRESS_TEXT];

    star_address_text(address, buffer, sizeof(buffer));
    return buffer;
}

static void test_texts(void **state)
{
    const struct job_address four = {.family = 4, .port = 46200, .bytes = {10, 0, 0, 1}};
    const struct job_address six = {.family = 6, .port = 65535, .bytes = {0xfd, [15] = 1}};
    struct job_address full = {.family = 6, .port = 65535};
    char small[5];

    (void)state;
    assert_string_equal(shown(&four), "10.0.0.1:46200");
    assert_string_equal(shown(&six), "[fd00::1]:65535");
    memset(full.bytes, 0xab, 16);
    assert_string_equal(shown(&full), "[abab:abab:abab:abab:abab:abab:abab:abab]:65535");
    star_address_text(&four, small, sizeof(small));
    assert_string_equal(small, "10.0");
}

static void test_given(void **state)
{
    struct job_address address;

    (void)state;
    assert_int_equal(star_address_choose("lo", &address, text), 0);
    assert_string_equal(shown(&address), "127.0.0.1:0");
    assert_int_equal(star_address_choose("127.0.0.1", &address, text), 0);
    assert_string_equal(shown(&address), "127.0.0.1:0");
    assert_int_equal(star_address_choose("127.0.0.9", &address, text),
                     0); /* all of 127/8 is lo's */
    assert_string_equal(shown(&address), "127.0.0.9:0");
}

static void test_given_wrong(void **state)
{
    static const char *const rows[][2] = {
        {"nosuch0", "this node has no interface 'nosuch0', and no host is called so"},
        {"192.0.2.77", "this node does not have the address '192.0.2.77'"},
        {"2001:db8::77", "this node does not have the address '2001:db8::77'"},
        {"0.0.0.0", "'0.0.0.0' is no address that other nodes can reach"},
        {"::", "'::' is no address that other nodes can reach"},
        {"", "this node has no interface ''"},
        {"a\n\"b", "no interface 'a\\u000a\\\"b'"},
    };
    struct job_address address = {.family = 9};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        text[0] = '\0';
        assert_int_equal(star_address_choose(rows[i][0], &address, text), GW_E_NOT_FOUND);
        if (!strstr(text, rows[i][1]))
            fail_msg("got '%s', want '%s' in it", text, rows[i][1]);
        assert_non_null(strstr(text, "star_interface"));
        assert_int_equal(address.family, 9);
    }
}

/* One of list[]; the address stays the caller's. */
static struct addrinfo host_address(const struct job_address *address,
                                    struct sockaddr_storage *socket_address)
{
    assert_true(star_address_socket(address, socket_address));
    return (struct addrinfo){.ai_family = socket_address->ss_family,
                             .ai_addr = (struct sockaddr *)socket_address};
}

/* An address of this node's that is not loopback's; false: there is none of IPv4. */
static bool outer_address(struct job_address *ret_address)
{
    return star_address_choose(NULL, ret_address, text) == 0 && ret_address->bytes[0] != 127 &&
           ret_address->family == 4;
}

/* A host's addresses in a resolver's order: what others have is passed over. */
static void test_host_addresses(void **state)
{
    static const struct job_address foreign = {.family = 4, .bytes = {192, 0, 2, 77}},
                                    any = {.family = 4},
                                    first = {.family = 4, .bytes = {127, 0, 1, 1}},
                                    second = {.family = 4, .bytes = {127, 0, 0, 1}};
    struct sockaddr_storage sockets[5];
    struct addrinfo list[5];
    struct job_address address = {0}, outer;

    (void)state;
    list[0] = host_address(&foreign, &sockets[0]);
    list[1] = host_address(&any, &sockets[1]);
    list[2] = host_address(&first, &sockets[2]);
    list[3] = host_address(&second, &sockets[3]);
    list[0].ai_next = &list[1];
    assert_false(star_address_pick(list, &address));
    assert_false(star_address_pick(NULL, &address));
    assert_int_equal(address.family, 0);
    list[1].ai_next = &list[2];
    list[2].ai_next = &list[3];
    assert_true(star_address_pick(list, &address));
    assert_string_equal(shown(&address), "127.0.1.1:0");
    if (!outer_address(&outer))
        return;
    list[4] = host_address(&outer, &sockets[4]);
    list[3].ai_next = &list[4];
    assert_true(star_address_pick(list, &address));
    assert_memory_equal(&address, &outer, sizeof(address));
}

static void test_host_names(void **state)
{
    struct job_address address = {0};

    (void)state;
    if (star_address_choose("localhost", &address, text) < 0)
        fail_msg("%s", text);
    assert_true(strcmp(shown(&address), "127.0.0.1:0") == 0 ||
                strcmp(shown(&address), "[::1]:0") == 0);
}

static void test_ports(void **state)
{
    struct job_address first = {.family = 4, .bytes = {127, 0, 0, 1}}, second = first;
    char want[64];
    int fds[2], none;

    (void)state;
    assert_int_equal(star_address_listen(&first, 0, 0, &fds[0], text), 0);
    assert_true(first.port > 0);
    assert_int_equal(star_address_listen(&second, first.port, first.port, &none, text), GW_E_LIMIT);
    snprintf(want, sizeof(want), "at 127.0.0.1: no port of %u-%u can be had", first.port,
             first.port);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "widen star_ports"));
    if (first.port == UINT16_MAX) {
        print_message("SKIP: the last port was taken\n");
        skip();
    }
    if (star_address_listen(&second, first.port, UINT16_MAX, &fds[1], text) == 0) {
        assert_true(second.port > first.port); /* the taken one is passed over */
        close(fds[1]);
    }
    close(fds[0]);
}

static void test_ipv6(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    struct star_config config;

    (void)state;
    kit_start(&kit);
    config = kit_config(&kit, &root);
    config.interface = "::1";
    if (star_root(&config, &root.star, &root.address, text) == GW_E_NOT_FOUND) {
        kit_end(&kit);
        print_message("SKIP: no IPv6 on this machine\n");
        skip();
    }
    assert_int_equal(root.address.family, 6);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined && node.joined);
    assert_memory_equal(root.from, "[::1]:", 6);
    assert_memory_equal(node.from, "[::1]:", 6);
    assert_int_equal(kit_send(&root, 1, 0), 0);
    KIT_WAIT(&kit, node.messages == 1);
    star_free(node.star);
    star_free(root.star);
    kit_end(&kit);
}

/* Some address of this node, which can be listened at. */
static void test_default(void **state)
{
    struct job_address address;
    int fd;

    (void)state;
    assert_int_equal(star_address_choose(NULL, &address, text), 0);
    assert_true(address.family == 4 || address.family == 6);
    assert_int_equal(star_address_listen(&address, 0, 0, &fd, text), 0);
    close(fd);
}

/* In a network of its own, without routes: 0 as expected, 2 if the machine does not let us. */
static int in_own_network(bool up)
{
    struct ifreq request = {.ifr_name = "lo"};
    struct job_address address;
    int fd, r;

    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return 2;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP;
    if (fd < 0 || (up && ioctl(fd, SIOCSIFFLAGS, &request) < 0))
        return 2;
    close(fd);
    r = star_address_choose(NULL, &address, text);
    if (up)
        return r == 0 && strcmp(shown(&address), "127.0.0.1:0") == 0 ? 0 : 1;
    return r == GW_E_NOT_FOUND && strstr(text, "no interface of this node is up") ? 0 : 1;
}

static void test_no_route(void **state)
{
    (void)state;
    for (int up = 0; up < 2; up++) {
        int status;
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0)
            _exit(in_own_network(up));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 2) {
            print_message("SKIP: user namespaces are not for everybody here\n");
            skip();
        }
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_given),
        cmocka_unit_test(test_given_wrong), cmocka_unit_test(test_host_addresses),
        cmocka_unit_test(test_host_names),  cmocka_unit_test(test_ports),
        cmocka_unit_test(test_ipv6),        cmocka_unit_test(test_default),
        cmocka_unit_test(test_no_route),
    };

    /* Names that no host has: a machine without network says so within a second. */
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
