// SPDX-License-Identifier: BSD-3-Clause
#include "release/imports.h"

#include <errno.h>
#include <stdlib.h>

#include "base/random.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

static bool same_id(const void *value, const void *key)
{
    return ((const struct phi_remote_export *)value)->id == *(const uint32_t *)key;
}

struct phi_remote_export *phi_imports_find(struct phi_peer *peer, uint32_t id)
{
    return phi_map_find(&peer->imports.all, phi_hash(id, 1), same_id, &id);
}

int phi_imports_tell(struct phi_peer *peer, uint32_t export_id)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_UNMAPPED, &message);
    message.a = export_id;
    return phi_peer_tell(peer, &message);
}

// Returns whether nothing here uses an import any more.
static bool is_unused(struct phi_peer *peer, const struct phi_remote_export *e)
{
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (phi_peer_ranges_has(&channel->kept.remote, e) && !phi_revoke_drained(channel))
            return false;
    return true;
}

// Returns whether a channel has the import, or an unfinished round is about to make such a channel.
static bool is_wanted(struct phi_peer *peer, const struct phi_remote_export *e)
{
    size_t cursor = 0;
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (phi_peer_ranges_has(&channel->kept.remote, e))
            return true;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
        if (key->agreement.state == PHI_AGREEMENT_OPEN && theirs != NULL &&
            phi_peer_ranges_has(&theirs->ranges, e))
            return true;
    }
    return false;
}

static bool may_close(struct phi_peer *peer, const struct phi_remote_export *e)
{
    bool ended = e->revoked || (peer->state == PHI_PEER_BROKEN && peer->end.released);
    return ended && !e->importing && is_unused(peer, e);
}

// Called without the lock. If the closing can block, the thread of the device's closer calls this.
static void import_closed(void *opaque)
{
    struct phi_remote_export *e = opaque;
    struct phi_self *self = e->peer->self;
    pthread_mutex_lock(&self->lock);
    e->importing = e->closing = false;
    e->peer->imports.closing = true; // the service thread parts with it
    phi_service_wake(self);
    phi_self_changed(self);
    phi_mailbox_wake(self->mailbox);
    pthread_mutex_unlock(&self->lock);
}

// Gives up the lock while it unmaps, or hands the unmapping over. Before it gives up the lock, it
// sees to it that no round counts on the mapping: a round that is taken meanwhile waits, and maps
// anew.
void phi_imports_close(struct phi_remote_export *e)
{
    struct phi_self *self = e->peer->self;
    struct phi_import *import = e->import;
    e->importing = true;
    e->closing = phi_memory_import_blocks(import);
    e->import = NULL;
    e->tried = false;
    import->closed = import_closed;
    import->opaque = e;
    pthread_mutex_unlock(&self->lock);
    phi_memory_import_close(import);
    pthread_mutex_lock(&self->lock);
}

static void forget(struct phi_peer *peer, struct phi_remote_export *e)
{
    size_t cursor = 0;
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        phi_peer_ranges_forget(&channel->kept.remote, e);
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        for (uint32_t i = 0; i < key->theirs.count; i++)
            phi_peer_ranges_forget(&key->theirs.list[i].ranges, e);
        phi_release_prune(key);
    }
    phi_map_remove(&peer->imports.all, phi_hash(e->id, 1), e);
    free(e->record);
    free(e);
}

// Returns whether the data that this end has sent to a peer's allocation is there. Posts are
// delivered some time after the stream is done with them, and bells are rung before they are
// posted. Once the peer closes its region they would fail, and the key of the region may not be
// unmapped before.
static bool is_delivered(struct phi_peer *peer, struct phi_remote_export *e)
{
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (phi_peer_ranges_has(&channel->kept.remote, e) && !phi_staging_sent(channel))
            return false;
    e->marked = e->marked || phi_link_mark(peer->to.link, &e->mark);
    return e->marked && phi_link_delivered(peer->to.link, e->mark);
}

// Parts with an export that is not imported, or no more. Returns whether the peer knows that the
// export is of no use here. The key goes before we tell the peer, as the peer then closes the
// region.
static bool part_with(struct phi_peer *peer, struct phi_remote_export *e)
{
    if (peer->to.link != NULL) {
        if (!is_delivered(peer, e))
            return false;
        phi_link_forget(peer->to.link, &e->target);
    }
    return phi_imports_tell(peer, e->id) != -EAGAIN;
}

struct phi_remote_export *phi_imports_closable(struct phi_peer *peer, struct phi_imports_look *look)
{
    size_t cursor = 0;
    look->left = look->later = false;
    for (struct phi_remote_export *e; (e = phi_map_next(&peer->imports.all, &cursor)) != NULL;) {
        if (e->import == NULL && !e->revoked)
            // This export has nothing to close. There may be thousands, so we skip it before we
            // look for its users.
            continue;
        bool idle = look->idle && e->import != NULL && !e->importing &&
                    (peer->self->end.leaving || !is_wanted(peer, e));
        if (!idle && !may_close(peer, e)) {
            look->left = look->left || (e->revoked && !e->closing);
            continue;
        }
        if (e->import == NULL && e->revoked) {
            if (part_with(peer, e))
                forget(peer, e); // the map may lose the value that was just returned
            else
                look->left = true;
        } else if (e->import != NULL && (look->blocking || !phi_memory_import_blocks(e->import))) {
            return e;
        } else if (e->import != NULL) {
            look->later = true;
        }
    }
    return NULL;
}

// Unmaps one import at most, or hands it over, and sets *closed. That may take a while, so the
// service thread looks at everything else before the next one. Returns in how many ms to come
// again.
int phi_imports_tick(struct phi_peer *peer, bool *closed)
{
    struct phi_self *self = peer->self;
    struct phi_executor *executor = self->executor;
    bool idle = self->config->reap == PHI_REAP_IDLE;
    if (*closed)
        return 0;
    bool quiet = idle && !executor->ops->busy(executor, NULL, 0);
    struct phi_imports_look look = {.idle = quiet, .blocking = quiet};
    struct phi_remote_export *e = phi_imports_closable(peer, &look);
    if (e != NULL) {
        *closed = true;
        phi_imports_close(e);
        return 0;
    }
    if (!look.left && !look.later)
        peer->imports.closing = false;
    return look.left ? 1 : look.later && idle ? 10 : -1;
}
