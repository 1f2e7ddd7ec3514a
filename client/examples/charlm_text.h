/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training text and the order in which samples are drawn from it. Owns the text's memory. One
 * thread; reads files, writes none. What is drawn depends on seed, step, micro-step and rank alone,
 * never on the number of ranks.
 */
#ifndef CHARLM_TEXT_H
#define CHARLM_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    uint8_t *symbols; /* of each character: 0 .. vocab-1, in the order of byte values */
    size_t size;
    uint32_t vocab; /* distinct bytes */
};

struct text_draw {
    uint64_t seed;
    uint32_t step, micro, rank;
};

/* Loads `path`, or (NULL) the regular files of /usr/share/common-licenses in the C locale's order,
 * joined. 0; or a sysexits code with a message in `error`. */
int text_load(const char *path, uint32_t context, struct text *ret_text, char *error,
              size_t error_size);
void text_clear(struct text *text);

/* Where sample number `sample` of a draw begins: context symbols, then the one to predict. */
size_t text_sample(const struct text *text, const struct text_draw *draw, uint32_t sample,
                   uint32_t context);

/* A number that depends on both arguments in every bit (splitmix64). */
uint64_t text_mix(uint64_t state, uint64_t value);

#endif
