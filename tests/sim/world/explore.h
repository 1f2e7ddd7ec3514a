/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of a small world: breadth-first over the states of a simulated job, each
 * visited once. A state is reached by replaying the choices that led to it, for the core has no
 * copy. Everything that the simulator checks (values, words, tokens) is checked on the way; of the
 * graph as a whole: every end is the same (values of verdicts and parameters, order of launches),
 * from every state an end is reached, and nothing goes round in circles.
 *
 * One step is: a rank's next message, with what it may do in silence before; an op of one stream; a
 * completion, told to the core; an item of a client's stream.
 *
 * States that differ in the names of ranks only (symmetry.h) are visited as one: its name is the
 * least of their dumps. That they are alike is not believed: for each state visited, every renamed
 * history is run too, and must lead to the state's dump with these names. What a reachable state of
 * the whole world can do, a visited one can then do under other names.
 */
#ifndef GW_SIM_EXPLORE_H
#define GW_SIM_EXPLORE_H

#include "tests/sim/world/sim.h"

struct sim;
struct symmetry;

struct explore {
    const struct sim_plan *plan;
    bool reports;     /* completions are told any time later; else at once */
    bool losses;      /* in each state each rank is lost, once, and the job forms again */
    bool apart;       /* states that differ in the names of ranks only are visited one by one */
    uint32_t ahead;   /* streams: marks that a client may be ahead of its own; 0: any number */
    uint32_t states_max;
    /* What came of it. */
    uint32_t states, edges, ends, merges; /* merges: states reached again, and compared */
    uint32_t all;          /* states, had they been visited one by one */
    uint32_t renamings;    /* of the ranks, that change no more than names */
    uint64_t *keys;        /* of the states, by least dump: the caller's to free */
    uint32_t depth;                       /* choices of the longest history */
    uint32_t went_on, torn;               /* losses: how the job came back */
    char error[1400];                     /* with the history that leads there; "": none */
};

void explore_run(struct explore *explore);
/* As if the ranks were named by one of the symmetry's renamings. */
uint64_t sim_dump(const struct sim *sim, const struct symmetry *symmetry, uint32_t renaming);

#endif
