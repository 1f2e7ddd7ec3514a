/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --install-peers: Intel MPI, oneCCL and torch's gloo, wheels of pinned versions, into a Python
 * virtual environment that is a directory of the user's own. Nothing else is touched.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/bench/peer.h"

#define INSTALL_NS 3600000000000ull

enum { PATH_BYTES = PEER_PATH_BYTES, WORDS = 6 };

/* One part of what is brought; tried as the user's pip is configured, then with `more`. */
struct part {
    const char *what;
    const char *words[WORDS]; /* of pip install */
    const char *more;         /* another index; NULL: none */
};

/* Newer oneCCL wheels for processors want libraries that no wheel holds. torch's index of builds
 * without CUDA is its own. */
static const struct part parts[] = {
    {"impi", {"--no-deps", "impi-rt==2021.19.0", "impi-devel==2021.19.0"}, NULL},
    {"oneccl", {"--no-deps", "oneccl-cpu==2021.15.2", "oneccl-cpu-devel==2021.15.2"}, NULL},
    {"gloo", {"torch==2.13.0+cpu"}, "https://download.pytorch.org/whl/cpu"},
};

int peers_root(const char *named, char *ret_root, size_t root_bytes)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int used;

    if (named != NULL)
        used = snprintf(ret_root, root_bytes, "%s%s", named[0] == '/' ? "" : "./", named);
    else if (data != NULL && data[0] == '/')
        used = snprintf(ret_root, root_bytes, "%s/gradwire/peers", data);
    else
        used = snprintf(ret_root, root_bytes, "%s/.local/share/gradwire/peers",
                        home != NULL ? home : "");
    if (used > 0 && (size_t)used < root_bytes && (named != NULL || ret_root[0] == '/'))
        return 0;
    fprintf(stderr, "gwbench: no directory for peers: name a short one with --peers-dir, or set "
                    "HOME\n");
    return EX_USAGE;
}

/* The directory and those above it. */
static int make_directories(const char *root)
{
    char path[PATH_BYTES];

    for (size_t i = 1; i <= strlen(root) && i < sizeof path; i++) {
        if (root[i] != '/' && root[i] != 0)
            continue;
        (void)snprintf(path, sizeof path, "%.*s", (int)i, root);
        if (mkdir(path, 0755) < 0 && errno != EEXIST) {
            fprintf(stderr, "gwbench: cannot make %s: %s\n", path, strerror(errno));
            return EX_CANTCREAT;
        }
    }
    return 0;
}

static int pip(const struct part *part, const char *more, const char *root, const char *log)
{
    const char *argv[WORDS + 12] = {NULL};
    char python[PATH_BYTES];
    uint32_t n = 0;

    (void)snprintf(python, sizeof python, "%s/bin/python3", root);
    argv[n++] = python;
    argv[n++] = "-m";
    argv[n++] = "pip";
    argv[n++] = "install";
    argv[n++] = "--disable-pip-version-check";
    argv[n++] = "--only-binary";
    argv[n++] = ":all:";
    if (more != NULL) {
        argv[n++] = "--extra-index-url";
        argv[n++] = more;
    }
    for (uint32_t i = 0; i < WORDS && part->words[i] != NULL; i++)
        argv[n++] = part->words[i];
    return peer_run(argv, root, NULL, log, INSTALL_NS);
}

static bool install(const struct part *part, const char *root, const char *log)
{
    fprintf(stderr, "gwbench: bringing %s\n", part->what);
    if (pip(part, NULL, root, log) == 0)
        return true;
    if (part->more != NULL && !bench_stopped() && pip(part, part->more, root, log) == 0)
        return true;
    peer_tell(part->what, log);
    fprintf(stderr, "gwbench: %s could not be brought: all of pip's words are in %s\n", part->what,
            log);
    return false;
}

int peers_install(const char *root)
{
    const char *const venv[] = {"python3", "-m", "venv", root, NULL};
    char log[PATH_BYTES];
    int r;

    r = make_directories(root);
    if (r != 0)
        return r;
    (void)snprintf(log, sizeof log, "%s/install.log", root);
    if (peer_run(venv, root, NULL, log, INSTALL_NS) != 0) {
        peer_tell("python3 -m venv", log);
        fprintf(stderr,
                "gwbench: %s is no virtual environment: install Python 3 and its venv "
                "(Debian: python3-venv)\n",
                root);
        return EX_UNAVAILABLE;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !bench_stopped(); i++) {
        if (!install(&parts[i], root, log))
            r = EX_UNAVAILABLE;
    }
    if (bench_stopped())
        return EX_TEMPFAIL;
    if (r == 0)
        fprintf(stderr, "gwbench: peers are in %s\n", root);
    return r;
}
