// SPDX-License-Identifier: BSD-3-Clause
// Exchange: bringing operation keys through their rounds. docs/protocols.md tells the protocol;
// rules/agreement.h has its rules.
#ifndef PHI_EXCHANGE_EXCHANGE_H
#define PHI_EXCHANGE_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_channel;
struct ph_exchange_request;
struct ph_operation;
struct phi_self;

// phi_exchange_start takes the keys and sends this rank's half, without waiting for a peer. The
// operations are valid.
int phi_exchange_start(struct phi_self *self, const struct ph_operation *ops, size_t n,
                       struct ph_exchange_request **request);

// phi_exchange_finish waits for the other halves, writes the channels if all went well, and frees
// the request.
int phi_exchange_finish(struct ph_exchange_request *request, struct ph_channel **channels,
                        int64_t deadline);

// Whether what is served may still be exchanged: asked with the lock, which is not given up between
// the answer and where a release of the buffer finds the exchange.
struct phi_serve {
    bool (*stands)(void *opaque);
    void *opaque;
};

// phi_exchange_serve is phi_exchange_start of one operation that this rank's application does not
// know of: no other rank's wait for the application is found out by it. It is carried by
// phi_exchange_poll. -ESTALE: it does not stand any more.
int phi_exchange_serve(struct phi_self *self, const struct ph_operation *op,
                       const struct phi_serve *serve, struct ph_exchange_request **request);

// phi_exchange_poll (with the lock, given up in between) carries such an exchange on, and waits for
// no peer's application. -EAGAIN: it is not over; call again when something has changed. Else it
// is over, as after phi_exchange_finish: so it is at the deadline.
int phi_exchange_poll(struct ph_exchange_request *request, struct ph_channel **channel,
                      int64_t deadline);

// phi_exchange_peers is whose request it is.
struct phi_self *phi_exchange_peers(const struct ph_exchange_request *request);

#endif
