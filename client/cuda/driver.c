/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the driver's entry points; see driver.h. Any thread. */
#include "client/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/device.h"

#define DRIVER_FILE "libcuda.so.1"

struct driver cu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

int driver_error(int code, CUresult error, const char *what)
{
    const char *name = NULL, *message = NULL;
    char text[GW_TEXT_MAX + 1];

    if (cu.cuGetErrorName && cu.cuGetErrorString) {
        cu.cuGetErrorName(error, &name);
        cu.cuGetErrorString(error, &message);
    }
    snprintf(text, sizeof(text), "%s: %s (%s, %d)", what, message ? message : "unknown error",
             name ? name : "CUDA_ERROR_?", (int)error);
    return gw_private_error(code, text);
}

static int missing(const char *what)
{
    char text[GW_TEXT_MAX + 1];

    snprintf(text, sizeof(text),
             "the NVIDIA driver has no %s; gradwire needs a driver for CUDA 13 or newer", what);
    return gw_private_error(GW_E_NO_DEVICE, text);
}

/* Names without version: the driver gives the call that GW_CUDA_ABI means by them. */
static int find(__typeof__(&cuGetProcAddress) get, const char *name, void *ret_entry)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *entry = NULL;

    if (get(name, &entry, GW_CUDA_ABI, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) !=
            CUDA_SUCCESS ||
        !entry)
        return missing(name);
    memcpy(ret_entry, &entry, sizeof(entry));
    return 0;
}

/* One macro only: # takes the name before cuda.h's macros turn it into its newest version's. */
#define DRIVER_ROW(call) {#call, offsetof(struct driver, call)},

/* The library stays: the process has it anyhow, and its threads may run in it. */
static int open_driver(void)
{
    static const struct {
        const char *name;
        size_t at;
    } rows[] = {DRIVER_CALLS(DRIVER_ROW)};
    __typeof__(&cuGetProcAddress) get = NULL;
    void *library = dlopen(DRIVER_FILE, RTLD_NOW | RTLD_LOCAL), *entry;
    char text[GW_TEXT_MAX + 1];
    CUresult error;
    int r = 0;

    if (!library) {
        snprintf(text, sizeof(text), "no NVIDIA driver: %s", dlerror());
        return gw_private_error(GW_E_NO_DEVICE, text);
    }
    entry = dlsym(library, "cuGetProcAddress_v2");
    if (!entry)
        return missing("cuGetProcAddress_v2");
    memcpy(&get, &entry, sizeof(get));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && r == 0; i++)
        r = find(get, rows[i].name, (char *)&cu + rows[i].at);
    if (r < 0)
        return r;
    error = cu.cuInit(0);
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_NO_DEVICE, error, "cuInit");
}

int driver_open(void)
{
    int r = 0;

    pthread_mutex_lock(&lock);
    if (!opened)
        r = open_driver();
    opened = r == 0;
    pthread_mutex_unlock(&lock);
    return r;
}
