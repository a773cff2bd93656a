// SPDX-License-Identifier: BSD-3-Clause
#include "channel/retire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "channel/flags.h"
#include "channel/release.h"
#include "channel/spent.h"
#include "channel/staging.h"
#include "channel/wake.h"

// When what keeps everything is only under way: how long until the next look.
#define PAUSE_MS 1

// ---- what is seen of a channel or a key

// Whether a message is here that the application has still to take: a note, or the end of what it
// posted.
static bool is_due(const struct ph_channel *channel)
{
    uint32_t posted = atomic_load(&channel->posted);
    return phi_staging_due(channel) ||
           atomic_load(&channel->theirs_line->word[PHI_WORD_NOTE]) == PHI_BIT_NOTED ||
           ((posted & 1u) && atomic_load(&channel->mine->word[PHI_WORD_TURN]) == PHI_BIT_FULL) ||
           ((posted & 2u) &&
            atomic_load(&channel->theirs_line->word[PHI_WORD_TURN]) == PHI_BIT_FULL);
}

static void look_at_channel(struct ph_channel *channel, struct phi_retire_view *view)
{
    struct phi_executor *executor = channel->peers->executor;
    struct phi_left left;
    executor->ops->left(executor, &channel->uses, &left);
    const bool busy =
        left.streams > 0 || atomic_load(&channel->inside) > 0 || !phi_staging_rests(channel);
    // Of a released channel a handle is only the right to ask for its status, and to take what came
    // before.
    const bool of_use = atomic_load(&channel->uses.revoked) == 0 || is_due(channel);
    const bool held = channel->handles > 0 && of_use;
    // Flags stand where they stand: another channel can go on there when they rest. Who still has
    // something to do with them may bring that about.
    const bool by_flags = atomic_load(&channel->flagged) != 0 && !channel->stage.is;
    view->pinned = view->pinned || left.graphs > 0 || left.devices > 0 ||
                   (by_flags && !busy && !held && !phi_flags_rest(channel));
    view->busy = view->busy || busy;
    view->held = view->held || held;
}

static bool is_lower(const struct phi_peer *peer)
{
    return peer->peers->rank < peer->rank;
}

// Of a channel, or of a whole key (channel NULL).
static struct phi_retire_view view_of(const struct phi_key *key, struct ph_channel *channel)
{
    struct phi_retire_view view = {.round = key->agreement.round};
    if (channel != NULL) {
        view.exchanging = phi_retire_exchanging(&key->agreement, is_lower(key->peer),
                                                channel->mine_number, channel->theirs_number);
        look_at_channel(channel, &view);
        return view;
    }
    view.exchanging = key->request != NULL || key->agreement.state != PHI_AGREEMENT_IDLE;
    for (uint32_t i = 0; i < key->channels_count; i++)
        look_at_channel(key->channels[i], &view);
    return view;
}

// As far as this rank was told.
static bool is_theirs_released(const struct phi_key *key, const struct ph_channel *channel)
{
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, channel->theirs_number);
    return theirs == NULL || theirs->released;
}

static struct phi_retire_view spent_view(const struct phi_key *key, struct ph_channel *channel)
{
    struct phi_retire_view view = {.round = key->agreement.round};
    view.exchanging =
        phi_retire_ending(&key->agreement, phi_key_mine_released(key, channel->mine_number),
                          channel->mine_number, channel->theirs_number);
    look_at_channel(channel, &view);
    return view;
}

// ---- taking out

static void push(uint32_t value, uint32_t **list, uint32_t *count, uint32_t *room)
{
    if (*count == *room) {
        uint32_t more = *room ? *room * 2 : 64;
        uint32_t *bigger = realloc(*list, more * sizeof *bigger);
        if (bigger == NULL)
            return; // one less to give
        *list = bigger;
        *room = more;
    }
    (*list)[(*count)++] = value;
}

static void start_line(struct phi_line *line)
{
    for (int word = 0; word < PHI_WORD_COUNT; word++)
        atomic_store(&line->word[word], phi_word_start[word]);
    atomic_store(&line->broken, 0);
    atomic_store(&line->flags_over, 0);
    for (int outgoing = 0; outgoing < 2; outgoing++)
        for (int word = 0; word < PHI_WORD_COUNT; word++)
            atomic_store(&line->messages[outgoing][word], 0);
    atomic_store(&line->uncounted, 0);
    atomic_fetch_add(&line->life, 1);
}

static void start_lines(struct phi_peer *peer, uint32_t index)
{
    for (int side = 0; side < 2; side++)
        start_line(phi_segment_line(peer->segment, side, index));
}

// Both ranks are done with the line: its words go back to their start before it is given again.
// Whoever gets it learns of that by the confirm that names the line. Over the net each rank does so
// in its own copy, when it parts with the channel.
static void give_line(struct phi_peer *peer, uint32_t index)
{
    start_lines(peer, index);
    push(index, &peer->room.lines, &peer->room.lines_count, &peer->room.lines_room);
}

// The application's handles outlive the channel: a husk that only has a status.
static void leave_husk(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    channel->retired = true;
    channel->next = peer->husks;
    peer->husks = channel;
}

static void evict(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    struct phi_key *key = channel->key;
    struct ph_channel **at = &peer->channels;
    while (*at != channel)
        at = &(*at)->next;
    *at = channel->next;
    for (uint32_t i = 0; i < key->channels_count; i++)
        if (key->channels[i] == channel)
            key->channels[i] = key->channels[--key->channels_count];
    phi_revoke_settle(channel); // while the line is its own
    phi_spent_drop(channel);
    if (is_lower(peer))
        give_line(peer, channel->index);
    else if (peer->link != NULL)
        start_lines(peer, channel->index);
    phi_staging_close(channel);
    channel->key = NULL;
    if (channel->handles > 0)
        leave_husk(channel);
    else
        free(channel);
    phi_count(peer->peers->counters, retired, 1);
}

static void clear_side(struct phi_segment *segment, int side, uint32_t index)
{
    for (uint32_t round = 0; round < 2; round++)
        atomic_store(phi_segment_word(segment, side, index, round), 0);
    atomic_store(&phi_segment_slot(segment, side, index)->released, 0);
    atomic_store(phi_segment_confirm(segment, side, index), 0);
}

static void clear_slot(struct phi_peer *peer, uint32_t slot)
{
    struct phi_segment *segment = peer->segment;
    clear_side(segment, segment->side, slot);
    // Over the net what the peer clears comes on another way than its next offer: it is cleared
    // here at once, as nothing else of this life of the slot can come any more.
    if (peer->link != NULL)
        clear_side(segment, !segment->side, slot);
    peer->slots[slot] = NULL;
}

static void evict_all(struct phi_key *key)
{
    while (key->channels_count > 0)
        evict(key->channels[key->channels_count - 1]);
    // Given for a round that failed: no channel had it, and the peer begins no new life of it.
    if (key->line != PHI_NO_LINE)
        push(key->line, &key->peer->room.lines, &key->peer->room.lines_count,
             &key->peer->room.lines_room);
    key->line = PHI_NO_LINE;
    phi_staging_give_back(key->peer, &key->place); // of this slot: the next one is told anew
    clear_slot(key->peer, key->slot);
    key->slot = PHI_NO_SLOT;
    key->agreement = (struct phi_agreement){0};
    key->confirm = 0;
}

void phi_retire_drop_key(struct phi_key *key)
{
    phi_key_disown(key);
    phi_map_remove(&key->peer->keys, phi_hash(key->op_id, key->role), key);
    phi_key_free(key);
}

// ---- the lower rank

uint32_t phi_retire_line(struct phi_peer *peer)
{
    return peer->room.lines_count > 0 ? peer->room.lines[--peer->room.lines_count]
                                      : peer->lines_used++;
}

uint32_t phi_retire_slot(struct phi_peer *peer)
{
    uint32_t slot = peer->room.slots_count > 0 ? peer->room.slots[--peer->room.slots_count]
                                               : peer->slots_used++;
    peer->slot_lives[slot]++;
    return slot;
}

static bool has_room(const struct phi_peer *peer, bool slot)
{
    return slot ? peer->room.slots_count > 0 || peer->slots_used < peer->segment->capacity
                : !peer->room.slots_short &&
                      (peer->room.lines_count > 0 || peer->lines_used < peer->segment->capacity);
}

static int send_question(struct phi_key *key, uint64_t line)
{
    struct phi_peer *peer = key->peer;
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_RETIRE, &message);
    message.a = key->slot;
    message.b = key->agreement.round | (uint64_t)peer->slot_lives[key->slot] << 32;
    message.c = line;
    int rc = phi_peer_tell(peer, &message);
    peer->room.asked += rc == 0;
    return rc;
}

static int ask(struct phi_key *key, uint32_t line)
{
    int rc = send_question(key, line);
    if (rc)
        return rc;
    key->theirs_asked = 0;
    for (uint32_t i = 0; i < key->theirs_count; i++)
        if (key->theirs[i].number > key->theirs_asked)
            key->theirs_asked = key->theirs[i].number;
    key->retiring++; // no exchange of the key goes on until the answer is here
    return 0;
}

enum phi_retire_answer phi_retire_spent(struct ph_channel *channel)
{
    struct phi_key *key = channel->key;
    struct phi_retire_view view = spent_view(key, channel);
    enum phi_retire_answer answer = phi_retire_judge(&view, view.round);
    if (answer != PHI_RETIRE_YES)
        return answer;
    // What was revoked for another reason may come again in a round.
    if (!phi_key_mine_released(key, channel->mine_number) && !is_theirs_released(key, channel))
        return PHI_RETIRE_ROUND;
    if (key->retiring > 0 || key->peer->room.asked >= PHI_RETIRE_ASKED ||
        send_question(key, channel->index | PHI_RETIRE_SPENT))
        return PHI_RETIRE_BUSY;
    channel->asked = true;
    return PHI_RETIRE_YES;
}

// What the present look for room has found in the way.
static void note_refusal(struct phi_peer *peer, enum phi_retire_answer answer, bool here)
{
    struct phi_room *room = &peer->room;
    room->held_here += answer == PHI_RETIRE_HELD && here;
    room->held_there += answer == PHI_RETIRE_HELD && !here;
    room->pinned += answer == PHI_RETIRE_PINNED;
    room->again = room->again || answer == PHI_RETIRE_BUSY || answer == PHI_RETIRE_ROUND;
}

// Judges a candidate once in each look; true where the peer may be asked. An operation of the very
// exchange that needs room makes none.
static bool consider(struct phi_peer *peer, const struct phi_key *key, struct ph_channel *channel,
                     uint32_t *look, const void *request)
{
    if (*look == peer->room.look || key->retiring > 0 || key->slot == PHI_NO_SLOT)
        return false;
    struct phi_retire_view view = view_of(key, channel);
    enum phi_retire_answer answer = phi_retire_judge(&view, key->agreement.round);
    if (answer == PHI_RETIRE_YES)
        return true;
    *look = peer->room.look;
    if (key->request != request || request == NULL)
        note_refusal(peer, answer, true);
    else
        peer->room.exchanging++;
    return false;
}

// The one that was exchanged longest ago; what was released goes first.
static struct ph_channel *next_channel(struct phi_peer *peer, const void *request)
{
    struct ph_channel *best = NULL;
    for (struct ph_channel *c = peer->channels; c != NULL; c = c->next) {
        if (!consider(peer, c->key, c, &c->look, request))
            continue;
        bool revoked = atomic_load(&c->uses.revoked) != 0;
        if (best == NULL || revoked || c->used < best->used)
            best = c;
        if (revoked)
            break;
    }
    return best;
}

static struct phi_key *next_key(struct phi_peer *peer, const void *request)
{
    struct phi_key *best = NULL;
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;)
        if (consider(peer, key, NULL, &key->look, request) &&
            (best == NULL || key->used < best->used))
            best = key;
    return best;
}

// Several at once: an exchange of many misses does not wait for an answer each time.
static int ask_some(struct phi_peer *peer, bool slot, const void *request)
{
    int asked = 0;
    int most = (int)(peer->segment->capacity / 4);
    for (; asked < PHI_RETIRE_ASKED && asked < most; asked++) {
        struct ph_channel *channel = slot ? NULL : next_channel(peer, request);
        struct phi_key *key = slot ? next_key(peer, request) : channel ? channel->key : NULL;
        if (key == NULL || ask(key, channel ? channel->index : PHI_NO_LINE))
            break;
        *(channel ? &channel->look : &key->look) = peer->room.look;
    }
    return asked;
}

// What was found says nothing of the next time.
static void forget_counts(struct phi_room *room)
{
    room->again = false;
    room->held_here = room->held_there = room->pinned = room->exchanging = 0;
}

static void end_look(struct phi_room *room)
{
    room->look++;
    room->looking = false;
    forget_counts(room);
}

static void keep_found(struct phi_peer *peer, bool slot, bool full)
{
    const struct phi_room *room = &peer->room;
    peer->room.found[slot] =
        (struct phi_found){peer->peers->passes, full,         room->held_here,
                           room->held_there,    room->pinned, room->exchanging};
}

// Whether this pass has found out already; then the counts are there again. Each of many operations
// would find the same.
static bool is_found(struct phi_peer *peer, bool slot)
{
    struct phi_room *room = &peer->room;
    const struct phi_found *found = &room->found[slot];
    if (found->pass != peer->peers->passes)
        return false;
    room->held_here = found->held_here;
    room->held_there = found->held_there;
    room->pinned = found->pinned;
    room->exchanging = found->exchanging;
    return true;
}

int phi_retire_room(struct phi_peer *peer, bool slot, const void *request)
{
    struct phi_room *room = &peer->room;
    if (has_room(peer, slot)) {
        if (room->looking)
            end_look(room);
        return 0;
    }
    if (is_found(peer, slot))
        return -ENOSPC;
    if (!room->looking)
        forget_counts(room); // of a look in vain of which nobody took the sentence
    room->looking = true;
    if (room->asked > 0 || phi_now() < room->at)
        return -EAGAIN;
    room->look += room->look == 0;
    if (ask_some(peer, slot, request) > 0)
        return -EAGAIN;
    // Everything was looked at once. What is only under way makes room sooner or later.
    if (!room->again) {
        room->look++; // the counts are for the sentence
        room->looking = false;
        keep_found(peer, slot, true);
        return -ENOSPC;
    }
    end_look(room);
    room->at = phi_now() + PAUSE_MS * PHI_MS;
    return -EAGAIN;
}

static bool holds_all_slots(struct phi_peer *peer)
{
    // From the end, which is filled last.
    for (uint32_t i = peer->segment->capacity; i-- > 0;)
        if (peer->slots[i] == NULL || !view_of(peer->slots[i], NULL).held)
            return false;
    return true;
}

bool phi_retire_hopeless(struct phi_peer *peer)
{
    const uint32_t capacity = peer->segment->capacity;
    if (is_lower(peer) || peer->keys.count <= capacity)
        return false;
    if (!is_found(peer, true))
        keep_found(peer, true, holds_all_slots(peer));
    if (peer->room.found[true].full)
        peer->room.held_here = capacity;
    return peer->room.found[true].full;
}

static int say_full(const struct phi_key *key)
{
    struct phi_node_message message;
    phi_peer_message(key->peer, PHI_NODE_FULL, &message);
    message.a = key->op_id;
    message.b = key->role;
    message.bytes_size = sizeof key->full;
    memcpy(message.bytes, &key->full, sizeof key->full);
    return phi_peer_tell(key->peer, &message);
}

void phi_retire_full_tell(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    if (!is_lower(peer))
        return;
    key->full = (struct phi_full){key->full.refusals + 1, peer->room.held_here,
                                  peer->room.held_there, peer->room.pinned, peer->room.exchanging};
    // One that is owed already says how many there were, so the latest says all. Behind others it
    // waits for its turn: the service thread comes again.
    if (peer->fulls_unsaid || say_full(key) == -EAGAIN) {
        key->full_unsaid = peer->fulls_unsaid = true;
        phi_service_wake(peer->peers);
    }
}

// Returns whether all were said.
static bool say_fulls(struct phi_peer *peer)
{
    size_t cursor = 0;
    if (!peer->fulls_unsaid)
        return true;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;) {
        if (key->full_unsaid && say_full(key) == -EAGAIN)
            return false;
        key->full_unsaid = false;
    }
    peer->fulls_unsaid = false;
    return true;
}

int phi_retire_full_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    int rc = 0;
    if (is_lower(peer) || message->bytes_size != sizeof(struct phi_full) ||
        message->b < PH_ROLE_SENDER || message->b > PH_ROLE_BOTH)
        return -EBADMSG;
    struct phi_key *key =
        phi_key_get(peer, message->a, phi_role_opposite((uint8_t)message->b), &rc);
    if (key == NULL || key->slot != PHI_NO_SLOT)
        return rc;
    memcpy(&key->full, message->bytes, sizeof key->full);
    phi_peers_changed(peer->peers);
    phi_mailbox_wake(peer->peers->mailbox);
    return 0;
}

bool phi_retire_refused(struct phi_key *key)
{
    struct phi_room *room = &key->peer->room;
    if (is_lower(key->peer) || key->full.refusals <= key->missed)
        return false;
    room->held_here = key->full.held_there;
    room->held_there = key->full.held_here;
    room->pinned = key->full.pinned;
    room->exchanging = key->full.exchanging;
    return true;
}

void phi_retire_explain(struct phi_peer *peer, char *text, size_t size)
{
    struct phi_room *room = &peer->room;
    snprintf(
        text, size,
        "all %u of the pair are in use: %u held by handles of rank %d and %u by handles of "
        "rank %d (ph_channel_close lets go of one), %u pinned by captured graphs, device "
        "channels, or messages that were not taken, %u named by this exchange (PEERHOP_CHANNELS)",
        peer->segment->capacity, room->held_here, peer->peers->rank, room->held_there, peer->rank,
        room->pinned, room->exchanging);
    end_look(room);
}

// The peer has dropped the key. What it has told us since is of the key's next life.
static void renew_key(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    uint32_t slot = key->slot, kept = 0;
    evict_all(key);
    push(slot, &peer->room.slots, &peer->room.slots_count, &peer->room.slots_room);
    for (uint32_t i = 0; i < key->theirs_count; i++)
        if (key->theirs[i].number > key->theirs_asked)
            key->theirs[kept++] = key->theirs[i];
    key->theirs_count = kept;
    for (uint32_t i = 0; i < key->own_count; i++)
        key->own[i].offered = false;
    if (key->request == NULL && kept == 0)
        phi_retire_drop_key(key);
}

static struct ph_channel *channel_at(const struct phi_key *key, uint32_t line)
{
    for (uint32_t i = 0; i < key->channels_count; i++)
        if (key->channels[i]->index == line)
            return key->channels[i];
    return NULL;
}

static int spent_answered(struct ph_channel *channel, enum phi_retire_answer answer)
{
    if (channel == NULL || !channel->asked)
        return -EBADMSG;
    channel->asked = false;
    channel->peer->room.asked--;
    phi_spent_answered(channel, answer);
    if (answer == PHI_RETIRE_YES)
        evict(channel);
    return 0;
}

int phi_retire_answered(struct phi_peer *peer, const struct phi_node_message *message)
{
    bool known = peer->segment != NULL && message->a < peer->segment->capacity;
    struct phi_key *key = known ? peer->slots[message->a] : NULL;
    if (key == NULL || peer->room.asked == 0)
        return -EBADMSG;
    struct ph_channel *channel = channel_at(key, (uint32_t)message->c);
    if (message->c & PHI_RETIRE_SPENT) {
        int rc = spent_answered(channel, (enum phi_retire_answer)message->b);
        if (rc)
            return rc;
        goto changed;
    }
    if (key->retiring == 0)
        return -EBADMSG;
    key->retiring--;
    peer->room.asked--;
    if (message->b != PHI_RETIRE_YES)
        note_refusal(peer, (enum phi_retire_answer)message->b, false);
    else if (message->c == PHI_NO_LINE)
        renew_key(key);
    else if (channel != NULL)
        evict(channel);
changed:
    phi_peers_changed(peer->peers);
    phi_mailbox_wake(peer->peers->mailbox);
    return 0;
}

// ---- the higher rank

static enum phi_retire_answer judge(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_key *key = peer->slots[message->a];
    uint32_t round = (uint32_t)message->b;
    if (key == NULL) // its offers have not been read yet, or it was never exchanged
        return message->c == PHI_NO_LINE ? PHI_RETIRE_YES : PHI_RETIRE_ROUND;
    struct ph_channel *channel = channel_at(key, (uint32_t)message->c);
    if (message->c != PHI_NO_LINE && channel == NULL)
        return PHI_RETIRE_ROUND;
    struct phi_retire_view view =
        message->c & PHI_RETIRE_SPENT ? spent_view(key, channel) : view_of(key, channel);
    return phi_retire_judge(&view, round);
}

static void carry_out(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_key *key = peer->slots[message->a];
    if (message->c != PHI_NO_LINE) {
        evict(channel_at(key, (uint32_t)message->c));
        return;
    }
    // Offers of this life of the slot that come late are of no use any more.
    peer->slot_lives[message->a] = (uint32_t)(message->b >> 32);
    if (key == NULL)
        return;
    evict_all(key);
    phi_retire_drop_key(key);
}

static int say(struct phi_peer *peer, const struct phi_unsaid *unsaid)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_RETIRED, &message);
    message.a = unsaid->slot;
    message.b = unsaid->answer;
    message.c = unsaid->line;
    return phi_peer_tell(peer, &message);
}

bool phi_retire_say(struct phi_peer *peer)
{
    // Not connected yet: it is said then, and there is nothing to try before.
    if (!phi_peer_connected(peer) && peer->state < PHI_PEER_READY)
        return true;
    uint32_t said = 0;
    while (said < peer->unsaid_count && say(peer, &peer->unsaid[said]) != -EAGAIN)
        said++;
    peer->unsaid_count -= said;
    for (uint32_t i = 0; said > 0 && i < peer->unsaid_count; i++)
        peer->unsaid[i] = peer->unsaid[said + i];
    return peer->unsaid_count == 0 && say_fulls(peer);
}

// Says yes or no, in this order: first what the answer promises, then the answer. It is sent in any
// case, later where the peer's socket is full: this is the service thread, which comes again.
int phi_retire_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    if (is_lower(peer) || peer->segment == NULL || message->a >= peer->segment->capacity ||
        (message->c != PHI_NO_LINE &&
         (message->c & ~PHI_RETIRE_SPENT) >= peer->segment->capacity) ||
        peer->unsaid_count == PHI_RETIRE_ASKED)
        return -EBADMSG;
    enum phi_retire_answer verdict = judge(peer, message);
    if (verdict == PHI_RETIRE_YES)
        carry_out(peer, message);
    peer->unsaid[peer->unsaid_count++] =
        (struct phi_unsaid){message->c, (uint32_t)message->a, verdict};
    phi_retire_say(peer);
    return 0;
}
