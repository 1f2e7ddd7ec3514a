/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL that is loaded: its version, and what it has beyond the calls that the plug-in links.
 * Those are of NCCL 2.28 and older; newer ones, and ones that the fabric can do without, are looked
 * up, so that the plug-in built with a newer header loads with an older library. Loop thread.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "daemon/fabric/nccl/nccl.h"

/* Looked for in the program, then in what the plug-in was linked with. ISO C has no cast from an
 * object pointer to a function's. */
static void find(const char *name, void *ret_function)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);

    memcpy(ret_function, &symbol, sizeof(symbol));
}

int nccl_library_find(struct nccl_library *library, char text[GW_TEXT_MAX + 1])
{
    int version = 0;

    if (ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION_MIN) {
        snprintf(text, GW_TEXT_MAX + 1, "libnccl.so.2 is version %d.%d.%d, needed is 2.28 or newer",
                 version / 10000, version / 100 % 100, version % 100);
        return GW_E_DEVICE;
    }
    library->version = version;
    find("ncclCommRegister", &library->comm_register);
    find("ncclCommDeregister", &library->comm_deregister);
    if (!library->comm_register || !library->comm_deregister)
        library->comm_register = NULL;
    return 0;
}
