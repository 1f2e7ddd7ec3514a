/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The star's connections. By the first byte of an input:
 *
 *   'p' | mask ...              a proof between two that know the secret, with the mask over its
 *                               bytes: it comes about if and only if the mask is zero
 *   'r' | record ...            records but DATA: what is parsed makes the same bytes again
 *   'f' | { op u8 | ... } ...   a flow beside a model of it that counts alone:
 *           'a'                     a message more to send
 *           's'                     a record is filled
 *           'c' | received u8       a new connection
 *           't' | bytes u8 | record a record comes
 */
#include <sodium.h>
#include <string.h>

#include "daemon/engine/star_proof.h"
#include "gradwire/errors.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t secret[32] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 9};
static const uint8_t nonces[2][STAR_NONCE_BYTES] = {{1}, {2}};

struct input {
    const uint8_t *data;
    size_t bytes;
};

/* Zeros, when there is no more. */
static uint8_t next(struct input *input)
{
    if (input->bytes == 0)
        return 0;
    input->bytes--;
    return *input->data++;
}

/* ---- proof ----------------------------------------------------------------------------------- */

static void mask(struct input *input, uint8_t *step, size_t bytes, bool *masked)
{
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t with = next(input);
        step[i] ^= with;
        *masked |= with != 0;
    }
}

static void run_proof(struct input *input)
{
    const struct star_open open = {.session = 5, .received = 6};
    uint8_t hello[STAR_STEP_MAX], answer[STAR_STEP_MAX], step[STAR_STEP_MAX];
    struct star_proof *node, *root;
    bool masked = false;
    size_t bytes;
    int r;

    FUZZ_CHECK(sodium_init() >= 0);
    FUZZ_CHECK(star_proof_new(secret, nonces[0], &open, &node) == 0);
    FUZZ_CHECK(star_proof_new(secret, nonces[1], NULL, &root) == 0);
    star_proof_hello(node, hello);
    mask(input, hello, STAR_HELLO_BYTES, &masked);
    r = star_proof_take(root, hello, answer, &bytes);
    if (r == 0) {
        FUZZ_CHECK(bytes == star_proof_wants(node));
        mask(input, answer, bytes, &masked);
        r = star_proof_take(node, answer, step, &bytes);
        FUZZ_CHECK(r == 0 ? !masked : masked && bytes == 0);
    }
    if (r == 0) {
        FUZZ_CHECK(bytes == star_proof_wants(root));
        mask(input, step, bytes, &masked);
        r = star_proof_take(root, step, answer, &bytes);
    }
    FUZZ_CHECK((r == 0) == !masked && (r == 0) == (star_proof_wants(root) == 0));
    if (r == 0)
        FUZZ_CHECK(star_proof_open(root)->session == 5 && star_proof_open(root)->received == 6);
    star_proof_free(node);
    star_proof_free(root);
}

/* ---- records --------------------------------------------------------------------------------- */

static void run_record(const uint8_t *record, size_t bytes)
{
    uint8_t again[STAR_OPEN_BYTES];
    struct star_open open;
    const char *text = NULL;
    uint64_t received;
    int code = 0;

    if (star_open_get(record, bytes, &open) == 0) {
        star_open_put(&open, again);
        FUZZ_CHECK(bytes == STAR_OPEN_BYTES && memcmp(again, record, bytes) == 0);
    }
    if (star_opened_get(record, bytes, &received) == 0) {
        star_opened_put(received, again);
        FUZZ_CHECK(bytes == STAR_OPENED_BYTES && memcmp(again, record, bytes) == 0);
    }
    if (star_here_get(record, bytes) == 0)
        FUZZ_CHECK(bytes == STAR_HERE_BYTES && record[0] == STAR_HERE);
    if (star_bye_get(record, bytes, &code, &text) == 0) {
        star_bye_put(record[1], again);
        FUZZ_CHECK(bytes == STAR_BYE_BYTES && memcmp(again, record, bytes) == 0);
        FUZZ_CHECK(code < 0 && text && *text);
    }
    if (bytes >= STAR_LENGTH_BYTES) {
        const size_t sealed = star_sealed_bytes(record);

        FUZZ_CHECK(sealed == 0 || (sealed >= STAR_SEALED_BYTES(1) &&
                                   sealed <= STAR_SEALED_BYTES(STAR_RECORD_MAX)));
    }
}

/* ---- flow ------------------------------------------------------------------------------------ */

struct model {
    struct star_flow flow;
    uint64_t queued, sent, acknowledged, received;
    const uint8_t *at, *end; /* of the record that is taken */
};

static int take(void *user, const uint8_t *message, size_t count)
{
    struct model *model = user;

    /* Each lies behind the last one and its own length, within the record. */
    FUZZ_CHECK(message == model->at + 4 && count <= (size_t)(model->end - message));
    FUZZ_CHECK(star_get(model->at, 4) == count);
    model->at = message + count;
    model->received++;
    return count == 13 ? GW_E_LIMIT : 0;
}

static void run_take(struct model *model, const uint8_t *record, size_t bytes)
{
    const uint64_t acknowledged = bytes >= STAR_DATA_BYTES ? star_get(record + 1, 8) : 0;
    const bool good = bytes >= STAR_DATA_BYTES && record[0] == STAR_DATA &&
                      acknowledged >= model->acknowledged && acknowledged <= model->sent;
    size_t freed = 0;
    int r;

    model->at = record + STAR_DATA_BYTES;
    model->end = record + bytes;
    r = star_flow_take(&model->flow, record, bytes, take, model, &freed);
    if (!good) {
        FUZZ_CHECK(r == GW_E_PROTOCOL && freed == 0);
        return;
    }
    FUZZ_CHECK(freed == (acknowledged - model->acknowledged) * STAR_COST(1));
    model->acknowledged = acknowledged;
    FUZZ_CHECK(r != 0 || model->at == model->end);
    if (r == GW_E_LIMIT)
        model->received--; /* refused */
}

static void check(const struct model *model)
{
    const struct star_message *message = model->flow.kept.first;
    uint64_t number = model->acknowledged;

    for (; message; message = message->next) {
        number++;
        FUZZ_CHECK((message == model->flow.unsent) == (number == model->sent + 1));
    }
    FUZZ_CHECK(number == model->queued);
    FUZZ_CHECK(model->flow.sent == model->sent && model->flow.received == model->received);
}

static void add(struct model *model)
{
    struct star_list list;

    star_list_start(&list);
    FUZZ_CHECK(star_list_add(&list, "x", 1) == 0);
    star_flow_add(&model->flow, &list);
    model->queued++;
}

static void run_flow(struct input *input)
{
    static uint8_t record[STAR_RECORD_MAX];
    struct model model = {.queued = 0};

    star_flow_start(&model.flow);
    while (input->bytes > 0) {
        const uint8_t op = next(input);
        size_t count;

        if (op == 'a') {
            add(&model);
        } else if (op == 's') {
            count = star_flow_fill(&model.flow, 0, record);
            FUZZ_CHECK(count == STAR_DATA_BYTES + 5 * (model.queued - model.sent));
            model.sent = model.queued;
        } else if (op == 'c') {
            const uint8_t received = next(input);
            const bool good = received >= model.acknowledged && received <= model.sent;

            FUZZ_CHECK(star_flow_resume(&model.flow, received) == (good ? 0 : GW_E_PROTOCOL));
            model.sent = good ? received : model.sent;
        } else if (op == 't') {
            count = next(input);
            count = count < input->bytes ? count : input->bytes;
            run_take(&model, input->data, count);
            input->data += count;
            input->bytes -= count;
        }
        check(&model);
    }
    star_flow_end(&model.flow);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input input = {data + 1, bytes - 1};

    if (bytes == 0 || bytes > 1024)
        return 0;
    if (data[0] == 'p')
        run_proof(&input);
    else if (data[0] == 'r')
        run_record(data + 1, bytes - 1);
    else if (data[0] == 'f')
        run_flow(&input);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    static const struct {
        size_t bytes;
        const char *text;
    } seeds[] = {
        {1, "p"},
        {6, "p\0\0\0\0\1"},
        {19, "r\2\1\1\1\1\1\1\1\1\2\0\0\0\0\0\0\0\1"},
        {10, "r\3\1\0\0\0\0\0\0\0"},
        {3, "r\5\1"},
        {2, "r\1"},
        {25, "faasaat\11\4\1\0\0\0\0\0\0\0sc\1sc\3s"},
        {29, "ft\32\4\0\0\0\0\0\0\0\0\1\0\0\0a\0\0\0\0\3\0\0\0abc"},
    };

    if (index >= sizeof(seeds) / sizeof(seeds[0]) || seeds[index].bytes > bytes)
        return 0;
    memcpy(buffer, seeds[index].text, seeds[index].bytes);
    return seeds[index].bytes;
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
