/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parser of gradwired's configuration. Pure; any thread; holds nothing between calls.
 *
 * inih splits the lines. It does not tell its handler a line number, so the lines are handed to it
 * by our own reader, which counts them and refuses what inih would cut silently.
 */
#include "daemon/conf/conf.h"

#include <assert.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/parse.h"
#include "gradwire/errors.h"

struct reader {
    const char *text;
    size_t left_bytes;
    const char *file;
    struct conf conf;
    int line;       /* that inih works on */
    int error_line; /* first bad line, 0: none */
    int seen_line[64];
    char *error;
    size_t error_bytes;
};

static size_t text_max(const struct conf_key *key)
{
    return key->type == CONF_PATH ? (size_t)key->max : CONF_NAME_BYTES - 1;
}

static int set_number(const struct conf_key *key, const char *value, struct conf *conf)
{
    uint8_t *field = (uint8_t *)conf + key->offset;
    uint64_t number = 0;
    int64_t time_ns = 0;
    int r;

    if (key->type == CONF_TIME) {
        r = parse_duration(value, &time_ns);
        number = (uint64_t)time_ns;
    } else if (key->type == CONF_BYTES) {
        r = parse_size(value, &number);
    } else {
        r = parse_u64(value, 0, UINT32_MAX, &number);
    }
    if (r < 0 || number < key->min || number > key->max)
        return GW_E_INVALID;
    if (key->type == CONF_COUNT) {
        uint32_t count = (uint32_t)number;

        memcpy(field, &count, sizeof(count));
    } else {
        memcpy(field, &number, sizeof(number));
    }
    return 0;
}

static int set_choice(const struct conf_key *key, const char *value, struct conf *conf)
{
    for (uint32_t i = 0; key->choices[i] != NULL; i++) {
        if (strcmp(value, key->choices[i]) == 0) {
            memcpy((uint8_t *)conf + key->offset, &i, sizeof(i));
            return 0;
        }
    }
    return GW_E_INVALID;
}

static int set_text(const struct conf_key *key, const char *value, struct conf *conf)
{
    bool may_be_empty = key->initial[0] == '\0';
    size_t bytes = strlen(value);

    if (bytes > text_max(key) || (bytes == 0 && !may_be_empty))
        return GW_E_INVALID;
    if (key->type == CONF_PATH && bytes > 0 && value[0] != '/')
        return GW_E_INVALID;
    memcpy((char *)conf + key->offset, value, bytes + 1);
    return 0;
}

static int set_ports(const struct conf_key *key, const char *value, struct conf *conf)
{
    struct conf_ports ports;

    if (parse_ports(value, &ports.first, &ports.last) < 0)
        return GW_E_INVALID;
    memcpy((uint8_t *)conf + key->offset, &ports, sizeof(ports));
    return 0;
}

int conf_set(const struct conf_key *key, const char *value, struct conf *conf)
{
    switch (key->type) {
    case CONF_PATH:
    case CONF_NAME:
        return set_text(key, value, conf);
    case CONF_CHOICE:
        return set_choice(key, value, conf);
    case CONF_PORTS:
        return set_ports(key, value, conf);
    case CONF_TIME:
    case CONF_BYTES:
    case CONF_COUNT:
        return set_number(key, value, conf);
    }
    return GW_E_INVALID;
}

void conf_defaults(struct conf *ret_conf)
{
    int r;

    memset(ret_conf, 0, sizeof(*ret_conf));
    for (size_t i = 0; i < conf_keys_count; i++) {
        r = conf_set(&conf_keys[i], conf_keys[i].initial, ret_conf);
        assert(r == 0);
        (void)r;
    }
}

void conf_allowed(const struct conf_key *key, char *text, size_t text_bytes)
{
    switch (key->type) {
    case CONF_PATH:
        (void)snprintf(text, text_bytes, "an absolute path of at most %zu bytes%s", text_max(key),
                       key->initial[0] == '\0' ? ", or nothing" : "");
        break;
    case CONF_NAME:
        (void)snprintf(text, text_bytes, "a name or number of %u to %u bytes",
                       key->initial[0] == '\0' ? 0 : 1, CONF_NAME_BYTES - 1);
        break;
    case CONF_CHOICE:
        (void)snprintf(text, text_bytes, "one of");
        for (size_t i = 0, used; key->choices[i] != NULL; i++) {
            used = strlen(text);
            (void)snprintf(text + used, text_bytes - used, "%s %s", i == 0 ? "" : ",",
                           key->choices[i]);
        }
        break;
    case CONF_TIME:
        (void)snprintf(text, text_bytes,
                       "a time such as 500ms, 60s, 5min or 2h, from %llu ms to %llu h",
                       (unsigned long long)(key->min / 1000000u),
                       (unsigned long long)(key->max / 3600000000000ull));
        break;
    case CONF_BYTES:
        (void)snprintf(text, text_bytes, "a size such as 4096, 64MiB or 1.5GiB; 0: no limit");
        break;
    case CONF_COUNT:
        (void)snprintf(text, text_bytes, "a whole number from %llu to %llu",
                       (unsigned long long)key->min, (unsigned long long)key->max);
        break;
    case CONF_PORTS:
        (void)snprintf(text, text_bytes, "ports such as 46200-46399, one port, or 0: any");
        break;
    }
}

void conf_ports_text(const struct conf_ports *ports, char text[CONF_PORTS_TEXT])
{
    if (ports->first == 0)
        (void)snprintf(text, CONF_PORTS_TEXT, "0");
    else
        (void)snprintf(text, CONF_PORTS_TEXT, "%u-%u", ports->first, ports->last);
}

const struct conf_key *conf_difference(const struct conf *a, const struct conf *b, size_t from)
{
    for (size_t i = from; i < conf_keys_count; i++) {
        const struct conf_key *key = &conf_keys[i];
        const uint8_t *x = (const uint8_t *)a + key->offset;
        const uint8_t *y = (const uint8_t *)b + key->offset;
        bool same;

        if (key->type == CONF_PATH || key->type == CONF_NAME) {
            same = strcmp((const char *)x, (const char *)y) == 0;
        } else if (key->type == CONF_COUNT || key->type == CONF_CHOICE) {
            same = memcmp(x, y, sizeof(uint32_t)) == 0;
        } else if (key->type == CONF_PORTS) {
            same = memcmp(x, y, sizeof(struct conf_ports)) == 0;
        } else {
            same = memcmp(x, y, sizeof(uint64_t)) == 0;
        }
        if (!same)
            return key;
    }
    return NULL;
}

/* Keeps the first error only; the rest of the file may follow from it. */
__attribute__((format(printf, 2, 3))) static void fail(struct reader *reader, const char *format,
                                                       ...)
{
    va_list list;
    int n;

    if (reader->error_line != 0)
        return;
    reader->error_line = reader->line;
    n = snprintf(reader->error, reader->error_bytes, "%s:%d: ", reader->file, reader->line);
    if (n < 0 || (size_t)n >= reader->error_bytes)
        return;
    va_start(list, format);
    (void)vsnprintf(reader->error + n, reader->error_bytes - (size_t)n, format, list);
    va_end(list);
}

/* fgets for inih: one line, without leading blanks (they would make it a continuation). */
static char *next_line(char *line, int room, void *stream)
{
    struct reader *reader = stream;
    const char *end;
    size_t bytes;

    if (reader->left_bytes == 0 || room < 2 || reader->error_line != 0)
        return NULL;
    reader->line++;
    end = memchr(reader->text, '\n', reader->left_bytes);
    bytes = end == NULL ? reader->left_bytes : (size_t)(end - reader->text) + 1;
    if (memchr(reader->text, '\0', bytes) != NULL) {
        fail(reader, "a NUL byte; this is not a text file");
        return NULL;
    }
    if (bytes > CONF_LINE_MAX || bytes >= (size_t)room) {
        fail(reader, "a line of more than %u bytes", CONF_LINE_MAX);
        return NULL;
    }
    memcpy(line, reader->text, bytes);
    line[bytes] = '\0';
    reader->text += bytes;
    reader->left_bytes -= bytes;
    bytes = strspn(line, " \t\r\f\v");
    memmove(line, line + bytes, strlen(line + bytes) + 1);
    return line;
}

static void fail_unknown(struct reader *reader, const char *section, const char *name)
{
    bool section_known = false;
    char known[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < conf_keys_count; i++)
        section_known = section_known || strcmp(conf_keys[i].section, section) == 0;
    for (size_t i = 0; i < conf_keys_count && used < sizeof(known); i++) {
        const struct conf_key *key = &conf_keys[i];
        bool first = i == 0 || strcmp(key->section, conf_keys[i - 1].section) != 0;
        int n = 0;

        if (section_known && strcmp(key->section, section) == 0) {
            n = snprintf(known + used, sizeof(known) - used, " %s", key->name);
        } else if (!section_known && first) {
            n = snprintf(known + used, sizeof(known) - used, " [%s]", key->section);
        }
        used += (size_t)n;
    }
    if (section[0] == '\0')
        fail(reader, "key '%s' stands before any section; the sections are:%s", name, known);
    else
        fail(reader, "unknown key '%s' in [%s]; %s:%s", name, section,
             section_known ? "it has" : "there is no such section, only", known);
}

static int handle_key(void *user, const char *section, const char *name, const char *value)
{
    struct reader *reader = user;
    char allowed[128];

    for (size_t i = 0; i < conf_keys_count; i++) {
        const struct conf_key *key = &conf_keys[i];

        if (strcmp(key->section, section) != 0 || strcmp(key->name, name) != 0)
            continue;
        assert(i < sizeof(reader->seen_line) / sizeof(reader->seen_line[0]));
        if (reader->seen_line[i] != 0) {
            fail(reader, "'%s' in [%s] is given twice, first in line %d", name, section,
                 reader->seen_line[i]);
            return 0;
        }
        reader->seen_line[i] = reader->line;
        if (conf_set(key, value, &reader->conf) < 0) {
            conf_allowed(key, allowed, sizeof(allowed));
            fail(reader, "bad value '%s' for '%s' in [%s]: expected %s", value, name, section,
                 allowed);
            return 0;
        }
        return 1;
    }
    fail_unknown(reader, section, name);
    return 0;
}

int conf_parse(const char *text, size_t text_bytes, const char *file, struct conf *conf,
               char *error, size_t error_bytes)
{
    struct reader reader = {
        .text = text,
        .left_bytes = text_bytes,
        .file = file,
        .conf = *conf,
        .error = error,
        .error_bytes = error_bytes,
    };
    int r;

    assert(error_bytes > 0);
    error[0] = '\0';
    r = ini_parse_stream(next_line, &reader, handle_key, &reader);
    /* inih found a bad line by itself, before any that we refused. */
    if (r != 0 && (reader.error_line == 0 || r < reader.error_line)) {
        reader.line = r;
        reader.error_line = 0;
        fail(&reader, "neither '[section]' nor 'key = value' nor a comment");
    }
    if (reader.error_line != 0)
        return GW_E_INVALID;
    if (reader.conf.star_lost_ns / CONF_BEATS_TO_LOST < reader.conf.star_beat_ns) {
        (void)snprintf(error, error_bytes,
                       "%s: star_lost must be at least %d times star_beat: a beat that is late is "
                       "no lost node",
                       file, CONF_BEATS_TO_LOST);
        return GW_E_INVALID;
    }
    *conf = reader.conf;
    return 0;
}
