// SPDX-License-Identifier: BSD-3-Clause
#include "ending/look.h"

#include "ending/end.h"
#include "ending/expel.h"
#include "ending/link.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "semaphore/segment.h"

// A peer that leaves waits for the work that we still have under way. The messages that it sent
// before may be taken also afterwards, so they have to be here first. Until they are,
// phi_peer_leaves looks again.
static void end_by_leave(struct phi_peer *peer)
{
    if (!peer->heard.leaves)
        phi_peer_note_told(peer, &peer->heard.told_by_then);
    peer->heard.leaves = true;
    if (phi_peer_heard(peer, &peer->heard.told_by_then))
        phi_peer_end_use(peer, PH_EPEER);
}

void phi_peer_look(struct phi_peer *peer)
{
    if (peer->segment == NULL)
        return;
    phi_expel_look(peer);
    // A peer that we have not connected to may have a segment of ours, and leave: nothing of ours
    // ends with it, and nobody would see it go.
    if (peer->state != PHI_PEER_READY)
        return;
    uint32_t state = atomic_load(&phi_peer_theirs(peer)->state);
    if (state & PHI_SIDE_ABORTED)
        phi_peer_break(peer, PH_EBROKEN);
    else if (atomic_load(&phi_peer_theirs(peer)->told) != 0 && !peer->self->end.leaving)
        phi_peer_break(peer, PH_EPEER);
    else if (state & PHI_SIDE_LEAVING)
        end_by_leave(peer);
}

bool phi_peer_leaves(struct phi_peer *peer)
{
    if (peer->heard.leaves && peer->state == PHI_PEER_READY)
        phi_peer_look(peer);
    return peer->heard.leaves && peer->state == PHI_PEER_READY;
}

int phi_peer_failure(struct phi_peer *peer)
{
    // phi_peer_told pairs with the releaser's look: from here on the releaser may let our copies
    // into the peer's buffers end.
    phi_peer_told(peer);
    char why[PHI_HELLO_WHY] = "";
    const char *more = !peer->end.expelled    ? ""
                       : phi_expel_over(peer) ? " (it was expelled)"
                                              : " (it was expelled, and its process has neither "
                                                "acknowledged nor exited)";
    const bool ended = !peer->end.expelled && phi_hello_why(peer, why, sizeof why);
    return phi_fail(peer->self->report, peer->end.code, "rank %d (process %u on %s): %s%s%s%s",
                    peer->rank, peer->theirs.pid, peer->theirs.host, ph_strerror(peer->end.code),
                    more, ended ? "; its link has ended: " : "", why);
}
