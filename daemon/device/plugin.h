/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device plug-in gives to the engine: one table, exported as GW_PLUGIN_SYMBOL from
 * gradwire-<device>.so. The engine opens plug-ins when it starts, never later; gwctl doctor opens
 * them to ask. Opening one initializes no device: probe and the device table do.
 */
#ifndef GW_DEVICE_PLUGIN_H
#define GW_DEVICE_PLUGIN_H

#include "daemon/device/device.h"
#include "daemon/fabric/fabric.h"

#define GW_PLUGIN_VERSION 5u /* of this table and of the tables it points to */
#define GW_PLUGIN_SYMBOL "gradwire_plugin"

enum plugin_verdict { PLUGIN_GOOD, PLUGIN_NOTE, PLUGIN_WARN, PLUGIN_BAD };

/* One point of the node's health: what was found, and what to do (NULL: nothing). Strings are the
 * caller's during the call only. */
typedef void plugin_point(void *user, const char *name, enum plugin_verdict verdict,
                          const char *found, const char *advice);

struct plugin {
    uint32_t version; /* GW_PLUGIN_VERSION */
    uint32_t device;  /* enum gw_device_kind */
    const char *name; /* "cuda" */
    const struct device_ops *device_ops;
    const struct fabric_ops *fabric_ops;
    /* Whether the device can be used here: number of GPUs, or GW_E_NO_DEVICE with why in text
     * ("no NVIDIA driver: libcuda.so.1 is not there"). May take seconds, makes no context. */
    int (*probe)(char text[GW_TEXT_MAX + 1]);
    /* Every point that the plug-in can look at. */
    void (*doctor)(plugin_point *point, void *user);
};

#endif
