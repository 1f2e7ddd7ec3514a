/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parser of a DeepSpeed configuration: walks the JSON, checks types against the table of keys, and
 * collects the report. See deepspeed.h. Pure; any thread.
 */
#include "daemon/conf/deepspeed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/escape.h"
#include "daemon/conf/deepspeed_internal.h"
#include "daemon/conf/json.h"
#include "gradwire/errors.h"

#define PATH_BYTES 160u
#define WHOLE_MAX 9007199254740992.0 /* 2^53: beyond, a JSON float is not exact */

/* Sections whose keys are looked at one by one; others are one entry. */
static const struct section {
    const char *name, *here;
} sections[] = {
    {"zero_optimization", "zero_optimization"},
    {"fp16", "fp16"},
    {"bf16", "bf16"},
    {"bfloat16", "bf16"}, /* old spelling */
    {"data_types", "data_types"},
};

/* Without its prefix DeepSpeed takes these too. */
static const char stage3[] = "zero_optimization.stage3_";

int deepspeed_wrong(struct reader *reader, const char *key, const char *format, ...)
{
    char safe[ESCAPE_BYTES(PATH_BYTES)];
    struct text text;
    va_list list;

    text_start(&text, reader->error, reader->error_bytes);
    (void)escape_text(key, strnlen(key, PATH_BYTES), safe, sizeof(safe));
    text_add(&text, "%s: %s ", reader->file, safe);
    va_start(list, format);
    text_addv(&text, format, list);
    va_end(list);
    return GW_E_INVALID;
}

/* ---- report ---------------------------------------------------------------------------------- */

static char *copy(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *new = malloc(bytes);

    return new ? memcpy(new, text, bytes) : NULL;
}

/* Takes over `value`. */
static int add_entry(struct deepspeed_list *list, const char *key, char *value,
                     const struct verdict *verdict)
{
    size_t room = list->room ? list->room * 2 : 32;
    struct deepspeed_entry *entry, *entries = list->entries;

    if (list->count == list->room) {
        entries = realloc(entries, room * sizeof(*entries));
        if (entries != NULL) {
            list->entries = entries;
            list->room = room;
        }
    }
    entry = entries ? &entries[list->count] : NULL;
    if (entry == NULL || value == NULL) {
        free(value);
        return GW_E_NOMEM;
    }
    *entry = (struct deepspeed_entry){.key = copy(key),
                                      .value = value,
                                      .status = verdict->status,
                                      .meaning = copy(verdict->meaning.buffer)};
    list->count++;
    return entry->key && entry->meaning ? 0 : GW_E_NOMEM;
}

static int report(struct reader *reader, const char *key, const json_t *value,
                  const struct verdict *verdict)
{
    return add_entry(&reader->config->keys, key,
                     json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII),
                     verdict);
}

static void free_list(struct deepspeed_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].key);
        free(list->entries[i].value);
        free(list->entries[i].meaning);
    }
    free(list->entries);
}

struct deepspeed *deepspeed_free(struct deepspeed *config)
{
    if (config != NULL) {
        free_list(&config->keys);
        free_list(&config->defaults);
    }
    free(config);
    return NULL;
}

const char *deepspeed_status_name(enum deepspeed_status status)
{
    static const char *const names[] = {"supported", "mapped", "not_needed", "rejected"};

    return names[status];
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Is the thing turned off? DeepSpeed says so in many ways. */
static bool is_off(const json_t *json)
{
    const json_t *enabled = json_object_get(json, "enabled");
    const char *device = json_string_value(json_object_get(json, "device"));
    const char *text = json_string_value(json);

    return json_is_null(json) || json_is_false(json) ||
           (json_is_number(json) && json_number_value(json) == 0) || json_is_false(enabled) ||
           (device != NULL && strcmp(device, "none") == 0) ||
           (text != NULL && strcmp(text, "none") == 0) ||
           (json_is_array(json) && json_array_size(json) == 0);
}

/* What DeepSpeed takes to be off unless it says "enabled" or a device: {} too. */
static bool is_switched_off(const json_t *json)
{
    return is_off(json) || (json_is_object(json) && json_object_get(json, "enabled") == NULL &&
                            json_object_get(json, "device") == NULL);
}

/* compression_training: each part is switched by itself, most of them one level further down. */
static bool are_parts_off(const json_t *json)
{
    const char *name;
    json_t *part;

    if (!json_is_object(json))
        return is_off(json);
    json_object_foreach((json_t *)json, name, part) /* reads only */
    {
        const json_t *shared = json_object_get(part, "shared_parameters");

        if (!is_switched_off(part) || (shared != NULL && !is_switched_off(shared)))
            return false;
    }
    return true;
}

/* A whole number: 500000000, or 5e8 (case G03). */
static bool is_whole(const json_t *json, int64_t *ret_whole)
{
    double real = json_real_value(json);

    if (json_is_integer(json)) {
        *ret_whole = json_integer_value(json);
        return true;
    }
    if (!json_is_real(json) || floor(real) < real || fabs(real) > WHOLE_MAX)
        return false;
    *ret_whole = (int64_t)real;
    return true;
}

static int read_value(struct reader *reader, const struct deepspeed_key *key, const char *path,
                      const json_t *json, struct key_value *ret_value)
{
    struct key_value value = {.json = json, .on = !is_off(json)};
    const char *want = NULL;

    switch (key->type) {
    case KEY_ANY:
        break;
    case KEY_SWITCH:
        value.on = !is_switched_off(json);
        break;
    case KEY_PARTS:
        value.on = !are_parts_off(json);
        break;
    case KEY_BOOL:
        want = json_is_boolean(json) ? NULL : "true or false";
        break;
    case KEY_WHOLE:
        want = is_whole(json, &value.whole) ? NULL : "a whole number";
        break;
    case KEY_COUNT:
        want = is_whole(json, &value.whole) && value.whole >= 0 ? NULL : "a whole number from 0";
        break;
    case KEY_NUMBER:
        want = json_is_number(json) ? NULL : "a number";
        value.number = json_number_value(json);
        break;
    case KEY_TEXT:
        value.text = json_string_value(json);
        want = value.text ? NULL : "a text";
        break;
    }
    if (want != NULL) {
        char *dump = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

        (void)deepspeed_wrong(reader, path, "is %.80s, but must be %s", dump ? dump : "?", want);
        free(dump);
        return GW_E_INVALID;
    }
    *ret_value = value;
    return 0;
}

static bool is_auto(const json_t *json)
{
    const char *text = json_string_value(json);

    return text != NULL && strcmp(text, "auto") == 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static const struct deepspeed_key *find_key(const char *path)
{
    char other[PATH_BYTES + sizeof(stage3)] = "";
    const char *dot = strchr(path, '.');

    if (dot != NULL && strncmp(path, stage3, (size_t)(dot - path) + 1) == 0)
        (void)snprintf(other, sizeof(other), "%s%s", stage3, dot + 1);
    for (size_t i = 0; i < deepspeed_keys_count; i++) {
        if (strcmp(deepspeed_keys[i].path, path) == 0 || strcmp(deepspeed_keys[i].path, other) == 0)
            return &deepspeed_keys[i];
    }
    return NULL;
}

/* Two spellings of one key must say the same. */
static int note(struct reader *reader, const struct deepspeed_key *key, const char *spelled,
                const json_t *json)
{
    size_t i = (size_t)(key - deepspeed_keys);

    if (reader->seen_value[i] != NULL && !json_equal(reader->seen_value[i], json))
        return deepspeed_wrong(reader, spelled, "contradicts the same key in another spelling");
    reader->seen_value[i] = json;
    return 0;
}

/* The caller's value stands for the file's. */
static bool is_given(const struct reader *reader, const struct deepspeed_key *key)
{
    if (key->take == take_batch)
        return reader->given->micro_steps > 0;
    return key->take == take_bucket && reader->given->bucket_bytes > 0;
}

static int judge(struct reader *reader, const struct deepspeed_key *key, const char *path,
                 const json_t *json, struct verdict *verdict)
{
    struct key_value value;
    int r;

    if (is_auto(json)) {
        bool matters = key->take != NULL || key->status == DEEPSPEED_REJECTED;

        if (matters && !is_given(reader, key))
            text_add(&reader->auto_list, "%s%s", reader->auto_list.used ? ", " : "", key->path);
        verdict->status = matters ? DEEPSPEED_MAPPED : DEEPSPEED_NOT_NEEDED;
        text_add(&verdict->meaning, "%s", matters ? "filled in by the caller" : key->meaning);
        return 0;
    }
    if (json_is_null(json)) {
        verdict->status = DEEPSPEED_NOT_NEEDED;
        text_add(&verdict->meaning, "null: as if it were not there");
        return 0;
    }
    r = read_value(reader, key, path, json, &value);
    if (r < 0)
        return r;
    if (key->take != NULL) {
        r = key->take(reader, key, &value, verdict);
    } else if (key->status == DEEPSPEED_REJECTED && !value.on) {
        verdict->status = DEEPSPEED_NOT_NEEDED;
        text_add(&verdict->meaning, "off");
    } else {
        verdict->status = key->status;
        text_add(&verdict->meaning, "%s", key->meaning);
    }
    if (r == 0 && is_given(reader, key))
        text_add(&verdict->meaning, "; the caller says otherwise and is used");
    return r;
}

/* spelled: in the file; path: what the table calls it. */
static int read_key(struct reader *reader, const char *spelled, const char *path,
                    const json_t *json)
{
    const struct deepspeed_key *key = find_key(path);
    char buffer[DEEPSPEED_MEANING_BYTES];
    struct verdict verdict = {.status = DEEPSPEED_REJECTED};
    int r = 0;

    text_start(&verdict.meaning, buffer, sizeof(buffer));
    if (key == NULL) {
        text_add(&verdict.meaning, "unknown: misspelled, or no key of DeepSpeed 0.19.8");
    } else {
        r = note(reader, key, spelled, json);
        if (r == 0)
            r = judge(reader, key, spelled, json, &verdict);
        if (r == 0 && strcmp(spelled, key->path) != 0)
            text_add(&verdict.meaning, " (other spelling of %s)", key->path);
    }
    return r < 0 ? r : report(reader, spelled, json, &verdict);
}

static int read_section(struct reader *reader, const struct section *section, json_t *object)
{
    char spelled[PATH_BYTES], path[PATH_BYTES];
    const char *name;
    json_t *value;
    int n;
    int r;

    if (!json_is_object(object))
        return deepspeed_wrong(reader, section->name, "must be an object");
    json_object_foreach(object, name, value)
    {
        (void)snprintf(spelled, sizeof(spelled), "%s.%s", section->name, name);
        n = snprintf(path, sizeof(path), "%s.%s", section->here, name);
        if (n < 0 || (size_t)n >= sizeof(path))
            return deepspeed_wrong(reader, spelled, "is too long for a key");
        r = read_key(reader, spelled, path, value);
        if (r < 0)
            return r;
    }
    return 0;
}

/* "zero_optimization": true, as it was written long ago. */
static int read_old_zero(struct reader *reader, const json_t *value)
{
    bool on = json_is_true(value);
    char buffer[DEEPSPEED_MEANING_BYTES];
    struct verdict verdict = {.status = DEEPSPEED_MAPPED};

    text_start(&verdict.meaning, buffer, sizeof(buffer));
    text_add(&verdict.meaning, "old spelling: stage %d", on ? 1 : 0);
    reader->config->options.stage = on ? 1 : 0;
    reader->seen_value[find_key("zero_optimization.stage") - deepspeed_keys] = value;
    return report(reader, "zero_optimization", value, &verdict);
}

static int read_all(struct reader *reader, json_t *root)
{
    const struct section *section;
    const char *name;
    json_t *value;
    int r;

    json_object_foreach(root, name, value)
    {
        section = NULL;
        for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
            section = strcmp(sections[i].name, name) == 0 ? &sections[i] : section;
        if (section == &sections[0] && json_is_boolean(value))
            r = read_old_zero(reader, value);
        else if (section != NULL)
            r = read_section(reader, section, value);
        else
            r = read_key(reader, name, name, value);
        if (r < 0)
            return r;
    }
    if (reader->auto_list.used > 0)
        return deepspeed_wrong(reader, reader->autos,
                               "say \"auto\": write the values that your framework fills in");
    return deepspeed_settle(reader);
}

/* ---- defaults -------------------------------------------------------------------------------- */

static int apply_default(struct reader *reader, const struct deepspeed_key *key)
{
    char buffer[DEEPSPEED_MEANING_BYTES];
    struct verdict verdict = {.status = DEEPSPEED_MAPPED};
    struct key_value value;
    json_t *json = json_loads(key->initial, JSON_DECODE_ANY, NULL);
    char *shown;
    int r = json == NULL ? GW_E_NOMEM : 0;

    text_start(&verdict.meaning, buffer, sizeof(buffer));
    if (r == 0)
        r = read_value(reader, key, key->path, json, &value);
    if (r == 0) {
        value.json = NULL; /* not from the file */
        r = key->take(reader, key, &value, &verdict);
    }
    if (r == 0) {
        /* The one default that depends on the version asked for. */
        shown = key->take == take_clipping && !(reader->config->options.clip_norm > 0)
                    ? copy("0.0")
                    : copy(key->initial);
        r = add_entry(&reader->config->defaults, key->path, shown, &verdict);
    }
    json_decref(json);
    return r;
}

static int default_steps(struct reader *reader)
{
    char buffer[DEEPSPEED_MEANING_BYTES], number[16];
    struct verdict verdict = {.status = DEEPSPEED_MAPPED};

    text_start(&verdict.meaning, buffer, sizeof(buffer));
    text_add(&verdict.meaning, "micro_steps %u%s", reader->config->options.micro_steps,
             reader->train_batch && reader->micro_batch ? ", from the two batch sizes" : "");
    (void)snprintf(number, sizeof(number), "%u", reader->config->options.micro_steps);
    return add_entry(&reader->config->defaults, "gradient_accumulation_steps", copy(number),
                     &verdict);
}

static int apply_defaults(struct reader *reader)
{
    int r = 0;

    for (size_t i = 0; i < deepspeed_keys_count && r == 0; i++) {
        const json_t *seen = reader->seen_value[i];

        if (deepspeed_keys[i].initial != NULL && (seen == NULL || json_is_null(seen)) &&
            !is_given(reader, &deepspeed_keys[i]))
            r = apply_default(reader, &deepspeed_keys[i]);
    }
    if (r == 0 && reader->accumulation == 0 && reader->given->micro_steps == 0)
        r = default_steps(reader);
    if (r == 0 && reader->given->bucket_bytes > 0)
        reader->config->options.bucket_bytes = reader->given->bucket_bytes;
    return r;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Before all keys: sizes are of them. */
static void set_dtypes(struct reader *reader)
{
    struct deepspeed *config = reader->config;

    config->half = reader->given->has_dtype || reader->fp16 || reader->bf16;
    config->dtype = reader->fp16 ? GW_DTYPE_FP16 : reader->bf16 ? GW_DTYPE_BF16 : GW_DTYPE_FP32;
    if (reader->given->has_dtype)
        config->dtype = reader->given->dtype;
    config->grad_dtype =
        reader->given->has_grad_dtype ? reader->given->grad_dtype : config->dtype;
}

int deepspeed_parse(const char *text, size_t bytes, const char *file,
                    const struct deepspeed_given *given, struct deepspeed **ret_config, char *error,
                    size_t error_bytes)
{
    struct reader reader = {
        .file = file, .given = given, .error = error, .error_bytes = error_bytes};
    json_t *root = NULL;
    int r;

    text_start(&reader.auto_list, reader.autos, sizeof(reader.autos));
    reader.config = calloc(1, sizeof(*reader.config));
    r = reader.config == NULL ? GW_E_NOMEM : 0;
    if (r == 0)
        r = json_read(text, bytes, file, &root, error, error_bytes);
    if (r == 0 && !json_is_object(root))
        r = deepspeed_wrong(&reader, "the configuration", "must be an object");
    if (r == 0) {
        reader.config->options.struct_size = sizeof(reader.config->options);
        reader.fp16 = json_is_true(json_object_get(json_object_get(root, "fp16"), "enabled"));
        reader.bf16 = json_is_true(json_object_get(json_object_get(root, "bf16"), "enabled")) ||
                      json_is_true(json_object_get(json_object_get(root, "bfloat16"), "enabled"));
        set_dtypes(&reader);
        r = read_all(&reader, root);
    }
    if (r == 0)
        r = apply_defaults(&reader);
    if (r == 0 && reader.fp16)
        reader.config->loss_scale.clip_norm = reader.config->options.clip_norm;
    json_decref(root);
    if (r < 0) {
        (void)deepspeed_free(reader.config);
        return r;
    }
    *ret_config = reader.config;
    return 0;
}

int deepspeed_version(const char *text, uint32_t *ret_version)
{
    uint32_t version = 0, part;
    const char *at = text;

    for (unsigned i = 0; i < 3; i++) {
        const char *digits = at;

        for (part = 0; *at >= '0' && *at <= '9' && part < 1000; at++)
            part = part * 10 + (uint32_t)(*at - '0');
        if (at == digits || part > 999 || *at != (i < 2 ? '.' : '\0'))
            return GW_E_INVALID;
        version = version * 1000 + part;
        at += i < 2;
    }
    *ret_version = version;
    return 0;
}
