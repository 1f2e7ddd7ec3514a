/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: a client that is ahead of the service by any number of messages, and takes a fetch for a
 * hit by what was published (proto/WIRE.md, Hits), is right each time: when the service comes to
 * that fetch, nothing is gathered for it, and it lies where the client has read it.
 * ctest: timeout=120
 */
#include "test_zero_fixture.h"

#define UNITS 8u
#define QUEUE 64u
#define MESSAGES 40000u
#define LIVES 3u
#define NEVER UINT32_MAX

struct message {
    uint16_t type;
    uint32_t unit;
    bool hit;
    uint64_t value, offset;
    uint64_t under_way; /* the oldest op that was, when it was declared */
};

static struct {
    struct fx *fx;
    uint64_t seed;
    /* what the service has published */
    struct core_grant grants[UNITS];
    struct core_progress progress;
    /* on the way */
    struct message queue[QUEUE];
    uint32_t head, count;
    /* the client */
    uint64_t fetches[UNITS], held[UNITS];
    uint32_t holding;
    uint64_t declared, cleared, fetched, other, touched[UNITS];
    uint32_t last; /* fetch unit */
    uint64_t hits, misses, merged_hits;
} t;

static uint32_t chance(uint32_t bound)
{
    t.seed = t.seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((t.seed >> 33) % bound);
}

static uint32_t fetch_unit_of(uint32_t unit)
{
    return layout_units(t.fx->layout)[unit].fetch_unit;
}

/* ---- the service ----------------------------------------------------------------------------- */

static void publish(void)
{
    struct core_progress progress;
    struct core_grant grant;

    while (grant_next(t.fx->zero, &grant))
        t.grants[grant.unit] = grant;
    if (grant_progress(t.fx->zero, 0, &progress)) {
        assert_true(progress.served >= t.progress.served);
        assert_true(progress.ring_at >= progress.served);
        t.progress = progress;
    }
}

/* The fetch's word rises by itself, nothing is gathered for it; at the place that the client has
 * read, after a gather that was done by then. What is gathered ahead comes after. */
static void check_hit(const struct message *message)
{
    unsigned long long op;
    const char *behind;
    char line[64];

    if (message->offset)
        snprintf(line, sizeof(line), "SIG u%u@0=%llu+%llu", message->unit,
                 (unsigned long long)message->value, (unsigned long long)message->offset / 4);
    else
        snprintf(line, sizeof(line), "SIG u%u@0=%llu", message->unit,
                 (unsigned long long)message->value);
    if (t.fx->count == 0 || strncmp(t.fx->lines[0], line, strlen(line)) != 0)
        fail_msg("fetch %llu of unit %u was taken for a hit, but the service says: %s",
                 (unsigned long long)message->value, message->unit, fx_lines(t.fx));
    behind = strchr(t.fx->lines[0], '<');
    if (behind && sscanf(behind, "<%llu", &op) == 1 && op >= message->under_way)
        fail_msg("fetch %llu of unit %u was taken for a hit, but op %llu was under way",
                 (unsigned long long)message->value, message->unit, op);
}

static void serve_one(void)
{
    struct message message = t.queue[t.head];

    t.head = (t.head + 1) % QUEUE;
    t.count--;
    fx_lines(t.fx);
    if (message.type == WIRE_FETCH || message.type == WIRE_RELEASE)
        assert_int_equal(fx_unit(t.fx, 0, message.type, message.unit), 0);
    else
        assert_int_equal(fx_bare(t.fx, 0, message.type), 0);
    if (message.hit)
        check_hit(&message);
}

/* The oldest op is done; those of one stream are in order. */
static void complete_one(void)
{
    uint64_t op = t.fx->open[0];

    t.fx->open_count--;
    memmove(t.fx->open, t.fx->open + 1, t.fx->open_count * sizeof(t.fx->open[0]));
    zero_op_done(t.fx->zero, t.fx->now_ns, op, t.fx->now_ns, t.fx->now_ns);
    fx_take(t.fx);
}

static void serve_some(void)
{
    for (uint32_t left = chance(6); left > 0 && t.count > 0; left--) {
        serve_one();
        if (chance(3) == 0) /* not after each: the service publishes once a turn */
            publish();
    }
    for (uint32_t left = chance(4); left > 0 && t.fx->open_count > 0; left--)
        complete_one();
    publish();
}

static void serve_all(void)
{
    while (t.count > 0)
        serve_one();
    while (t.fx->open_count > 0)
        complete_one();
    publish();
}

/* ---- the client ------------------------------------------------------------------------------ */

static void send(struct message message)
{
    while (t.count == QUEUE)
        serve_some();
    t.queue[(t.head + t.count++) % QUEUE] = message;
}

static bool is_hit(uint32_t unit)
{
    const struct core_grant *grant = &t.grants[unit];
    uint32_t f = fetch_unit_of(unit);
    uint64_t other = t.last == f ? t.other : t.fetched;

    return grant->value == t.fetches[unit] + 1 && t.progress.served >= t.cleared &&
           (t.touched[f] <= grant->since || t.progress.served >= other);
}

static void fetch(uint32_t unit)
{
    struct message message = {.type = WIRE_FETCH, .unit = unit, .hit = is_hit(unit)};
    uint32_t f = fetch_unit_of(unit);

    message.value = ++t.fetches[unit];
    message.offset = message.hit ? t.grants[unit].offset : 0;
    message.under_way = t.fx->open_count ? t.fx->open[0] : UINT64_MAX;
    if (t.last != f)
        t.other = t.fetched;
    t.last = f;
    t.declared++;
    t.merged_hits += message.hit && t.touched[f] > t.grants[unit].since;
    t.fetched = t.touched[f] = t.declared;
    if (message.hit)
        t.hits++;
    else
        t.misses++;
    if (!message.hit)
        t.cleared = t.declared;
    t.held[unit]++;
    t.holding++;
    send(message);
}

static void release(uint32_t unit)
{
    t.held[unit]--;
    t.holding--;
    send((struct message){.type = WIRE_RELEASE, .unit = unit});
}

static void release_some_unit(void)
{
    uint32_t unit = chance(UNITS);

    while (t.held[unit] == 0)
        unit = (unit + 1) % UNITS;
    release(unit);
}

static void end_step(void)
{
    while (t.holding > 0)
        release_some_unit();
    t.cleared = ++t.declared;
    send((struct message){.type = WIRE_STEP_END});
    send((struct message){.type = WIRE_UPDATE_BEGIN});
    if (chance(2)) { /* the window must be open */
        serve_all();
    } else {
        while (t.count > 0 || t.fx->open_count > 0)
            serve_some();
    }
    send((struct message){.type = WIRE_UPDATE_COMMIT});
}

/* A step in the usual order, with now and then something else; units are held up to two at a time,
 * so that the budget always has room for one more. */
static void step(uint32_t odd)
{
    for (uint32_t i = 0; i < 2 * UNITS; i++) {
        uint32_t unit = i < UNITS ? i : 2 * UNITS - 1 - i;

        if (odd != NEVER && chance(odd) == 0)
            unit = chance(UNITS);
        while (t.holding > (odd == NEVER ? 0 : chance(2)))
            release_some_unit();
        fetch(unit);
        if (chance(4) == 0)
            serve_all(); /* a long time to compute */
        else
            serve_some();
    }
    end_step();
}

/* The rank dies in the middle of a step, with messages unread, and the job forms anew: boards that
 * show nothing, and a client that has declared nothing. */
static void form_anew(void)
{
    struct core_progress progress;
    struct core_grant grant;

    serve_all(); /* no update is under way */
    for (uint32_t unit = 0; unit < UNITS / 2; unit++) {
        fetch(unit);
        serve_some();
        release(unit);
    }
    t.count = t.fx->open_count = 0;
    assert_int_equal(fx_reattach(t.fx), 0);
    assert_false(grant_next(t.fx->zero, &grant));
    assert_false(grant_progress(t.fx->zero, 0, &progress));
    memset(t.grants, 0, sizeof(t.grants));
    memset(&t.progress, 0, sizeof(t.progress));
    memset(t.fetches, 0, sizeof(t.fetches));
    memset(t.touched, 0, sizeof(t.touched));
    t.declared = t.cleared = t.fetched = t.other = 0;
    t.last = NEVER;
}

static void run(uint64_t seed, uint64_t bucket, uint64_t budget, uint64_t ahead, uint32_t odd)
{
    memset(&t, 0, sizeof(t));
    t.seed = seed;
    t.last = NEVER;
    t.fx = fx_new(3, 1, bucket, 1);
    t.fx->options.gather = GW_GATHER_PRIVATE;
    t.fx->options.gather_bytes = budget * 4;
    t.fx->options.prefetch_bytes = ahead * 4;
    fx_open(t.fx, 0, 8, 8, 3, 3, 8, 2, 2, 8);
    for (uint32_t life = 0; life < LIVES; life++) {
        if (life > 0)
            form_anew();
        while (t.declared < MESSAGES / 8 / LIVES)
            step(odd);
    }
    serve_all();
    fx_free(t.fx);
}

/* Units alone in their fetch units, and several merged into one. */
static void what_a_client_takes_for_a_hit_is_one(void **state)
{
    static const uint64_t buckets[] = {4, 8, 12}, aheads[] = {8, 16, 64}, budgets[] = {24, 32, 64};
    uint64_t merged = 0;

    (void)state;
    for (uint64_t i = 0; i < 27; i++) {
        run(i + 1, buckets[i % 3], budgets[i / 3 % 3], aheads[i / 9], 6);
        assert_true(t.hits > MESSAGES / 8 / 50);
        merged += t.merged_hits;
    }
    assert_true(merged > 100); /* the second unit of a fetch unit, too */
}

static void in_its_usual_order_a_step_is_mostly_hits(void **state)
{
    (void)state;
    run(7, 8, 64, 64, NEVER);
    assert_true(t.hits > t.misses);
}

/* All that a step will fetch is there: nobody need ring before its end. */
static void with_nothing_more_to_gather_nobody_is_rung_for(void **state)
{
    struct fx *fx = fx_new(3, 1, 8, 1);
    struct core_progress progress;
    struct core_grant grant;

    (void)state;
    fx->options.gather = GW_GATHER_PRIVATE;
    fx->options.gather_bytes = 64 * 4;
    fx->options.prefetch_bytes = 16 * 4;
    fx_open(fx, 0, 8, 8, 8, 8, 8);
    for (uint32_t unit = 0; unit < 5; unit++) {
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, unit), 0);
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, unit), 0);
    }
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_all_done(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0); /* without an update; 2 of 4 ahead */
    fx_all_done(fx);
    assert_true(grant_progress(fx->zero, 0, &progress));
    assert_int_equal(progress.served, 7);
    assert_int_equal(progress.ring_at, 8);
    assert_false(grant_progress(fx->zero, 0, &progress));
    for (uint32_t unit = 1; unit < 4; unit++) {
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, unit - 1), 0);
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, unit), 0);
        fx_all_done(fx);
    }
    assert_true(grant_progress(fx->zero, 0, &progress));
    assert_int_equal(progress.served, 10);
    assert_true(progress.ring_at == UINT64_MAX);
    while (grant_next(fx->zero, &grant)) /* told last is how it is now */
        if (grant.unit == 4)
            assert_int_equal(grant.value, 2);
        else
            assert_int_equal(grant.value, 0);
    fx_free(fx);
}

/* The second step of one rank, in which two units are gathered ahead and the first is done with. */
static struct fx *open_ahead(void)
{
    struct fx *fx = fx_new(3, 1, 8, 1);
    struct core_grant grant;

    fx->options.gather = GW_GATHER_PRIVATE;
    fx->options.gather_bytes = 64 * 4;
    fx->options.prefetch_bytes = 16 * 4;
    fx_open(fx, 0, 8, 8, 8);
    for (uint32_t unit = 0; unit < 3; unit++) {
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, unit), 0);
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, unit), 0);
    }
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_all_done(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    fx_all_done(fx);
    while (grant_next(fx->zero, &grant))
        t.grants[grant.unit] = grant;
    assert_int_equal(t.grants[1].value, 2);
    assert_int_equal(t.grants[2].value, 2);
    fx_lines(fx);
    return fx;
}

/* No grant is left, and the next fetch gathers. */
static void check_forgotten(struct fx *fx)
{
    struct core_grant grant;

    while (grant_next(fx->zero, &grant))
        t.grants[grant.unit] = grant;
    assert_int_equal(t.grants[1].value, 0);
    assert_int_equal(t.grants[2].value, 0);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    assert_int_equal(strncmp(fx_lines(fx), "GA@0 b1", 7), 0);
    fx_free(fx);
}

/* A checkpoint is loaded after an evaluation, say. */
static void what_was_gathered_before_a_write_is_no_hit(void **state)
{
    struct fx *fx = open_ahead();

    (void)state;
    assert_int_equal(fx_io(fx, 0, 1, 1, 0, 8), 0);
    check_forgotten(fx);
}

/* Its gathers go to the pool, too. */
static void what_was_gathered_before_a_measurement_is_no_hit(void **state)
{
    struct fx *fx = open_ahead();

    (void)state;
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    fx_all_done(fx);
    check_forgotten(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_client_takes_for_a_hit_is_one),
        cmocka_unit_test(in_its_usual_order_a_step_is_mostly_hits),
        cmocka_unit_test(with_nothing_more_to_gather_nobody_is_rung_for),
        cmocka_unit_test(what_was_gathered_before_a_write_is_no_hit),
        cmocka_unit_test(what_was_gathered_before_a_measurement_is_no_hit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
