// SPDX-License-Identifier: BSD-3-Clause
#include "ending/usable.h"

#include <errno.h>

#include "ending/expel.h"
#include "ending/look.h"
#include "lane/lift.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "semaphore/segment.h"

// Finds out whether the peer gave its buffer back before or after everything had come that this end
// waited for. Returns the status.
static int settle(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->self->lock);
    phi_revoke_settle(channel);
    pthread_mutex_unlock(&channel->self->lock);
    return atomic_load_explicit(&channel->live.status, memory_order_acquire);
}

// Looks at what the peer has said of its end, and returns the status. The service thread may not
// have seen that so far, or may be just writing it down.
static int look(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->self->lock);
    phi_peer_look(channel->peer);
    const int status = atomic_load_explicit(&channel->live.status, memory_order_acquire);
    pthread_mutex_unlock(&channel->self->lock);
    return status;
}

int phi_channel_check(struct ph_channel *channel)
{
    int status = atomic_load_explicit(&channel->live.status, memory_order_acquire);
    if (status == -ESTALE)
        status = settle(channel);
    // A queue whose copy failed with the link is done before the service thread knows of it. The
    // load of `broken` pairs with the queue's store, which comes before its operation is done. A
    // queue may also have found a message of another size, which is looked for elsewhere.
    if (status == 0 && channel->fixed.route.link != NULL &&
        atomic_load(&channel->fixed.own.line->broken) != 0 &&
        atomic_load(&channel->fixed.own.line->mismatch) == 0) {
        status = look(channel);
        status = status ? status : PH_EPEER;
    }
    struct phi_peer *peer = channel->peer;
    if (status && atomic_load(&peer->end.known))
        phi_peer_told(peer);
    if (status == PH_EFENCED && !atomic_load(&channel->self->end.fence_told)) {
        pthread_mutex_lock(&channel->self->lock);
        phi_fence_told(channel->self);
        pthread_mutex_unlock(&channel->self->lock);
    }
    return status;
}

const char *phi_channel_why(const struct ph_channel *channel, int code)
{
    // The reason why a rank is fenced, or why a channel ended alone, is written before the
    // channel's status.
    if (code != atomic_load_explicit(&channel->live.status, memory_order_acquire))
        return ph_strerror(code);
    if (code == PH_EFENCED)
        return channel->self->end.fenced_why;
    const bool alone =
        (code == PH_EABORTED || code == PH_EMISMATCH) && channel->live.why[0] != '\0';
    return alone ? channel->live.why : ph_strerror(code);
}

// Returns whether the peer's application knows that the pair has ended, by a call of its own at
// least. The data in the peer's buffers may have made way for something else since. The loads pair
// with the peer's stores of these members, which come before that call returns: an end that has
// read later data finds them here.
static bool is_over_there(const struct phi_peer *peer)
{
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->told) != 0 || atomic_load(&theirs->expelled) != 0 ||
           (atomic_load(&theirs->state) & PHI_SIDE_ABORTED) != 0;
}

int phi_channel_ended(struct ph_channel *channel)
{
    // The fence is behind the reads. It pairs with the fence in phi_peer_told.
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&channel->live.status) == 0 && !channel->fixed.loopback &&
        is_over_there(channel->peer))
        look(channel);
    return phi_channel_check(channel);
}

// Returns whether this end may have read data in the peer's buffer that came after the peer had
// given the buffer up. Data that it had read when the peer was still there is whole for ever.
static bool may_have_read_else(struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    const uint32_t reads = atomic_load(&channel->live.reads);
    if (reads == atomic_load(&channel->live.reads_whole))
        return false;
    const bool drained = executor->ops->drained(executor, &channel->live.uses, NULL, 0);
    // The fence is behind the reads. It pairs with the fence in phi_peer_told.
    atomic_thread_fence(memory_order_seq_cst);
    if (is_over_there(channel->peer))
        return true;
    if (drained)
        atomic_store(&channel->live.reads_whole, reads);
    return false;
}

// Returns whether this end has let a peer go on that was not to believe it.
static bool is_undefined(int ended)
{
    return ended == PH_EABORTED || ended == PH_EFENCED || ended == PH_EMISMATCH;
}

// Returns whether something may be undone. Without an end nobody has let a wait go, nor is the line
// another channel's.
static bool may_be_undone(const struct ph_channel *channel, int ended)
{
    return ended || atomic_load(&channel->live.undone) ||
           atomic_load(&channel->fixed.own.line->undone);
}

static bool is_undone(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->self->lock);
    const bool undone = phi_lift_undone(channel);
    pthread_mutex_unlock(&channel->self->lock);
    return undone;
}

bool phi_channel_whole(struct ph_channel *channel)
{
    const int ended = atomic_load_explicit(&channel->live.status, memory_order_acquire);
    return !is_undefined(ended) && !(may_be_undone(channel, ended) && phi_lift_undone(channel));
}

// If this rank has given up, or was fenced, peers may post data that they have not copied.
static const char *why_not_whole(struct ph_channel *channel)
{
    const int ended = atomic_load_explicit(&channel->live.status, memory_order_acquire);
    if (is_undefined(ended))
        return "what its operations have moved is undefined";
    if (may_be_undone(channel, ended) && is_undone(channel))
        return "a message that it waited for did not come, or what it had to copy or to tell was "
               "left out";
    if (may_have_read_else(channel))
        return "what it has read may not be what the peer had there for it";
    return NULL;
}

int phi_channel_status(struct ph_channel *channel)
{
    const char *why = why_not_whole(channel);
    if (why == NULL)
        return 0;
    const int ended = phi_channel_ended(channel);
    const int code = ended && ended != -ESTALE ? ended : PH_EBROKEN;
    return phi_refuse(channel->self->report, code, "operation %llu with rank %d: %s: %s",
                      (unsigned long long)channel->op_id, channel->peer->rank, why,
                      phi_channel_why(channel, code));
}
