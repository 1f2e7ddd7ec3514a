/* SPDX-License-Identifier: Apache-2.0 */
/* Broken rules, and the report: one JSON object. Lock held. */
#include <stdarg.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

#define KEPT_MAX 256u

struct rule_text {
    const char *name, *text, *source;
};

static const struct rule_text rules[] = {
#define RULE(name, text, source) {#name, text, source},
#include "tests/fakegpu/rules.def"
#undef RULE
};

static struct {
    enum rule rule;
    uint32_t process;
    pid_t pid;
    char text[256];
} kept[KEPT_MAX];
static uint32_t kept_count;

int rule_find(const char *name)
{
    for (int i = 0; i < (int)RULE_COUNT; i++)
        if (!strcmp(rules[i].name, name))
            return i;
    return -1;
}

void violation(struct server *s, enum rule rule, struct process *process, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    s->broken[rule]++;
    fprintf(stderr, "fakegpu: %s (process %u, pid %d): %s\n", rules[rule].name,
            process ? process->id : 0, process ? (int)process->pid : 0, text);
    if (kept_count == KEPT_MAX)
        return;
    kept[kept_count].rule = rule;
    kept[kept_count].process = process ? process->id : 0;
    kept[kept_count].pid = process ? process->pid : 0;
    memcpy(kept[kept_count].text, text, sizeof(text));
    kept_count++;
}

uint64_t report_violations(const struct server *s)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < RULE_COUNT; i++)
        all += s->broken[i];
    return all;
}

void rules_print(FILE *file)
{
    for (uint32_t i = 0; i < RULE_COUNT; i++)
        fprintf(file, "%s: %s [%s]\n", rules[i].name, rules[i].text, rules[i].source);
}

static void put_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc((unsigned char)*text < 32 ? ' ' : *text, file);
    }
    fputc('"', file);
}

static void put_leaks(const struct server *s, FILE *file)
{
    fprintf(file, "\"leaks\":%llu,",
            (unsigned long long)(s->broken[RULE_leak_memory] + s->broken[RULE_leak_mapping] +
                                 s->broken[RULE_leak_stream] + s->broken[RULE_nccl_leak]));
}

static void put_counts(const struct server *s, FILE *file)
{
    const struct counts *n = &s->counts;
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {{"kernels", n->kernels}, {"copies", n->copies}, {"copy_bytes", n->copy_bytes},
               {"fills", n->fills}, {"waits", n->waits}, {"writes", n->writes},
               {"records", n->records}, {"hostfns", n->hostfns},
               {"collectives", n->collectives}, {"zero_ctas", n->zero_ctas},
               {"ctas_most", n->ctas_most}, {"threads_most", n->threads_most},
               {"allocations", n->allocations}, {"frees", n->frees},
               {"registers", n->registers}, {"imports", n->imports},
               {"syncs", n->syncs}, {"faults", n->faults}};

    fputs("\"counts\":{", file);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        fprintf(file, "%s\"%s\":%llu", i ? "," : "", all[i].name,
                (unsigned long long)all[i].value);
    fputs("},", file);
}

void report_write(struct server *s, FILE *file)
{
    uint64_t used = 0;

    vmm_sweep(s);
    for (uint32_t i = 0; i < s->gpu_count; i++)
        used += s->gpus[i].used_bytes;
    fprintf(file, "{\"seed\":%llu,\"gpus\":%u,\"nodes\":%u,\"mps\":%s,\"used_bytes\":%llu,",
            (unsigned long long)s->seed, s->gpus_per_node, s->nodes, s->mps ? "true" : "false",
            (unsigned long long)used);
    put_counts(s, file);
    put_leaks(s, file);
    fputs("\"rules\":{", file);
    for (uint32_t i = 0, comma = 0; i < RULE_COUNT; i++)
        if (s->broken[i])
            fprintf(file, "%s\"%s\":%llu", comma++ ? "," : "", rules[i].name,
                    (unsigned long long)s->broken[i]);
    fputs("},\"violations\":[", file);
    for (uint32_t i = 0; i < kept_count; i++) {
        fprintf(file, "%s{\"rule\":\"%s\",\"process\":%u,\"pid\":%d,\"text\":", i ? "," : "",
                rules[kept[i].rule].name, kept[i].process, (int)kept[i].pid);
        put_string(file, rules[kept[i].rule].text);
        fputs(",\"where\":", file);
        put_string(file, kept[i].text);
        fputs(",\"source\":", file);
        put_string(file, rules[kept[i].rule].source);
        fputc('}', file);
    }
    fputs("]}\n", file);
}
