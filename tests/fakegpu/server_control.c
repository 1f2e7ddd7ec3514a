/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's lines, one command each; the answer is "ok", "error TEXT", JSON, or lines:
 *   phase setup|step PID|all      in a step no call may block the host
 *   seed N | delay PERCENT        from now on
 *   order on|off                  whether unordered accesses are looked for (on)
 *   inject oom N [AFTER] | ipc-open-fail N | sticky PID|all [N]
 *   inject no-stream-memops | no-ipc | no-vmm-export
 *   inject compute-mode N         as CUcomputemode: 2 takes no context, 3 those of one process
 *   inject peers N | few-peers    GPUs reach each other in groups of N (1: none); no room for peers
 *   inject links N                peers in groups of N have the faster link
 *   inject streams N              of a process on one GPU, at most
 *   inject nccl-... ARGS          of the NCCL part
 *   inject none                   ends injections
 *   streams [made]                what every stream's head waits for; which there are
 *   report | rules | quit
 * Lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

static uint64_t number(const char *text, uint64_t otherwise)
{
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static bool matches(const struct process *p, const char *who)
{
    return !p->gone && who && (!strcmp(who, "all") || (pid_t)number(who, 0) == p->pid);
}

static bool phase(struct server *s, const char *name, const char *who)
{
    bool step = name && !strcmp(name, "step"), found = false;

    if (!name || !who || (!step && strcmp(name, "setup")))
        return false;
    if (!strcmp(who, "all")) {
        s->default_step = step;
        found = true;
    }
    for (struct process *p = s->processes; p; p = p->next) {
        if (!matches(p, who))
            continue;
        p->step = step;
        found = true;
    }
    return found;
}

static bool inject(struct server *s, const char *kind, char *args)
{
    char *who = args ? strsep(&args, " ") : NULL;
    bool found = false;

    if (!kind)
        return false;
    if (!strcmp(kind, "none"))
        s->inject = (struct inject){0};
    else if (!strcmp(kind, "oom")) {
        s->inject.oom = (uint32_t)number(who, 1);
        s->inject.oom_after = (uint32_t)number(args, 0);
    } else if (!strcmp(kind, "ipc-open-fail"))
        s->inject.ipc_open_fail = (uint32_t)number(who, 1);
    else if (!strcmp(kind, "no-stream-memops"))
        s->inject.no_memops = true;
    else if (!strcmp(kind, "no-ipc"))
        s->inject.no_ipc = true;
    else if (!strcmp(kind, "no-vmm-export"))
        s->inject.no_vmm_export = true;
    else if (!strcmp(kind, "compute-mode"))
        s->inject.compute_mode = (uint32_t)number(who, 0);
    else if (!strcmp(kind, "links"))
        s->inject.links = (uint32_t)number(who, 0);
    else if (!strcmp(kind, "peers"))
        s->inject.peers = (uint32_t)number(who, 1);
    else if (!strcmp(kind, "few-peers"))
        s->inject.few_peers = true;
    else if (!strcmp(kind, "streams"))
        s->inject.streams = (uint32_t)number(who, 0);
    else if (!strcmp(kind, "sticky")) {
        for (struct process *p = s->processes; p; p = p->next) {
            if (!matches(p, who))
                continue;
            p->sticky_in = (int)number(args, 1);
            found = true;
        }
        return found;
    } else {
        return false;
    }
    return true;
}

static void dump(struct server *s, FILE *out)
{
    static const char *const kinds[] = {"order", "kernel", "copy", "fill", "wait", "write",
                                        "record", "hostfn", "collective"};

    for (uint32_t i = 0; i < s->stream_count; i++) {
        const struct stream *stream = s->streams[i];
        const struct op *op = stream->head;

        if (!op)
            continue;
        fprintf(out, "stream %u pid %d gpu %d%s: op %llu of %llu, %s%s", i + 1,
                (int)stream->process->pid, stream->gpu, stream->dead ? " dead" : "",
                (unsigned long long)op->seq, (unsigned long long)stream->last_seq,
                kinds[op->kind], op->running ? ", running" : "");
        if (op->kind == OP_KERNEL)
            fprintf(out, " %s", op->u.launch.kernel->name);
        if (op->kind == OP_WAIT && map_find(s, stream->process, op->u.memop.address, 8, false))
            fprintf(out, " %llx: %llu, for %llu", (unsigned long long)op->u.memop.address,
                    (unsigned long long)*(volatile uint64_t *)(uintptr_t)op->u.memop.address,
                    (unsigned long long)op->u.memop.value);
        for (uint32_t a = 0; a < op->after_count; a++)
            if (!after_done(s, &op->after[a]))
                fprintf(out, " behind op %llu of stream %u",
                        (unsigned long long)op->after[a].seq, op->after[a].stream + 1);
        fputc('\n', out);
    }
    fputs("ok\n", out);
}

/* Programs' own streams, not a thread's or a device's. */
static void list(struct server *s, FILE *out)
{
    for (uint32_t i = 0; i < s->stream_count; i++) {
        const struct stream *stream = s->streams[i];

        if (!stream->closed && !stream->dead && !stream->null && !stream->own)
            fprintf(out, "stream %u pid %d gpu %d %s priority %d\n", i + 1,
                    (int)stream->process->pid, stream->gpu,
                    stream->blocking ? "blocking" : "non-blocking", stream->priority);
    }
    fputs("ok\n", out);
}

bool control_line(struct server *s, char *line, FILE *out)
{
    char *rest = line, *command = strsep(&rest, " "), *first;
    bool good = true;

    if (!strcmp(command, "quit")) {
        fputs("ok\n", out);
        return false;
    }
    if (!strcmp(command, "report")) {
        report_write(s, out);
        return true;
    }
    if (!strcmp(command, "rules")) {
        rules_print(out);
        return true;
    }
    if (!strcmp(command, "streams")) {
        if (rest && !strcmp(rest, "made"))
            list(s, out);
        else
            dump(s, out);
        return true;
    }
    first = rest ? strsep(&rest, " ") : NULL;
    if (!strcmp(command, "seed") && first)
        s->seed = number(first, 0);
    else if (!strcmp(command, "delay") && first)
        s->delay_percent = (uint32_t)number(first, 100);
    else if (!strcmp(command, "order") && first)
        s->order_off = !strcmp(first, "off");
    else if (!strcmp(command, "phase"))
        good = phase(s, first, rest);
    else if (!strcmp(command, "inject") && first && !strncmp(first, "nccl", 4))
        good = nccl_inject(s, first, rest ? rest : "");
    else
        good = !strcmp(command, "inject") && inject(s, first, rest);
    if (good)
        fputs("ok\n", out);
    else
        fputs("error no such command, or nobody it is for\n", out);
    return true;
}
