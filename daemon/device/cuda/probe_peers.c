/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gwctl doctor is told of pairs of GPUs: who reaches whose memory, over which kind of link. In
 * doctor's process, on its thread. Asks the runtime only; makes no context.
 */
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/device/cuda/probe.h"

#define BIT(gpu) (UINT64_C(1) << (gpu))

struct pairs {
    int gpus;
    uint64_t all;
    uint64_t reach[PROBE_GPUS_MAX];           /* bit per GPU whose memory it reaches, its own too */
    int kind[PROBE_GPUS_MAX][PROBE_GPUS_MAX]; /* of link: 2 * rank + 1, + 1 without atomics; 0: ? */
};

/* What does not fit is left out. */
static void __attribute__((format(printf, 2, 3)))
add(char text[GW_TEXT_MAX + 1], const char *format, ...)
{
    size_t used = strlen(text);
    va_list list;

    va_start(list, format);
    vsnprintf(text + used, GW_TEXT_MAX + 1 - used, format, list);
    va_end(list);
}

/* "0-3,5" */
static void add_gpus(char text[GW_TEXT_MAX + 1], uint64_t gpus)
{
    const char *comma = "";

    for (int first = 0; first < PROBE_GPUS_MAX; first++) {
        int last = first;

        if (!(gpus & BIT(first)))
            continue;
        while (last + 1 < PROBE_GPUS_MAX && gpus & BIT(last + 1))
            last++;
        add(text, last > first ? "%s%d-%d" : "%s%d", comma, first, last);
        comma = ",";
        first = last;
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* 0: the driver does not tell. */
static int kind_of(int a, int b)
{
    int rank = 0, atomics = 0;

    if (cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, a, b) != cudaSuccess ||
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b) !=
            cudaSuccess ||
        rank < 0 || rank > INT16_MAX)
        return 0;
    return 2 * rank + 1 + !atomics;
}

static void ask(struct pairs *pairs, int gpus)
{
    pairs->gpus = gpus;
    for (int a = 0; a < gpus; a++) {
        pairs->all |= BIT(a);
        pairs->reach[a] = BIT(a);
        for (int b = 0; b < gpus; b++) {
            int can = 0;

            if (a == b || cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess || !can)
                continue;
            pairs->reach[a] |= BIT(b);
            pairs->kind[a][b] = kind_of(a, b);
        }
    }
}

/* ---- telling --------------------------------------------------------------------------------- */

/* GPUs that reach the same ones; all that reach none are one such set. */
static uint64_t alike(const struct pairs *pairs, int gpu)
{
    bool alone = pairs->reach[gpu] == BIT(gpu);
    uint64_t set = 0;

    for (int a = 0; a < pairs->gpus; a++) {
        if (alone ? pairs->reach[a] == BIT(a) : pairs->reach[a] == pairs->reach[gpu])
            set |= BIT(a);
    }
    return set;
}

/* "0-3 all; 4-5 not 0-3; 6-7 none" */
static bool tell_reach(const struct pairs *pairs, char text[GW_TEXT_MAX + 1])
{
    bool good = true;

    for (int a = 0; a < pairs->gpus; a++) {
        uint64_t set = alike(pairs, a), not = pairs->all & ~pairs->reach[a];

        if (set & (BIT(a) - 1)) /* told with a lower one */
            continue;
        add(text, "%s", text[0] ? "; " : "");
        add_gpus(text, set);
        if (pairs->reach[a] == BIT(a))
            add(text, " none");
        else if (not )
            add(text, " not ");
        else
            add(text, " all");
        if (pairs->reach[a] != BIT(a))
            add_gpus(text, not );
        good &= !not ;
    }
    return good;
}

static uint64_t linked(const struct pairs *pairs, int gpu, int kind)
{
    uint64_t set = 0;

    for (int b = 0; b < pairs->gpus; b++)
        set |= pairs->kind[gpu][b] == kind ? BIT(b) : 0;
    return set;
}

/* "among 0-3, 4 to 5" */
static void tell_kind(const struct pairs *pairs, int kind, char text[GW_TEXT_MAX + 1])
{
    const char *comma = "";
    uint64_t done = 0;

    for (int a = 0; a < pairs->gpus; a++) {
        uint64_t to = linked(pairs, a, kind), mutual = 0, same = 0;

        if (!to || done & BIT(a))
            continue;
        for (int b = 0; b < pairs->gpus; b++) {
            uint64_t other = linked(pairs, b, kind);

            mutual |= other && (other | BIT(b)) == (to | BIT(a)) ? BIT(b) : 0;
            same |= other == to ? BIT(b) : 0;
        }
        if (mutual != BIT(a)) {
            add(text, "%samong ", comma);
            add_gpus(text, mutual);
            same = mutual;
            comma = ", ";
        }
        if (to & ~mutual) {
            add(text, "%s", comma);
            add_gpus(text, same);
            add(text, " to ");
            add_gpus(text, to & ~mutual);
            comma = ", ";
        }
        done |= same;
    }
}

/* The lowest above that one; 0: none. */
static int next_kind(const struct pairs *pairs, int kind)
{
    int next = 0;

    for (int a = 0; a < pairs->gpus; a++) {
        for (int b = 0; b < pairs->gpus; b++) {
            int one = pairs->kind[a][b];

            if (one > kind && (!next || one < next))
                next = one;
        }
    }
    return next;
}

/* "rank 0, native atomics: among 0-1; rank 1, no native atomics: 0-1 to 2, 2 to 0-1" */
static unsigned tell_links(const struct pairs *pairs, char text[GW_TEXT_MAX + 1])
{
    unsigned kinds = 0;

    for (int kind = next_kind(pairs, 0); kind; kind = next_kind(pairs, kind)) {
        add(text, "%srank %d, %snative atomics: ", kinds ? "; " : "", (kind - 1) / 2,
            (kind - 1) % 2 ? "no " : "");
        tell_kind(pairs, kind, text);
        kinds++;
    }
    return kinds;
}

void cuda_doctor_peers(plugin_point *point, void *user, int gpus)
{
    char reach[GW_TEXT_MAX + 1] = "", links[GW_TEXT_MAX + 1] = "";
    struct pairs pairs = {0};
    unsigned kinds;
    bool good;

    if (gpus < 2)
        return;
    ask(&pairs, gpus < PROBE_GPUS_MAX ? gpus : PROBE_GPUS_MAX);
    good = tell_reach(&pairs, reach);
    point(user, "peer access", good ? PLUGIN_GOOD : PLUGIN_WARN, reach,
          good ? NULL
               : "copies between GPUs that do not reach each other go through the host: "
                 "nvidia-smi topo -m, and ACS off in the PCIe switches");
    kinds = tell_links(&pairs, links);
    if (kinds > 0)
        point(user, "peer links", kinds > 1 ? PLUGIN_NOTE : PLUGIN_GOOD, links,
              kinds > 1 ? "rank 0 is the driver's fastest, atomics say NVLink: a job is as fast as "
                          "the slowest link among its GPUs, so choose those of one rank"
                        : NULL);
}
