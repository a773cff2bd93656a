// SPDX-License-Identifier: BSD-3-Clause
#include "ending/link.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "lane/staging.h"
#include "peer/message.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/segment.h"

// How long a link still has. CUT_MS: for our messages to a peer that was expelled, and may be
// stopped for a while. EXIT_MS: for the messages that came from a peer that exited.
#define CUT_MS  10000
#define EXIT_MS 500

// Takes a link and its segment, which were never used, off the peer; end_link may block behind
// streams that wait.
static void take_off(struct phi_peer *peer, struct phi_link **link, struct phi_segment **segment)
{
    *link = peer->to.link;
    *segment = NULL;
    if (peer->to.link != NULL) {
        phi_staging_free(peer);
        *segment = peer->segment;
        peer->segment = NULL;
    }
    peer->to.link = NULL;
    if (peer->to.pidfd >= 0)
        close(peer->to.pidfd);
    peer->to.pidfd = -1;
    free(peer->to.hello);
    peer->to.hello = NULL;
}

static void end_link(const struct phi_self *self, struct phi_link *link,
                     struct phi_segment *segment)
{
    if (link == NULL)
        return;
    phi_link_free(link);
    phi_segment_unregister(segment, self->device);
    phi_segment_close(segment);
}

bool phi_hello_lost(struct phi_peer *peer)
{
    char why[PHI_HELLO_WHY];
    if (peer->to.hello->lost || phi_link_lost(peer->to.link, why, sizeof why) == 0)
        return false;
    peer->to.hello->lost = true;
    return true;
}

bool phi_hello_why(const struct phi_peer *peer, char *why, size_t size)
{
    if (peer->to.link == NULL)
        return false;
    if (phi_link_lost(peer->to.link, why, size) != 0)
        return true;
    if (peer->to.hello->exited != 0)
        snprintf(why, size, "its process has exited");
    return peer->to.hello->exited != 0;
}

void phi_hello_cut(struct phi_peer *peer)
{
    if (peer->to.link != NULL && peer->to.hello->cut == 0)
        peer->to.hello->cut = phi_deadline(CUT_MS);
}

void phi_hello_exited(struct phi_peer *peer)
{
    peer->to.hello->exited = phi_deadline(EXIT_MS);
}

bool phi_hello_exiting(const struct phi_peer *peer)
{
    return peer->to.hello->exited != 0;
}

bool phi_hello_cut_due(struct phi_peer *peer)
{
    const struct phi_hello *hello = peer->to.hello;
    const int64_t now = phi_now();
    if ((hello->exited == 0 || now < hello->exited) && (hello->cut == 0 || now < hello->cut))
        return false;
    phi_link_end(peer->to.link, false);
    return true;
}

void phi_hello_forget(struct phi_peer *peer)
{
    struct phi_link *link;
    struct phi_segment *segment;
    take_off(peer, &link, &segment);
    end_link(peer->self, link, segment);
}

void phi_hello_drop(struct phi_peer *peer)
{
    struct phi_link *link;
    struct phi_segment *segment;
    take_off(peer, &link, &segment);
    pthread_mutex_unlock(&peer->self->lock);
    end_link(peer->self, link, segment);
    pthread_mutex_lock(&peer->self->lock);
}

void phi_hello_free(struct phi_peer *peer)
{
    if (peer->to.link != NULL && !peer->end.gone && peer->state >= PHI_PEER_READY)
        phi_link_end(peer->to.link, true);
    phi_hello_forget(peer);
}
