// SPDX-License-Identifier: BSD-3-Clause
// libfabric is a table of functions, loaded at run time. Nothing links to it, so one binary runs
// with and without. Its other calls are inline in its headers, and go through the tables of its
// objects. Only for files that are built where rdma/fabric.h is.
#ifndef PHI_NET_LIBRARY_H
#define PHI_NET_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>

#define PHI_LIBFABRIC_MAP(X)                                                                       \
    X(fi_getinfo)                                                                                  \
    X(fi_freeinfo)                                                                                 \
    X(fi_dupinfo)                                                                                  \
    X(fi_fabric)                                                                                   \
    X(fi_version)                                                                                  \
    X(fi_strerror)

struct phi_libfabric {
#define PHI_LIBFABRIC_MEMBER(symbol) __typeof__(symbol) *symbol;
    PHI_LIBFABRIC_MAP(PHI_LIBFABRIC_MEMBER)
#undef PHI_LIBFABRIC_MEMBER
    uint32_t version; // of the library itself
    uint32_t api;     // what fi_getinfo is asked for: the older of the headers' and the library's
};

// phi_libfabric_load loads the library of that name, once for the life of the process. It refuses a
// second name. NULL: the reason is in why. Any thread.
const struct phi_libfabric *phi_libfabric_load(const char *name, char *why, size_t why_size);

// phi_libfabric_hints returns the hints for fi_getinfo, to be freed with fi_freeinfo. NULL: out of
// memory. Providers drop a feature that the hints do not name: shm keeps no order between writes
// unless they name one. The hints do not name FI_ATOMIC: rxm then gives up its order.
struct fi_info *phi_libfabric_hints(const struct phi_libfabric *library);

#endif
