/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of kernels and copies end their body, not the server. A worker's own thread, no lock. */
#include <setjmp.h>
#include <signal.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

static _Thread_local sigjmp_buf *guard;
static _Thread_local volatile uint64_t fault_address;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (!guard) { /* the server's own fault */
        signal(number, SIG_DFL);
        return;
    }
    fault_address = (uint64_t)(uintptr_t)info->si_addr;
    siglongjmp(*guard, 1);
}

void guard_init(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

uint64_t guard_run(void (*fn)(void *arg), void *arg)
{
    sigjmp_buf here;

    if (sigsetjmp(here, 0)) {
        guard = NULL;
        return fault_address ? fault_address : 1;
    }
    guard = &here;
    fn(arg);
    guard = NULL;
    return 0;
}
