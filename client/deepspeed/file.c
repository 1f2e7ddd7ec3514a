/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_job_options_from_deepspeed_file and what goes with it: reads the file, has daemon/conf parse
 * it, and hands the result on. The parser is the one of gwctl plan, linked in statically: one table
 * of keys decides what a plan says and what a job does. Any thread; keeps nothing between calls.
 *
 * Error texts go to the thread's text in libgradwire, by the call that libgradwire-cuda uses too.
 */
#include "gradwire/deepspeed.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/device.h" /* gw_private_error */
#include "daemon/base/text.h"
#include "daemon/conf/deepspeed.h"

_Static_assert((int)GW_DEEPSPEED_SUPPORTED == (int)DEEPSPEED_SUPPORTED &&
                   (int)GW_DEEPSPEED_MAPPED == (int)DEEPSPEED_MAPPED &&
                   (int)GW_DEEPSPEED_NOT_NEEDED == (int)DEEPSPEED_NOT_NEEDED &&
                   (int)GW_DEEPSPEED_REJECTED == (int)DEEPSPEED_REJECTED,
               "one enum under two names");

struct gw_deepspeed {
    struct deepspeed *parsed;
};

static int wrong(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(int code, const char *format, ...)
{
    char buffer[DEEPSPEED_ERROR_BYTES];
    struct text text = TEXT(buffer);
    va_list list;

    text_add(&text, "%s", "");
    va_start(list, format);
    text_addv(&text, format, list);
    va_end(list);
    return gw_private_error(code, buffer);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Up to one byte more than is allowed. */
static int read_bytes(int fd, const char *path, char *bytes, size_t *ret_count)
{
    size_t count = 0;

    while (count <= DEEPSPEED_TEXT_MAX) {
        ssize_t n = read(fd, bytes + count, DEEPSPEED_TEXT_MAX + 1 - count);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return wrong(GW_E_IO, "cannot read %.200s: %s", path, strerror(errno));
        if (n == 0)
            break;
        count += (size_t)n;
    }
    *ret_count = count;
    return 0;
}

static int read_file(const char *path, char **ret_text, size_t *ret_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    char *text = malloc(DEEPSPEED_TEXT_MAX + 1);
    size_t bytes = 0;
    int r;

    if (fd < 0)
        r = wrong(GW_E_IO, "cannot read %.200s: %s", path, strerror(errno));
    else if (text == NULL)
        r = wrong(GW_E_NOMEM, "no memory for %.200s", path);
    else
        r = read_bytes(fd, path, text, &bytes);
    if (r == 0 && bytes > DEEPSPEED_TEXT_MAX)
        r = wrong(GW_E_INVALID, "%.200s: more than %u bytes", path, DEEPSPEED_TEXT_MAX);
    if (fd >= 0)
        (void)close(fd);
    if (r < 0) {
        free(text);
        return r;
    }
    *ret_text = text;
    *ret_bytes = bytes;
    return 0;
}

/* ---- options --------------------------------------------------------------------------------- */

static int take_given(const struct gw_deepspeed_given *given, struct gw_deepspeed_given *ret_given,
                      struct deepspeed_given *ret_inner)
{
    struct gw_deepspeed_given own = {0};
    uint32_t version = 0;

    if (given == NULL || given->struct_size < sizeof(size_t) + sizeof(uint32_t) ||
        given->struct_size > sizeof(own))
        return wrong(GW_E_INVALID,
                     "gw_deepspeed_given is NULL, or its struct_size is not its size (%zu)",
                     sizeof(own));
    memcpy(&own, given, given->struct_size);
    if (own.world == 0)
        return wrong(GW_E_INVALID, "gw_deepspeed_given.world is 0; say how many ranks there are");
    if (own.version != NULL && deepspeed_version(own.version, &version) < 0)
        return wrong(GW_E_INVALID, "%.40s is no version such as 0.19.8", own.version);
    *ret_given = own;
    *ret_inner = (struct deepspeed_given){
        .world = own.world,
        .numel = own.numel,
        .bucket_bytes = own.bucket_bytes,
        .micro_steps = own.micro_steps,
        .version = version,
    };
    return 0;
}

/* A job that quietly does something else is worse than none. */
static int check_rejected(const char *path, const struct deepspeed_list *keys)
{
    char names[DEEPSPEED_ERROR_BYTES / 2];
    struct text text = TEXT(names);
    unsigned count = 0;

    for (size_t i = 0; i < keys->count; i++) {
        const struct deepspeed_entry *entry = &keys->entries[i];

        if (entry->status == DEEPSPEED_REJECTED)
            text_add(&text, "%s%s (%s)", count++ ? "; " : "", entry->key, entry->meaning);
    }
    if (count == 0)
        return 0;
    return wrong(GW_E_UNIMPLEMENTED,
                 "%.200s asks for what this release does not do: %s%s. Remove the key%s, or set "
                 "accept_rejected to go on without",
                 path, names, text.cut ? " ..." : "", count == 1 ? "" : "s");
}

static int parse(const char *path, const struct gw_deepspeed_given *given,
                 struct gw_deepspeed **ret_config)
{
    char error[DEEPSPEED_ERROR_BYTES] = "", *text = NULL;
    struct gw_deepspeed_given own = {0};
    struct deepspeed_given inner = {0};
    struct gw_deepspeed *config;
    size_t bytes = 0;
    int r = take_given(given, &own, &inner);

    if (r == 0)
        r = read_file(path, &text, &bytes);
    if (r < 0)
        return r;
    /* The parser would seed jansson's hash by a constant, for the whole process: ours is first. */
    json_object_seed(0);
    config = calloc(1, sizeof(*config));
    r = config == NULL
            ? GW_E_NOMEM
            : deepspeed_parse(text, bytes, path, &inner, &config->parsed, error, sizeof(error));
    free(text);
    if (r < 0)
        r = wrong(r, "%s", r == GW_E_NOMEM ? "no memory for the configuration" : error);
    if (r == 0 && !own.accept_rejected)
        r = check_rejected(path, &config->parsed->keys);
    if (r < 0) {
        (void)gw_deepspeed_free(config);
        return r;
    }
    *ret_config = config;
    return 0;
}

/* The caller's struct may be an older, shorter one. */
static void give(void *to, size_t struct_size, const void *from, size_t bytes)
{
    memcpy(to, from, struct_size < bytes ? struct_size : bytes);
    memcpy(to, &struct_size, sizeof(struct_size));
}

int gw_job_options_from_deepspeed_file(const char *path, const struct gw_deepspeed_given *given,
                                       struct gw_zero_options *ret_options,
                                       struct gw_deepspeed **ret_config)
{
    struct gw_deepspeed *config = NULL;
    int r;

    if (path == NULL || ret_options == NULL || ret_options->struct_size < sizeof(size_t))
        return wrong(GW_E_INVALID, "the path or the options are NULL, or gw_zero_options."
                                   "struct_size is not set; set it to sizeof the struct");
    r = parse(path, given, &config);
    if (r < 0)
        return r;
    give(ret_options, ret_options->struct_size, &config->parsed->options,
         sizeof(config->parsed->options));
    if (ret_config != NULL)
        *ret_config = config;
    else
        (void)gw_deepspeed_free(config);
    return 0;
}

struct gw_deepspeed *gw_deepspeed_free(struct gw_deepspeed *config)
{
    if (config != NULL)
        (void)deepspeed_free(config->parsed);
    free(config);
    return NULL;
}

int gw_deepspeed_param_options(const struct gw_deepspeed *config,
                               struct gw_param_options *ret_options)
{
    struct gw_param_options options = {0};

    if (config == NULL || ret_options == NULL || ret_options->struct_size < sizeof(size_t))
        return wrong(GW_E_INVALID, "the configuration or the options are NULL, or "
                                   "gw_param_options.struct_size is not set");
    options.dtype = config->parsed->dtype;
    options.grad_dtype = config->parsed->grad_dtype;
    give(ret_options, ret_options->struct_size, &options, sizeof(options));
    return 0;
}

int gw_deepspeed_loss_scale(const struct gw_deepspeed *config,
                            struct gw_loss_scale_options *ret_options)
{
    if (config == NULL || ret_options == NULL || ret_options->struct_size < sizeof(size_t))
        return wrong(GW_E_INVALID, "the configuration or the options are NULL, or "
                                   "gw_loss_scale_options.struct_size is not set");
    if (config->parsed->loss_scale.struct_size == 0)
        return 0;
    give(ret_options, ret_options->struct_size, &config->parsed->loss_scale,
         sizeof(config->parsed->loss_scale));
    return 1;
}

/* ---- report ---------------------------------------------------------------------------------- */

int gw_deepspeed_get_entry(const struct gw_deepspeed *config, uint32_t list, size_t index,
                           struct gw_deepspeed_entry *ret_entry)
{
    const struct deepspeed_list *entries;

    if (config == NULL || ret_entry == NULL || list > GW_DEEPSPEED_DEFAULTS)
        return wrong(GW_E_INVALID, "the configuration or the entry is NULL, or there is no list %u",
                     list);
    entries = list == GW_DEEPSPEED_KEYS ? &config->parsed->keys : &config->parsed->defaults;
    if (index >= entries->count)
        return wrong(GW_E_NOT_FOUND, "the list has %zu entries", entries->count);
    *ret_entry = (struct gw_deepspeed_entry){
        .key = entries->entries[index].key,
        .value = entries->entries[index].value,
        .meaning = entries->entries[index].meaning,
        .status = (uint32_t)entries->entries[index].status,
    };
    return 0;
}

const char *gw_deepspeed_status_name(uint32_t status)
{
    return status <= GW_DEEPSPEED_REJECTED ? deepspeed_status_name((enum deepspeed_status)status)
                                           : "?";
}
