// SPDX-License-Identifier: BSD-3-Clause
#include "transfer/issue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lane/flags.h"
#include "lane/staging.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/flags.h"
#include "semaphore/segment.h"

// Work of one operation of the executor: a group that needs more is several operations on the same
// stream.
#define WORK_MAX 192

enum phi_call phi_channel_late_recv(const struct ph_channel *channel)
{
    return phi_channel_active(channel, false) ? PHI_CALL_TRANSFER : PHI_CALL_COMPLETE;
}

// Returns whether a call moves a message of an unbound channel. Such a channel has signals as well.
static bool is_message(const struct phi_channel_call *call)
{
    return call->channel->fixed.unbound && !phi_call_signals(call->call);
}

static uint32_t direction_bit(bool outgoing)
{
    return outgoing ? 1 : 2;
}

int phi_channel_post(struct ph_channel *channel, bool outgoing, size_t size)
{
    uint32_t bit = direction_bit(outgoing);
    if (atomic_fetch_or(&channel->live.posted, bit) & bit)
        return -EALREADY;
    atomic_store_explicit(&channel->live.posted_size[outgoing], size, memory_order_relaxed);
    return 0;
}

void phi_channel_unpost(struct ph_channel *channel, bool outgoing)
{
    atomic_fetch_and(&channel->live.posted, ~direction_bit(outgoing));
}

// Notes a word that this end waits for. The bit is set once, so that the data path only reads it.
static void note_await(struct ph_channel *channel, bool outgoing, const struct phi_step *step)
{
    uint32_t bit = 1u << (outgoing * 2 + step->word);
    if (!(atomic_load_explicit(&channel->live.awaited, memory_order_relaxed) & bit))
        atomic_fetch_or(&channel->live.awaited, bit);
}

// A direction's words lie in its sender's line; both ends look at them there.
static void set_word(struct phi_work *work, struct ph_channel *channel, bool outgoing,
                     const struct phi_step *step)
{
    struct phi_line *line = outgoing ? channel->fixed.own.line : channel->fixed.theirs.line;
    uint64_t device = outgoing ? channel->fixed.own.line_device : channel->fixed.theirs.line_device;
    work->word.host = &line->word[step->word];
    work->word.device =
        device ? device + offsetof(struct phi_line, word) + step->word * sizeof(uint32_t) : 0;
    work->word.value = step->bit;
    if (channel->fixed.route.link == NULL)
        return;
    work->remote.route = &channel->fixed.route;
    // `which` names one of the word's two bits. The side of the line is the sender's.
    const struct phi_net_post post = {
        .line = channel->fixed.index,
        .side = (uint8_t)(outgoing ? channel->peer->segment->side : !channel->peer->segment->side),
        .word = step->word,
        .which = step->bit == PHI_BIT_FULL || step->bit == PHI_BIT_FREE,
        .life = channel->fixed.life,
    };
    work->remote.immediate = phi_net_post_encode(&post);
}

static uint8_t asks_of(const struct phi_channel_call *call)
{
    return (call->outgoing ? PHI_ASK_SOURCE : PHI_ASK_DESTINATION) |
           (call->remote_offset == 0 ? PHI_ASK_END : 0);
}

// Fills in the copy of an unbound channel's message, into the peer's bounce buffer or out of the
// own one. The latter is for data that has come, whatever became of the peer since.
static void set_bounce(struct phi_work *work, const struct phi_channel_call *call)
{
    struct ph_channel *channel = call->channel;
    static const struct phi_step full = {PHI_STEP_WAIT, PHI_WORD_TURN, PHI_BIT_FULL};
    work->span.size = call->size;
    work->span.message = call->message;
    // A rank without kernels writes no heads.
    const struct phi_capabilities *theirs = &channel->peer->theirs;
    work->head = call->outgoing                       ? PHI_HEAD_WRITE
                 : theirs->device && !theirs->kernels ? PHI_HEAD_NONE
                                                      : PHI_HEAD_CHECK;
    work->span.source = call->outgoing ? call->data : channel->fixed.own.address + PHI_BOUNCE_HEAD;
    work->span.destination =
        call->outgoing ? channel->fixed.theirs.address + PHI_BOUNCE_HEAD : call->data;
    work->span.asks = asks_of(call);
    work->linked = channel->fixed.linked;
    if (call->outgoing)
        return;
    set_word(work, channel, false, &full);
    work->remote.route = NULL;
}

// Fills in a message of this rank to itself. No other end is waited for. If the message is already
// at its destination, nothing is copied.
static void set_self(struct phi_work *work, const struct phi_channel_call *call)
{
    work->span.size = call->data == call->to ? 0 : call->size;
    work->span.source = call->data;
    work->span.destination = call->to;
    work->span.asks = PHI_ASK_SOURCE | PHI_ASK_DESTINATION | PHI_ASK_END;
}

// Adds the items of a message by bounce buffers, and returns how many there are. Over the net a
// message that is sent lies in the other area of the own bounce buffer first, because the caller's
// memory is not registered.
static size_t add_bounce(const struct phi_channel_call *call, struct phi_work *work)
{
    struct ph_channel *channel = call->channel;
    set_bounce(&work[0], call);
    if (!call->outgoing || channel->fixed.route.link == NULL)
        return 1;
    uint8_t *area = channel->fixed.own.address + channel->fixed.area;
    work[0].span.destination = area + PHI_BOUNCE_HEAD;
    work[1] = phi_channel_work(channel, PHI_STEP_COPY, call->call);
    work[1].remote.route = &channel->fixed.route;
    work[1].span.source = area;
    work[1].span.size = PHI_BOUNCE_HEAD + call->size;
    return 2;
}

// Sets where a copy goes from and to. An address over the net is NULL: `remote` has it.
static void set_ends(struct phi_work *work, const struct phi_channel_call *call, uint8_t *local,
                     uint8_t *remote)
{
    const struct ph_channel *channel = call->channel;
    const bool local_host = channel->fixed.own.kind == PHI_KIND_HOST;
    const bool remote_host = channel->fixed.theirs.kind == PHI_KIND_HOST;
    work->span.destination = call->outgoing ? remote : local;
    work->span.source = call->outgoing ? local : remote;
    work->span.host_destination = call->outgoing ? remote_host : local_host;
    work->span.host_source = call->outgoing ? local_host : remote_host;
    work->linked = channel->fixed.linked;
}

// A put copies out, a get copies in; send/recv copies the way of the direction, from whichever end
// is active.
static void set_copy(struct phi_work *work, const struct phi_channel_call *call)
{
    struct ph_channel *channel = call->channel;
    uint8_t *local = channel->fixed.own.address + call->local_offset;
    work->span.size = call->size;
    if (channel->fixed.route.link != NULL) {
        work->remote.route = &channel->fixed.route;
        work->remote.offset = call->remote_offset;
        work->span.destination = call->outgoing ? NULL : local;
        work->span.source = call->outgoing ? local : NULL;
        return;
    }
    set_ends(work, call, local, channel->fixed.theirs.address + call->remote_offset);
}

// Sets the piece of a copy that begins `done` bytes behind the copy's begin, up to where a range of
// either end is over. Returns its size.
static uint64_t set_piece(struct phi_work *work, const struct phi_channel_call *call, uint64_t done)
{
    const struct phi_channel_fixed *fixed = &call->channel->fixed;
    uint64_t size = call->size - done;
    uint8_t *local = phi_channel_at(&fixed->own, call->local_offset + done, &size);
    uint8_t *remote = phi_channel_at(&fixed->theirs, call->remote_offset + done, &size);
    set_ends(work, call, local, remote);
    work->span.size = size;
    return size;
}

static void set_pages(struct phi_work *work, const struct phi_channel_call *call)
{
    work->kind = PHI_STEP_PAGES;
    work->pages = call->pages;
    work->span.size = call->pages->bytes;
}

static enum phi_method method_of(const struct phi_channel_call *call)
{
    const struct phi_channel_fixed *fixed = &call->channel->fixed;
    if (is_message(call) && !fixed->stage.is)
        return fixed->ring[call->outgoing] ? PHI_BY_RING : PHI_BY_BOUNCE;
    // The tables are for messages.
    const bool plain = call->call == PHI_CALL_PUT || call->call == PHI_CALL_GET;
    if (plain && !fixed->stage.is)
        return PHI_BY_WORDS;
    return phi_flags_method(call->channel, call->outgoing, call->call, call->size);
}

void phi_call_decide(struct phi_channel_call *call)
{
    const uint8_t protocol = call->channel->fixed.protocol[call->outgoing];
    if (call->program != NULL)
        return;
    const enum phi_method method = method_of(call);
    call->method = (uint8_t)method;
    call->program = phi_program_of(call->call, method, protocol == PH_PROTOCOL_GET);
}

bool phi_call_is_long(const struct phi_channel_call *call)
{
    return is_message(call) && call->call != PHI_CALL_POST &&
           call->channel->fixed.ring[call->outgoing] && call->size > PHI_RING_WHOLE;
}

// Fills in a part of a message by a ring: the lanes and slots of the two bounce buffers.
static void set_ring(struct phi_work *work, const struct phi_channel_call *call)
{
    const struct ph_channel *channel = call->channel;
    const uint64_t mine = (uint64_t)(uintptr_t)channel->fixed.own.address;
    const uint64_t theirs = (uint64_t)(uintptr_t)channel->fixed.theirs.address;
    work->lane.wide = 1;
    work->lane.ring = call->size > PHI_RING_WHOLE ? PHI_RING_DRAWN : PHI_RING_SHORT;
    work->span.size = call->size;
    work->span.message = call->message;
    work->lane.own = mine + PHI_RING_LANE(!call->outgoing);
    work->lane.peer = theirs + PHI_RING_LANE(call->outgoing);
    work->lane.slots = call->outgoing ? theirs : mine;
    *(call->outgoing ? (void **)&work->span.source : &work->span.destination) = call->data;
    work->span.asks = asks_of(call);
    work->lane.fence_before =
        atomic_load_explicit(&channel->self->issuing.unfenced, memory_order_relaxed);
}

// Fills in a step of a message by flags: the lanes of its direction, and the members of the copy
// that the step needs.
static void set_hop(struct phi_work *work, const struct phi_channel_call *call,
                    const struct phi_step *step)
{
    struct ph_channel *channel = call->channel;
    work->over.broken = &channel->fixed.own.line->flags_over;
    work->over.broken_device =
        channel->fixed.own.line_device + offsetof(struct phi_line, flags_over);
    if (!atomic_load_explicit(&channel->live.flagged, memory_order_relaxed))
        atomic_store(&channel->live.flagged, 1); // once, so that the data path only reads it
    if (phi_step_staged(step->kind)) {
        phi_staging_work(work, call, step);
        return;
    }
    if (is_message(call)) {
        set_ring(work, call);
        return;
    }
    const enum phi_word word = (enum phi_word)step->word;
    const size_t lane = phi_flags_lane_of(channel, call->outgoing, word);
    const uint64_t lines = channel->fixed.table[call->outgoing].ll_max;
    set_copy(work, call);
    work->lane.own = channel->fixed.own.flags.lanes + lane;
    work->lane.peer = channel->fixed.theirs.flags.lanes + lane;
    work->lane.signal = word == PHI_WORD_NOTE;
    work->lane.fence_before =
        atomic_load_explicit(&channel->self->issuing.unfenced, memory_order_relaxed);
    work->lane.wide = !work->lane.signal && phi_flag_is_wide(lines, call->size);
    const struct phi_flag_end *taker =
        step->kind == PHI_STEP_PUSH ? &channel->fixed.theirs.flags : &channel->fixed.own.flags;
    if (step->kind == PHI_STEP_PUSH || step->kind == PHI_STEP_TAKE)
        work->lane.slots = work->lane.wide ? taker->wide : taker->slots[word];
    if (step->kind == PHI_STEP_PUSH) {
        work->lane.offset = work->lane.wide ? taker->slots[word] : call->remote_offset;
    } else if (step->kind == PHI_STEP_TAKE) {
        work->span.destination = channel->fixed.own.address;
        work->span.host_destination = channel->fixed.own.kind == PHI_KIND_HOST;
        work->lane.offset = channel->fixed.own.size;
    } else if (step->kind == PHI_STEP_MOVE) {
        work->lane.offset = call->outgoing;
    }
}

bool phi_call_fills(const struct phi_channel_call *call)
{
    if (!call->channel->fixed.stage.is)
        return false;
    const struct phi_program *program = call->program;
    return program->count == 1 && program->steps[0].kind == PHI_STEP_STAGE;
}

bool phi_call_empties(const struct phi_channel_call *call)
{
    if (!call->channel->fixed.stage.is)
        return false;
    const struct phi_program *program = call->program;
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
        .uses = &channel->live.uses,
        .over.broken = &channel->fixed.own.line->broken,
        .over.broken_device = channel->fixed.own.line_device ? channel->fixed.own.line_device +
                                                                   offsetof(struct phi_line, broken)
                                                             : 0,
        .over.undone = &channel->fixed.own.line->undone,
    };
}

// Returns whether a post only says that this end has taken what it waited for.
static bool post_answers(const struct phi_channel_call *call, const struct phi_step *step)
{
    return step->bit == PHI_BIT_FREE || (step->bit == PHI_BIT_FULL && !call->outgoing);
}

// Adds a call that goes by a bell. Its program is one item, and one more where something is copied.
static size_t add_bell(const struct phi_channel_call *call, struct phi_work *work)
{
    const struct phi_bell bell = phi_bell_of(call->program);
    struct ph_channel *channel = call->channel;
    struct phi_work word = {0};
    work[0] = phi_channel_work(channel, PHI_STEP_BELL, call->call);
    phi_staging_lane(&work[0], call);
    if (bell.copies && call->size > 0) {
        work[0].span.size = call->size;
        work[0].span.source = channel->fixed.own.address + call->local_offset;
        work[0].lane.offset = call->remote_offset;
        work[0].lane.signal |= call->outgoing ? PHI_BELL_COPY : PHI_BELL_READ;
    }
    if (bell.wait) {
        set_word(&word, channel, call->outgoing, bell.wait);
        note_await(channel, call->outgoing, bell.wait);
    }
    if (bell.post) {
        set_word(&word, channel, call->outgoing, bell.post);
        work[0].lane.signal |= PHI_BELL_POST;
    }
    work[0].word.device = word.word.device;
    work[0].lane.peer = PHI_BELL(bell.post ? word.remote.immediate : 0,
                                 bell.wait ? bell.wait->bit : 0, bell.post ? bell.post->bit : 0);
    if (work[0].span.size > 0 || (bell.post && !post_answers(call, bell.post)))
        work[0].lane.peer |= PHI_BELL_TELLS;
    if (work[0].span.size == 0)
        return 1;
    work[1] = phi_channel_work(channel, PHI_STEP_LAND, call->call);
    phi_staging_lane(&work[1], call);
    return 2;
}

size_t phi_work_add_call(const struct phi_channel_call *call, struct phi_work *work)
{
    if (call->channel->fixed.stage.bells)
        return add_bell(call, work);
    const struct phi_program *program = call->program;
    struct ph_channel *channel = call->channel;
    size_t items = 0;
    for (unsigned i = 0; i < program->count; i++) {
        const struct phi_step *step = &program->steps[i];
        struct phi_work *item = &work[items++];
        *item = phi_channel_work(channel, step->kind, call->call);
        if (phi_step_hops(step->kind))
            set_hop(item, call, step);
        else if (step->kind == PHI_STEP_COPY && channel->fixed.loopback)
            set_self(item, call);
        else if (step->kind == PHI_STEP_COPY && is_message(call))
            items += add_bounce(call, item) - 1;
        else if (call->pages != NULL)
            set_pages(item, call);
        else if (step->kind == PHI_STEP_COPY)
            set_copy(item, call);
        else
            set_word(item, channel, call->outgoing, step);
        if (step->kind == PHI_STEP_POST)
            item->answers = post_answers(call, step);
        // A message that the table leaves to the copy engine is not for a copy kernel.
        item->engine =
            channel->fixed.own.zero_sm || (channel->fixed.own.flags.lanes != 0 &&
                                           program->count == PHI_STEPS_MAX && !is_message(call));
        item->zero_sm = channel->fixed.own.zero_sm;
        if (step->kind == PHI_STEP_WAIT)
            note_await(channel, call->outgoing, step);
    }
    return items;
}

// How far the items of a call have been added whose copy is cut into pieces.
struct cut {
    unsigned step;
    uint64_t done; // bytes of its copy
};

// Adds the next item of a call on a channel with several ranges. Such a channel goes by words.
// Returns whether it was the last one, and begins anew then.
static bool add_cut(const struct phi_channel_call *call, struct cut *cut, struct phi_work *item)
{
    struct ph_channel *channel = call->channel;
    const struct phi_step *step = &call->program->steps[cut->step];
    *item = phi_channel_work(channel, step->kind, call->call);
    item->engine = item->zero_sm = channel->fixed.own.zero_sm;
    if (step->kind == PHI_STEP_COPY) {
        cut->done += set_piece(item, call, cut->done);
        if (cut->done < call->size)
            return false;
    } else {
        set_word(item, channel, call->outgoing, step);
    }
    if (step->kind == PHI_STEP_POST)
        item->answers = post_answers(call, step);
    if (step->kind == PHI_STEP_WAIT)
        note_await(channel, call->outgoing, step);
    if (++cut->step < call->program->count)
        return false;
    *cut = (struct cut){0};
    return true;
}

// Adds the items of a call, and returns how many items there are then. Bells of one lane that
// follow one another land together.
static size_t add_next(const struct phi_channel_call *call, struct phi_work *work, size_t used)
{
    const size_t added = phi_work_add_call(call, work + used);
    struct phi_work *land = used > 0 ? &work[used - 1] : NULL;
    if (land == NULL || land->kind != PHI_STEP_LAND || added != 2 ||
        work[used].kind != PHI_STEP_BELL || work[used].lane.own != land->lane.own)
        return used + added;
    memmove(land, land + 1, added * sizeof *land);
    return used + 1;
}

static bool has_lanes(const struct ph_channel *channel)
{
    return channel->fixed.stage.is || channel->fixed.own.flags.lanes != 0 ||
           channel->fixed.ring[0] || channel->fixed.ring[1];
}

void phi_channel_enter(struct ph_channel *channel)
{
    if (has_lanes(channel))
        atomic_fetch_add(&channel->live.inside, 1);
}

void phi_channel_leave(struct ph_channel *channel)
{
    if (has_lanes(channel))
        atomic_fetch_sub(&channel->live.inside, 1);
}

// The words are in a state that no program expects.
void phi_channel_break(struct ph_channel *channel)
{
    int whole = 0;
    atomic_store(&channel->live.lost, 1);
    atomic_store(&channel->live.undone, 1);
    atomic_compare_exchange_strong(&channel->live.status, &whole, PH_EBROKEN);
}

static int flush(struct phi_self *self, struct phi_work *work, size_t n, void *stream, bool *begun,
                 bool *enqueued)
{
    bool partial = false;
    *enqueued = false;
    if (n == 0)
        return 0;
    work[0].continues = *begun;
    int rc = self->executor->ops->issue(self->executor, stream, work, n, &partial);
    *enqueued = partial || rc == 0;
    *begun = *begun || *enqueued;
    return rc;
}

// Adds as many calls that fill slots as can go on beside the calls that help. Returns how many.
static size_t add_helped(const struct phi_channel_call *calls, size_t n,
                         const struct phi_helps *helps, struct phi_work *work, size_t *used)
{
    size_t taken = 0, count = 0;
    while (taken < n && count + helps->n < PHI_TOGETHER_MAX && phi_call_fills(&calls[taken]))
        count += phi_work_add_call(&calls[taken++], work + count);
    for (size_t i = 0; i < helps->n; i++) {
        count += phi_work_add_call(&helps->calls[i], work + count);
        work[count - 1].kind = PHI_STEP_HELP;
    }
    work[0].together = (uint8_t)count;
    *used += count;
    return taken;
}

static void count_flags(const struct phi_channel_call *call)
{
    const enum phi_method method = (enum phi_method)call->method;
    if (method == PHI_BY_WORDS || method == PHI_BY_STAGED || method == PHI_BY_BOUNCE)
        return;
    for (unsigned i = 0; i < call->program->count; i++)
        phi_flags_count(call->channel, call->outgoing, &call->program->steps[i]);
}

int phi_issue_nothing(struct ph_channel *channel, void *stream)
{
    struct phi_executor *executor = channel->self->executor;
    const struct phi_work work = phi_channel_work(channel, PHI_STEP_HOLD, PHI_CALL_NOTIFY);
    bool partial;
    return executor->ops->issue(executor, stream, &work, 1, &partial);
}

void phi_channel_reads(struct ph_channel *channel)
{
    if (!channel->fixed.by_net) // else a peer that gives its buffer up ends the copy
        atomic_fetch_add_explicit(&channel->live.reads, 1, memory_order_relaxed);
}

static void count_read(const struct phi_channel_call *call)
{
    const enum phi_method method = (enum phi_method)call->method;
    const bool copies = call->call == PHI_CALL_GET || call->call == PHI_CALL_TRANSFER;
    if (!call->outgoing && copies && (method == PHI_BY_WORDS || method == PHI_BY_SM))
        phi_channel_reads(call->channel);
}

// Kicks the lanes of the calls that were enqueued. The lanes were there when the calls were taken,
// and stay until we leave.
static size_t kick(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++) {
        phi_staging_kick(&calls[i]);
        count_flags(&calls[i]);
        count_read(&calls[i]);
    }
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        phi_staging_kick(&helps->calls[i]);
    return n;
}

static void enter(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++)
        phi_channel_enter(calls[i].channel);
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        phi_channel_enter(helps->calls[i].channel);
}

static void leave(const struct phi_channel_call *calls, size_t n, const struct phi_helps *helps)
{
    for (size_t i = 0; i < n; i++)
        phi_channel_leave(calls[i].channel);
    for (size_t i = 0; helps != NULL && i < helps->n; i++)
        phi_channel_leave(helps->calls[i].channel);
}

// The items of a large group are too many for the stack of a small thread.
#define FEW_CALLS 4

static struct phi_work *take_work(struct phi_self *self)
{
    struct phi_work *work = NULL;
    for (int i = 0; work == NULL && i < PHI_SPARE_WORK; i++)
        work = atomic_exchange(&self->issuing.spare[i], NULL);
    if (work == NULL && (work = malloc(WORK_MAX * sizeof *work)) == NULL)
        phi_fail_line(self->report, "out of memory for a group");
    return work;
}

static void give_work(struct phi_self *self, struct phi_work *work)
{
    for (int i = 0; work != NULL && i < PHI_SPARE_WORK; i++)
        work = atomic_exchange(&self->issuing.spare[i], work);
    free(work);
}

int phi_issue_prepare(struct phi_self *self)
{
    struct phi_work *work = take_work(self);
    give_work(self, work);
    return work == NULL ? -ENOMEM : 0;
}

// `work` has room for `room` items.
int phi_issue_calls(struct phi_self *self, const struct phi_channel_call *calls, size_t n,
                    const struct phi_helps *helps, void *stream, bool *begun, struct phi_work *work,
                    size_t room)
{
    const bool helped = helps != NULL && helps->n > 0;
    size_t used = 0, i = 0, kicked = 0;
    struct cut cut = {0};
    bool enqueued;
    int rc = 0;
    enter(calls, n, helps);
    while (i < n && rc == 0) {
        if (used + (helped ? PHI_TOGETHER_MAX : PHI_ITEMS_MAX) > room) {
            rc = flush(self, work, used, stream, begun, &enqueued);
            used = 0;
            kicked += enqueued ? kick(calls + kicked, i - kicked, helps) : 0;
        }
        if (rc == 0 && helped && phi_call_fills(&calls[i]))
            i += add_helped(&calls[i], n - i, helps, work + used, &used);
        else if (rc == 0 && calls[i].channel->fixed.ranged && calls[i].pages == NULL)
            i += add_cut(&calls[i], &cut, &work[used++]);
        else if (rc == 0)
            used = add_next(&calls[i++], work, used);
    }
    if (rc == 0) {
        rc = flush(self, work, used, stream, begun, &enqueued);
        if (enqueued)
            kick(calls + kicked, i - kicked, helps);
    }
    for (i = 0; rc && *begun && i < n; i++)
        phi_channel_break(calls[i].channel);
    leave(calls, n, helps);
    return rc;
}

int phi_issue(struct phi_self *self, struct phi_channel_call *calls, size_t n,
              const struct phi_helps *helps, void *stream, bool *begun)
{
    bool ranged = false; // a copy may be many items
    for (size_t i = 0; i < n; i++) {
        phi_call_decide(&calls[i]);
        ranged = ranged || calls[i].channel->fixed.ranged;
    }
    if (n <= FEW_CALLS && !ranged && (helps == NULL || helps->n == 0)) {
        struct phi_work few[FEW_CALLS * PHI_ITEMS_MAX];
        return phi_issue_calls(self, calls, n, helps, stream, begun, few, sizeof few / sizeof *few);
    }
    struct phi_work *work = take_work(self);
    if (work == NULL)
        return -ENOMEM;
    int rc = phi_issue_calls(self, calls, n, helps, stream, begun, work, WORK_MAX);
    give_work(self, work);
    return rc;
}
