/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client against a service that answers wrongly: every answer to HELLO and JOB_CREATE that
 * cannot be ends in a typed error, never in a crash, and leaves no descriptor behind; a buffer
 * whose free is not answered stays. The service is a thread on a socket of its own.
 * ctest: link=gw_client
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradwire/gradwire.h"
#include "proto/job_id.h"
#include "proto/shm.h"
#include "proto/submit.h"
#include "proto/wire.h"

/* How the service goes wrong. */
struct scenario {
    const char *what;
    int expect;
    const char *text; /* part of the message */
    int hello_code;   /* CLOSE with it instead of WELCOME */
    const char *hello_text;
    bool garbage, hang_up, silent, no_seal, short_page, bad_magic, bad_version, other_protocol;
    int fds;         /* of the welcome; 0: 3 */
    int joined_code; /* DONE with it instead of JOINED */
    bool wrong_reply, no_id, no_page, wrong_page, hang_up_later, stray_reply;
};

static const struct scenario scenarios[] = {
    {.what = "all right", .expect = 0},
    {.what = "a reply to nothing is ignored", .expect = 0, .stray_reply = true},
    {.what = "refused",
     .expect = GW_E_DENIED,
     .text = "too many jobs of user 7",
     .hello_code = GW_E_DENIED,
     .hello_text = "too many jobs of user 7"},
    {.what = "draining", .expect = GW_E_DRAINING, .hello_code = GW_E_DRAINING, .hello_text = "x"},
    {.what = "no packet of ours", .expect = GW_E_PROTOCOL, .garbage = true},
    {.what = "closed at once", .expect = GW_E_NO_DAEMON, .text = "its log", .hang_up = true},
    {.what = "silent", .expect = GW_E_TIMEOUT, .silent = true},
    {.what = "pages that can shrink", .expect = GW_E_PROTOCOL, .text = "sealed", .no_seal = true},
    {.what = "a short page", .expect = GW_E_PROTOCOL, .text = "bytes", .short_page = true},
    {.what = "another magic", .expect = GW_E_PROTOCOL, .bad_magic = true},
    {.what = "another page version", .expect = GW_E_VERSION, .bad_version = true},
    {.what = "another protocol", .expect = GW_E_VERSION, .other_protocol = true},
    {.what = "two descriptors", .expect = GW_E_PROTOCOL, .text = "2 descriptors", .fds = 2},
    {.what = "four descriptors", .expect = GW_E_PROTOCOL, .text = "4 descriptors", .fds = 4},
    {.what = "join refused", .expect = GW_E_INVALID, .text = "world", .joined_code = GW_E_INVALID},
    {.what = "a wrong reply", .expect = GW_E_PROTOCOL, .text = "BUFFER_MADE", .wrong_reply = true},
    {.what = "no id", .expect = GW_E_PROTOCOL, .no_id = true},
    {.what = "no job page", .expect = GW_E_PROTOCOL, .text = "0 descriptors", .no_page = true},
    {.what = "another job page", .expect = GW_E_PROTOCOL, .text = "job page", .wrong_page = true},
    {.what = "closed later", .expect = GW_E_ENGINE_LOST, .text = "is gone", .hang_up_later = true},
};
#define SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

static char path[64];
static int listener;
static void *client_page = MAP_FAILED, *engine_page = MAP_FAILED; /* of a right welcome */

static int page_new(const struct scenario *s, uint32_t kind, size_t bytes, uint32_t used)
{
    struct gw_shm_header header = {.magic = GW_SHM_MAGIC ^ (s->bad_magic ? 1 : 0),
                                   .version = GW_SHM_VERSION + (s->bad_version ? 1 : 0),
                                   .kind = kind,
                                   .size = used};
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)(s->short_page ? bytes / 2 : bytes)) < 0 ||
        pwrite(fd, &header, sizeof(header), 0) != sizeof(header))
        abort();
    if (!s->no_seal && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        abort();
    return fd;
}

static void send_message(int fd, const struct wire_msg *msg, const int *fds, size_t fd_count)
{
    static uint8_t buffer[GW_FRAME_MAX];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    struct iovec io = {.iov_base = buffer};
    struct msghdr out = {.msg_iov = &io, .msg_iovlen = 1};

    if (wire_encode(msg, buffer, sizeof(buffer), &io.iov_len) < 0)
        abort();
    if (fd_count > 0) {
        out.msg_control = &control;
        out.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
    }
    (void)!sendmsg(fd, &out, MSG_NOSIGNAL);
}

static void welcome(int fd, const struct scenario *s)
{
    struct wire_msg msg = {.type = WIRE_WELCOME};
    size_t count = s->fds ? (size_t)s->fds : 3;
    int fds[8];

    msg.u.welcome.version = GW_PROTOCOL_VERSION + (s->other_protocol ? 1 : 0);
    msg.u.welcome.engine_pid = 1234;
    fds[0] = page_new(s, GW_SHM_CLIENT, GW_CLIENT_PAGE_BYTES, sizeof(struct gw_client_page));
    fds[1] = page_new(s, GW_SHM_ENGINE, GW_ENGINE_PAGE_BYTES, sizeof(struct gw_engine_page));
    if (s->expect == 0) {
        client_page = mmap(NULL, GW_CLIENT_PAGE_BYTES, PROT_READ, MAP_SHARED, fds[0], 0);
        engine_page =
            mmap(NULL, GW_ENGINE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    }
    for (size_t i = 2; i < count || i < 3; i++)
        fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    send_message(fd, &msg, fds, count);
    for (size_t i = 0; i < count || i < 3; i++)
        close(fds[i]);
}

static void joined(int fd, const struct scenario *s, uint32_t request)
{
    struct wire_msg msg = {.type = WIRE_JOINED, .request = request};
    int page = page_new(s, s->wrong_page ? GW_SHM_BOARD : GW_SHM_JOB, GW_PAGE_BYTES,
                        sizeof(struct gw_job_page));

    if (s->stray_reply) {
        struct wire_msg stray = {.type = WIRE_DONE, .request = request + 77};
        int extra = eventfd(0, EFD_CLOEXEC);

        send_message(fd, &stray, &extra, 1); /* its descriptor must be closed too */
        close(extra);
    }
    if (s->joined_code) {
        msg.type = WIRE_DONE;
        msg.u.done.code = s->joined_code;
        snprintf(msg.u.done.text, sizeof(msg.u.done.text), "the world is another");
    } else if (s->wrong_reply) {
        msg.type = WIRE_BUFFER_MADE;
        msg.u.buffer_made.bytes = 1;
    } else {
        msg.u.joined.generation = s->no_id ? 0 : 1;
        msg.u.joined.id_bytes = JOB_ID_BYTES;
        memset(msg.u.joined.id, 0x5a, JOB_ID_BYTES);
        job_id_start(msg.u.joined.id);
    }
    send_message(fd, &msg, &page, s->no_page || msg.type != WIRE_JOINED ? 0 : 1);
    close(page);
}

static void buffer_made(int fd, uint32_t request)
{
    struct wire_msg msg = {.type = WIRE_BUFFER_MADE, .request = request};
    int page = page_new(&scenarios[0], GW_SHM_BOARD, GW_PAGE_BYTES, 0);

    msg.u.buffer_made.buffer = 1;
    msg.u.buffer_made.bytes = GW_PAGE_BYTES;
    send_message(fd, &msg, &page, 1);
    close(page);
}

/* Says nothing to the first request, and then that the buffer is gone. */
static void buffer_freed(int fd, uint32_t request, unsigned *frees)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = request};

    msg.u.done.code = GW_E_NOT_FOUND;
    if ((*frees)++ > 0)
        send_message(fd, &msg, NULL, 0);
}

static void serve_hello(int fd, const struct scenario *s)
{
    struct wire_msg msg = {.type = WIRE_CLOSE};

    if (s->garbage) {
        (void)!send(fd, "hello, world, this is no frame", 30, MSG_NOSIGNAL);
    } else if (s->hello_code) {
        msg.u.done.code = s->hello_code;
        snprintf(msg.u.done.text, sizeof(msg.u.done.text), "%s", s->hello_text);
        send_message(fd, &msg, NULL, 0);
    } else if (!s->silent) {
        welcome(fd, s);
    }
}

/* What the last client said at its start; read when the service's thread has ended. */
static struct {
    struct wire_msg hello, start;
} said;

static void serve_message(int fd, const struct scenario *s, const struct wire_msg *msg,
                          unsigned *frees)
{
    if (msg->type == WIRE_HELLO)
        said.hello = *msg;
    else if (msg->type == WIRE_JOB_CREATE || msg->type == WIRE_JOIN)
        said.start = *msg;
    if (msg->type == WIRE_HELLO)
        serve_hello(fd, s);
    else if (msg->type == WIRE_JOB_CREATE || msg->type == WIRE_JOIN)
        joined(fd, s, msg->request);
    else if (msg->type == WIRE_BUFFER_NEW)
        buffer_made(fd, msg->request);
    else if (msg->type == WIRE_BUFFER_FREE)
        buffer_freed(fd, msg->request, frees);
}

/* The next frame, from the socket or the ring; 0: the end. Nobody rings for a service that never
 * says that it sleeps, so it looks. */
static int next_frame(int fd, struct submit_reader *ring, uint8_t *frame)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    ssize_t bytes;

    for (;;) {
        if (client_page != MAP_FAILED && !ring->data)
            submit_reader_start(ring, client_page, engine_page);
        bytes = ring->data ? submit_take(ring, submit_seen(ring), frame) : 0;
        if (bytes < 0)
            abort();
        if (bytes > 0)
            return (int)bytes;
        (void)poll(&ready, 1, 1);
        bytes = recv(fd, frame, GW_FRAME_MAX, MSG_DONTWAIT);
        if (bytes >= 0 || errno != EAGAIN)
            return bytes > 0 ? (int)bytes : 0;
    }
}

static void *serve(void *argument)
{
    const struct scenario *s = argument;
    uint8_t *frame = malloc(GW_FRAME_MAX);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct submit_reader ring = {.data = NULL};
    bool greeted = false;
    unsigned frees = 0;
    int bytes;

    while (fd >= 0 && frame && (bytes = next_frame(fd, &ring, frame)) > 0) {
        struct wire_msg *msg = NULL;
        uint32_t request = 0;

        if (wire_decode(frame, (size_t)bytes, &msg, &request) < 0)
            abort();
        if (!s->hang_up && !(greeted && s->hang_up_later))
            serve_message(fd, s, msg, &frees);
        wire_free(msg);
        if (s->hang_up || (greeted && s->hang_up_later))
            break;
        greeted = true;
    }
    close(fd);
    if (client_page != MAP_FAILED)
        munmap(client_page, GW_CLIENT_PAGE_BYTES);
    if (engine_page != MAP_FAILED)
        munmap(engine_page, GW_ENGINE_PAGE_BYTES);
    client_page = engine_page = MAP_FAILED;
    free(frame);
    return NULL;
}

static size_t open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    size_t count = 0;

    while (directory && readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void one(const struct scenario *s)
{
    struct gw_job_options options = {.struct_size = sizeof(options),
                                     .socket_path = path,
                                     .world = 1,
                                     .timeout_ns = s->silent ? 50000000 : 0};
    size_t before = open_descriptors();
    gw_job *job = NULL;
    pthread_t thread;
    int r;

    assert_int_equal(pthread_create(&thread, NULL, serve, (void *)(uintptr_t)s), 0);
    r = gw_job_create(&options, &job);
    if (r != s->expect)
        print_error("%s: %d (%s), expected %d\n", s->what, r, gw_last_error(), s->expect);
    assert_int_equal(r, s->expect);
    if (r < 0 && s->text && !strstr(gw_last_error(), s->text)) {
        print_error("%s: \"%s\" lacks \"%s\"\n", s->what, gw_last_error(), s->text);
        fail();
    }
    if (r < 0) {
        assert_null(job);
        assert_null(strchr(gw_last_error(), '\n'));
    }
    gw_job_close(job);
    pthread_join(thread, NULL);
    assert_int_equal(open_descriptors(), before);
}

static void wrong_answers_are_typed_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < SCENARIOS; i++)
        one(&scenarios[i]);
}

static void the_tag_is_the_hash_of_the_secret(void **state)
{
    /* Python: hashlib.blake2b(b"\x5a" * 32, digest_size=8).hexdigest() */
    struct gw_job_options options = {
        .struct_size = sizeof(options), .socket_path = path, .world = 1};
    char tag[GW_TAG_CHARS];
    gw_job *job = NULL;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, serve, (void *)(uintptr_t)&scenarios[0]), 0);
    assert_int_equal(gw_job_create(&options, &job), 0);
    assert_int_equal(gw_job_tag(job, tag), 0);
    assert_string_equal(tag, "67cbdda19a4e7da3");
    gw_job_close(job);
    pthread_join(thread, NULL);
}

/* gw_job_join with the id, or gw_job_create; the job is closed again. */
static void start_and_close(const struct gw_job_id *id, uint32_t nodes)
{
    struct gw_job_options options = {
        .struct_size = sizeof(options), .socket_path = path, .world = 1, .nodes = nodes};
    gw_job *job = NULL;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, serve, (void *)(uintptr_t)&scenarios[0]), 0);
    assert_int_equal(id ? gw_job_join(&options, id, &job) : gw_job_create(&options, &job), 0);
    gw_job_close(job);
    pthread_join(thread, NULL);
}

static void who_joins_says_whether_the_job_spans_nodes(void **state)
{
    struct job_address address = {4, 46200, {127, 0, 0, 1}};
    /* as above: of 32 bytes 0x5a */
    static const uint8_t tag[8] = {0x67, 0xcb, 0xdd, 0xa1, 0x9a, 0x4e, 0x7d, 0xa3};
    struct gw_job_id id = {.size_bytes = JOB_ID_BYTES};

    (void)state;
    memset(id.bytes, 0x5a, JOB_ID_BYTES);
    job_id_start(id.bytes);
    start_and_close(&id, 0);
    assert_int_equal(said.hello.u.hello.spans, 0);
    assert_memory_equal(said.hello.u.hello.tag, tag, 8);
    job_id_set_address(id.bytes, &address);
    start_and_close(&id, 0);
    assert_int_equal(said.hello.u.hello.spans, 1);
    assert_memory_equal(said.hello.u.hello.tag, tag, 8);
    assert_int_equal(said.start.u.join.id_bytes, 64);
    assert_memory_equal(said.start.u.join.id, id.bytes, 64);
}

static void the_creator_says_how_many_nodes(void **state)
{
    (void)state;
    start_and_close(NULL, 0);
    assert_int_equal(said.start.u.job_create.nodes, 0);
    start_and_close(NULL, GW_NODES_MAX);
    assert_int_equal(said.start.u.job_create.nodes, 1024);
    assert_int_equal(said.hello.u.hello.tag_bytes, 0);
    assert_int_equal(said.hello.u.hello.spans, 0);
}

static void what_is_no_job_is_refused_without_a_daemon(void **state)
{
    struct gw_job_options options = {
        .struct_size = sizeof(options), .socket_path = "/nobody/listens", .world = 1,
        .nodes = 1025};
    struct gw_job_id id = {.size_bytes = JOB_ID_BYTES};
    gw_job *job = NULL;

    (void)state;
    assert_int_equal(gw_job_create(&options, &job), GW_E_INVALID);
    assert_non_null(strstr(gw_last_error(), "nodes is 1025"));
    options.nodes = 0;
    assert_int_equal(gw_job_join(&options, &id, &job), GW_E_INVALID);
    assert_non_null(strstr(gw_last_error(), "not an id"));
    assert_null(job);
}

static void *serve_once_and_again(void *user)
{
    static const struct scenario ending = {
        .hello_code = GW_E_AGAIN, .hello_text = "the job's engine is ending"};

    (void)user;
    (void)serve((void *)(uintptr_t)&ending);
    return serve((void *)(uintptr_t)&scenarios[0]);
}

static void who_is_told_to_come_again_does(void **state)
{
    struct gw_job_options options = {
        .struct_size = sizeof(options), .socket_path = path, .world = 1};
    size_t before = open_descriptors();
    gw_job *job = NULL;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, serve_once_and_again, NULL), 0);
    assert_int_equal(gw_job_create(&options, &job), 0);
    gw_job_close(job);
    pthread_join(thread, NULL);
    assert_int_equal(open_descriptors(), before);
}

static void a_free_without_an_answer_leaves_the_buffer(void **state)
{
    struct gw_job_options options = {
        .struct_size = sizeof(options), .socket_path = path, .world = 1, .timeout_ns = 200000000};
    gw_buffer *buffer = NULL;
    gw_job *job = NULL;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, serve, (void *)(uintptr_t)&scenarios[0]), 0);
    assert_int_equal(gw_job_create(&options, &job), 0);
    assert_int_equal(gw_buffer_new(job, 4096, &buffer), 0);
    assert_int_equal(gw_buffer_free(job, buffer), GW_E_TIMEOUT);
    assert_int_equal(gw_buffer_size(buffer), 4096);
    memset(gw_buffer_data(buffer), 0x5a, 4096);
    assert_int_equal(gw_buffer_free(job, buffer), 0);
    gw_job_close(job);
    pthread_join(thread, NULL);
}

static int set_up(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)state;
    snprintf(path, sizeof(path), "/tmp/gw-connect-%ld.sock", (long)getpid());
    memcpy(address.sun_path, path, sizeof(path));
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    unlink(path);
    return bind(listener, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
           listen(listener, 8) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    close(listener);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_answers_are_typed_errors),
        cmocka_unit_test(the_tag_is_the_hash_of_the_secret),
        cmocka_unit_test(who_joins_says_whether_the_job_spans_nodes),
        cmocka_unit_test(the_creator_says_how_many_nodes),
        cmocka_unit_test(what_is_no_job_is_refused_without_a_daemon),
        cmocka_unit_test(who_is_told_to_come_again_does),
        cmocka_unit_test(a_free_without_an_answer_leaves_the_buffer),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
