// SPDX-License-Identifier: BSD-3-Clause
// Stores and messages of a link: the frames that they travel in.
#ifndef PHI_NET_MESSAGE_H
#define PHI_NET_MESSAGE_H

#include "net/state.h"

// Frames on the wire: a header, then bytes. Both ends must have the same version of this layout:
// they compare PHI_HELLO_VERSION before they connect.
enum phi_frame { PHI_FRAME_STORES = 1, PHI_FRAME_MESSAGE = 2, PHI_FRAME_BYE = 3 };
struct phi_frame_header {
    uint64_t token; // of the receiving end
    uint32_t kind, size;
    uint64_t posts; // so many the sender has told before
};
struct phi_store {
    uint32_t offset, size;
    uint64_t value;
};

int phi_message_await(struct phi_link *link, int i); // posts a receive

// phi_link_received takes what has come into the buffer of a receive.
void phi_link_received(struct phi_link *link, uint32_t index, size_t size);
// phi_link_flush sends what the log has, as far as there is room; true where something went out.
bool phi_link_flush(struct phi_link *link);
bool phi_link_idle(const struct phi_link *link); // nothing to send, nothing on its way

#endif
