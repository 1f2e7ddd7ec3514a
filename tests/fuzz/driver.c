/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: its seeds and kept corpus, then seeded mutations of them,
 * guided by coverage: an input that reaches a new edge is mutated further. The same on every run of
 * one build.
 *
 *   fuzz_x [-c CORPUS] [-k DIRECTORY] [runs [seed]]     -k: writes a corpus, few inputs that
 *   fuzz_x -f FILE                                      reach all edges that were reached
 *
 * On a crash the input stands in fuzz-<seed>-<run> in the working directory.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/parse.h"
#include "tests/fuzz/cover.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/pool.h"

#define INPUT_MAX 65600u

static uint8_t input[INPUT_MAX];
static volatile size_t input_bytes;
static char crash_name[64] = "fuzz-seeds";

/* Only calls that are safe in a handler. */
static void save_input(int number)
{
    const int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, input, input_bytes) < 0 ||
        write(STDERR_FILENO, crash_name, strlen(crash_name)) < 0)
        _exit(1);
    signal(number, SIG_DFL);
    raise(number);
}

static uint32_t random_below(uint64_t *seed, uint32_t bound)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*seed >> 33) % bound);
}

static void mutate(uint64_t *seed)
{
    static const uint8_t corners[] = {0, 1, 0x7f, 0x80, 0xff, '[', '=', '\n', 0x0a, 0x12, 'e', '9'};
    const uint32_t count = (uint32_t)input_bytes;
    const uint32_t at = count ? random_below(seed, count) : 0;
    uint32_t length = 1 + random_below(seed, 9);

    if (length > count - at)
        length = count - at;
    switch (random_below(seed, 5)) {
    case 0:
        input[at] ^= (uint8_t)(1u << random_below(seed, 8));
        break;
    case 1:
        input[at] = corners[random_below(seed, sizeof(corners))];
        break;
    case 2: /* out */
        memmove(input + at, input + at + length, count - at - length);
        input_bytes = count - length;
        break;
    case 3: /* twice */
        if (count + length > INPUT_MAX)
            break;
        memmove(input + at + length, input + at, count - at);
        input_bytes = count + length;
        break;
    default: /* the end off */
        input_bytes = at;
        break;
    }
}

/* An exact copy on the heap, so that a sanitizer sees the first byte behind it. */
static void run_exact(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes ? bytes : 1);

    FUZZ_CHECK(exact != NULL);
    memcpy(exact, data, bytes);
    (void)LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

static void run_input(void)
{
    cover_start();
    run_exact(input, input_bytes);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rbe");

    if (!file) {
        perror(path);
        return 1;
    }
    input_bytes = fread(input, 1, sizeof(input), file);
    fclose(file);
    run_input();
    return 0;
}

/* Seeds and corpus, each run once. */
static void run_pool(void)
{
    for (size_t i = 0; (input_bytes = fuzz_seed(i, input, sizeof(input))) > 0; i++)
        pool_add(input, input_bytes);
    for (size_t i = 0; i < pool_count(); i++) {
        input_bytes = pool_get(i, input, sizeof(input));
        run_input();
    }
}

static void run_mutations(uint64_t runs, uint64_t seed)
{
    uint64_t random = seed;

    for (uint64_t run = 0; run < runs; run++) {
        snprintf(crash_name, sizeof(crash_name), "fuzz-%llu-%llu", (unsigned long long)seed,
                 (unsigned long long)run);
        input_bytes = pool_get(random_below(&random, (uint32_t)pool_count()), input, sizeof(input));
        for (uint32_t n = 1 + random_below(&random, 6); n > 0 && input_bytes > 0; n--)
            mutate(&random);
        fuzz_repair(input, input_bytes);
        run_input();
        if (cover_news())
            pool_add(input, input_bytes);
    }
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    const char *keep = NULL;
    uint64_t runs = 50000, seed = 1;
    bool wrong = false;
    int option;

    while ((option = getopt(argc, argv, "c:k:f:")) != -1) {
        if (option == 'f')
            return run_file(optarg);
        if (option == 'c' && pool_read(optarg) < 0)
            perror(optarg);
        if (option == 'k')
            keep = optarg;
        wrong |= option == '?';
    }
    if (wrong || argc - optind > 2 ||
        (argc > optind && parse_u64(argv[optind], 0, 1ull << 40, &runs) < 0) ||
        (argc > optind + 1 && parse_u64(argv[optind + 1], 0, UINT64_MAX, &seed) < 0)) {
        fprintf(stderr, "use: %s [-c CORPUS] [-k DIRECTORY] [runs [seed]] | -f FILE\n", argv[0]);
        return 64;
    }
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], save_input);
    run_pool();
    FUZZ_CHECK(pool_count() > 0);
    printf("%zu seeds and kept inputs, %u edges\n", pool_count(), cover_edges());
    run_mutations(runs, seed);
    printf("%llu inputs, %zu in the pool, %u edges\n", (unsigned long long)runs, pool_count(),
           cover_edges());
    if (keep && pool_write(keep, run_exact) < 0) {
        perror(keep);
        return 1;
    }
    return 0;
}
