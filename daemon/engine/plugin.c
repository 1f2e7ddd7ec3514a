/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, opens and checks the plug-in. See plugin.h. Loop thread. */
#include "daemon/engine/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN_FILE "gradwire-cuda.so"

struct plugins {
    void *library; /* NULL: not open */
    const struct plugin *cuda;
    int gpus;                  /* 0: not looked yet */
    char why[GW_TEXT_MAX + 1]; /* there is none to offer */
};

int plugin_offer_parse(const char *text, enum plugin_offer *ret_offer)
{
    static const char *const names[] = {"auto", "host", "cuda"};

    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret_offer = (enum plugin_offer)i;
            return 0;
        }
    }
    return GW_E_INVALID;
}

/* Directory of this program, without a slash at its end; "" if it cannot be told. */
static void own_directory(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash;

    path[n > 0 ? n : 0] = 0;
    slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
}

/* 0: path is the plug-in's file. */
static int find(const struct plugins_config *config, char *path, size_t path_bytes,
                char why[GW_TEXT_MAX + 1])
{
    char own[PATH_MAX];
    const char *places[2] = {own, GW_PLUGINS_INSTALLED};
    size_t count = 2;

    own_directory(own);
    if (config->directory) {
        places[0] = config->directory;
        count = 1;
    }
    for (size_t i = 0; i < count; i++) {
        int n = snprintf(path, path_bytes, "%s/" PLUGIN_FILE, places[i]);
        if (n > 0 && (size_t)n < path_bytes && access(path, F_OK) == 0)
            return 0;
    }
    snprintf(why, GW_TEXT_MAX + 1,
             PLUGIN_FILE " is not in %.200s: install a gradwire that was built with CUDA 13 and "
                         "NCCL, or name the plug-in's directory with gradwired --plugins",
             places[count - 1]);
    return GW_E_NO_DEVICE;
}

static int check(const struct plugin *plugin, const char *path, char why[GW_TEXT_MAX + 1])
{
    if (!plugin)
        snprintf(why, GW_TEXT_MAX + 1, "%.300s is not a plug-in of gradwire: install it again",
                 path);
    else if (plugin->version != GW_PLUGIN_VERSION)
        snprintf(why, GW_TEXT_MAX + 1,
                 "%.300s is of another release (its tables have version %u, this engine's %u): "
                 "install both from one release",
                 path, plugin->version, GW_PLUGIN_VERSION);
    else if (plugin->device != GW_DEVICE_CUDA || !plugin->device_ops || !plugin->fabric_ops ||
             !plugin->probe)
        snprintf(why, GW_TEXT_MAX + 1, "%.300s has no tables for GPUs: install it again", path);
    else
        return 0;
    return GW_E_NO_DEVICE;
}

static void open_cuda(struct plugins *plugins, const struct plugins_config *config)
{
    char path[PLUGIN_PATH_BYTES];

    if (find(config, path, sizeof(path), plugins->why) < 0)
        return;
    plugins->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugins->library) {
        snprintf(plugins->why, sizeof(plugins->why),
                 "%.330s: install the CUDA 13 runtime (libcudart.so.13) and NCCL 2.28 or later "
                 "(libnccl.so.2)",
                 dlerror());
        return;
    }
    plugins->cuda = dlsym(plugins->library, GW_PLUGIN_SYMBOL);
    if (check(plugins->cuda, path, plugins->why) < 0)
        plugins->cuda = NULL;
}

int plugins_open(const struct plugins_config *config, struct plugins **ret_plugins)
{
    struct plugins *plugins = calloc(1, sizeof(*plugins));

    if (!plugins)
        return GW_E_NOMEM;
    if (config->offer == PLUGIN_OFFER_HOST)
        snprintf(plugins->why, sizeof(plugins->why),
                 "gradwired offers the host alone on this node (device = host in gradwired.conf)");
    else
        open_cuda(plugins, config);
    *ret_plugins = plugins;
    return 0;
}

/* The library stays mapped: threads that CUDA made may still be in it. */
struct plugins *plugins_free(struct plugins *plugins)
{
    free(plugins);
    return NULL;
}

int plugins_probe(struct plugins *plugins, char text[GW_TEXT_MAX + 1])
{
    if (plugins->cuda && plugins->gpus == 0) {
        int gpus = plugins->cuda->probe(plugins->why);
        if (gpus > 0) {
            plugins->gpus = gpus;
        } else {
            if (gpus == 0)
                snprintf(plugins->why, sizeof(plugins->why), "there is no GPU");
            plugins->cuda = NULL;
        }
    }
    if (plugins->gpus > 0)
        return plugins->gpus;
    memcpy(text, plugins->why, sizeof(plugins->why));
    return GW_E_NO_DEVICE;
}

int plugins_tables(struct plugins *plugins, enum gw_device_kind kind,
                   const struct device_ops **ret_device_ops,
                   const struct fabric_ops **ret_fabric_ops, char text[GW_TEXT_MAX + 1])
{
    char why[GW_TEXT_MAX + 1];

    if (kind == GW_DEVICE_HOST) {
        *ret_device_ops = &device_host;
        *ret_fabric_ops = &fabric_local;
        return 0;
    }
    if (plugins_probe(plugins, why) < 0) {
        snprintf(text, GW_TEXT_MAX + 1, "this node offers no GPU: %.450s", why);
        return GW_E_NO_DEVICE;
    }
    *ret_device_ops = plugins->cuda->device_ops;
    *ret_fabric_ops = plugins->cuda->fabric_ops;
    return 0;
}
