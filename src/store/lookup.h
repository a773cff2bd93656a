// SPDX-License-Identifier: BSD-3-Clause
// The look-up of a host's name. The resolver takes as long as it likes, so it has a thread of its
// own, which is left behind where nobody waits for it any more.
#ifndef PHI_STORE_LOOKUP_H
#define PHI_STORE_LOOKUP_H

#include <stdbool.h>

struct addrinfo;
struct phi_lookup;

// phi_lookup_start: 0 or -errno (no thread, no descriptor, no memory). What is no name needs none.
int phi_lookup_start(const char *host, const char *port, struct phi_lookup **lookup);
int phi_lookup_fd(const struct phi_lookup *lookup); // readable once it is done
bool phi_lookup_done(struct phi_lookup *lookup);

// phi_lookup_end takes what a look-up that is done has found (freeaddrinfo): 0, or what getaddrinfo
// returned; *error: its errno. phi_lookup_drop: whether it is done or not; NULL is fine.
int phi_lookup_end(struct phi_lookup *lookup, struct addrinfo **addresses, int *error);
void phi_lookup_drop(struct phi_lookup *lookup);

#endif
