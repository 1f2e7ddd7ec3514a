/* SPDX-License-Identifier: Apache-2.0 */
/* Processes: who is connected, what their GPUs can do, faults, and their end. Lock held. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fakegpu/server_internal.h"

struct process *process_find(struct server *s, pid_t pid)
{
    for (struct process *p = s->processes; p; p = p->next)
        if (p->pid == pid && !p->gone)
            return p;
    return NULL;
}

struct process *process_new(struct server *s, int fd, pid_t pid, int node)
{
    struct process *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct process){.id = ++s->next_process, .pid = pid, .node = node, .fd = fd,
                          .host_fd = -1, .step = s->default_step, .next = s->processes};
    s->processes = p;
    return p;
}

void process_fault(struct server *s, struct process *p, int error, const char *format, ...)
{
    char text[256];
    va_list args;

    if (p->sticky || p->gone)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "fakegpu: process %u (pid %d): sticky error %d: %s\n", p->id, (int)p->pid,
            error, text);
    s->counts.faults++;
    for (struct process *other = s->processes; other; other = other->next) {
        /* Under MPS a fault ends every client of the GPU. */
        if (other != p && !(s->mps && other->contexts & p->contexts))
            continue;
        other->sticky = error;
        for (uint32_t i = 0; i < s->stream_count; i++)
            if (s->streams[i]->process == other)
                stream_kill(s, s->streams[i]);
    }
    server_kick(s);
}

void process_gone(struct server *s, struct process *p)
{
    bool leaks = p->bye && !p->sticky && !p->no_leaks;

    if (p->gone)
        return;
    p->gone = true;
    nccl_process_gone(s, p, leaks);
    streams_process_gone(s, p, leaks);
    events_process_gone(s, p, leaks);
    vmm_process_gone(s, p, leaks);
    memory_process_gone(s, p, leaks);
    server_kick(s);
}

/* ---- who reaches what ----------------------------------------------------------------------- */

bool gpus_are_peers(const struct server *s, int a, int b)
{
    uint32_t group = s->inject.peers ? s->inject.peers : FG_GPUS_MAX;
    uint32_t first = (uint32_t)s->gpus[a].node * s->gpus_per_node;

    return a != b && s->gpus[a].node == s->gpus[b].node &&
           ((uint32_t)a - first) / group == ((uint32_t)b - first) / group;
}

bool gpu_reaches(const struct process *p, int gpu, const struct map *map, bool write, bool kernel)
{
    if (map->gpu < 0)
        return true;
    switch (map->kind) {
    case MAP_VMM:
        return (write ? map->writable : map->readable) >> gpu & 1;
    case MAP_IPC: /* no section says that another context than the one that opened it may */
        return map->gpu == gpu;
    default:
        return !kernel || map->gpu == gpu || p->peers[gpu] >> map->gpu & 1;
    }
}

static void device(struct server *s, struct call *c)
{
    const struct gpu *gpu = &s->gpus[c->q->device];

    vmm_sweep(s);
    c->reply.v[0] = gpu->total_bytes;
    c->reply.v[1] = gpu->total_bytes - gpu->used_bytes;
    c->reply.v[2] = (s->no_memops || s->inject.no_memops ? 0u : (unsigned)FG_CAP_MEMOPS) |
                    (s->inject.no_ipc ? 0u : (unsigned)FG_CAP_IPC) |
                    (s->mps ? (unsigned)FG_CAP_MPS : 0u) |
                    (uint64_t)s->inject.compute_mode << FG_MODE_SHIFT |
                    (uint64_t)s->inject.links << FG_LINKS_SHIFT;
    for (uint32_t i = 0; i < s->gpu_count; i++)
        c->reply.v[3] |= (uint64_t)gpus_are_peers(s, gpu->index, (int)i) << i;
}

/* drv cuCtxCreate, CUcomputemode: prohibited takes none, exclusive-process those of one process,
 * which is MPS' server where there is one. */
static bool takes_context(const struct server *s, const struct call *c)
{
    bool taken = false;

    for (const struct process *p = s->processes; p; p = p->next)
        taken |= p != c->process && !p->gone && p->contexts >> c->q->device & 1;
    switch (s->inject.compute_mode) {
    case MODE_PROHIBITED:
        return false;
    case MODE_EXCLUSIVE_PROCESS:
        return s->mps || !taken;
    default:
        return true;
    }
}

static void context(struct server *s, struct call *c)
{
    if (!c->q->a[0])
        c->process->contexts &= ~(UINT64_C(1) << c->q->device);
    else if (takes_context(s, c))
        c->process->contexts |= UINT64_C(1) << c->q->device;
    else
        c->reply.error = E_DEVICE_UNAVAILABLE;
}

static void peer(struct server *s, struct call *c)
{
    uint64_t other = c->q->a[0];
    uint64_t *peers = &c->process->peers[c->q->device];

    if (other >= s->gpu_count || other == c->q->device ||
        s->gpus[other].node != c->process->node)
        c->reply.error = E_INVALID_DEVICE;
    else if (!gpus_are_peers(s, (int)c->q->device, (int)other))
        c->reply.error = E_NOT_SUPPORTED_PEER;
    else if (s->inject.few_peers)
        c->reply.error = E_TOO_MANY_PEERS;
    else if (*peers >> other & 1)
        c->reply.error = E_PEER_ALREADY;
    else
        *peers |= UINT64_C(1) << other;
}

static void told_violation(struct server *s, struct call *c, const char *text)
{
    char rule[64];
    const char *space = strchr(text, ' ');
    int number;

    if (!space || (size_t)(space - text) >= sizeof(rule))
        return;
    memcpy(rule, text, (size_t)(space - text));
    rule[space - text] = '\0';
    number = rule_find(rule);
    if (number >= 0)
        violation(s, (enum rule)number, c->process, "%s", space + 1);
}

void process_request(struct server *s, struct call *c)
{
    char text[512];
    size_t bytes = c->q->payload_bytes < sizeof(text) ? c->q->payload_bytes : sizeof(text) - 1;
    uint32_t number;

    memcpy(text, c->payload, bytes);
    text[bytes] = '\0';
    switch (c->q->kind) {
    case FG_BYE:
        c->process->bye = true;
        break;
    case FG_DEVICE:
        device(s, c);
        break;
    case FG_CONTEXT:
        context(s, c);
        break;
    case FG_PEER:
        peer(s, c);
        break;
    case FG_SYNC:
        s->counts.syncs++;
        if (c->process->step)
            violation(s, RULE_host_sync, c->process, "%s", text);
        break;
    case FG_VIOLATION:
        told_violation(s, c, text);
        break;
    case FG_KERNEL_FIND:
        number = kernel_find(text);
        if (!number) {
            violation(s, RULE_unknown_kernel, c->process, "%s", text);
            c->reply.error = E_NOT_FOUND;
            break;
        }
        c->reply.v[0] = number;
        c->reply.v[1] = kernel_at(number)->argument_bytes;
        break;
    default:
        c->reply.error = E_INVALID_VALUE;
    }
}
