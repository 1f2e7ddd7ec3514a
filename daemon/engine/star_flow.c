/* SPDX-License-Identifier: Apache-2.0 */
/* Records and numbered messages of the star: see star_flow.h. */
#include "daemon/engine/star_flow.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

void star_put(uint8_t *at, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

uint64_t star_get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void star_list_start(struct star_list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

int star_list_add(struct star_list *list, const void *bytes, size_t count)
{
    struct star_message *message = malloc(sizeof(*message) + count);

    if (!message)
        return GW_E_NOMEM;
    message->next = NULL;
    message->bytes = (uint32_t)count;
    if (count > 0)
        memcpy(message->data, bytes, count);
    *list->last = message;
    list->last = &message->next;
    return 0;
}

static size_t list_pop(struct star_list *list)
{
    struct star_message *message = list->first;
    const size_t cost = STAR_COST(message->bytes);

    list->first = message->next;
    if (!list->first)
        list->last = &list->first;
    sodium_memzero(message->data, message->bytes);
    free(message);
    return cost;
}

void star_list_end(struct star_list *list)
{
    while (list->first)
        (void)list_pop(list);
}

/* ---- messages -------------------------------------------------------------------------------- */

void star_flow_start(struct star_flow *flow)
{
    memset(flow, 0, sizeof(*flow));
    star_list_start(&flow->kept);
}

void star_flow_end(struct star_flow *flow)
{
    flow->unsent = NULL;
    star_list_end(&flow->kept);
}

void star_flow_add(struct star_flow *flow, struct star_list *list)
{
    if (!list->first)
        return;
    *flow->kept.last = list->first;
    flow->kept.last = list->last;
    if (!flow->unsent)
        flow->unsent = list->first;
    star_list_start(list);
}

size_t star_flow_fill(struct star_flow *flow, uint64_t acknowledge, uint8_t *ret_record)
{
    const struct star_message *message;
    size_t at = STAR_DATA_BYTES;

    ret_record[0] = STAR_DATA;
    star_put(ret_record + 1, 8, acknowledge);
    while ((message = flow->unsent) && message->bytes + 4 <= STAR_RECORD_MAX - at) {
        star_put(ret_record + at, 4, message->bytes);
        memcpy(ret_record + at + 4, message->data, message->bytes);
        at += 4 + message->bytes;
        flow->unsent = message->next;
        flow->sent++;
    }
    return at;
}

int star_flow_take(struct star_flow *flow, const uint8_t *record, size_t bytes,
                   int (*take)(void *user, const uint8_t *message, size_t count), void *user,
                   size_t *ret_freed)
{
    uint64_t acknowledged;
    size_t freed = 0;

    if (bytes < STAR_DATA_BYTES || record[0] != STAR_DATA)
        return GW_E_PROTOCOL;
    acknowledged = star_get(record + 1, 8);
    if (acknowledged < flow->acknowledged || acknowledged > flow->sent)
        return GW_E_PROTOCOL;
    for (; flow->acknowledged < acknowledged; flow->acknowledged++)
        freed += list_pop(&flow->kept);
    *ret_freed = freed;
    for (size_t at = STAR_DATA_BYTES; at < bytes;) {
        uint64_t count;
        int r;

        if (bytes - at < 4)
            return GW_E_PROTOCOL;
        count = star_get(record + at, 4);
        at += 4;
        if (count > bytes - at || count > STAR_MESSAGE_MAX)
            return GW_E_PROTOCOL;
        r = take(user, record + at, (size_t)count);
        if (r < 0)
            return r;
        flow->received++;
        at += (size_t)count;
    }
    return 0;
}

int star_flow_resume(struct star_flow *flow, uint64_t received)
{
    struct star_message *message = flow->kept.first;

    if (received < flow->acknowledged || received > flow->sent)
        return GW_E_PROTOCOL;
    for (uint64_t number = flow->acknowledged; number < received; number++)
        message = message->next;
    flow->unsent = message;
    flow->sent = received;
    return 0;
}

/* ---- the other records ----------------------------------------------------------------------- */

void star_here_put(uint8_t ret_record[STAR_HERE_BYTES])
{
    ret_record[0] = STAR_HERE;
}

int star_here_get(const uint8_t *record, size_t bytes)
{
    return bytes == STAR_HERE_BYTES && record[0] == STAR_HERE ? 0 : GW_E_PROTOCOL;
}

void star_open_put(const struct star_open *open, uint8_t ret_record[STAR_OPEN_BYTES])
{
    ret_record[0] = STAR_OPEN;
    star_put(ret_record + 1, 8, open->session);
    star_put(ret_record + 9, 8, open->received);
    ret_record[17] = open->resumed;
}

int star_open_get(const uint8_t *record, size_t bytes, struct star_open *ret_open)
{
    if (bytes != STAR_OPEN_BYTES || record[0] != STAR_OPEN || record[17] > 1)
        return GW_E_PROTOCOL;
    ret_open->session = star_get(record + 1, 8);
    ret_open->received = star_get(record + 9, 8);
    ret_open->resumed = record[17] == 1;
    return 0;
}

void star_opened_put(uint64_t received, uint8_t ret_record[STAR_OPENED_BYTES])
{
    ret_record[0] = STAR_OPENED;
    star_put(ret_record + 1, 8, received);
}

int star_opened_get(const uint8_t *record, size_t bytes, uint64_t *ret_received)
{
    if (bytes != STAR_OPENED_BYTES || record[0] != STAR_OPENED)
        return GW_E_PROTOCOL;
    *ret_received = star_get(record + 1, 8);
    return 0;
}

void star_bye_put(enum star_bye reason, uint8_t ret_record[STAR_BYE_BYTES])
{
    ret_record[0] = STAR_BYE;
    ret_record[1] = (uint8_t)reason;
}

int star_bye_get(const uint8_t *record, size_t bytes, int *ret_code, const char **ret_text)
{
    static const struct {
        enum star_bye reason;
        int code;
        const char *text;
    } byes[] = {
#define STAR_BYE_ROW(name, value, code, text) {STAR_BYE_##name, code, text},
        STAR_BYE_MAP(STAR_BYE_ROW)
#undef STAR_BYE_ROW
    };

    if (bytes != STAR_BYE_BYTES || record[0] != STAR_BYE)
        return GW_E_PROTOCOL;
    for (size_t i = 0; i < sizeof(byes) / sizeof(byes[0]); i++) {
        if (record[1] == (uint8_t)byes[i].reason) {
            *ret_code = byes[i].code;
            *ret_text = byes[i].text;
            return 0;
        }
    }
    return GW_E_PROTOCOL;
}
