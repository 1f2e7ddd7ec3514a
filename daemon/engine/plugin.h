/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that this engine can offer: the host always, GPUs by the plug-in gradwire-cuda.so,
 * which is opened when the engine starts, never later. Loop thread; owns the open plug-in.
 *
 * Opening fails where the CUDA runtime or NCCL is missing: host jobs do not mind, and jobs on GPUs
 * are told why.
 */
#ifndef GW_ENGINE_PLUGIN_H
#define GW_ENGINE_PLUGIN_H

#include "daemon/device/plugin.h"

#define PLUGIN_PATH_BYTES 512u

/* What gradwired lets an engine offer (--device). */
enum plugin_offer { PLUGIN_OFFER_AUTO, PLUGIN_OFFER_HOST, PLUGIN_OFFER_CUDA };

struct plugins;

struct plugins_config {
    enum plugin_offer offer;
    const char *directory; /* the only place looked at; NULL: beside the program, as installed */
};

/* "auto", "host", "cuda"; GW_E_INVALID. */
int plugin_offer_parse(const char *text, enum plugin_offer *ret_offer);

int plugins_open(const struct plugins_config *config, struct plugins **ret_plugins);
struct plugins *plugins_free(struct plugins *plugins);
/* The tables of a kind of device. GW_E_NO_DEVICE: this node does not offer it, and why. Looks
 * whether there is a GPU when it is asked first, which may take seconds. */
int plugins_tables(struct plugins *plugins, enum gw_device_kind kind,
                   const struct device_ops **ret_device_ops,
                   const struct fabric_ops **ret_fabric_ops, char text[GW_TEXT_MAX + 1]);
/* Number of GPUs, or GW_E_NO_DEVICE and why there is none to offer. */
int plugins_probe(struct plugins *plugins, char text[GW_TEXT_MAX + 1]);

#endif
