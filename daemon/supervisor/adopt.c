/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that an earlier gradwired started, or whose channel broke: connect, or remove what is
 * left of them. Loop thread only.
 *
 * An entry whose lock is free is dead. One whose lock is held is registered under its name at once,
 * so that clients which come meanwhile wait for it instead of being told that there is no such job.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define RETRY_FIRST_NS 100000000ull
#define RETRY_DOUBLINGS 7u /* up to 12.8 s */

static int connect_engine(struct engine *engine)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    rundir_engine_socket(engine->sup->dir, engine->entry, address.sun_path,
                         sizeof(address.sun_path));
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return GW_E_IO;
    /* Before the engine can send: its credentials come with its packet. Those of the socket itself
     * are of the gradwired that made it. */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        fd_close(&fd);
        return GW_E_IO;
    }
    return engine_set_channel(engine, fd);
}

void adopt_try(struct engine *engine)
{
    unsigned doublings = engine->attempts < RETRY_DOUBLINGS ? engine->attempts : RETRY_DOUBLINGS;

    if (engine->process == NULL &&
        !rundir_entry_alive(engine->sup->dir, engine->entry, NULL, NULL)) {
        engine_gone(engine);
        return;
    }
    engine->attempts++;
    if (connect_engine(engine) == 0) {
        alarm_set(engine->alarm, SUP_ENGINE_READY_NS);
        return;
    }
    if (engine->attempts == 1)
        log_warning("cannot connect to engine %s: %s; trying again", engine->entry,
                    strerror(errno));
    alarm_set(engine->alarm, RETRY_FIRST_NS << doublings);
}

static bool is_registered(struct supervisor *sup, const char *entry)
{
    const struct engine *engine;

    TAILQ_FOREACH(engine, &sup->engines, link) {
        if (strcmp(engine->entry, entry) == 0)
            return true;
    }
    return false;
}

static void adopt_entry(void *user, const char *entry)
{
    struct supervisor *sup = user;
    uint8_t tag[TAG_BYTES];
    bool follows = false;
    bool tag_known = rundir_entry_parse(entry, tag, &follows);
    uint64_t started_ns = 0;
    uid_t uid = (uid_t)-1;
    struct engine *engine;

    if (is_registered(sup, entry) || (!tag_known && strncmp(entry, "new-", 4) != 0))
        return;
    if (!rundir_entry_alive(sup->dir, entry, &uid, &started_ns)) {
        log_info("removing the entry %s of an engine that has ended", entry);
        rundir_entry_remove(sup->dir, entry);
        return;
    }
    if (engine_new(sup, ENGINE_ADOPTING, &engine) < 0)
        return;
    (void)snprintf(engine->entry, sizeof(engine->entry), "%s", entry);
    engine->uid = uid;
    if (started_ns > 0 && started_ns < engine->started_ns)
        engine->started_ns = started_ns;
    engine->tag_known = tag_known;
    engine->follows = follows;
    if (tag_known)
        memcpy(engine->tag, tag, TAG_BYTES);
    adopt_try(engine);
}

void adopt_all(struct supervisor *sup)
{
    rundir_entries(sup->dir, adopt_entry, sup);
}
