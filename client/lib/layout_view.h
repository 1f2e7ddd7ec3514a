/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking a layout page before anything of it is used as an index. Pure; any thread.
 */
#ifndef GW_CLIENT_LAYOUT_VIEW_H
#define GW_CLIENT_LAYOUT_VIEW_H

#include <stddef.h>
#include <stdint.h>

#include "proto/layout_page.h"

/* The page's arrays, inside the caller's copy of the page. */
struct layout_view {
    const struct gw_layout_page *page;
    const struct gw_layout_param *params;
    const struct gw_layout_piece *pieces;
    const struct gw_layout_bucket *buckets;
    const struct gw_layout_unit *units;
    const struct gw_layout_fetch_unit *fetch_units;
    const struct gw_layout_group *groups;
    const uint32_t *members;
    const char *names;
};

/* `copy` is 8-byte aligned and stays the caller's, unchanged. GW_E_PROTOCOL, with what is wrong in
 * *ret_what (static storage), unless every array lies inside the page and every index, range and
 * sum in it holds. */
int layout_view(const void *copy, size_t bytes, struct layout_view *ret_view,
                const char **ret_what);

#endif
