// SPDX-License-Identifier: BSD-3-Clause
#include "transfer/take.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "lane/flags.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "transfer/issue.h"

// How long a call on a channel that has ended waits for the one before it. That one is over but for
// a thread, or a kernel, that has to say so, and may not have a core.
#define TAKE_MS 2000

static bool is_drained(struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    return executor->ops->drained(executor, &channel->live.uses, NULL, 0);
}

// Returns whether the word shows a message. Leaving and breaking add bits and take none away: if
// the word says nothing but this, the peer wrote it.
static bool is_word_shown(const struct phi_channel_call *call)
{
    const struct phi_step *first = &phi_programs[call->call].steps[0];
    struct phi_line *line =
        call->outgoing ? call->channel->fixed.own.line : call->channel->fixed.theirs.line;
    return atomic_load(&line->word[first->word]) == first->bit;
}

// While a post or a wait of ours is still on a stream, the word may be that of the message before.
static bool is_word_here(const struct phi_channel_call *call)
{
    return !call->channel->kept.retired && is_drained(call->channel) && is_word_shown(call);
}

static bool take_word(const struct phi_channel_call *call)
{
    const struct phi_program *program = &phi_programs[call->call];
    struct phi_line *line =
        call->outgoing ? call->channel->fixed.own.line : call->channel->fixed.theirs.line;
    uint32_t here = program->steps[0].bit;
    uint32_t taken = program->steps[program->count - 1].bit;
    return is_word_here(call) &&
           atomic_compare_exchange_strong(&line->word[program->steps[0].word], &here, taken);
}

static bool is_here(const struct phi_channel_call *call, enum phi_word word, enum phi_method method)
{
    return method == PHI_BY_STAGED
               ? phi_staging_here(call->channel, word)
               : phi_flags_here(call->channel, call->outgoing, word, method, call->size);
}

// Returns whether the channel is drained, and so are the messages that were taken of the peer's
// channels that had ended already, on the way to their buffers.
static bool is_peer_drained(struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    return is_drained(channel) &&
           executor->ops->drained(executor, &channel->peer->channels.late, NULL, 0);
}

// enter_ended lets nobody retire a channel until it is left. -ESTALE: it is retired; -EAGAIN: the
// peer is being asked.
static int enter_ended(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->self->lock);
    const int rc = channel->kept.retired ? -ESTALE : channel->kept.key->retiring > 0 ? -EAGAIN : 0;
    if (rc == 0)
        phi_channel_enter(channel);
    pthread_mutex_unlock(&channel->self->lock);
    return rc;
}

// Waits a little for the work before a call. That work may end at this moment, now that the peer
// has ended. It looks once more after the time has passed: this thread may have been the one
// without a core.
static bool await_drained(struct ph_channel *channel, bool (*drained)(struct ph_channel *channel),
                          int64_t soon)
{
    while (!drained(channel)) {
        if (phi_now() >= soon)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = PHI_MS / 10}, NULL);
    }
    return true;
}

// Waits for an answer of the peer's, too, that it may not give the channel up. begun: as of
// phi_channel_take.
static bool await_ended(struct ph_channel *channel, bool begun)
{
    const int64_t soon = phi_deadline(TAKE_MS);
    int rc;
    while (await_drained(channel, begun ? is_drained : is_peer_drained, soon) &&
           (rc = enter_ended(channel)) != -ESTALE) {
        if (rc == 0)
            return true;
        if (phi_now() >= soon)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = PHI_MS / 10}, NULL);
    }
    return false;
}

// If the word shows no message, there is nothing to wait for: the peer writes no other. The line of
// a retired channel serves another channel, so this is done under the peers' lock.
static bool with_word(const struct phi_channel_call *call,
                      bool (*act)(const struct phi_channel_call *call))
{
    struct ph_channel *channel = call->channel;
    if (is_word_shown(call))
        await_drained(channel, is_drained, phi_deadline(TAKE_MS));
    pthread_mutex_lock(&channel->self->lock);
    const bool done = act(call);
    pthread_mutex_unlock(&channel->self->lock);
    return done;
}

// Returns whether the message that a call waits for first is here.
static bool first_is_here(const struct phi_channel_call *call)
{
    const struct phi_program *program = call->program;
    return program->count == 0 || // waits for nothing
           is_here(call, (enum phi_word)program->steps[0].word, (enum phi_method)call->method);
}

// Takes a message by flags. A message by ll, or in slots, is unpacked on the stream; the peer is
// told nothing. The channel's own numbers are revoked, so the work has those of `late`.
static bool take_flags(const struct phi_channel_call *call, void *stream, bool begun)
{
    struct ph_channel *channel = call->channel;
    struct phi_executor *executor = channel->self->executor;
    struct phi_work work[PHI_ITEMS_MAX];
    bool partial;
    if (!first_is_here(call))
        return false;
    const struct phi_program *program = call->program;
    if (program->count == 0)
        return true;
    atomic_store(&channel->live.flagged, 1);
    atomic_store(&channel->live.lost, 1);
    if (call->method == PHI_BY_SM)
        return phi_flags_take_moved(channel, call->outgoing, (enum phi_word)program->steps[0].word);
    phi_work_add_call(call, work);
    work[0].continues = begun;
    work[0].uses = &channel->peer->channels.late;
    if (call->method == PHI_BY_LL)
        work[0].lane.peer = 0;
    if (executor->ops->issue(executor, stream, work, 1, &partial))
        return false;
    phi_staging_kick(call);
    return true;
}

static bool take_ended(const struct phi_channel_call *call, void *stream, bool begun)
{
    if (!await_ended(call->channel, begun))
        return false;
    const bool taken = take_flags(call, stream, begun);
    phi_channel_leave(call->channel);
    return taken;
}

// Returns whether a kernel would have to take the message, at an end that launches none.
static bool is_out_of_reach(const struct phi_channel_call *call)
{
    return call->channel->fixed.own.zero_sm && call->channel->fixed.stage.is;
}

bool phi_channel_here(const struct phi_channel_call *given)
{
    struct phi_channel_call call = *given;
    struct ph_channel *channel = call.channel;
    phi_call_decide(&call);
    if (is_out_of_reach(&call))
        return false;
    if (call.method == PHI_BY_WORDS && call.call == PHI_CALL_WAIT)
        return with_word(&call, is_word_here);
    // The other methods of a transfer need the peer.
    const bool alone = call.method == PHI_BY_LL || call.method == PHI_BY_STAGED;
    if ((!alone && (call.method == PHI_BY_WORDS || call.call != PHI_CALL_WAIT)) ||
        !await_ended(channel, false))
        return false;
    const bool here = first_is_here(&call);
    phi_channel_leave(channel);
    return here;
}

bool phi_channel_take(const struct phi_channel_call *given, void *stream, bool begun)
{
    struct phi_channel_call call = *given;
    phi_call_decide(&call);
    if (is_out_of_reach(&call))
        return false;
    return call.method == PHI_BY_WORDS ? with_word(&call, take_word)
                                       : take_ended(&call, stream, begun);
}
