/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real GPU writes to registered pages through pins, whatever seals their memfd has. The server
 * can only write to what it maps itself, which F_SEAL_FUTURE_WRITE forbids to everyone that comes
 * later. So a program that loads this double adds no such seal: its calls of fcntl come here.
 * Done when the library is loaded, in the main program's table of calls only.
 */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int (*real_fcntl)(int fd, int command, ...);

static int unsealed_fcntl(int fd, int command, ...)
{
    va_list args;
    uintptr_t argument;

    va_start(args, command);
    argument = va_arg(args, uintptr_t);
    va_end(args);
    if (command == F_ADD_SEALS)
        argument &= ~(uintptr_t)F_SEAL_FUTURE_WRITE;
    return real_fcntl(fd, command, argument);
}

struct calls {
    const char *strings;
    const ElfW(Sym) *symbols;
    const ElfW(Rela) *slots[2];
    size_t bytes[2];
};

static void find(const ElfW(Dyn) *dynamic, uintptr_t base, struct calls *calls)
{
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t at = dynamic->d_un.d_ptr;
        const void *pointer = (const void *)(at < base ? at + base : at);

        switch (dynamic->d_tag) {
        case DT_STRTAB: calls->strings = pointer; break;
        case DT_SYMTAB: calls->symbols = pointer; break;
        case DT_JMPREL: calls->slots[0] = pointer; break;
        case DT_PLTRELSZ: calls->bytes[0] = dynamic->d_un.d_val; break;
        case DT_RELA: calls->slots[1] = pointer; break;
        case DT_RELASZ: calls->bytes[1] = dynamic->d_un.d_val; break;
        default: break;
        }
    }
}

/* Slots of functions are alike on x86-64 and aarch64 but for their numbers. */
static int is_slot(uint64_t info)
{
#ifdef __aarch64__
    return ELF64_R_TYPE(info) == R_AARCH64_JUMP_SLOT || ELF64_R_TYPE(info) == R_AARCH64_GLOB_DAT;
#else
    return ELF64_R_TYPE(info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(info) == R_X86_64_GLOB_DAT;
#endif
}

static void point_here(uintptr_t slot)
{
    uintptr_t page = slot & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    int (*here)(int, int, ...) = unsealed_fcntl;

    /* Read-only once the program was relocated; left writable, for what else lies there. */
    if (mprotect((void *)page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE) == 0)
        memcpy((void *)slot, &here, sizeof(here));
}

static int visit(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct calls calls = {0};

    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            find((const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), info->dlpi_addr,
                 &calls);
    for (int list = 0; list < 2 && calls.strings && calls.symbols; list++)
        for (size_t i = 0; calls.slots[list] && i < calls.bytes[list] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *slot = &calls.slots[list][i];
            const char *name = calls.strings +
                               calls.symbols[ELF64_R_SYM(slot->r_info)].st_name;

            if (is_slot(slot->r_info) && (!strcmp(name, "fcntl") || !strcmp(name, "fcntl64")))
                point_here(info->dlpi_addr + slot->r_offset);
        }
    return 1; /* the first is the program */
}

__attribute__((constructor)) static void seals_leave_out(void)
{
    real_fcntl = fcntl;
    dl_iterate_phdr(visit, NULL);
}
