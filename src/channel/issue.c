// SPDX-License-Identifier: BSD-3-Clause
#include "channel/issue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "channel/end.h"
#include "channel/expel.h"
#include "channel/release.h"
#include "semaphore/flags.h"

// Work of one operation of the executor: a group that needs more is several operations on the same
// stream.
#define WORK_MAX 192
// How long a call on a channel that has ended waits for the one before it. That one is over but for
// a thread, or a kernel, that has to say so, and may not have a core.
#define TAKE_MS 2000

// Whether the peer gave its buffer back before or after all that this end waited for had come.
static int settle(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->peers->lock);
    phi_revoke_settle(channel);
    pthread_mutex_unlock(&channel->peers->lock);
    return atomic_load_explicit(&channel->status, memory_order_acquire);
}

// With what the peer has said of its end, which the service thread may not have seen so far, or be
// just writing down.
static int look(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->peers->lock);
    phi_peer_look(channel->peer);
    const int status = atomic_load_explicit(&channel->status, memory_order_acquire);
    pthread_mutex_unlock(&channel->peers->lock);
    return status;
}

int phi_channel_check(struct ph_channel *channel)
{
    int status = atomic_load_explicit(&channel->status, memory_order_acquire);
    if (status == -ESTALE && (atomic_load(&channel->flagged) || atomic_load(&channel->lifted)))
        status = settle(channel);
    // A queue whose copy failed with the link is done before the service thread knows of it. Pairs
    // with the queue's store, which comes before its operation is done.
    if (status == 0 && channel->route.link != NULL && atomic_load(&channel->mine->broken) != 0) {
        status = look(channel);
        status = status ? status : PH_EPEER;
    }
    struct phi_peer *peer = channel->peer;
    if (status && atomic_load(&peer->ended))
        phi_peer_told(peer);
    if (status == PH_EFENCED && !atomic_load(&channel->peers->fence_told)) {
        pthread_mutex_lock(&channel->peers->lock);
        phi_fence_told(channel->peers);
        pthread_mutex_unlock(&channel->peers->lock);
    }
    return status;
}

// Whether the peer's application knows that the pair has ended, by a call of its own at least: what
// lay in its buffers may have made way for something else since. Pairs with its stores of these,
// which come before that call returns: who has read what came later finds them here.
static bool is_over_there(const struct phi_peer *peer)
{
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->told) != 0 || atomic_load(&theirs->expelled) != 0 ||
           (atomic_load(&theirs->state) & PHI_SIDE_ABORTED) != 0;
}

int phi_channel_status(struct ph_channel *channel)
{
    // Behind what was read. Pairs with the fence in phi_peer_told.
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&channel->status) == 0 && is_over_there(channel->peer))
        look(channel);
    return phi_channel_check(channel);
}

bool phi_channel_active(const struct ph_channel *channel, bool outgoing)
{
    return outgoing ? channel->protocol_out == PH_PROTOCOL_PUT
                    : channel->protocol_in == PH_PROTOCOL_GET;
}

enum phi_call phi_channel_late_recv(const struct ph_channel *channel)
{
    return phi_channel_active(channel, false) ? PHI_CALL_TRANSFER : PHI_CALL_COMPLETE;
}

static uint32_t direction_bit(bool outgoing)
{
    return outgoing ? 1 : 2;
}

int phi_channel_post(struct ph_channel *channel, bool outgoing, size_t size)
{
    uint32_t bit = direction_bit(outgoing);
    if (atomic_fetch_or(&channel->posted, bit) & bit)
        return -EALREADY;
    atomic_store_explicit(&channel->posted_size[outgoing], size, memory_order_relaxed);
    return 0;
}

void phi_channel_unpost(struct ph_channel *channel, bool outgoing)
{
    atomic_fetch_and(&channel->posted, ~direction_bit(outgoing));
}

// Which words this end has ever waited for; set once, so that the data path only reads it.
static void note_await(struct ph_channel *channel, bool outgoing, const struct phi_step *step)
{
    uint32_t bit = 1u << (outgoing * 2 + step->word);
    if (!(atomic_load_explicit(&channel->awaited, memory_order_relaxed) & bit))
        atomic_fetch_or(&channel->awaited, bit);
}

// A direction's words lie in its sender's line; both ends look at them there.
static void set_word(struct phi_work *work, struct ph_channel *channel, bool outgoing,
                     const struct phi_step *step)
{
    struct phi_line *line = outgoing ? channel->mine : channel->theirs_line;
    uint64_t device = outgoing ? channel->mine_device : channel->theirs_device;
    work->word = &line->word[step->word];
    work->word_device =
        device ? device + offsetof(struct phi_line, word) + step->word * sizeof(uint32_t) : 0;
    work->value = step->bit;
    if (channel->route.link == NULL)
        return;
    work->route = &channel->route;
    // Which of the word's two bits it is; the side of the line is the sender's.
    const struct phi_net_post post = {
        .line = channel->index,
        .side = (uint8_t)(outgoing ? channel->peer->segment->side : !channel->peer->segment->side),
        .word = step->word,
        .which = step->bit == PHI_BIT_FULL || step->bit == PHI_BIT_FREE,
        .life = channel->life,
    };
    work->immediate = phi_net_post_encode(&post);
}

// A put copies out, a get copies in; send/recv copies the way of the direction, from whichever end
// is active.
static void set_copy(struct phi_work *work, const struct phi_channel_call *call)
{
    struct ph_channel *channel = call->channel;
    uint8_t *local = channel->local + call->local_offset;
    work->size = call->size;
    if (channel->route.link != NULL) {
        work->route = &channel->route;
        work->offset = call->remote_offset;
        work->destination = call->outgoing ? NULL : local;
        work->source = call->outgoing ? local : NULL;
        return;
    }
    uint8_t *remote = channel->remote + call->remote_offset;
    const bool local_host = channel->local_kind == PHI_KIND_HOST;
    const bool remote_host = channel->remote_kind == PHI_KIND_HOST;
    work->destination = call->outgoing ? remote : local;
    work->source = call->outgoing ? local : remote;
    work->host_destination = call->outgoing ? remote_host : local_host;
    work->host_source = call->outgoing ? local_host : remote_host;
    work->linked = channel->linked;
}

static enum phi_method method_of(const struct phi_channel_call *call)
{
    // The tables are for messages.
    const bool plain = call->call == PHI_CALL_PUT || call->call == PHI_CALL_GET;
    if (plain && !call->channel->stage.is)
        return PHI_BY_WORDS;
    return phi_flags_method(call->channel, call->outgoing, call->call, call->size);
}

// What a step by flags does of a call: by both methods it is a part.
static struct phi_channel_call part_of(const struct phi_channel_call *call,
                                       const struct phi_step *step, enum phi_method method)
{
    struct phi_channel_call part = *call;
    if (method != PHI_BY_BOTH)
        return part;
    const size_t tail = phi_flag_tail(call->channel->table[call->outgoing].end, call->size);
    part.size -= tail;
    if (step->kind == PHI_STEP_PUSH || step->kind == PHI_STEP_TAKE) {
        part.local_offset += part.size;
        part.remote_offset += part.size;
        part.size = tail;
    }
    return part;
}

// A message by flags: the lanes of its direction, and what of the copy its step needs.
static void set_hop(struct phi_work *work, const struct phi_channel_call *whole,
                    const struct phi_step *step, enum phi_method method)
{
    const struct phi_channel_call part = part_of(whole, step, method), *call = &part;
    struct ph_channel *channel = call->channel;
    work->broken = &channel->mine->flags_over;
    work->broken_device = channel->mine_device + offsetof(struct phi_line, flags_over);
    if (!atomic_load_explicit(&channel->flagged, memory_order_relaxed))
        atomic_store(&channel->flagged, 1); // once, so that the data path only reads it
    if (phi_step_staged(step->kind)) {
        phi_staging_work(work, call, step);
        return;
    }
    const enum phi_word word = (enum phi_word)step->word;
    const size_t lane = phi_flags_lane_of(channel, call->outgoing, word);
    const uint64_t lines = channel->table[call->outgoing].lines;
    set_copy(work, call);
    work->own_lane = channel->own_slab + lane;
    work->peer_lane = channel->peer_slab + lane;
    work->signal = word == PHI_WORD_NOTE;
    work->fence_before = atomic_load_explicit(&channel->peers->unfenced, memory_order_relaxed);
    work->wide = !work->signal && phi_flag_is_wide(lines, call->size);
    const size_t small = phi_flag_slots(channel->index, word);
    const size_t slots = work->wide ? phi_flag_wide_slots(channel->index) : small;
    if (step->kind == PHI_STEP_PUSH) {
        work->slots = channel->peer_slab + slots;
        work->offset = work->wide ? channel->peer_slab + small : call->remote_offset;
    } else if (step->kind == PHI_STEP_TAKE) {
        work->slots = channel->own_slab + slots;
        work->destination = channel->local + (work->signal ? 0 : call->local_offset);
        work->host_destination = channel->local_kind == PHI_KIND_HOST;
        work->offset = channel->local_size;
    } else if (step->kind == PHI_STEP_MOVE) {
        work->offset = call->outgoing;
    }
    work->tail =
        method == PHI_BY_BOTH && step->kind != PHI_STEP_GO && step->kind != PHI_STEP_ARRIVE;
}

static const struct phi_program *program_by(const struct phi_channel_call *call,
                                            enum phi_method method)
{
    const struct ph_channel *channel = call->channel;
    const uint8_t protocol = call->outgoing ? channel->protocol_out : channel->protocol_in;
    return phi_program_of(call->call, method, protocol == PH_PROTOCOL_GET);
}

static const struct phi_program *program_of(const struct phi_channel_call *call)
{
    return program_by(call, method_of(call));
}

bool phi_call_fills(const struct phi_channel_call *call)
{
    if (!call->channel->stage.is)
        return false;
    const struct phi_program *program = program_of(call);
    return program->count == 1 && program->steps[0].kind == PHI_STEP_STAGE;
}

bool phi_call_empties(const struct phi_channel_call *call)
{
    if (!call->channel->stage.is)
        return false;
    const struct phi_program *program = program_of(call);
    return program->count == 1 && program->steps[0].kind == PHI_STEP_UNSTAGE;
}

struct phi_work phi_channel_work(struct ph_channel *channel, enum phi_step_kind kind,
                                 enum phi_call call)
{
    return (struct phi_work){
        .kind = (uint8_t)kind,
        .call = (uint8_t)call,
        .peer = channel->peer->rank,
        .op_id = channel->op_id,
        .uses = &channel->uses,
        .broken = &channel->mine->broken,
        .broken_device =
            channel->mine_device ? channel->mine_device + offsetof(struct phi_line, broken) : 0,
    };
}

// By a bell: the program is one item, and one more where something is copied.
static size_t add_bell(const struct phi_channel_call *call, struct phi_work *work)
{
    const struct phi_bell bell = phi_bell_of(program_of(call));
    struct ph_channel *channel = call->channel;
    struct phi_work word = {0};
    work[0] = phi_channel_work(channel, PHI_STEP_BELL, call->call);
    phi_staging_lane(&work[0], call);
    if (bell.copies && call->size > 0) {
        work[0].size = call->size;
        work[0].source = channel->local + call->local_offset;
        work[0].offset = call->remote_offset;
        work[0].signal |= call->outgoing ? PHI_BELL_COPY : PHI_BELL_READ;
    }
    if (bell.wait) {
        set_word(&word, channel, call->outgoing, bell.wait);
        note_await(channel, call->outgoing, bell.wait);
    }
    if (bell.post) {
        set_word(&word, channel, call->outgoing, bell.post);
        work[0].signal |= PHI_BELL_POST;
    }
    work[0].word_device = word.word_device;
    work[0].peer_lane = PHI_BELL(bell.post ? word.immediate : 0, bell.wait ? bell.wait->bit : 0,
                                 bell.post ? bell.post->bit : 0);
    if (work[0].size == 0)
        return 1;
    work[1] = phi_channel_work(channel, PHI_STEP_LAND, call->call);
    phi_staging_lane(&work[1], call);
    return 2;
}

static size_t add_call(const struct phi_channel_call *call, struct phi_work *work)
{
    if (call->channel->stage.bells)
        return add_bell(call, work);
    const enum phi_method method = method_of(call);
    const struct phi_program *program = program_by(call, method);
    struct ph_channel *channel = call->channel;
    for (unsigned i = 0; i < program->count; i++) {
        work[i] = phi_channel_work(channel, program->steps[i].kind, call->call);
        if (phi_step_hops(program->steps[i].kind))
            set_hop(&work[i], call, &program->steps[i], method);
        else if (program->steps[i].kind == PHI_STEP_COPY)
            set_copy(&work[i], call);
        else
            set_word(&work[i], channel, call->outgoing, &program->steps[i]);
        // A message that the table leaves to the copy engine is not for a copy kernel.
        work[i].engine = channel->own_slab != 0 && program->count == PHI_STEPS_MAX;
        if (program->steps[i].kind == PHI_STEP_WAIT)
            note_await(channel, call->outgoing, &program->steps[i]);
    }
    if (method == PHI_BY_BOTH)
        work[0].together = program->count;
    return program->count;
}

// Returns how many there are then. Bells of one lane that follow one another land together.
static size_t add_next(const struct phi_channel_call *call, struct phi_work *work, size_t used)
{
    const size_t added = add_call(call, work + used);
    struct phi_work *land = used > 0 ? &work[used - 1] : NULL;
    if (land == NULL || land->kind != PHI_STEP_LAND || added != 2 ||
        work[used].kind != PHI_STEP_BELL || work[used].own_lane != land->own_lane)
        return used + added;
    memmove(land, land + 1, added * sizeof *land);
    return used + 1;
}

static bool is_drained(struct ph_channel *channel)
{
    struct phi_executor *executor = channel->peers->executor;
    return executor->ops->drained(executor, &channel->uses, NULL, 0);
}

// Leaving and breaking add bits and take none away: where the word says nothing but this, the peer
// wrote it.
static bool is_word_shown(const struct phi_channel_call *call)
{
    const struct phi_step *first = &phi_programs[call->call].steps[0];
    struct phi_line *line = call->outgoing ? call->channel->mine : call->channel->theirs_line;
    return atomic_load(&line->word[first->word]) == first->bit;
}

// With a post or a wait of ours still on a stream, it may be the word of the message before.
static bool is_word_here(const struct phi_channel_call *call)
{
    return !call->channel->retired && is_drained(call->channel) && is_word_shown(call);
}

static bool take_word(const struct phi_channel_call *call)
{
    const struct phi_program *program = &phi_programs[call->call];
    struct phi_line *line = call->outgoing ? call->channel->mine : call->channel->theirs_line;
    uint32_t here = program->steps[0].bit;
    uint32_t taken = program->steps[program->count - 1].bit;
    return is_word_here(call) &&
           atomic_compare_exchange_strong(&line->word[program->steps[0].word], &here, taken);
}

static bool is_here(const struct phi_channel_call *call, enum phi_word word, enum phi_method method)
{
    return method == PHI_BY_SLOTS
               ? phi_staging_here(call->channel, word)
               : phi_flags_here(call->channel, call->outgoing, word, method, call->size);
}

// Also what was taken of the peer's channels that had ended already, on the way to their buffers.
static bool is_peer_drained(struct ph_channel *channel)
{
    struct phi_executor *executor = channel->peers->executor;
    return is_drained(channel) && executor->ops->drained(executor, &channel->peer->late, NULL, 0);
}

static bool has_lanes(const struct ph_channel *channel)
{
    return channel->stage.is || channel->own_slab != 0;
}

static void enter_channel(struct ph_channel *channel)
{
    if (has_lanes(channel))
        atomic_fetch_add(&channel->inside, 1);
}

static void leave_channel(struct ph_channel *channel)
{
    if (has_lanes(channel))
        atomic_fetch_sub(&channel->inside, 1);
}

// enter lets nobody retire a channel until it is left. -ESTALE: it is retired; -EAGAIN: the peer is
// being asked.
static int enter_ended(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->peers->lock);
    const int rc = channel->retired ? -ESTALE : channel->key->retiring > 0 ? -EAGAIN : 0;
    if (rc == 0)
        enter_channel(channel);
    pthread_mutex_unlock(&channel->peers->lock);
    return rc;
}

// Waits a little for what stands before a call, which may end at this moment, now that the peer
// has. It looks once more after the time has passed: this thread may have been the one without a
// core.
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

// Of a word that shows no message there is nothing to wait for: the peer writes no other. Of a
// retired channel the line serves another, so this is done under the peers' lock.
static bool with_word(const struct phi_channel_call *call,
                      bool (*act)(const struct phi_channel_call *call))
{
    struct ph_channel *channel = call->channel;
    if (is_word_shown(call))
        await_drained(channel, is_drained, phi_deadline(TAKE_MS));
    pthread_mutex_lock(&channel->peers->lock);
    const bool done = act(call);
    pthread_mutex_unlock(&channel->peers->lock);
    return done;
}

// Of what a call waits for first.
static bool first_is_here(const struct phi_channel_call *call, enum phi_method method)
{
    const struct phi_program *program = program_of(call);
    return program->count == 0 || // waits for nothing
           is_here(call, (enum phi_word)program->steps[0].word, method);
}

// Of a message by flags. What is there by lines, or in slots, is unpacked on the stream; the peer
// is told nothing. The channel's own numbers are revoked: what is in slots has others.
static bool take_flags(const struct phi_channel_call *call, enum phi_method method, void *stream,
                       bool begun)
{
    struct ph_channel *channel = call->channel;
    struct phi_executor *executor = channel->peers->executor;
    struct phi_work work[PHI_STEPS_MAX];
    bool partial;
    if (!first_is_here(call, method))
        return false;
    const struct phi_program *program = program_by(call, method);
    if (program->count == 0)
        return true;
    atomic_store(&channel->flagged, 1);
    atomic_store(&channel->lost, 1);
    if (method != PHI_BY_COPY) {
        // By both, the end of it. Where that is refused the message stays there, all of it.
        struct phi_work *last = &work[add_call(call, work) - 1];
        last->continues = begun;
        last->uses = &channel->peer->late;
        if (method != PHI_BY_SLOTS)
            last->peer_lane = 0;
        if (executor->ops->issue(executor, stream, last, 1, &partial))
            return false;
        phi_staging_kick(call);
    }
    return (method != PHI_BY_COPY && method != PHI_BY_BOTH) ||
           phi_flags_take_moved(channel, call->outgoing, (enum phi_word)program->steps[0].word);
}

static bool take_ended(const struct phi_channel_call *call, enum phi_method method, void *stream,
                       bool begun)
{
    if (!await_ended(call->channel, begun))
        return false;
    const bool taken = take_flags(call, method, stream, begun);
    leave_channel(call->channel);
    return taken;
}

bool phi_channel_here(const struct phi_channel_call *call)
{
    struct ph_channel *channel = call->channel;
    const enum phi_method method = method_of(call);
    if (method == PHI_BY_WORDS && call->call == PHI_CALL_WAIT)
        return with_word(call, is_word_here);
    // The other methods of a transfer need the peer.
    const bool alone = method == PHI_BY_LINES || method == PHI_BY_SLOTS;
    if ((!alone && (method == PHI_BY_WORDS || call->call != PHI_CALL_WAIT)) ||
        !await_ended(channel, false))
        return false;
    const bool here = first_is_here(call, method);
    leave_channel(channel);
    return here;
}

bool phi_channel_take(const struct phi_channel_call *call, void *stream, bool begun)
{
    const enum phi_method method = method_of(call);
    return method == PHI_BY_WORDS ? with_word(call, take_word)
                                  : take_ended(call, method, stream, begun);
}

// The words are in a state that no program expects.
void phi_channel_break(struct ph_channel *channel)
{
    int whole = 0;
    atomic_store(&channel->lost, 1);
    atomic_compare_exchange_strong(&channel->status, &whole, PH_EBROKEN);
}

static int flush(struct phi_peers *peers, struct phi_work *work, size_t n, void *stream,
                 bool *begun, bool *enqueued)
{
    bool partial = false;
    *enqueued = false;
    if (n == 0)
        return 0;
    work[0].continues = *begun;
    int rc = peers->executor->ops->issue(peers->executor, stream, work, n, &partial);
    *enqueued = partial || rc == 0;
    *begun = *begun || *enqueued;
    return rc;
}

// Of calls that fill slots as many as can go on beside those that help. Returns how many.
static size_t add_helped(const struct phi_channel_call *calls, size_t n,
                         const struct phi_helps *helps, struct phi_work *work, size_t *used)
{
    size_t taken = 0, count = 0;
    while (taken < n && count + helps->n < PHI_TOGETHER_MAX && phi_call_fills(&calls[taken]))
        count += add_call(&calls[taken++], work + count);
    for (size_t i = 0; i < helps->n; i++) {
        count += add_call(&helps->calls[i], work + count);
        work[count - 1].kind = PHI_STEP_HELP;
    }
    work[0].together = (uint8_t)count;
    *used += count;
    return taken;
}

static void count_flags(const struct phi_channel_call *call)
{
    const enum phi_method method = method_of(call);
    if (method == PHI_BY_WORDS || method == PHI_BY_SLOTS)
        return;
    const struct phi_program *program = program_by(call, method);
    for (unsigned i = 0; i < program->count; i++)
        phi_flags_count(call->channel, call->outgoing, &program->steps[i]);
}

// The lanes of what was enqueued, which were there when it was taken and stay until we leave.
static size_t kick(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++) {
        phi_staging_kick(&calls[i]);
        count_flags(&calls[i]);
    }
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        phi_staging_kick(&helps->calls[i]);
    return n;
}

static void enter(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++)
        enter_channel(calls[i].channel);
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        enter_channel(helps->calls[i].channel);
}

static void leave(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++)
        leave_channel(calls[i].channel);
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        leave_channel(helps->calls[i].channel);
}

// The items of a large group are too many for the stack of a small thread.
#define FEW_CALLS 4

static struct phi_work *take_work(struct phi_peers *peers)
{
    struct phi_work *work = NULL;
    for (int i = 0; work == NULL && i < PHI_SPARE_WORK; i++)
        work = atomic_exchange(&peers->spare_work[i], NULL);
    if (work == NULL && (work = malloc(WORK_MAX * sizeof *work)) == NULL)
        phi_fail_line(peers->report, "out of memory for a group");
    return work;
}

static void give_work(struct phi_peers *peers, struct phi_work *work)
{
    for (int i = 0; work != NULL && i < PHI_SPARE_WORK; i++)
        work = atomic_exchange(&peers->spare_work[i], work);
    free(work);
}

int phi_issue_prepare(struct phi_peers *peers)
{
    struct phi_work *work = take_work(peers);
    give_work(peers, work);
    return work == NULL ? -ENOMEM : 0;
}

// With room for `room` items in `work`.
static int issue(struct phi_peers *peers, const struct phi_channel_call *calls, size_t n,
                 const struct phi_helps *helps, void *stream, bool *begun, struct phi_work *work,
                 size_t room)
{
    const bool helped = helps != NULL && helps->n > 0;
    size_t used = 0, i = 0, kicked = 0;
    bool enqueued;
    int rc = 0;
    enter(calls, n, helps);
    while (i < n && rc == 0) {
        if (used + (helped ? PHI_TOGETHER_MAX : PHI_STEPS_MAX) > room) {
            rc = flush(peers, work, used, stream, begun, &enqueued);
            used = 0;
            kicked += enqueued ? kick(calls + kicked, i - kicked, helps) : 0;
        }
        if (rc == 0 && helped && phi_call_fills(&calls[i]))
            i += add_helped(&calls[i], n - i, helps, work + used, &used);
        else if (rc == 0)
            used = add_next(&calls[i++], work, used);
    }
    if (rc == 0) {
        rc = flush(peers, work, used, stream, begun, &enqueued);
        if (enqueued)
            kick(calls + kicked, i - kicked, helps);
    }
    for (i = 0; rc && *begun && i < n; i++)
        phi_channel_break(calls[i].channel);
    leave(calls, n, helps);
    return rc;
}

int phi_issue(struct phi_peers *peers, const struct phi_channel_call *calls, size_t n,
              const struct phi_helps *helps, void *stream, bool *begun)
{
    if (n <= FEW_CALLS && (helps == NULL || helps->n == 0)) {
        struct phi_work few[FEW_CALLS * PHI_STEPS_MAX];
        return issue(peers, calls, n, helps, stream, begun, few, sizeof few / sizeof *few);
    }
    struct phi_work *work = take_work(peers);
    if (work == NULL)
        return -ENOMEM;
    int rc = issue(peers, calls, n, helps, stream, begun, work, WORK_MAX);
    give_work(peers, work);
    return rc;
}
