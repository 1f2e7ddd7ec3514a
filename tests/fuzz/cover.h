/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver knows of the code that an input runs through: edges between basic blocks, told by
 * the compiler's -fsanitize-coverage=trace-pc in the parts under test alone. Without it no edge is
 * ever seen, and mutations stay blind. One thread.
 */
#ifndef TESTS_FUZZ_COVER_H
#define TESTS_FUZZ_COVER_H

#include <stdint.h>

/* Before an input. */
void cover_start(void);
/* Edges that no input before had run through. */
uint32_t cover_news(void);
uint32_t cover_edges(void);
void cover_forget(void);

#endif
