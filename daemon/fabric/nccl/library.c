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

/* Of no use without each other. */
static bool find_pair(const char *name, void *ret_function, const char *other, void *ret_other)
{
    static const void *const nothing;
    void *found, *found_other;

    find(name, &found);
    find(other, &found_other);
    if (found && found_other) {
        memcpy(ret_function, &found, sizeof(found));
        memcpy(ret_other, &found_other, sizeof(found_other));
        return true;
    }
    memcpy(ret_function, &nothing, sizeof(nothing));
    memcpy(ret_other, &nothing, sizeof(nothing));
    return false;
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
    (void)find_pair("ncclCommRegister", &library->comm_register, "ncclCommDeregister",
                    &library->comm_deregister);
    /* The policy is of 2.28 like the rest, but acts on windows only. */
    library->zero_cta = find_pair("ncclCommWindowRegister", &library->window_register,
                                  "ncclCommWindowDeregister", &library->window_deregister);
    return 0;
}
