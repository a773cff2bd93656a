// SPDX-License-Identifier: BSD-3-Clause
// A libfabric that offers what a test has written down, to phi_provider_find.
#ifndef TESTS_UNIT_NET_OFFERS_H
#define TESTS_UNIT_NET_OFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/net.h"

#ifdef __cplusplus
extern "C" {
#endif

struct offer {
    const char *provider, *domain;
    const char *address; // of IP, or NULL: of another kind
    const char *nic;     // the name of its device, or NULL
    const char *pci;     // where that sits, or NULL
    size_t speed;        // of its link, or 0
    int opens;           // what comes of opening and probing it
    size_t data_size;    // of immediate data
    size_t key_size;     // of its keys
    bool raw, unordered; // it has raw keys; its messages have no order
};

// offers_find is phi_provider_find over the offers, in their order. tried: how many were opened.
int offers_find(const struct offer *offers, size_t n, struct phi_report *report,
                const struct phi_config *config, const struct phi_pci_place *near,
                struct phi_net_candidate *candidates, size_t room, size_t *count, size_t *tried);

#ifdef __cplusplus
}
#endif
#endif
