/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wait pages (struct gw_wait_page): words that the streams of a client on a GPU wait for, raised by
 * the engine with its slots. The client writes them too: nothing in the page is believed here. Any
 * thread.
 */
#ifndef GW_ENGINE_WAITS_H
#define GW_ENGINE_WAITS_H

#include "daemon/device/device.h"

/* What a page of that many bytes has room for. */
static inline uint32_t waits_words(size_t bytes)
{
    return bytes < sizeof(struct gw_wait_page)
               ? 0
               : (uint32_t)((bytes - sizeof(struct gw_wait_page)) / sizeof(uint64_t));
}

/* Fresh, zeroed memory. */
static inline void waits_start(const struct device_memory *memory)
{
    struct gw_wait_page *page = memory->base;

    page->header =
        (struct gw_shm_header){GW_SHM_MAGIC, GW_SHM_VERSION, GW_SHM_WAITS, (uint32_t)memory->bytes};
    page->count = waits_words(memory->bytes);
}

/* NULL: there is no such word. */
static inline _Atomic uint64_t *waits_word(const struct device_memory *memory, uint32_t index)
{
    struct gw_wait_page *page = memory->base;

    return index < waits_words(memory->bytes) ? &page->word[index] : NULL;
}

/* Nothing will be raised any more: no stream may wait for it. */
static inline void waits_release(struct gw_wait_page *page, size_t bytes)
{
    uint32_t words = waits_words(bytes);

    for (uint32_t i = 0; i < words; i++)
        atomic_store_explicit(&page->word[i], GW_TIMELINE_END, memory_order_release);
}

#endif
