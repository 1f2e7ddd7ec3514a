/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetries of a simulated job: renamings of its ranks under which it is the same job. What a
 * history leads to, renamed, is then what the renamed history leads to (explore.c tries that in
 * every state).
 *
 * Which renamings: those that leave the first rank of the group alone, for its order of buckets is
 * the one that all launch in, and it counts. So two ranks have none, three ranks one (1 and 2
 * change places), four ranks five. And only in worlds whose ranks differ in nothing but their
 * names: one group, equal scripts, and in every bucket one parameter without padding, so that a
 * slice is like the next. In others a rank's shard may be of another parameter, or of none.
 *
 * What is renamed: ranks (streams, arenas, boards, clients, masks, members of ops, tokens), the
 * slices that they own (places in whole buckets, sums of squares), and values. A value is not the
 * other rank's, bit for bit: a float is known for what it is, as "rank r's gradient of element e of
 * slice i in step s", and r and i are renamed. Sums over all ranks keep their tree, for it goes by
 * ranks and the renamed job has the same ones: only the elements' slices are renamed in them.
 * What is not known keeps its bits.
 *
 * Made once for a world, then constant. One thread.
 */
#ifndef GW_SIM_SYMMETRY_H
#define GW_SIM_SYMMETRY_H

#include "tests/sim/world/internal.h"

#define SYMMETRY_WORLD_MAX 4u
#define SYMMETRY_MAX 6u /* renamings of so many ranks that leave one alone */

struct renaming { /* rank r is called to[r]; from[] is the other way */
    uint8_t to[SIM_RANKS_MAX], from[SIM_RANKS_MAX];
};

struct value_name {
    uint64_t bits, name; /* of a float, or of a double; what it is, but for its rank and slice */
    uint8_t rank, slice; /* rank: 0 too where no rank's, for 0 is never renamed */
};

struct symmetry {
    struct renaming renamings[SYMMETRY_MAX]; /* [0] leaves all as they are */
    uint32_t count;
    uint64_t slice; /* elements */
    uint32_t slices;
    struct value_name *names; /* by bits; NULL where nothing can be renamed */
    uint32_t name_count, name_room;
};

/* Of a job that is sealed. Fails the sim if two values look alike. */
void symmetry_find(struct sim *sim, struct symmetry *ret_symmetry);
void symmetry_free(struct symmetry *symmetry);

uint64_t symmetry_value(const struct symmetry *symmetry, const struct renaming *renaming,
                        uint64_t bits);
/* An element's place in memory made of whole buckets. */
uint64_t symmetry_place(const struct symmetry *symmetry, const struct renaming *renaming,
                        uint64_t element);
struct sim_choice symmetry_choice(const struct renaming *renaming, struct sim_choice choice);

#endif
