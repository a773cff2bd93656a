// SPDX-License-Identifier: BSD-3-Clause
#include "store/lookup.h"

#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "base/wake.h"

struct phi_lookup {
    atomic_int holders; // the caller, and the thread: the last one frees
    struct phi_wake wake;
    char *host, *port; // copies: the store may be closed first
    atomic_bool done;  // its release pairs with the acquire of phi_lookup_done: all below is there
    struct addrinfo *addresses;
    int result, error;
};

void phi_lookup_drop(struct phi_lookup *lookup)
{
    // Release: the writes of this holder come before the free. Acquire: the last holder sees all of
    // them.
    if (lookup == NULL || atomic_fetch_sub_explicit(&lookup->holders, 1, memory_order_acq_rel) > 1)
        return;
    if (lookup->addresses)
        freeaddrinfo(lookup->addresses);
    phi_wake_close(&lookup->wake);
    free(lookup->host);
    free(lookup->port);
    free(lookup);
}

static void look_up(struct phi_lookup *lookup, int flags)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    errno = 0;
    lookup->result = getaddrinfo(lookup->host, lookup->port, &hints, &lookup->addresses);
    lookup->error = errno;
    if (lookup->result)
        lookup->addresses = NULL;
}

static void tell(struct phi_lookup *lookup)
{
    atomic_store_explicit(&lookup->done, true, memory_order_release);
    phi_wake_ring(lookup->wake.ring);
}

static void *look_up_main(void *opaque)
{
    struct phi_lookup *lookup = opaque;
    look_up(lookup, 0);
    tell(lookup);
    phi_lookup_drop(lookup);
    return NULL;
}

// begin: an address in figures needs no look-up.
static int begin(struct phi_lookup *lookup)
{
    pthread_t thread;
    look_up(lookup, AI_NUMERICHOST);
    if (lookup->result == 0) {
        tell(lookup);
        return 0;
    }
    atomic_store(&lookup->holders, 2);
    int result = phi_thread_start(&thread, "peerhop-lookup", look_up_main, lookup);
    if (result == 0)
        pthread_detach(thread);
    else
        atomic_store(&lookup->holders, 1);
    return result;
}

int phi_lookup_start(const char *host, const char *port, struct phi_lookup **out)
{
    struct phi_lookup *lookup = calloc(1, sizeof(*lookup));
    if (!lookup)
        return -ENOMEM;
    atomic_init(&lookup->holders, 1);
    lookup->wake = (struct phi_wake){-1, -1};
    lookup->host = strdup(host);
    lookup->port = strdup(port);
    int result = lookup->host && lookup->port ? phi_wake_open(&lookup->wake) : -ENOMEM;
    if (result == 0)
        result = begin(lookup);
    if (result)
        phi_lookup_drop(lookup);
    else
        *out = lookup;
    return result;
}

int phi_lookup_fd(const struct phi_lookup *lookup)
{
    return lookup->wake.listen;
}

bool phi_lookup_done(struct phi_lookup *lookup)
{
    return atomic_load_explicit(&lookup->done, memory_order_acquire);
}

int phi_lookup_end(struct phi_lookup *lookup, struct addrinfo **addresses, int *error)
{
    int result = lookup->result;
    *addresses = lookup->addresses;
    *error = lookup->error;
    lookup->addresses = NULL;
    phi_lookup_drop(lookup);
    return result;
}
