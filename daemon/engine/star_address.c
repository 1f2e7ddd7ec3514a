/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of this node: see star_address.h. */
#include "daemon/engine/star_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/base/text.h"
#include "daemon/engine/star.h"
#include "gradwire/errors.h"

#define BACKLOG 1024

/* Nobody is asked anything there: addresses for documentation (RFC 5737, 3849), which the default
 * route alone leads to. */
static const struct job_address elsewhere[] = {
    {.family = 4, .port = 9, .bytes = {192, 0, 2, 1}},
    {.family = 6, .port = 9, .bytes = {0x20, 0x01, 0x0d, 0xb8, [15] = 1}},
};

bool star_address_socket(const struct job_address *address, struct sockaddr_storage *ret_socket)
{
    struct sockaddr_in *four = (struct sockaddr_in *)ret_socket;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_socket;

    memset(ret_socket, 0, sizeof(*ret_socket));
    if (address->family == 4) {
        four->sin_family = AF_INET;
        four->sin_port = htons(address->port);
        memcpy(&four->sin_addr, address->bytes, sizeof(four->sin_addr));
    } else if (address->family == 6) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(address->port);
        memcpy(&six->sin6_addr, address->bytes, sizeof(six->sin6_addr));
    }
    return address->family == 4 || address->family == 6;
}

bool star_address_of(const struct sockaddr *socket_address, struct job_address *ret_address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    struct job_address address = {0};

    if (socket_address->sa_family == AF_INET) {
        memcpy(&four, socket_address, sizeof(four));
        address.family = 4;
        address.port = ntohs(four.sin_port);
        memcpy(address.bytes, &four.sin_addr, sizeof(four.sin_addr));
    } else if (socket_address->sa_family == AF_INET6) {
        memcpy(&six, socket_address, sizeof(six));
        address.family = 6;
        address.port = ntohs(six.sin6_port);
        memcpy(address.bytes, &six.sin6_addr, sizeof(six.sin6_addr));
    } else {
        return false;
    }
    *ret_address = address;
    return true;
}

static void address_text(const struct job_address *address, struct text *text)
{
    char host[INET6_ADDRSTRLEN] = "?";

    (void)inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, host, sizeof(host));
    text_add(text, "%s", host);
}

void star_address_text(const struct job_address *address, char *text, size_t text_bytes)
{
    struct text into;

    text_start(&into, text, text_bytes);
    text_add(&into, "%s", address->family == 6 ? "[" : "");
    address_text(address, &into);
    text_add(&into, "%s:%u", address->family == 6 ? "]" : "", address->port);
}

static socklen_t socket_bytes(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* A datagram socket that is connected and never used: the kernel says which address it would
 * take. */
static bool by_default_route(struct job_address *ret_address)
{
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
        struct sockaddr_storage to, own;
        socklen_t bytes = sizeof(own);
        bool found;
        int fd;

        (void)star_address_socket(&elsewhere[i], &to);
        fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        found = connect(fd, (struct sockaddr *)&to, socket_bytes(&to)) == 0 &&
                getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
                star_address_of((struct sockaddr *)&own, ret_address);
        close(fd);
        if (found)
            return true;
    }
    return false;
}

/* How well an interface's address serves: 0 not at all (down, no IP, or link-local, which means
 * nothing without an interface's number); IPv4 before IPv6. */
static int usable(const struct ifaddrs *at, bool loopback, struct job_address *ret_address)
{
    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP) ||
        (at->ifa_flags & IFF_LOOPBACK) != (loopback ? IFF_LOOPBACK : 0) ||
        !star_address_of(at->ifa_addr, ret_address))
        return 0;
    if (ret_address->family == 6)
        return ret_address->bytes[0] == 0xfe && (ret_address->bytes[1] & 0xc0) == 0x80 ? 0 : 1;
    return 2;
}

/* Best address of the interface of that name, or of any. Sets *known if there is such a one. */
static bool by_interface(const char *name, bool loopback, bool *known,
                         struct job_address *ret_address)
{
    struct ifaddrs *list;
    int best = 0;

    if (getifaddrs(&list) < 0)
        return false;
    for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
        struct job_address address;
        int score;

        if (name && strcmp(name, at->ifa_name) != 0)
            continue;
        *known = true;
        score = usable(at, loopback, &address);
        if (score > best) {
            best = score;
            *ret_address = address;
        }
    }
    freeifaddrs(list);
    return best > 0;
}

static int say(char *text, int code, const char *format, const char *what)
{
    struct text into;

    text_start(&into, text, GW_TEXT_MAX + 1);
    text_add(&into, format, what);
    return code;
}

static bool is_any(const struct job_address *address)
{
    static const uint8_t any[16];

    return memcmp(address->bytes, any, sizeof(any)) == 0;
}

static bool is_here(const struct job_address *address)
{
    struct sockaddr_storage own;
    bool here;
    int fd;

    (void)star_address_socket(address, &own);
    fd = socket(own.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    here = fd >= 0 && bind(fd, (struct sockaddr *)&own, socket_bytes(&own)) == 0;
    if (fd >= 0)
        close(fd);
    return here;
}

/* Can be bound here and told to others. */
static int check_given(const struct job_address *address, const char *name, char *text)
{
    if (is_any(address))
        return say(text, GW_E_NOT_FOUND,
                   "'%s' is no address that other nodes can reach: name an interface, or one of "
                   "this node's addresses, in star_interface",
                   name);
    if (!is_here(address))
        return say(text, GW_E_NOT_FOUND,
                   "this node does not have the address '%s': set star_interface to one that "
                   "'ip address' shows",
                   name);
    return 0;
}

static bool is_loopback(const struct job_address *address)
{
    static const uint8_t six[16] = {[15] = 1};

    return address->family == 4 ? address->bytes[0] == 127
                                : memcmp(address->bytes, six, sizeof(six)) == 0;
}

bool star_address_pick(const struct addrinfo *list, struct job_address *ret_address)
{
    bool found = false;

    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        struct job_address address;

        if (!star_address_of(at->ai_addr, &address))
            continue;
        address.port = 0;
        if (is_any(&address) || !is_here(&address) || (found && is_loopback(&address)))
            continue;
        *ret_address = address;
        found = true;
        if (!is_loopback(&address))
            break;
    }
    return found;
}

/* Asks /etc/hosts and the network's names, once for a job. */
static int by_host(const char *name, const char *shown, struct job_address *ret_address, char *text)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const bool known = name[0] != '\0' && getaddrinfo(name, NULL, &hints, &list) == 0;
    const bool found = known && star_address_pick(list, ret_address);

    if (list)
        freeaddrinfo(list);
    if (found)
        return 0;
    return say(text, GW_E_NOT_FOUND,
               known ? "host '%s' is another: none of its addresses is this node's; set "
                       "star_interface to one that 'ip address' shows"
                     : "this node has no interface '%s', and no host is called so: set "
                       "star_interface to what 'ip address' shows",
               shown);
}

static int by_name(const char *name, struct job_address *ret_address, char *text)
{
    char shown[ESCAPE_BYTES(GW_LABEL_MAX)];
    bool known = false;

    (void)escape_string(name, shown, sizeof(shown));
    if (inet_pton(AF_INET, name, ret_address->bytes) == 1)
        ret_address->family = 4;
    else if (inet_pton(AF_INET6, name, ret_address->bytes) == 1)
        ret_address->family = 6;
    if (ret_address->family)
        return check_given(ret_address, shown, text);
    if (by_interface(name, false, &known, ret_address) ||
        by_interface(name, true, &known, ret_address))
        return 0;
    if (!known)
        return by_host(name, shown, ret_address, text);
    return say(text, GW_E_NOT_FOUND,
               "interface '%s' is down or has no address that other nodes can reach: bring it up, "
               "or name another one in star_interface",
               shown);
}

int star_address_choose(const char *interface, struct job_address *ret_address,
                        char text[GW_TEXT_MAX + 1])
{
    struct job_address address = {0};
    bool known;
    int r = 0;

    if (interface)
        r = by_name(interface, &address, text);
    else if (!by_default_route(&address) && !by_interface(NULL, false, &known, &address) &&
             !by_interface(NULL, true, &known, &address))
        r = say(text, GW_E_NOT_FOUND,
                "no interface of this node is up%s: bring one up, or name it in star_interface",
                "");
    if (r < 0)
        return r;
    address.port = 0;
    *ret_address = address;
    return 0;
}

static int listen_at(const struct job_address *address)
{
    const int on = 1;
    struct sockaddr_storage own;
    int fd;

    (void)star_address_socket(address, &own);
    fd = socket(own.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* Or the last job's connections would hold the port for a minute. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&own, socket_bytes(&own)) < 0 || listen(fd, BACKLOG) < 0) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

int star_address_listen(struct job_address *address, uint16_t port_first, uint16_t port_last,
                        int *ret_fd, char text[GW_TEXT_MAX + 1])
{
    struct text into;
    int fd = -1;

    for (uint32_t port = port_first; port <= port_last && fd < 0; port++) {
        address->port = (uint16_t)port;
        fd = listen_at(address);
        if (fd < 0 && errno != EADDRINUSE && errno != EACCES)
            break;
    }
    if (fd >= 0) {
        struct sockaddr_storage own;
        socklen_t bytes = sizeof(own);

        if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
            star_address_of((struct sockaddr *)&own, address)) {
            *ret_fd = fd;
            return 0;
        }
        close(fd);
    }
    text_start(&into, text, GW_TEXT_MAX + 1);
    text_add(&into, "cannot listen for other nodes at ");
    address_text(address, &into);
    if (port_last == 0)
        text_add(&into, ": %s", strerror(errno));
    else
        text_add(&into, ": no port of %u-%u can be had (%s): widen star_ports, or end other jobs",
                 port_first, port_last, strerror(errno));
    return GW_E_LIMIT;
}
