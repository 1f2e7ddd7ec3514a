/* SPDX-License-Identifier: Apache-2.0 */
/* Order in the streams of a GPU; see order.h. Any thread. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/timeline.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

#define PLACE_SLICE_NS (1 * CLOCK_MS)
#define QUIET_NS (1 * CLOCK_SECOND)
#define QUIET_PAUSE_NS (CLOCK_MS / 5)

/* ---- streams --------------------------------------------------------------------------------- */

int order_find(gw_job *job, void *stream, uint32_t *ret_index)
{
    struct order *order = &job->order;
    int r;

    for (uint32_t i = 0; i < order->stream_count; i++) {
        if (order->streams[i].stream == stream) {
            order->streams[i].used = true;
            *ret_index = i;
            return 0;
        }
    }
    if (order->stream_count == ORDER_STREAMS)
        return err_set(GW_E_LIMIT,
                       "a job works with at most %u streams; let one of them wait for the others' "
                       "events instead",
                       ORDER_STREAMS);
    r = job->device->ops->stream_check(job->device, stream);
    if (r < 0)
        return r;
    order->streams[order->stream_count] = (struct order_stream){.stream = stream, .used = true};
    *ret_index = order->stream_count++;
    return 0;
}

/* Everything enqueued so far is done once the stream's timeline is at its `recorded`. Lock held. */
static int raise_timeline(gw_job *job, struct order_stream *s)
{
    int r;

    if (!s->has_timeline) {
        r = timeline_take(job, &s->timeline);
        if (r < 0)
            return r;
        s->has_timeline = true;
    }
    r = job->order.way->raise(job, s, s->recorded + 1);
    if (r < 0)
        return r;
    s->recorded++;
    s->used = true;
    return 0;
}

/* Lock held. */
static int raise_current(gw_job *job)
{
    int r = raise_timeline(job, &job->order.streams[job->order.current]);

    if (r == 0)
        job->order.unmarked = false;
    return r;
}

static struct gw_token last_token(const struct order_stream *s)
{
    return (struct gw_token){.timeline = GW_TIMELINE(GW_TL_CLIENT, s->timeline),
                             .value = s->recorded};
}

int order_record(gw_job *job, void *stream, struct gw_token *ret_token)
{
    struct order *order = &job->order;
    uint32_t index = 0;
    int r = order->way->begin(job, stream);

    if (r < 0)
        return r;
    pthread_mutex_lock(&order->lock);
    r = order_find(job, stream, &index);
    if (r == 0)
        r = raise_timeline(job, &order->streams[index]);
    if (r == 0)
        *ret_token = last_token(&order->streams[index]);
    pthread_mutex_unlock(&order->lock);
    return r;
}

/* What was declared before is marked in the old stream, and sent or kept with that mark. */
int order_set_stream(gw_job *job, void *stream)
{
    struct order *order = &job->order;
    uint32_t index = 0;
    int r;

    (void)channel_flush(&job->channel);
    r = channel_stamp(&job->channel);
    if (r == 0)
        r = order->way->begin(job, stream);
    if (r < 0)
        return r;
    pthread_mutex_lock(&order->lock);
    r = order_find(job, stream, &index);
    if (r == 0)
        order->current = index;
    pthread_mutex_unlock(&order->lock);
    return r;
}

void *order_stream(gw_job *job)
{
    void *stream;

    pthread_mutex_lock(&job->order.lock);
    stream = job->order.streams[job->order.current].stream;
    pthread_mutex_unlock(&job->order.lock);
    return stream;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* A stream that waits for what was never sent would wait for ever, and nobody would notice. */
int order_flush(gw_job *job)
{
    int64_t deadline = clock_deadline(job->timeout_ns);
    int r;

    while (!channel_flush(&job->channel)) {
        r = job_failure(job);
        if (r < 0)
            return r;
        if (clock_now() >= deadline)
            return err_set(GW_E_AGAIN, "the %s takes no messages; call again", job->channel.engine);
        channel_pause(&job->channel);
    }
    return 0;
}

int order_stream_wait(gw_job *job, struct gw_token token, void *stream, int64_t deadline,
                      struct wait_time *ret_time)
{
    uint32_t index = 0;
    int r;

    *ret_time = (struct wait_time){0};
    pthread_mutex_lock(&job->order.lock);
    r = order_find(job, stream, &index);
    pthread_mutex_unlock(&job->order.lock);
    if (r < 0 || wait_reached(job, token))
        return r;
    return job->order.way->wait(job, token, &job->order.streams[index], deadline, ret_time);
}

bool order_passed(gw_job *job, struct gw_token token)
{
    return job->order.way && job->order.way->passed(job, token);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int device_wait(gw_job *job, struct gw_token token, int64_t deadline,
                       struct wait_time *ret_time)
{
    return order_stream_wait(job, token, order_stream(job), deadline, ret_time);
}

static int device_mark(gw_job *job, struct wire_after *ret_after)
{
    struct order *order = &job->order;
    int r;

    pthread_mutex_lock(&order->lock);
    r = raise_current(job);
    if (r == 0)
        *ret_after = (struct wire_after){
            .tokens = 1,
            .timeline = {order->streams[order->current].timeline},
            .value = {order->streams[order->current].recorded},
        };
    pthread_mutex_unlock(&order->lock);
    return r;
}

static int device_settle(gw_job *job, int64_t deadline)
{
    struct gw_token token;
    struct wait_time time;
    size_t index = 0;
    int r;

    pthread_mutex_lock(&job->order.lock);
    r = raise_current(job);
    token = last_token(&job->order.streams[job->order.current]);
    pthread_mutex_unlock(&job->order.lock);
    return r < 0 ? r : wait_tokens(job, &token, 1, false, deadline, &index, &time);
}

/* Usually at once: a fetch is placed when it is launched, which waits for the other ranks' calls at
 * most, never for their GPUs. */
static int device_place(gw_job *job, const struct gw_shm_slot *slot, uint64_t value,
                        uint64_t *ret_offset)
{
    int64_t deadline = clock_deadline(job->timeout_ns);
    int r;

    for (;;) {
        uint32_t wake = atomic_load(&job->engine->wake);
        uint64_t placed = atomic_load_explicit(&slot->placed, memory_order_acquire);
        uint64_t offset = __atomic_load_n(&slot->placed_offset, __ATOMIC_ACQUIRE);

        if (placed >= value &&
            atomic_load_explicit(&slot->placed, memory_order_relaxed) == placed) {
            *ret_offset = offset;
            return 0;
        }
        (void)channel_flush(&job->channel);
        channel_poll(&job->channel);
        r = job_failure(job);
        if (r < 0)
            return r;
        if (clock_now() >= deadline)
            return GW_E_AGAIN;
        wait_doze(job, slot, wake, PLACE_SLICE_NS);
    }
}

static void device_declared(gw_job *job)
{
    pthread_mutex_lock(&job->order.lock);
    job->order.unmarked = true;
    pthread_mutex_unlock(&job->order.lock);
}

/* One token per timeline: the higher value. There is room: callers give tokens_max at most. */
static void add_token(struct wire_ready_entry *entry, uint32_t timeline, uint64_t value)
{
    uint32_t i = 0;

    while (i < entry->tokens && entry->timeline[i] != timeline)
        i++;
    if (i == GW_READY_TOKENS)
        return;
    if (i == entry->tokens) {
        entry->timeline[entry->tokens] = timeline;
        entry->value[entry->tokens++] = value;
    } else if (entry->value[i] < value) {
        entry->value[i] = value;
    }
}

/* Work that came after the entries were declared is waited for too: less than one raise each. No
 * wait for what they lead to can be among it, for a wait sends the batch first. */
static int device_stamp(void *of, struct wire_ready_entry *entries, uint32_t count)
{
    gw_job *job = of;
    const struct order_stream *s;
    int r = 0;

    pthread_mutex_lock(&job->order.lock);
    s = &job->order.streams[job->order.current];
    if (job->order.unmarked || s->recorded == 0)
        r = raise_current(job);
    for (uint32_t i = 0; i < count && r == 0; i++)
        add_token(&entries[i], s->timeline, s->recorded);
    pthread_mutex_unlock(&job->order.lock);
    return r;
}

static void release_page(const struct order_page *page)
{
    struct gw_wait_page *words = (struct gw_wait_page *)(void *)page->map.base;

    for (uint32_t i = 0; words && i < page->words; i++)
        atomic_store(&words->word[i], GW_TIMELINE_END);
}

/* Without the lock: its holder may be inside a call that waits for room in a stream which only this
 * frees. Every time that a failure is seen: a kernel of the engine that was late may have stored a
 * lower value. */
static void device_release(gw_job *job)
{
    release_page(&job->order.op_words);
    if (atomic_load_explicit(&job->zero, memory_order_acquire))
        release_page(&job->order.board_words);
}

const struct order_ops order_device = {
    .streams = true,
    .tokens_max = GW_READY_TOKENS - 1, /* the job's stream adds one */
    .wait = device_wait,
    .mark = device_mark,
    .settle = device_settle,
    .place = device_place,
    .copy_in = bounce_copy_in,
    .copy_out = bounce_copy_out,
    .declared = device_declared,
    .stamp = device_stamp,
    .release = device_release,
};

/* ---- life ------------------------------------------------------------------------------------ */

static int add_page(gw_job *job, int fd, uint32_t words, const char *what,
                    struct order_page *ret_page)
{
    const struct gw_wait_page *page;
    struct map map = {0};
    uint64_t address = 0;
    int r;

    r = map_new(fd, GW_WAIT_BYTES(words), PROT_READ | PROT_WRITE, what, &map);
    if (r < 0)
        return r;
    page = (const struct gw_wait_page *)(const void *)map.base;
    if (page->header.magic != GW_SHM_MAGIC || page->header.version != GW_SHM_VERSION ||
        page->header.kind != GW_SHM_WAITS || page->count != words)
        r = err_set(GW_E_PROTOCOL, "the engine's %s is none, or of another size", what);
    if (r == 0)
        r = job->device->ops->page_add(job->device, map.base, map.bytes, &address);
    if (r < 0) {
        map_free(&map);
        return r;
    }
    ret_page->words = words;
    ret_page->address = address + offsetof(struct gw_wait_page, word);
    ret_page->map = map;
    return 0;
}

int order_start(gw_job *job, int fd)
{
    struct order *order = &job->order;
    uint32_t index = 0;
    int r;

    r = add_page(job, fd, GW_OPS_IN_FLIGHT, "wait page", &order->op_words);
    if (r == 0)
        r = job->device->ops->page_add(job->device, job->client_map.base, job->client_map.bytes,
                                       &order->client_address);
    fork_fd_close(&job->guard, &job->client_fd);
    if (r == 0)
        r = order->way->begin(job, NULL);
    if (r < 0)
        return r;
    pthread_mutex_lock(&order->lock);
    r = order_find(job, NULL, &index);
    order->current = index;
    order->streams[index].used = false; /* the caller may choose another before its first call */
    pthread_mutex_unlock(&order->lock);
    return r;
}

int order_board(gw_job *job, int fd, uint32_t words)
{
    if (job->order.board_words.map.base)
        return 0;
    return add_page(job, fd, words, "board's wait page", &job->order.board_words);
}

/* GW_E_AGAIN: some stream has work left. Lock held. */
static int all_idle(const gw_job *job)
{
    const struct order *order = &job->order;
    int r = 0;

    for (uint32_t i = 0; i < order->stream_count && r == 0; i++) {
        if (order->streams[i].used)
            r = job->device->ops->stream_idle(job->device, order->streams[i].stream);
    }
    if (r == 0 && order->has_copies)
        r = job->device->ops->stream_idle(job->device, order->copy_stream);
    return r;
}

bool order_quiet(gw_job *job, bool release)
{
    int64_t deadline = clock_deadline(QUIET_NS);
    int r;

    if (job->order.client_address == 0)
        return true;
    if (release || job_failure(job) < 0)
        job->order.ops->release(job);
    for (;;) {
        struct timespec pause = clock_timespec(QUIET_PAUSE_NS);

        pthread_mutex_lock(&job->order.lock);
        r = all_idle(job);
        pthread_mutex_unlock(&job->order.lock);
        if (r != GW_E_AGAIN || clock_now() >= deadline)
            return r == 0;
        (void)channel_flush(&job->channel);
        nanosleep(&pause, NULL);
    }
}

void order_end(gw_job *job)
{
    job->order.way->end(job);
}

/* A page that a stream may still touch stays: a fault would end everything on the GPU. */
void order_close(gw_job *job, bool quiet)
{
    struct order *order = &job->order;
    const struct gw_device_ops *ops = job->device->ops;

    if (!quiet) {
        atomic_store(&job->device->stuck, true);
        job->client_map = order->op_words.map = order->board_words.map = (struct map){0};
        return;
    }
    for (uint32_t i = 0; i < order->stream_count; i++)
        order->way->free(job, &order->streams[i]);
    if (order->has_copies)
        ops->stream_free(job->device, order->copy_stream);
    if (order->bounce.base)
        ops->host_free(job->device, order->bounce.base);
    if (order->client_address)
        ops->page_remove(job->device, job->client_map.base);
    if (order->op_words.map.base)
        ops->page_remove(job->device, order->op_words.map.base);
    if (order->board_words.map.base)
        ops->page_remove(job->device, order->board_words.map.base);
    map_free(&order->op_words.map);
    map_free(&order->board_words.map);
}
