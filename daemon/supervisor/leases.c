/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs, each lent to one job: a lock that the engine holds to its end, whatever becomes of
 * gradwired. What an engine asks for is hostile: a name of the right form, nothing else. Loop
 * thread only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

/* "GPU-" and a UUID in lower case. */
static bool is_gpu(const char *text)
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

    if (strlen(text) != sizeof(form) - 1)
        return false;
    for (size_t i = 0; i < sizeof(form) - 1; i++) {
        bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');

        if (form[i] == 'x' ? !digit : text[i] != form[i])
            return false;
    }
    return true;
}

/* Who has a GPU; of another user's job no more is told than that it is there. */
struct holder {
    char tag[TAG_HEX_BYTES];
    bool own;                   /* the asking user's */
    const struct engine *other; /* NULL: not known, as between taking the lock and naming itself */
    bool seen;                  /* its page could be read */
    struct gw_stats_page page;
};

/* text: "tag uid". */
static void find_holder(const struct engine *engine, const char *text, struct holder *ret_holder)
{
    uint8_t tag[TAG_BYTES];
    unsigned uid = (unsigned)-1;

    *ret_holder = (struct holder){0};
    if (sscanf(text, "%16[0-9a-f] %u", ret_holder->tag, &uid) != 2 ||
        tag_from_hex(ret_holder->tag, tag) < 0)
        return;
    ret_holder->own = uid == engine->uid;
    ret_holder->other = engine_find(engine->sup, tag, uid);
    ret_holder->seen =
        ret_holder->other && stats_read(ret_holder->other->stats_fd, &ret_holder->page);
}

static unsigned long long seconds(uint64_t ns)
{
    return ns / 1000000000u;
}

/* Nobody is there, but ranks that were lost may come back: until when. 0: not so. */
static uint64_t waits_for_ranks_ns(const struct holder *holder, uint64_t now)
{
    const struct gw_stats_page *page = &holder->page;

    return holder->seen && page->ranks_present == 0 && page->idle_ns > 0 && page->ends_ns > now
               ? page->ends_ns - now
               : 0;
}

static void say_busy(const struct holder *holder, const char *gpu, char *text, size_t text_bytes)
{
    uint64_t now = now_ns(), left_ns = waits_for_ranks_ns(holder, now);
    uint64_t since = left_ns > 0 ? holder->page.idle_ns : holder->other ? holder->other->started_ns
                                                                        : now;
    char whose[64] = "a job of another user";

    if (holder->own)
        (void)snprintf(whose, sizeof(whose), "job %s", holder->tag);
    if (left_ns > 0)
        (void)snprintf(text, text_bytes,
                       "%s is kept for %s: its ranks were lost %llu s ago and may come back for "
                       "%llu s more%s; wait that long, use another GPU, or let jobs share GPUs "
                       "(gpu_sharing = on in gradwired.conf)",
                       gpu, whose, seconds(now - (since < now ? since : now)),
                       seconds(left_ns) + 1,
                       holder->own ? ", or end its engine, whose PID gwctl jobs tells" : "");
    else
        (void)snprintf(text, text_bytes,
                       "%s is used by %s, which started %llu s ago: use another GPU, wait for that "
                       "job's end, or let jobs share GPUs (gpu_sharing = on in gradwired.conf)",
                       gpu, whose, seconds(now - (since < now ? since : now)));
}

/* Whether the holder ends, or may be asked to: without clients it lingers as a courtesy to ranks
 * that come back. It knows best whether any may, and ends if all have left in good order; who is
 * asked again still has its GPU then. */
static int answer_busy(struct holder *holder, const char *gpu, struct wire_msg *msg)
{
    struct wire_msg wanted = {.type = WIRE_LEASE_WANTED};

    say_busy(holder, gpu, msg->u.lease.text, sizeof(msg->u.lease.text));
    if (!holder->other)
        return GW_E_AGAIN;
    if (!holder->seen || holder->page.ranks_present > 0)
        return GW_E_BUSY;
    if (!holder->page.over && waits_for_ranks_ns(holder, now_ns()) > 0) {
        msg->u.lease.known = 1;
        return GW_E_BUSY;
    }
    if (holder->other->channel)
        (void)packet_send_msg(watch_fd(holder->other->channel), &wanted, -1);
    return GW_E_AGAIN;
}

void lease_grant(struct engine *engine, const char *gpu)
{
    struct wire_msg msg = {.type = WIRE_LEASE};
    char named[RUNDIR_HOLDER_BYTES];
    struct holder holder;
    char *text = msg.u.lease.text;
    char hex[TAG_HEX_BYTES];
    int fd = -1;
    int r = 0;

    (void)snprintf(msg.u.lease.gpu, sizeof(msg.u.lease.gpu), "%s", gpu);
    tag_to_hex(engine->tag, hex);
    if (!is_gpu(gpu)) {
        r = GW_E_INVALID;
        (void)snprintf(text, GW_TEXT_MAX + 1, "that is not the name of a GPU");
    } else if (engine->sup->conf.gpu_sharing == 0) {
        r = rundir_gpu_lock(engine->sup->dir, gpu, hex, engine->uid, &fd, named);
        if (r == GW_E_BUSY) {
            find_holder(engine, named, &holder);
            r = answer_busy(&holder, gpu, &msg);
        } else if (r < 0)
            (void)snprintf(text, GW_TEXT_MAX + 1, "gradwired cannot lend %s: %s", gpu,
                           r == GW_E_LIMIT ? "too many are in use" : "its file cannot be made");
    }
    msg.u.lease.code = r;
    if (r == 0)
        log_info("job %s uses %s%s", hex, gpu, fd < 0 ? ", which others may share" : "");
    else if (r != GW_E_AGAIN && r != GW_E_BUSY) /* those are asked for again */
        log_info("job %s does not get %s: %s", hex, is_gpu(gpu) ? gpu : "a GPU", text);
    /* What the engine does not take now it asks for again, or tells its client. */
    (void)packet_send_msg(watch_fd(engine->channel), &msg, fd);
    fd_close(&fd);
}
