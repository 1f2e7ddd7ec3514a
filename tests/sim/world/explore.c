/* SPDX-License-Identifier: Apache-2.0 */
/* Breadth-first search over the states of a simulated job: see explore.h. One thread. */
#include "tests/sim/world/explore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"
#include "tests/sim/world/symmetry.h"

#define NOW_NS 1000000u
#define DEPTH_MAX 2000u
#define NONE UINT32_MAX

struct move {
    uint8_t what, which; /* as in struct sim_choice */
};

struct node {
    uint64_t key; /* the least of its dumps; apart: as the ranks are named */
    uint32_t parent;
    uint32_t first_edge; /* its edges lie one after the other */
    uint16_t depth;
    struct move move; /* from the parent, that leads here */
    uint8_t choices;  /* when it was reached first */
    uint8_t renaming; /* that gives the key */
};

/* Moves have the names that give the key of where they begin. */
struct edge { /* and of a merge, one step more: compared when all is known */
    uint32_t to;
    struct move move, probe;
    bool probed;
    uint64_t probe_key;
};

struct dumps {
    uint64_t by_renaming[SYMMETRY_MAX];
    uint64_t key;
    uint8_t renaming;
};

struct search {
    struct explore *explore;
    struct node *nodes;
    struct edge *edges;
    uint32_t node_room, edge_room, key_room;
    uint32_t *table; /* open addressing: node + 1 */
    uint32_t table_room;
    bool have_end;
    uint64_t end; /* what every end must be */
    struct sim_result result;
    struct symmetry symmetry;
};

/* ---- memory of the search -------------------------------------------------------------------- */

static void *grow(void *items, uint32_t count, uint32_t *room, size_t bytes)
{
    if (count < *room)
        return items;
    *room = 2 * *room + 1024;
    items = realloc(items, *room * bytes);
    if (!items)
        abort();
    return items;
}

static void table_put(struct search *search, uint32_t node)
{
    uint32_t at = (uint32_t)search->nodes[node].key & (search->table_room - 1);

    while (search->table[at])
        at = (at + 1) & (search->table_room - 1);
    search->table[at] = node + 1;
}

static uint32_t table_find(const struct search *search, uint64_t key)
{
    uint32_t at = (uint32_t)key & (search->table_room - 1);

    while (search->table[at]) {
        if (search->nodes[search->table[at] - 1].key == key)
            return search->table[at] - 1;
        at = (at + 1) & (search->table_room - 1);
    }
    return NONE;
}

static uint32_t add_node(struct search *search, struct node node)
{
    uint32_t count = search->explore->states;

    search->nodes = grow(search->nodes, count, &search->node_room, sizeof(*search->nodes));
    search->nodes[count] = node;
    search->explore->keys = grow(search->explore->keys, count, &search->key_room,
                                 sizeof(*search->explore->keys));
    if (search->table_room < 4 * (count + 1)) {
        search->table_room = search->table_room ? 2 * search->table_room : 4096;
        free(search->table);
        search->table = calloc(search->table_room, sizeof(*search->table));
        if (!search->table)
            abort();
        for (uint32_t i = 0; i < count; i++)
            table_put(search, i);
    }
    table_put(search, count);
    search->explore->states++;
    if (node.depth > search->explore->depth)
        search->explore->depth = node.depth;
    return count;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Neither clock nor dice: what happens follows from the state and the choice alone. */
static void hold_clock(struct sim *sim)
{
    sim->now_ns = NOW_NS;
    sim->random = sim->plan->seed;
}

static void tell_completions(struct sim *sim)
{
    while (sim->done)
        device_report(sim);
}

/* Up to the next message. */
static void act_client(struct sim *sim, struct sim_client *client)
{
    bool posted = false;

    while (!posted && !sim->failed && client_can_act(sim, client)) {
        client_act(sim, client);
        posted = client->out != NULL;
        while (client->out)
            client_deliver(sim, client);
    }
}

/* Up to the next mark: nobody sees the stream before. */
static void act_stream(struct sim *sim, struct sim_client *client, uint32_t queue)
{
    bool marked = false;

    while (!marked && !sim->failed && stream_can_run(sim, client, queue)) {
        marked = client->queues[queue].head->kind == ITEM_TOKEN;
        stream_run(sim, client, queue);
    }
}

static bool too_far_ahead(const struct explore *explore, const struct sim_client *client)
{
    uint32_t marks = 0;

    for (const struct sim_item *item = client->queues[SIM_MAIN].head; item; item = item->next)
        marks += item->kind == ITEM_TOKEN;
    return explore->ahead && marks >= explore->ahead;
}

static uint32_t list(const struct explore *explore, struct sim *sim, struct sim_choice *choices)
{
    uint32_t all = sim_choices(sim, choices), count = 0;

    for (uint32_t i = 0; i < all; i++) {
        if (choices[i].what != WHAT_CLIENT ||
            !too_far_ahead(explore, &sim->clients[choices[i].which]))
            choices[count++] = choices[i];
    }
    return count;
}

static void take(const struct explore *explore, struct sim *sim, const struct sim_choice *choice)
{
    hold_clock(sim);
    if (choice->what == WHAT_CLIENT)
        act_client(sim, &sim->clients[choice->which]);
    else if (choice->what == WHAT_QUEUE)
        act_stream(sim, &sim->clients[choice->which / SIM_QUEUES], choice->which % SIM_QUEUES);
    else
        sim_take(sim, choice);
    if (!explore->reports)
        tell_completions(sim);
}

/* Registration and all that, in one order: what is explored are steps. */
static void set_up(const struct explore *explore, struct sim *sim)
{
    struct sim_choice choices[SIM_CHOICES_MAX];
    bool some = true;

    while (some && !sim->failed) {
        uint32_t count = sim_choices(sim, choices);

        some = false;
        for (uint32_t i = 0; i < count && !some; i++) {
            if (choices[i].what == WHAT_CLIENT && !sim->clients[choices[i].which].set_up)
                continue;
            hold_clock(sim);
            sim_take(sim, &choices[i]);
            some = true;
        }
    }
    if (!explore->reports)
        tell_completions(sim);
}

static struct sim_choice choice_of(struct move move)
{
    return (struct sim_choice){(enum sim_what)move.what, move.which, 0};
}

static struct move renamed(const struct renaming *renaming, const struct sim_choice *choice)
{
    struct sim_choice named = symmetry_choice(renaming, *choice);

    return (struct move){(uint8_t)named.what, (uint8_t)named.which};
}

static struct sim *open_set_up(struct search *search, const struct sim_plan *plan)
{
    struct sim *sim = sim_open(plan, &search->result);

    set_up(search->explore, sim);
    return sim;
}

static void path_to(const struct search *search, uint32_t node, struct move path[DEPTH_MAX])
{
    for (uint32_t i = search->nodes[node].depth; i-- > 0; node = search->nodes[node].parent)
        path[i] = search->nodes[node].move;
}

static struct sim *replay(struct search *search, const struct sim_plan *plan, uint32_t node)
{
    struct sim *sim = open_set_up(search, plan);
    struct move path[DEPTH_MAX];

    path_to(search, node, path);
    for (uint32_t i = 0; i < search->nodes[node].depth; i++) {
        struct sim_choice choice = choice_of(path[i]);

        take(search->explore, sim, &choice);
    }
    return sim;
}

/* ---- what went wrong ------------------------------------------------------------------------- */

/* move: after the node; NULL: none. */
static void fail(struct search *search, uint32_t node, const struct sim_choice *move,
                 const char *what)
{
    static const char letters[] = {'c', 'w', 'q', 's', 'r'};
    struct explore *explore = search->explore;
    size_t used = (size_t)snprintf(explore->error, sizeof(explore->error), "%s; after", what);
    struct move path[DEPTH_MAX];
    uint32_t depth = search->nodes[node].depth;

    path_to(search, node, path);
    if (move)
        path[depth++] = (struct move){(uint8_t)move->what, (uint8_t)move->which};
    for (uint32_t i = 0; i < depth && used < sizeof(explore->error); i++)
        used += (size_t)snprintf(explore->error + used, sizeof(explore->error) - used, " %c%u",
                                 letters[path[i].what], path[i].which);
}

/* ---- states by other names ------------------------------------------------------------------- */

static struct dumps dump(const struct search *search, const struct sim *sim)
{
    struct dumps dumps = {.key = UINT64_MAX};

    for (uint32_t i = 0; i < search->symmetry.count; i++) {
        dumps.by_renaming[i] = sim_dump(sim, &search->symmetry, i);
        if (dumps.by_renaming[i] < dumps.key) {
            dumps.key = dumps.by_renaming[i];
            dumps.renaming = (uint8_t)i;
        }
    }
    return dumps;
}

static uint64_t key_of(const struct search *search, const struct dumps *dumps)
{
    return search->explore->apart ? dumps->by_renaming[0] : dumps->key;
}

static const struct renaming *names_of(const struct search *search, uint32_t renaming)
{
    return &search->symmetry.renamings[search->explore->apart ? 0 : renaming];
}

static bool is_choice(const struct explore *explore, struct sim *sim,
                      const struct sim_choice *choice)
{
    struct sim_choice choices[SIM_CHOICES_MAX];
    uint32_t count = list(explore, sim, choices);
    bool found = false;

    for (uint32_t i = 0; i < count; i++)
        found |= choices[i].what == choice->what && choices[i].which == choice->which;
    return found;
}

/* The node's history with other names. False: its last move cannot be made. */
static bool leads_to(struct search *search, uint32_t node, const struct renaming *renaming,
                     uint64_t wanted)
{
    struct sim *sim = open_set_up(search, search->explore->plan);
    uint32_t depth = search->nodes[node].depth;
    struct move path[DEPTH_MAX];
    bool same = true;

    path_to(search, node, path);
    for (uint32_t i = 0; i < depth && same; i++) {
        struct sim_choice choice = symmetry_choice(renaming, choice_of(path[i]));

        /* Those before were found when the nodes before were. */
        same = i + 1 < depth || is_choice(search->explore, sim, &choice);
        if (same)
            take(search->explore, sim, &choice);
    }
    same = same && !sim->failed && !sim->broken && sim_dump(sim, &search->symmetry, 0) == wanted;
    sim_close(sim);
    return same;
}

/* A new state stands for all that differ from it in names. */
static void check_names(struct search *search, uint32_t node, const struct dumps *dumps)
{
    struct explore *explore = search->explore;

    explore->keys[node] = dumps->key;
    for (uint32_t i = 0; i < search->symmetry.count; i++) {
        bool first = true;

        for (uint32_t j = 0; j < i; j++)
            first &= dumps->by_renaming[i] != dumps->by_renaming[j];
        explore->all += first && (i == 0 || !explore->apart);
        if (i > 0 && !explore->apart && !explore->error[0] &&
            !leads_to(search, node, &search->symmetry.renamings[i], dumps->by_renaming[i]))
            fail(search, node, NULL, "with other names for the ranks, the same leads elsewhere");
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

static uint64_t end_of(const struct sim *sim)
{
    const struct sim_result *result = sim->result;
    uint64_t hash = result->params_hash;

    for (uint32_t i = 0; i < SIM_ORDERS; i++)
        hash = sim_hash(hash, sim->launches[i], 0, 0, 0);
    for (uint32_t k = 0; k < GW_KINDS; k++)
        hash = sim_hash(hash, result->calls[k], result->payload_bytes[k], k, 0);
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        uint64_t norm;

        memcpy(&norm, &sim->boards[r].verdict.norm, sizeof(norm));
        hash = sim_hash(hash, norm, sim->boards[r].verdict.step, 0, 0);
    }
    return sim_hash(hash, result->hits, result->misses, result->drops, 0);
}

/* Nothing can happen any more: all must be at their end, and it the same as ever. */
static void check_end(struct search *search, uint32_t node)
{
    struct sim *sim = replay(search, search->explore->plan, node);
    uint64_t end;

    search->explore->ends++;
    sim_finish(sim);
    end = end_of(sim);
    if (sim->broken && !search->result.error[0])
        fail(search, node, NULL, search->result.fail_text);
    else if (search->result.error[0])
        fail(search, node, NULL, search->result.error);
    else if (search->have_end && end != search->end)
        fail(search, node, NULL, "another end: order of launches, verdict, counts or parameters");
    search->have_end = true;
    search->end = end;
    sim_close(sim);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static const char *loss_error(struct search *search)
{
    const struct sim_result *result = &search->result;

    if (result->error[0])
        return result->error;
    if (result->fail_code == GW_E_TORN) {
        search->explore->torn++;
        return result->lost_in_update || result->lost_between_commits ? NULL : "torn for nothing";
    }
    search->explore->went_on++;
    if (result->fail_code != GW_E_PEER_LOST || !result->rejoined)
        return "a lost rank was not told";
    return result->lost_half_written || result->lost_between_commits ? "half an update" : NULL;
}

/* Each rank in turn dies here. The others hear of it, all come again, and training ends right. */
static void lose(struct search *search, uint32_t node)
{
    struct sim_plan plan = *search->explore->plan;

    plan.rejoin = true;
    for (uint32_t r = 0; r < plan.world && !search->explore->error[0]; r++) {
        struct sim *sim = replay(search, &plan, node);
        const char *error = NULL;

        if (!sim->clients[r].finished) {
            sim->random = sim_hash(plan.seed, node, r, 0, 0);
            client_die(sim, &sim->clients[r]);
            sim_go_on(sim);
            error = loss_error(search);
        }
        if (error) {
            char text[1200];

            snprintf(text, sizeof(text), "rank %u lost: %s", r, error);
            fail(search, node, NULL, text);
        }
        sim_close(sim);
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

/* A state that is reached again must go on as it did the first time. */
static void probe(struct search *search, struct sim *sim, const struct renaming *names,
                  struct edge *edge)
{
    struct sim_choice choices[SIM_CHOICES_MAX], *chosen;
    uint32_t count = list(search->explore, sim, choices);
    struct dumps dumps;

    search->explore->merges++;
    if (!count)
        return;
    chosen = &choices[search->explore->merges % count];
    edge->probed = true;
    edge->probe = renamed(names, chosen);
    take(search->explore, sim, chosen);
    dumps = dump(search, sim);
    edge->probe_key = key_of(search, &dumps);
}

static void reach(struct search *search, uint32_t node, const struct sim_choice *choice,
                  struct sim *sim)
{
    struct explore *explore = search->explore;
    struct dumps dumps = dump(search, sim);
    uint64_t key = key_of(search, &dumps);
    struct sim_choice choices[SIM_CHOICES_MAX];
    uint32_t count = list(explore, sim, choices);
    struct edge edge = {.to = table_find(search, key),
                        .move = renamed(names_of(search, search->nodes[node].renaming), choice)};

    if (edge.to == NONE) {
        edge.to = add_node(search, (struct node){
                                       key, node, 0, (uint16_t)(search->nodes[node].depth + 1),
                                       {(uint8_t)choice->what, (uint8_t)choice->which},
                                       (uint8_t)count, dumps.renaming});
        check_names(search, edge.to, &dumps);
    } else if (search->nodes[edge.to].choices != count) {
        fail(search, node, choice, "the dump misses something: other choices");
    } else {
        probe(search, sim, names_of(search, dumps.renaming), &edge);
    }
    search->edges = grow(search->edges, explore->edges, &search->edge_room, sizeof(edge));
    search->edges[explore->edges++] = edge;
}

static void follow(struct search *search, uint32_t node, uint32_t index)
{
    struct explore *explore = search->explore;
    struct sim *sim = replay(search, explore->plan, node);
    struct sim_choice choices[SIM_CHOICES_MAX];

    (void)list(explore, sim, choices);
    take(explore, sim, &choices[index]);
    if (sim->failed || sim->broken)
        fail(search, node, &choices[index],
             sim->failed ? search->result.error : search->result.fail_text);
    else
        reach(search, node, &choices[index], sim);
    sim_close(sim);
}

static void expand(struct search *search, uint32_t node)
{
    search->nodes[node].first_edge = search->explore->edges;
    for (uint32_t c = 0; c < search->nodes[node].choices && !search->explore->error[0]; c++)
        follow(search, node, c);
    if (!search->nodes[node].choices)
        check_end(search, node);
    if (search->explore->losses && !search->explore->error[0])
        lose(search, node);
}

/* ---- the whole graph ------------------------------------------------------------------------- */

static const struct edge *edge_of(const struct search *search, const struct node *node,
                                  struct move move)
{
    for (uint32_t e = node->first_edge; e < node->first_edge + node->choices; e++) {
        const struct edge *edge = &search->edges[e];

        if (edge->move.what == move.what && edge->move.which == move.which)
            return edge;
    }
    return NULL;
}

static void check_merges(struct search *search)
{
    for (uint32_t e = 0; e < search->explore->edges; e++) {
        const struct edge *edge = &search->edges[e], *first;

        if (!edge->probed)
            continue;
        first = edge_of(search, &search->nodes[edge->to], edge->probe);
        if (!first || search->nodes[first->to].key != edge->probe_key) {
            struct sim_choice choice = choice_of(edge->probe);

            fail(search, edge->to, &choice, "the dump misses something");
            return;
        }
    }
}

/* Takes away what nothing leads to, again and again: what is left goes round. As every state has a
 * choice or is an end, a graph without a circle starves nobody. */
static void check_circles(struct search *search)
{
    uint32_t states = search->explore->states, taken = 0, first = 0;
    uint32_t *into = calloc(states, sizeof(*into)), *order = calloc(states, sizeof(*order));

    if (!into || !order)
        abort();
    for (uint32_t e = 0; e < search->explore->edges; e++)
        into[search->edges[e].to]++;
    order[taken++] = 0;
    while (first < taken) {
        const struct node *node = &search->nodes[order[first++]];

        for (uint32_t e = node->first_edge; e < node->first_edge + node->choices; e++) {
            if (--into[search->edges[e].to] == 0)
                order[taken++] = search->edges[e].to;
        }
    }
    for (uint32_t n = 0; n < states && taken < states; n++) {
        if (into[n]) {
            fail(search, n, NULL, "goes round in circles");
            break;
        }
    }
    free(into);
    free(order);
}

static void start(struct search *search)
{
    struct sim *sim = open_set_up(search, search->explore->plan);
    struct sim_choice choices[SIM_CHOICES_MAX];
    struct dumps dumps;

    symmetry_find(sim, &search->symmetry);
    search->explore->renamings = search->symmetry.count;
    dumps = dump(search, sim);
    add_node(search, (struct node){.key = key_of(search, &dumps),
                                   .parent = NONE,
                                   .renaming = dumps.renaming,
                                   .choices = (uint8_t)sim_choices(sim, choices)});
    if (sim->failed)
        fail(search, 0, NULL, search->result.error);
    sim_close(sim);
    check_names(search, 0, &dumps);
}

void explore_run(struct explore *explore)
{
    struct search search = {.explore = explore};

    start(&search);
    for (uint32_t node = 0; node < explore->states && !explore->error[0]; node++) {
        if (explore->states > explore->states_max || search.nodes[node].depth + 1 == DEPTH_MAX)
            fail(&search, node, NULL, "too many states");
        else
            expand(&search, node);
    }
    if (!explore->error[0])
        check_merges(&search);
    if (!explore->error[0])
        check_circles(&search);
    free(search.nodes);
    free(search.edges);
    free(search.table);
    symmetry_free(&search.symmetry);
}
