// SPDX-License-Identifier: BSD-3-Clause
// The interfaces of this node that lead to other nodes. Many interfaces have an address, and may be
// fast, but lead to nobody else: the bridge of a container engine has the same address on every
// node.
#ifndef PHI_NET_INTERFACE_H
#define PHI_NET_INTERFACE_H

#include <net/if.h>
#include <sys/socket.h>

struct ifaddrs;

// Best first.
enum phi_lead {
    PHI_LEAD_STORE, // the connection to the store goes through it
    PHI_LEAD_ROUTE, // what has no route of its own does
    PHI_LEAD_OTHER, // or it is none of IP
    PHI_LEAD_INSIDE // a bridge or a tunnel's end of this node, and none of the first two
};

// The interfaces in the network namespace of the calling thread.
struct phi_interfaces {
    struct ifaddrs *all;
    char store[IF_NAMESIZE], routes[2][IF_NAMESIZE]; // of IPv4 and IPv6; "": none
};

// phi_interfaces_look fills *interfaces. home: this node's address on its way to the store, or
// NULL. It cannot fail: something that is not known makes no difference.
void phi_interfaces_look(struct phi_interfaces *interfaces, const struct sockaddr *home);
void phi_interfaces_fini(struct phi_interfaces *interfaces);

// phi_interfaces_lead: where the interface of this name leads, or else the one with this address
// (may be NULL).
enum phi_lead phi_interfaces_lead(const struct phi_interfaces *interfaces, const char *name,
                                  const struct sockaddr *address);

#endif
