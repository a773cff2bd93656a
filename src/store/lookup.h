// SPDX-License-Identifier: BSD-3-Clause
// The look-up of a host's name. The resolver takes as long as it likes, so it has a thread of its
// own. That is left alone where nobody waits for it any more.
#ifndef PHI_STORE_LOOKUP_H
#define PHI_STORE_LOOKUP_H

#include <stdbool.h>

struct addrinfo;
struct phi_lookup;

// phi_lookup_start: 0 or -errno (no thread, no descriptor, no memory). An address in figures needs
// none of these.
int phi_lookup_start(const char *host, const char *port, struct phi_lookup **lookup);
int phi_lookup_fd(const struct phi_lookup *lookup); // readable once it is done
bool phi_lookup_done(struct phi_lookup *lookup);

// phi_lookup_end takes the result of a look-up that is done (freeaddrinfo). 0, or what getaddrinfo
// returned; *error: its errno.
// phi_lookup_drop ends one, done or not. NULL is fine.
int phi_lookup_end(struct phi_lookup *lookup, struct addrinfo **addresses, int *error);
void phi_lookup_drop(struct phi_lookup *lookup);

#endif
