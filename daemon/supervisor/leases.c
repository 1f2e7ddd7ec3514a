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

/* holder: "tag uid". Of another user's job no more is told than that it is there. */
static void say_busy(const struct engine *engine, const char *gpu, const char *holder, char *text,
                     size_t text_bytes)
{
    char tag[TAG_HEX_BYTES] = "";
    unsigned uid = (unsigned)-1;

    if (sscanf(holder, "%16[0-9a-f] %u", tag, &uid) == 2 && uid == engine->uid)
        (void)snprintf(text, text_bytes,
                       "%s is used by job %s: use another GPU, wait for that job's end, or let "
                       "jobs share GPUs (gpu_sharing = on in gradwired.conf)",
                       gpu, tag);
    else
        (void)snprintf(text, text_bytes,
                       "%s is used by a job of another user: use another GPU, or let jobs share "
                       "GPUs (gpu_sharing = on in gradwired.conf)",
                       gpu);
}

/* The holder has no clients: its last step is behind it, and soon it will be gone (or linger). */
static bool holder_ends(const struct engine *engine, const char *holder)
{
    struct gw_stats_page page;
    char hex[TAG_HEX_BYTES] = "";
    uint8_t tag[TAG_BYTES];
    unsigned uid = 0;
    const struct engine *other;

    if (sscanf(holder, "%16[0-9a-f] %u", hex, &uid) != 2 || tag_from_hex(hex, tag) < 0)
        return true; /* between taking the lock and writing its name there */
    other = engine_find(engine->sup, tag, uid);
    return !other || (stats_read(other->stats_fd, &page) && page.ranks_present == 0);
}

void lease_grant(struct engine *engine, const char *gpu)
{
    struct wire_msg msg = {.type = WIRE_LEASE};
    char holder[RUNDIR_HOLDER_BYTES];
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
        r = rundir_gpu_lock(engine->sup->dir, gpu, hex, engine->uid, &fd, holder);
        if (r == GW_E_BUSY) {
            say_busy(engine, gpu, holder, text, GW_TEXT_MAX + 1);
            r = holder_ends(engine, holder) ? GW_E_AGAIN : r;
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
