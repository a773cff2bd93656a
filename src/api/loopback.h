// SPDX-License-Identifier: BSD-3-Clause
// Messages of this rank to itself: operations whose peer it is, and the sends of a group that match
// receives of the same group.
#ifndef PHI_API_LOOPBACK_H
#define PHI_API_LOOPBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/transfer.h>

struct phi_self;

// phi_loopback_start, phi_loopback_finish: as phi_exchange_start and phi_exchange_finish.
// Operations of this rank with itself have their channels at once; the exchange has the others.
int phi_loopback_start(struct phi_self *self, const struct ph_operation *ops, size_t n,
                       struct ph_exchange_request **request);
int phi_loopback_finish(struct ph_exchange_request *request, struct ph_channel **channels,
                        int64_t deadline);

// The sends of a group in their order, each with the receive that it matches: NULL: there is none.
struct phi_loopback_pairs {
    const struct ph_group_op *ops;
    size_t n, at;
};
struct phi_loopback_pairs phi_loopback_pairs(const struct ph_group_op *ops, size_t n);
bool phi_loopback_next(struct phi_loopback_pairs *pairs, const struct ph_group_op **send,
                       const struct ph_group_op **receive);

// phi_loopback_check: each send to this rank itself has a receive of the same size, and each
// receive a send. -EINVAL names what has not, or the two sizes.
int phi_loopback_check(const struct ph_group_op *ops, size_t n);

// phi_loopback_refuse is the result of a call that needs another rank at the other end.
int phi_loopback_refuse(const struct ph_channel *channel, const char *what);

#endif
