// SPDX-License-Identifier: BSD-3-Clause
// Flushes make data that has come into memory of a device visible before its posts show.
#ifndef PHI_NET_FLUSH_H
#define PHI_NET_FLUSH_H

#include "net/state.h"

// phi_flush_open opens with the link.
// phi_flush_covers: whether a post waits for a flush.
// phi_flush_hold keeps such a post until its flush.
// phi_flush_go moves on the flush under way. Returns whether something showed.
// phi_flush_defers: whether a message that has come waits for posts before it.
// phi_flush_take takes the messages that nothing is before any more.
// phi_flush_shut: the link has ended, or was cut. What was held has no effect.
// phi_flush_lane: a read into a line's region is to be flushed. *flushing is true until then.
// false: it need not be.
// phi_flush_line: see phi_link_flushes.
bool phi_flush_covers(const struct phi_link *link, const struct phi_net_post *post);
bool phi_flush_lane(struct phi_link *link, uint32_t line, bool *flushing);
void phi_flush_line(struct phi_link *link, uint32_t line, uint32_t id);
int phi_flush_open(struct phi_link *link);
void phi_flush_hold(struct phi_link *link, const struct phi_held *held);
bool phi_flush_go(struct phi_link *link);
bool phi_flush_defers(struct phi_link *link, uint32_t index, size_t size);
void phi_flush_shut(struct phi_link *link);
void phi_flush_take(struct phi_link *link);
void phi_flush_free(struct phi_link *link);
void phi_flusher_close(struct phi_net *net);

#endif
