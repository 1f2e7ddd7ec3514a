/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_state_save_sync and gw_state_load_sync: phases, and the ranks' agreement after each.
 *
 *   save                                       load
 *   list, cut; rank 0 makes the files          list; every rank reads the headers
 *   ---- agree ----                            ---- agree ----
 *   every rank writes what it owns, to disk    every rank reads what it owns
 *   ---- agree ----                            ---- agree ----
 *   rank 0 renames
 *   ---- agree ----
 *
 * To agree is one all-gather of every rank's outcome. A rank that failed takes part in it: so all
 * end with the same error, and nobody waits for one that has given up. Blocks; any thread.
 */
#include "client/lib/state.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/options.h"
#include "daemon/base/hash.h"

/* A rank's outcome, as it travels. */
struct outcome {
    int32_t code;
    uint32_t reserved;
    uint64_t digest; /* of what it asks for */
    char text[496];
};
_Static_assert(sizeof(struct outcome) == 512, "as gradwire.h says");
#define OUTCOME_NUMEL (sizeof(struct outcome) / sizeof(float))

/* ---- agreement ------------------------------------------------------------------------------- */

static int stream_error(gw_job *job, int r)
{
    return job_deadline_passed(job, &r)
               ? err_set(r, "the job's stream was not done before the deadline")
               : r;
}

static int gather(struct state *s, const struct outcome *own, struct outcome *all)
{
    const struct order_ops *ops = s->job->order.ops;
    struct gw_op_options options = {.struct_size = sizeof(options), .name = "gw_state"};
    uint64_t offset = s->job->rank * OUTCOME_NUMEL;
    float *data = gw_buffer_data(s->board);
    int64_t now = clock_now();
    struct gw_token token;
    int r;

    r = stream_error(s->job, ops->copy_in(s->job, data + offset, own, sizeof(*own), s->deadline));
    if (r == 0)
        r = gw_all_gather(s->job, (struct gw_slice){s->board, offset},
                          (struct gw_slice){s->board, 0}, OUTCOME_NUMEL, &options, &token);
    if (r == 0)
        r = gw_wait(s->job, token, s->deadline > now ? s->deadline - now : 0);
    if (r < 0)
        return r;
    return stream_error(
        s->job, ops->copy_out(s->job, all, data, s->job->world * sizeof(*all), s->deadline));
}

/* The first rank that failed gives the error of all. */
static int judge(const struct state *s, struct outcome *all)
{
    for (uint32_t rank = 0; rank < s->job->world; rank++) {
        all[rank].text[sizeof(all[rank].text) - 1] = '\0';
        if (all[rank].code < 0)
            return err_set(all[rank].code, "rank %u: %s", rank, all[rank].text);
    }
    for (uint32_t rank = 1; rank < s->job->world; rank++) {
        if (all[rank].digest != all[0].digest)
            return err_set(GW_E_MISMATCH,
                           "rank %u asks for other tensors or files than rank 0: options must be "
                           "the same on all ranks, and `path` the same files",
                           rank);
    }
    return 0;
}

/* r: this rank's. */
static int agree(struct state *s, int r)
{
    struct outcome own = {.code = r, .digest = s->digest};
    struct outcome *all = calloc(s->job->world, sizeof(*all));

    if (!all)
        return err_set(GW_E_NOMEM, "no memory for the ranks' outcomes");
    if (r < 0)
        (void)strncat(own.text, gw_last_error(), sizeof(own.text) - 1);
    r = gather(s, &own, all);
    s->board_in_use = r < 0;
    if (r == 0)
        r = judge(s, all);
    free(all);
    return r;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void find_array(const struct state *s, const char *name, struct state_array *ret_array)
{
    pthread_mutex_lock(&s->job->lock);
    for (struct zero_array *array = s->zero->arrays; array && !ret_array->known;
         array = array->next) {
        ret_array->known = strcmp(array->name, name) == 0;
        if (ret_array->known)
            ret_array->dtype = array->dtype;
    }
    pthread_mutex_unlock(&s->job->lock);
}

/* A save takes arrays that are there: one that it made would be zeros under a misspelled name, and
 * of a dtype that only ranks which have some of it know. */
static int find_arrays(struct state *s)
{
    s->arrays = calloc(s->options.array_count + 1, sizeof(*s->arrays));
    if (!s->arrays)
        return err_set(GW_E_NOMEM, "no memory for the list of arrays");
    for (size_t i = 0; i < s->options.array_count; i++) {
        find_array(s, s->options.arrays[i], &s->arrays[i]);
        if (!s->arrays[i].known && s->saving)
            return err_set(GW_E_NOT_FOUND, "there is no shard array %.63s; gw_shard_array makes "
                           "it, on every rank", s->options.arrays[i]);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->tensors[i].array != UINT32_MAX)
            s->tensors[i].dtype = s->arrays[s->tensors[i].array].dtype;
    }
    return 0;
}

static int make_arrays(struct state *s)
{
    int r = 0;

    for (size_t i = 0; i < s->options.array_count && r == 0; i++)
        r = gw_shard_array(s->job, s->options.arrays[i], s->arrays[i].dtype, &s->arrays[i].values,
                           NULL);
    return r;
}

static int prepare(struct state *s)
{
    int r = state_list(s);

    if (r == 0)
        r = find_arrays(s);
    if (r == 0)
        r = s->saving ? state_cut(s) : state_find(s);
    if (r == 0)
        r = make_arrays(s);
    if (r == 0 && s->saving && s->job->rank == 0)
        r = state_files_make(s);
    return r;
}

static int save(struct state *s)
{
    int r;

    r = agree(s, prepare(s));
    if (r == 0)
        r = agree(s, state_move(s));
    if (r == 0)
        r = agree(s, s->job->rank == 0 ? state_files_name(s) : 0);
    return r;
}

static int load(struct state *s)
{
    int r;

    r = agree(s, prepare(s));
    if (r < 0)
        return r;
    r = agree(s, state_move(s));
    return r < 0 ? err_prefix(r, "the state is partly loaded") : 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void free_file(struct state_file *file)
{
    free(file->path);
    free(file->partial);
    free(file->header);
}

/* Also one that is half built. */
static void state_free(struct state *s)
{
    state_files_remove(s);
    for (uint32_t f = 0; f < s->file_count; f++)
        free_file(&s->files[f]);
    free_file(&s->index);
    for (uint32_t i = 0; i < s->count; i++)
        free(s->tensors[i].name);
    free(s->files);
    free(s->tensors);
    free(s->arrays);
    free(s);
}

static int check_call(const char *path, const struct gw_state_options *options,
                      struct gw_state_options *ret_options)
{
    struct gw_state_options defaults = {.struct_size = sizeof(defaults)};

    if (!path || !path[0])
        return err_set(GW_E_INVALID, "the path is missing");
    return options_take(ret_options, sizeof(*ret_options), options ? options : &defaults,
                        sizeof(defaults.struct_size), "gw_state_options");
}

/* An agreement that failed may have left a copy or an op of the board's on its way. The text of the
 * call's error, which freeing may replace, is put back. */
static int free_board(struct state *s, int r)
{
    char text[1024];
    int freed;

    if (s->board_in_use)
        return r;
    (void)strncpy(text, gw_last_error(), sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    freed = gw_buffer_free(s->job, s->board);
    return r < 0 ? err_set(r, "%s", text) : freed;
}

static int run(gw_job *job, const char *path, const struct gw_state_options *options, bool saving,
               int64_t timeout_ns)
{
    struct state *s = NULL;
    struct zero *zero = NULL;
    struct gw_state_options taken;
    int r = zero_enter(job, &zero);

    if (r == 0)
        r = check_call(path, options, &taken);
    if (r < 0)
        return r;
    s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(GW_E_NOMEM, "no memory for the state's description");
    *s = (struct state){.job = job,
                        .zero = zero,
                        .options = taken,
                        .path = path,
                        .deadline = clock_deadline(timeout_ns),
                        .saving = saving,
                        .digest = hash_add_u64(HASH_START, saving),
                        .open = STATE_NOT_FOUND,
                        .index = {.fd = -1}};
    memset(s->id, '0', STATE_ID_CHARS);
    r = gw_buffer_new(job, job->world * sizeof(struct outcome), &s->board);
    if (r == 0) {
        r = saving ? save(s) : load(s);
        r = free_board(s, r);
    }
    state_free(s);
    return r < 0 ? err_prefix(r, saving ? "saving" : "loading") : 0;
}

int gw_state_save_sync(gw_job *job, const char *path, const struct gw_state_options *options,
                       int64_t timeout_ns)
{
    return run(job, path, options, true, timeout_ns);
}

int gw_state_load_sync(gw_job *job, const char *path, const struct gw_state_options *options,
                       int64_t timeout_ns)
{
    return run(job, path, options, false, timeout_ns);
}
