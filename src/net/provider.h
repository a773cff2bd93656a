// SPDX-License-Identifier: BSD-3-Clause
// The providers of libfabric: the order in which they are tried, and facts about each.
#ifndef PHI_NET_PROVIDER_H
#define PHI_NET_PROVIDER_H

#include <netinet/in.h>

#include <rdma/fabric.h>

#include "net/library.h"
#include "net/net.h"
#include "net/pci.h"

// phi_provider_find tries candidates in our order until one serves, and then those that are like
// it. `try` gets a candidate, and may write why it cannot serve. It returns -ETIMEDOUT for a
// provider that was too slow: that is not tried at another address.
// phi_provider_find returns PH_ENOPATH where none serves, or -ETIMEDOUT where none does but one was
// only too slow.
typedef int (*phi_provider_try)(void *opaque, struct fi_info *info, char *why, size_t size);
int phi_provider_find(struct phi_report *report, const struct phi_config *config,
                      const struct phi_libfabric *library, const struct phi_pci_place *near,
                      phi_provider_try try_one, void *opaque, struct phi_net_candidate *candidates,
                      size_t n, size_t *count);

// phi_provider_is_tcp: whether PEERHOP_NET_PROVIDER=tcp names it.
bool phi_provider_is_tcp(const struct fi_info *info);
bool phi_provider_is_shm(const struct fi_info *info);

// phi_provider_pci finds the place of its NIC. false: it has none, or nobody knows.
bool phi_provider_pci(const struct fi_info *info, const char *sysfs, char device[PHI_PCI_NAME]);

// phi_provider_address writes its address in figures. "": it has no address of IP.
void phi_provider_address(const struct fi_info *info, char text[INET6_ADDRSTRLEN]);

// phi_provider_near: whether its address reaches no other node, or only those on the same cable.
// more: an interface may reach others, which providers may not offer yet when it has just come up.
bool phi_provider_near(const struct fi_info *info, const struct sockaddr *home);
bool phi_provider_more(const struct sockaddr *home);

// phi_provider_hmem returns the same offer with memory of devices, to be freed. NULL: its provider
// takes none.
struct fi_info *phi_provider_hmem(const struct phi_libfabric *library, const struct fi_info *info);

#endif
