/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl plan for people: stages side by side, then units or buckets, then what each key does. */
#include <inttypes.h>
#include <stdio.h>
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

static uint64_t page_figure(const struct plan *plan, unsigned which)
{
    const struct gw_layout_page *page = layout_page(plan->layout);
    uint64_t figures[] = {page->buckets, page->units, page->fetch_units,
                          page->max_bucket_numel * sizeof(float),
                          (page->padded_numel - page->numel) * sizeof(float)};

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
    static const char *const labels[] = {"buckets", "units", "fetch units", "largest bucket",
                                         "padding"};

    head(report, "layout");
    for (unsigned i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
        row(report, labels[i], PLAN_MODES, i >= 3, page_figure, i);
}

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

/* Stage 3: what is fetched together. */
static void print_units(const struct plan *plan)
{
    const struct layout *layout = plan->layout;
    const struct gw_layout_fetch_unit *fetch = layout_fetch_units(layout);
    const struct gw_layout_unit *units = layout_units(layout);
    char bytes[CELL_BYTES], padding[CELL_BYTES];

    (void)printf("\nfetch units of stage 3: number, buckets, size, padding, units\n");
    for (uint32_t f = 0; f < layout_page(layout)->fetch_units; f++) {
        human_bytes(fetch[f].numel * sizeof(float), bytes, sizeof(bytes));
        human_bytes((fetch[f].padded_numel - fetch[f].numel) * sizeof(float), padding,
                    sizeof(padding));
        (void)printf("  %5u %5u %12s %12s  ", f, fetch[f].buckets, bytes, padding);
        print_name(layout_name(layout, units[fetch[f].first_unit].name_at));
        if (fetch[f].units > 1) {
            (void)printf(" to ");
            print_name(
                layout_name(layout, units[fetch[f].first_unit + fetch[f].units - 1].name_at));
        }
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

    (void)printf("\nbuckets of stage %u: number, size, padding, first to last parameter\n",
                 plan->options.stage);
    for (uint32_t b = 0; b < layout_page(layout)->buckets; b++) {
        uint32_t first = buckets[b].first_piece, last = first + buckets[b].pieces - 1;

        human_bytes(buckets[b].numel * sizeof(float), bytes, sizeof(bytes));
        human_bytes((buckets[b].padded_numel - buckets[b].numel) * sizeof(float), padding,
                    sizeof(padding));
        (void)printf("  %5u %12s %12s  ", b, bytes, padding);
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

static void print_top(const struct plan_report *report)
{
    const struct plan_args *args = report->args;
    const struct wire_seal *options = &plan_used(report, 0)->options;
    char bytes[CELL_BYTES];

    human_bytes(report->numel * sizeof(float), bytes, sizeof(bytes));
    (void)printf("model      %u parameters, %" PRIu64 " elements, %s in fp32\n",
                 report->model->count, report->numel, bytes);
    if (report->model->units_guessed)
        (void)printf("           units are guessed from the names, up to the layer number\n");
    if (report->model->not_fp32)
        (void)printf("           some are of another type in the file; counted as fp32\n");
    (void)printf("ranks      %u on %u node%s; figures are one rank's, of one optimizer step of %u "
                 "micro-step%s\n",
                 args->ranks, args->nodes, args->nodes == 1 ? "" : "s, in blocks",
                 options->micro_steps, options->micro_steps == 1 ? "" : "s");
    if (args->nodes > 1 || args->ranks > GW_RANKS_MAX)
        (void)printf("           (this release runs one node of at most %u ranks)\n", GW_RANKS_MAX);
    human_bytes(options->bucket_bytes, bytes, sizeof(bytes));
    (void)printf("buckets    %s, slices aligned to %u bytes, %u ring slots\n", bytes,
                 options->shard_align_bytes, options->ring_slots);
    (void)printf("optimizer  Adam: two fp32 moments per parameter\n");
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
