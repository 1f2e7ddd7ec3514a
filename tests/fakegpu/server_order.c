/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which accesses nothing orders. Each stream carries a vector clock over all streams; events,
 * words and collectives pass clocks on. What hosts see and tell each other is not seen here, so an
 * op that had ended before another was enqueued counts as before it: a race is missed then, but
 * none is made up. Accesses are kept per file, because two mappings of one file are one memory.
 * Lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

#define TABLE 1024u
#define LOG_MAX 4096u

struct access {
    uint64_t from, end; /* bytes of the file */
    bool write;
    uint32_t stream;
    uint64_t seq, op, done_ns; /* done 0: still running */
    enum op_kind kind;
    uint32_t process;
    struct access *next, *next_open;
};

struct access_log {
    uint64_t inode;
    struct access *first;
    uint32_t count, prune_at;
    struct access_log *next;
};

struct word {
    uint64_t inode, offset, value;
    struct clock clock;
    struct word *next;
};

static struct access_log *logs[TABLE];
static struct access *open_accesses;
static struct word *words[TABLE];

/* ---- clocks --------------------------------------------------------------------------------- */

static int clock_room(struct clock *clock, uint32_t count)
{
    uint64_t *seq;

    if (count <= clock->count)
        return 0;
    seq = realloc(clock->seq, count * sizeof(*seq));
    if (!seq)
        return -1;
    memset(seq + clock->count, 0, (count - clock->count) * sizeof(*seq));
    clock->seq = seq;
    clock->count = count;
    return 0;
}

int clock_raise(struct clock *clock, uint32_t stream, uint64_t seq)
{
    if (clock_room(clock, stream + 1))
        return -1;
    if (clock->seq[stream] < seq)
        clock->seq[stream] = seq;
    return 0;
}

int clock_join(struct clock *clock, const struct clock *other)
{
    if (clock == other || clock_room(clock, other->count))
        return -1;
    for (uint32_t i = 0; i < other->count; i++)
        if (clock->seq[i] < other->seq[i])
            clock->seq[i] = other->seq[i];
    return 0;
}

void clock_free(struct clock *clock)
{
    free(clock->seq);
    *clock = (struct clock){0};
}

static bool clock_covers(const struct clock *clock, uint32_t stream, uint64_t seq)
{
    return stream < clock->count && clock->seq[stream] >= seq;
}

void ops_join(struct server *s, struct op *const *ops, uint32_t count)
{
    struct clock all = {0};

    (void)s;
    for (uint32_t i = 0; i < count; i++)
        clock_join(&all, &ops[i]->stream->clock);
    for (uint32_t i = 0; i < count; i++)
        clock_join(&ops[i]->stream->clock, &all);
    clock_free(&all);
}

/* ---- accesses ------------------------------------------------------------------------------- */

static struct access_log *log_of(uint64_t inode)
{
    struct access_log **slot = &logs[mix64(inode) % TABLE], *log = *slot;

    while (log && log->inode != inode)
        log = log->next;
    if (log)
        return log;
    log = calloc(1, sizeof(*log));
    if (log) {
        *log = (struct access_log){.inode = inode, .prune_at = 32, .next = *slot};
        *slot = log;
    }
    return log;
}

/* No op that is queued now, or later, can be unordered with what ended before this. */
static uint64_t oldest_ns(const struct server *s)
{
    uint64_t oldest = UINT64_MAX;

    for (uint32_t i = 0; i < s->busy_count; i++) {
        const struct op *op = s->busy[i]->head;

        if (op && !s->busy[i]->dead && op->enqueued_ns < oldest)
            oldest = op->enqueued_ns;
    }
    return oldest;
}

static void log_prune(const struct server *s, struct access_log *log)
{
    uint64_t oldest = oldest_ns(s);
    uint32_t kept = 0;

    for (struct access **at = &log->first; *at;) {
        struct access *access = *at;

        if (access->done_ns && (access->done_ns < oldest || kept >= LOG_MAX)) {
            *at = access->next;
            free(access);
            continue;
        }
        kept++;
        at = &access->next;
    }
    log->count = kept;
    log->prune_at = kept * 2 > 32 ? kept * 2 : 32;
}

static const char *kind_name(enum op_kind kind)
{
    static const char *const names[] = {"order", "kernel", "copy", "fill", "wait", "write",
                                        "record", "host function", "collective"};

    return names[kind];
}

static void report(struct server *s, const struct op *op, bool write, const struct access *other)
{
    const struct stream *stream = op->stream;

    violation(s, RULE_unordered, stream->process,
              "%s %s (op %llu, stream %u, GPU %d) and %s %s (op %llu, stream %u, process %u) of "
              "bytes %llu to %llu",
              kind_name(op->kind), write ? "writes" : "reads", (unsigned long long)op->id,
              stream->index + 1, stream->gpu, kind_name(other->kind),
              other->write ? "writes" : "reads", (unsigned long long)other->op,
              other->stream + 1, other->process, (unsigned long long)other->from,
              (unsigned long long)other->end);
}

void access_note(struct server *s, struct op *op, uint64_t address, uint64_t bytes, bool write)
{
    const struct map *map = map_find(s, op->stream->process, address, bytes, true);
    struct access_log *log = map && bytes && !s->order_off ? log_of(map->phys->inode) : NULL;
    uint64_t from;
    struct access *access;

    if (!log)
        return;
    from = map->phys->offset + map->phys_offset +
           ((uint64_t)(uintptr_t)map_pointer(map, address) - map->address);
    for (const struct access *other = log->first; other; other = other->next) {
        if (!(write || other->write) || other->from >= from + bytes || from >= other->end ||
            (other->stream == op->stream->index && other->seq == op->seq) ||
            clock_covers(&op->stream->clock, other->stream, other->seq) ||
            (other->done_ns && other->done_ns < op->enqueued_ns))
            continue;
        report(s, op, write, other);
        break;
    }
    if (log->count >= log->prune_at)
        log_prune(s, log);
    access = calloc(1, sizeof(*access));
    if (!access)
        return;
    *access = (struct access){.from = from, .end = from + bytes, .write = write,
                              .stream = op->stream->index, .seq = op->seq, .op = op->id,
                              .kind = op->kind, .process = op->stream->process->id,
                              .next = log->first, .next_open = open_accesses};
    log->first = access;
    log->count++;
    open_accesses = access;
}

void order_op_done(struct server *s, const struct op *op)
{
    uint64_t now = now_ns();

    (void)s;
    for (struct access **at = &open_accesses; *at;) {
        struct access *access = *at;

        if (access->stream == op->stream->index && access->seq == op->seq) {
            access->done_ns = now;
            *at = access->next_open;
        } else {
            at = &access->next_open;
        }
    }
}

/* ---- words ---------------------------------------------------------------------------------- */

static struct word *word_of(const struct map *map, uint64_t address, bool make)
{
    uint64_t inode = map->phys->inode;
    uint64_t offset = map->phys->offset + map->phys_offset + (address - map->address);
    struct word **slot = &words[mix64(inode * 31 + offset) % TABLE], *word = *slot;

    while (word && (word->inode != inode || word->offset != offset))
        word = word->next;
    if (word || !make)
        return word;
    word = calloc(1, sizeof(*word));
    if (word) {
        *word = (struct word){.inode = inode, .offset = offset, .next = *slot};
        *slot = word;
    }
    return word;
}

void word_released(struct server *s, const struct op *op, const struct map *map, uint64_t address,
                   uint64_t value)
{
    struct word *word = word_of(map, address, true);

    (void)s;
    if (!word)
        return;
    word->value = value;
    clock_join(&word->clock, &op->stream->clock);
}

void word_acquired(struct server *s, struct op *op, const struct map *map, uint64_t address,
                   uint64_t value)
{
    const struct word *word = word_of(map, address, false);

    if (word && word->value >= value) {
        clock_join(&op->stream->clock, &word->clock);
        return;
    }
    /* A host or a kernel raised it: behind whatever has ended. */
    for (uint32_t i = 0; i < s->stream_count; i++)
        clock_raise(&op->stream->clock, i, s->streams[i]->done_seq);
}
