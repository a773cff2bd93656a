// SPDX-License-Identifier: BSD-3-Clause
// libfabric reads all symbols of the kernel, twice, in each process that looks for a provider: to
// see what adapters of verbs can map. Where there are none, that was most of what such a test
// computed.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <unistd.h>

using Open = FILE *(const char *, const char *);

// Comes before the C library's, for libfabric as for everything else. (By its own name, which
// large files give to fopen64.)
extern "C" Open open_but_symbols asm("fopen");

FILE *open_but_symbols(const char *path, const char *mode)
{
    static Open *const real = reinterpret_cast<Open *>(dlsym(RTLD_NEXT, "fopen"));
    if (strcmp(path, "/proc/kallsyms") == 0 && access("/sys/class/infiniband_verbs", F_OK) != 0) {
        errno = ENOENT;
        return nullptr;
    }
    return real(path, mode);
}
