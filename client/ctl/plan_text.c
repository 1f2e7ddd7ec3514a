/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl plan for people: stages side by side, then units or buckets, then what each key does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"
#include "daemon/base/escape.h"

#define CELL_BYTES 24u
#define LABEL_WIDTH 26
#define CELL_WIDTH 12
#define NAME_WIDTH 40u /* of a unit or parameter; the rest is cut */

typedef uint64_t figure(const struct plan *plan, unsigned which);

/* ---- rows ------------------------------------------------------------------------------------ */

static void head(const struct plan_report *report, const char *title)
{
    (void)printf("\n%-*s", LABEL_WIDTH, title);
    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        char cell[CELL_BYTES];
        bool chosen = report->config != NULL && report->options.stage == s;

        (void)snprintf(cell, sizeof(cell), "stage %u%s", s, chosen ? "*" : "");
        if (plan_shows(report, s))
            (void)printf("%*s", CELL_WIDTH, cell);
    }
    (void)putchar('\n');
}

/* mode: an accumulate mode, or PLAN_MODES for the one in use. */
static void row(const struct plan_report *report, const char *label, uint32_t mode, bool bytes,
                figure *value, unsigned which)
{
    (void)printf("  %-*s", LABEL_WIDTH - 2, label);
    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        const struct plan *plan = mode < PLAN_MODES ? report->plans[s][mode] : plan_used(report, s);
        uint64_t number = value(plan, which);
        char cell[CELL_BYTES];

        if (!plan_shows(report, s))
            continue;
        if (bytes)
            human_bytes(number, cell, sizeof(cell));
        else
            (void)snprintf(cell, sizeof(cell), "%" PRIu64, number);
        (void)printf("%*s", CELL_WIDTH, number == 0 ? "-" : cell);
    }
    (void)putchar('\n');
}

static uint64_t calls_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].calls;
}

static uint64_t payload_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].payload_bytes;
}

static uint64_t padding_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].padding_bytes;
}

static uint64_t ring_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].ring_bytes;
}

static uint64_t in_node_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].in_node_bytes;
}

static uint64_t cross_node_of(const struct plan *plan, unsigned kind)
{
    return plan->kinds[kind].cross_node_bytes;
}

static uint64_t memory_of(const struct plan *plan, unsigned memory)
{
    return plan->memory_bytes[memory];
}

static uint64_t memory_sum(const struct plan *plan, unsigned unused)
{
    uint64_t sum = 0;

    (void)unused;
    for (unsigned m = 0; m < GW_MEMORIES; m++)
        sum += plan->memory_bytes[m];
    return sum;
}

/* What the mode sends: more than the memory differs. */
static uint64_t reduced_by(const struct plan *plan, unsigned unused)
{
    (void)unused;
    return plan->kinds[GW_KIND_ALL_REDUCE].payload_bytes +
           plan->kinds[GW_KIND_REDUCE_SCATTER].payload_bytes;
}

/* Of gradients. */
static uint64_t layout_padding(const struct plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t b = 0; b < layout_page(plan->layout)->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout_buckets(plan->layout)[b];

        bytes += (bucket->padded_numel - bucket->numel) * gw_dtype_bytes(bucket->grad_dtype);
    }
    return bytes;
}

static uint64_t page_figure(const struct plan *plan, unsigned which)
{
    const struct gw_layout_page *page = layout_page(plan->layout);
    uint64_t figures[] = {page->buckets,
                          page->units,
                          page->fetch_units,
                          layout_groups(plan->layout)[0].shard_ranks,
                          plan_persistent(plan),
                          page->max_bucket_bytes,
                          layout_padding(plan)};

    return figures[which];
}

/* ---- tables ---------------------------------------------------------------------------------- */

static bool is_zero(const struct plan_report *report, figure *value, unsigned which)
{
    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        if (plan_shows(report, s) && value(plan_used(report, s), which) > 0)
            return false;
    }
    return true;
}

static void print_kinds(const struct plan_report *report, const char *title, bool bytes,
                        figure *value)
{
    bool some = false;

    for (unsigned k = 0; k < GW_KINDS; k++) {
        if (is_zero(report, value, k))
            continue;
        if (!some)
            head(report, title);
        some = true;
        row(report, plan_kind_names[k], PLAN_MODES, bytes, value, k);
    }
}

static void print_memory(const struct plan_report *report, uint32_t mode)
{
    head(report, mode == 0 ? "memory, accumulate local" : "memory, accumulate shard");
    for (unsigned m = 0; m < GW_MEMORIES; m++)
        row(report, plan_memory_names[m], mode, true, memory_of, m);
    row(report, "total", mode, true, memory_sum, 0);
    row(report, "and reduces, payload", mode, true, reduced_by, 0);
}

static void print_layout(const struct plan_report *report)
{
    static const char *const labels[] = {"buckets",       "units",   "fetch units",
                                         "ranks of shards", "persistent", "largest bucket",
                                         "padding"};

    head(report, "layout");
    for (unsigned i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
        row(report, labels[i], PLAN_MODES, i >= 5, page_figure, i);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* A group's rows: four figures by kind, then its memories, then its layout. */
enum group_row {
    GROUP_CALLS,
    GROUP_PAYLOAD = GW_KINDS,
    GROUP_RING = 2 * GW_KINDS,
    GROUP_CROSS = 3 * GW_KINDS,
    GROUP_MEMORY = 4 * GW_KINDS,
    GROUP_BUCKETS = GROUP_MEMORY + GW_MEMORIES,
    GROUP_PADDING,
    GROUP_ROWS,
};

/* which: group * GROUP_ROWS + row. */
static uint64_t group_figure(const struct plan *plan, unsigned which)
{
    const struct plan_group *group = &plan->groups[which / GROUP_ROWS];
    unsigned at = which % GROUP_ROWS;
    const struct plan_kind *kind = &group->kinds[at % GW_KINDS];

    if (at < GROUP_PAYLOAD)
        return kind->calls;
    if (at < GROUP_RING)
        return kind->payload_bytes;
    if (at < GROUP_CROSS)
        return kind->ring_bytes;
    if (at < GROUP_MEMORY)
        return kind->cross_node_bytes;
    if (at < GROUP_BUCKETS)
        return group->memory_bytes[at - GROUP_MEMORY];
    return at == GROUP_BUCKETS ? group->buckets : group->padding_bytes;
}

static void group_label(unsigned at, char *label, size_t label_bytes)
{
    static const char *const figures[] = {"calls", "payload", "ring", "crosses"};

    if (at < GROUP_MEMORY)
        (void)snprintf(label, label_bytes, "%s, %s", figures[at / GW_KINDS],
                       plan_kind_names[at % GW_KINDS]);
    else if (at < GROUP_BUCKETS)
        (void)snprintf(label, label_bytes, "%s", plan_memory_names[at - GROUP_MEMORY]);
    else
        (void)snprintf(label, label_bytes, "%s", at == GROUP_BUCKETS ? "buckets" : "padding");
}

/* In all that is shown. */
static bool groups_alike(const struct plan_report *report, uint32_t g, uint32_t other)
{
    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        for (unsigned i = 0; i < GROUP_ROWS && plan_shows(report, s); i++) {
            if (group_figure(plan_used(report, s), g * GROUP_ROWS + i) !=
                group_figure(plan_used(report, s), other * GROUP_ROWS + i))
                return false;
        }
    }
    return true;
}

static void print_group_list(const struct plan_report *report)
{
    const struct layout *layout = plan_used(report, 0)->layout;

    (void)printf("\ngroups: parameters, elements, ranks\n");
    for (uint32_t g = 0; g <= report->groups.count; g++) {
        char *ranks = plan_ranks_text(layout_page_members(layout_page(layout), g),
                                      layout_groups(layout)[g].members);

        (void)printf("  %-*s %8u %14" PRIu64 "  %s", LABEL_WIDTH - 3, report->groups.names[g],
                     report->groups.params[g], report->groups.numel[g],
                     ranks != NULL ? ranks : "(no memory to list them)");
        if (g > 0 && report->groups.of[g - 1].shard_ranks > 0)
            (void)printf(" in runs of %u", report->groups.of[g - 1].shard_ranks);
        (void)putchar('\n');
        free(ranks);
    }
}

/* Neighbours of the same figures stand together: of experts there are many. */
static void print_groups(const struct plan_report *report)
{
    char title[2 * GW_LABEL_MAX + 32], label[CELL_BYTES + 8];
    uint32_t end;

    if (report->groups.count == 0)
        return;
    print_group_list(report);
    for (uint32_t g = 0; g <= report->groups.count; g = end) {
        for (end = g + 1; end <= report->groups.count && groups_alike(report, g, end);)
            end++;
        if (end - g > 1)
            (void)snprintf(title, sizeof(title), "each of %s to %s", report->groups.names[g],
                           report->groups.names[end - 1]);
        else
            (void)snprintf(title, sizeof(title), "group %s", report->groups.names[g]);
        head(report, title);
        for (unsigned i = 0; i < GROUP_ROWS; i++) {
            if (is_zero(report, group_figure, g * GROUP_ROWS + i))
                continue;
            group_label(i, label, sizeof(label));
            row(report, label, PLAN_MODES, i >= GROUP_PAYLOAD && i != GROUP_BUCKETS, group_figure,
                g * GROUP_ROWS + i);
        }
    }
}

/* ---- times ----------------------------------------------------------------------------------- */

static void print_times(const struct plan_report *report)
{
    char rate[CELL_BYTES], title[64];

    for (uint32_t i = 0; i < report->args->link_count; i++) {
        double link = (double)report->args->links[i];

        human_bytes(report->args->links[i], rate, sizeof(rate));
        (void)snprintf(title, sizeof(title), "estimate at %s/s", rate);
        head(report, title);
        (void)printf("  %-*s", LABEL_WIDTH - 2, "ring bytes / link, ms");
        for (uint32_t s = 0; s < PLAN_STAGES; s++) {
            double bytes = 0;

            for (unsigned k = 0; k < GW_KINDS; k++)
                bytes += (double)plan_used(report, s)->kinds[k].ring_bytes;
            if (plan_shows(report, s))
                (void)printf("%*.3f", CELL_WIDTH, bytes / link * 1e3);
        }
        (void)putchar('\n');
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void print_name(const char *name)
{
    char safe[ESCAPE_BYTES(NAME_WIDTH)];

    (void)escape_text(name, strnlen(name, NAME_WIDTH), safe, sizeof(safe));
    (void)fputs(safe, stdout);
}

/* From the first unit to the last. */
static void print_fetched(const struct layout *layout, const struct gw_layout_fetch_unit *fetch)
{
    const struct gw_layout_unit *units = layout_units(layout);

    if (fetch->units == 0) {
        (void)printf("parameters that stay gathered");
        return;
    }
    print_name(layout_name(layout, units[fetch->first_unit].name_at));
    if (fetch->units > 1) {
        (void)printf(" to ");
        print_name(layout_name(layout, units[fetch->first_unit + fetch->units - 1].name_at));
    }
}

/* Stage 3: what is fetched together, in bytes of parameters. */
static void print_units(const struct plan *plan)
{
    const struct layout *layout = plan->layout;

    (void)printf("\nfetch units of stage 3: number, buckets, size, padding, units\n");
    for (uint32_t f = 0; f < layout_page(layout)->fetch_units; f++) {
        const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(layout)[f];
        uint64_t numel_bytes = 0, padded_bytes = 0;
        char bytes[CELL_BYTES], padding[CELL_BYTES];

        for (uint32_t b = 0; b < fetch->buckets; b++) {
            const struct gw_layout_bucket *bucket =
                &layout_buckets(layout)[fetch->first_bucket + b];

            numel_bytes += bucket->numel * gw_dtype_bytes(bucket->dtype);
            padded_bytes += bucket->padded_numel * gw_dtype_bytes(bucket->dtype);
        }
        human_bytes(numel_bytes, bytes, sizeof(bytes));
        human_bytes(padded_bytes - numel_bytes, padding, sizeof(padding));
        (void)printf("  %5u %5u %12s %12s  ", f, fetch->buckets, bytes, padding);
        print_fetched(layout, fetch);
        (void)putchar('\n');
    }
}

static void print_buckets(const struct plan *plan)
{
    const struct layout *layout = plan->layout;
    const struct gw_layout_bucket *buckets = layout_buckets(layout);
    const struct gw_layout_piece *pieces = layout_pieces(layout);
    const struct gw_layout_param *params = layout_params(layout);
    char bytes[CELL_BYTES], padding[CELL_BYTES];

    (void)printf("\nbuckets of stage %u: number, gradients' size and padding, dtypes of parameters "
                 "and gradients, first to last parameter\n",
                 plan->options.stage);
    for (uint32_t b = 0; b < layout_page(layout)->buckets; b++) {
        uint32_t first = buckets[b].first_piece, last = first + buckets[b].pieces - 1;
        uint64_t element = gw_dtype_bytes(buckets[b].grad_dtype);

        human_bytes(buckets[b].numel * element, bytes, sizeof(bytes));
        human_bytes((buckets[b].padded_numel - buckets[b].numel) * element, padding,
                    sizeof(padding));
        (void)printf("  %5u %12s %12s  %s %s  ", b, bytes, padding,
                     plan_dtype_names[buckets[b].dtype], plan_dtype_names[buckets[b].grad_dtype]);
        print_name(layout_name(layout, params[pieces[first].param].name_at));
        (void)printf(" to ");
        print_name(layout_name(layout, params[pieces[last].param].name_at));
        (void)putchar('\n');
    }
}

static void print_entries(const char *title, const struct deepspeed_list *list)
{
    char key[ESCAPE_BYTES(200)];

    if (list->count > 0)
        (void)printf("\n%s\n", title);
    for (size_t i = 0; i < list->count; i++) {
        const struct deepspeed_entry *entry = &list->entries[i];

        (void)escape_text(entry->key, strnlen(entry->key, 200), key, sizeof(key));
        (void)printf("  %-10s  %s = %.60s\n              %s\n",
                     deepspeed_status_name(entry->status), key, entry->value, entry->meaning);
    }
}

static void print_own_defaults(const struct plan_report *report)
{
    if (report->default_count > 0)
        (void)printf("\ndefaults of gradwire\n");
    for (uint32_t i = 0; i < report->default_count; i++) {
        const struct plan_default *own = &report->defaults[i];

        if (own->text != NULL)
            (void)printf("  %s = %s\n", own->key, own->text);
        else
            (void)printf("  %s = %" PRIu64 "\n", own->key, own->number);
        (void)printf("              %s\n", own->meaning);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* "bf16", or of several dtypes their elements. */
static void print_dtypes(const uint64_t *numel)
{
    unsigned kinds = 0, last = 0;

    for (unsigned d = 0; d < GW_DTYPES; d++) {
        kinds += numel[d] > 0;
        last = numel[d] > 0 ? d : last;
    }
    for (unsigned d = 0; d < GW_DTYPES && kinds > 1; d++) {
        if (numel[d] > 0)
            (void)printf("%" PRIu64 " %s%s", numel[d], plan_dtype_names[d], d < last ? ", " : "");
    }
    if (kinds < 2)
        (void)printf("%s", plan_dtype_names[last]);
}

/* What they are, and what is made of them. */
static void print_kinds_of_values(const struct plan_report *report)
{
    const struct wire_seal *options = &report->options;

    (void)printf("dtypes     parameters ");
    print_dtypes(report->dtype_numel);
    (void)printf("; gradients ");
    print_dtypes(report->grad_numel);
    (void)printf("; accumulators %s%s%s\n",
                 options->accum_as_grads ? "as gradients" : "fp32",
                 options->reduce_dtype ? "; rounded before the sum to " : "",
                 options->reduce_dtype ? plan_dtype_names[options->reduce_dtype] : "");
}

/* Nodes are blocks of ranks too, the first ones perhaps one rank larger. */
static void print_blocks(const struct plan_report *report)
{
    const struct plan_args *args = report->args;
    uint32_t ranks = report->options.secondary_ranks;

    if (ranks == 0 || ranks == args->ranks)
        return;
    (void)printf("secondary  each block of %u ranks keeps a copy of the shards (stage 3)\n", ranks);
    if (args->ranks % args->nodes != 0 || args->ranks / args->nodes % ranks != 0)
        (void)printf("           some blocks do not lie inside a node: their gathers cross\n");
}

static void print_top(const struct plan_report *report)
{
    const struct plan_args *args = report->args;
    const struct wire_seal *options = &plan_used(report, 1)->options;
    uint64_t numel_bytes = 0;
    char bytes[CELL_BYTES];

    for (unsigned d = 0; d < GW_DTYPES; d++)
        numel_bytes += report->dtype_numel[d] * gw_dtype_bytes(d);
    human_bytes(numel_bytes, bytes, sizeof(bytes));
    (void)printf("model      %u parameters, %" PRIu64 " elements, %s\n", report->model->count,
                 report->numel, bytes);
    if (report->model->units_guessed)
        (void)printf("           units are guessed from the names, up to the layer number\n");
    if (report->model->other_dtypes)
        (void)printf("           some are of another type in the file; counted as fp32\n");
    print_kinds_of_values(report);
    (void)printf("ranks      %u on %u node%s; figures are rank %u's, of one optimizer step of %u "
                 "micro-step%s\n",
                 args->ranks, args->nodes, args->nodes == 1 ? "" : "s, in blocks", args->rank,
                 options->micro_steps, options->micro_steps == 1 ? "" : "s");
    if (report->groups.count > 0)
        (void)printf("groups     %u beside all ranks: first the sums over those that rank %u is "
                     "in, then each\n",
                     report->groups.count, args->rank);
    if (args->ranks > GW_RANKS_MAX)
        (void)printf("           (this release runs jobs of at most %u ranks)\n", GW_RANKS_MAX);
    (void)printf("sums       exact: the fixed tree over ranks, in fp32 (order fabric, NCCL's own, "
                 "has the same calls and payload)\n");
    human_bytes(options->bucket_bytes, bytes, sizeof(bytes));
    (void)printf("buckets    %s, slices aligned to %u bytes, %u ring slots\n", bytes,
                 options->shard_align_bytes, options->ring_slots);
    if (options->shard_ranks > 0 && options->shard_ranks < args->ranks)
        (void)printf("hybrid     runs of %u ranks hold the shards, %u replicas (stages 1 to 3)\n",
                     options->shard_ranks, args->ranks / options->shard_ranks);
    print_blocks(report);
    if (report->options.all_reduce)
        (void)printf("reductions are all-reduces in stages 1 to 3 too, in the gradients' own "
                     "buffers\n");
    (void)printf("optimizer  Adam: two fp32 moments per parameter%s\n",
                 report->dtype_numel[GW_DTYPE_FP32] < report->numel ? "; masters of those not fp32"
                                                                    : "");
    if (report->config != NULL)
        (void)printf("stage *    the configuration's\n");
}

void plan_print_text(const struct plan_report *report)
{
    print_top(report);
    print_kinds(report, "calls", false, calls_of);
    print_kinds(report, "payload", true, payload_of);
    print_kinds(report, "padding", true, padding_of);
    print_kinds(report, "ring (computed)", true, ring_of);
    print_kinds(report, "in-node, read and copied", true, in_node_of);
    if (report->args->nodes > 1)
        print_kinds(report, "cross-node, sent per node", true, cross_node_of);
    print_times(report);
    for (uint32_t mode = 0; mode < PLAN_MODES; mode++)
        print_memory(report, mode);
    print_layout(report);
    print_groups(report);
    if (plan_shows(report, 3))
        print_units(plan_used(report, 3));
    if (report->args->stage >= 0)
        print_buckets(plan_used(report, (uint32_t)report->args->stage));
    if (report->config != NULL) {
        print_entries("keys of the DeepSpeed configuration", &report->config->keys);
        print_entries("defaults of DeepSpeed, for keys that are not there",
                      &report->config->defaults);
    }
    print_own_defaults(report);
}
