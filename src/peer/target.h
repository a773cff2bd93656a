// SPDX-License-Identifier: BSD-3-Clause
// How a region over the net is written down, in a hello and in an offer.
#ifndef PHI_PEER_TARGET_H
#define PHI_PEER_TARGET_H

struct phi_net_target;
struct phi_reader;
struct phi_writer;

// A region of a link, as it travels: base, how many keys, keys, and a raw key where it has one.
void phi_put_target(struct phi_writer *writer, const struct phi_net_target *target);
void phi_get_target(struct phi_reader *reader, struct phi_net_target *target);

#endif
