// SPDX-License-Identifier: BSD-3-Clause
#include "notify/note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ending/usable.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/message.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/spent.h"
#include "semaphore/executor.h"
#include "semaphore/segment.h"

// After the last change the service thread looks without a pause for EAGER_NS, and then after naps.
// A nap is a small part of what has passed, at least NAP_LEAST_NS and at most PHI_MS.
#define EAGER_NS     50000
#define NAP_PART     8
#define NAP_LEAST_NS 20000
// A wait looks so often whether the application is to be told of an end.
#define SLICE_MS 20

struct phi_note {
    struct phi_note *next;
    struct ph_channel *channel; // of one that was given; held
    struct phi_mark mark;
    bool marked;          // over the net:
    uint64_t posts;       // ... stands for the posts that are to be delivered first
    uint64_t incarnation; // of the peer that gave one that has come
    struct ph_notification text;
};

static struct phi_notes *notes_of(struct phi_self *self)
{
    return &self->serving.notes;
}

static void append(struct phi_note_list *list, struct phi_note *note)
{
    note->next = NULL;
    *(list->first ? &list->last->next : &list->first) = note;
    list->last = note;
}

// before: the one in front of it, or NULL.
static void take_out(struct phi_note_list *list, struct phi_note *before, struct phi_note *note)
{
    *(before ? &before->next : &list->first) = note->next;
    if (list->last == note)
        list->last = before;
}

// With the lock. NULL: out of memory.
static struct phi_note *new_note(struct phi_notes *notes)
{
    struct phi_note *note = notes->spare;
    if (note == NULL)
        return calloc(1, sizeof *note);
    notes->spare = note->next;
    memset(note, 0, offsetof(struct phi_note, text));
    return note;
}

static void keep_spare(struct phi_notes *notes, struct phi_note *note)
{
    note->next = notes->spare;
    notes->spare = note;
}

// ---- giving

// Nothing that the peer writes there does harm: it has room for more, or for less, and no one else
// has.
static bool has_room(const struct phi_peer *peer)
{
    const uint64_t taken =
        atomic_load_explicit(&phi_peer_theirs(peer)->notified, memory_order_acquire);
    return peer->notes.given - taken < PH_NOTIFICATIONS_MAX;
}

int phi_note_take(struct ph_channel *channel, const void *bytes, size_t size,
                  struct phi_note **chain)
{
    struct phi_self *self = channel->self;
    struct phi_peer *peer = channel->peer;
    struct phi_note *made = NULL;
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    if (peer->state != PHI_PEER_READY)
        rc = PH_EPEER;
    else if (!has_room(peer))
        rc = phi_refuse(self->report, -EAGAIN,
                        "operation %llu: rank %d has %d notifications of this rank that it has not "
                        "taken, or that wait for their data",
                        (unsigned long long)channel->op_id, peer->rank, PH_NOTIFICATIONS_MAX);
    else if ((made = new_note(notes_of(self))) == NULL)
        rc = phi_fail(self->report, -ENOMEM, "no memory for a notification");
    if (rc == 0) {
        peer->notes.given++;
        phi_channel_hold(channel);
        made->channel = channel;
        made->text = (struct ph_notification){
            .op_id = channel->op_id, .peer = peer->rank, .size = (uint32_t)size};
        if (size > 0)
            memcpy(made->text.bytes, bytes, size);
        while (*chain != NULL)
            chain = &(*chain)->next;
        *chain = made;
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

static void let_go(struct phi_self *self, struct phi_note *note)
{
    phi_channel_let_go(note->channel);
    keep_spare(notes_of(self), note);
}

void phi_note_drop(struct phi_self *self, struct phi_note *chain)
{
    pthread_mutex_lock(&self->lock);
    for (struct phi_note *note = chain, *next; note != NULL; note = next) {
        next = note->next;
        note->channel->peer->notes.given--;
        let_go(self, note);
    }
    pthread_mutex_unlock(&self->lock);
}

// Returns whether all that the stream had sent by the mark is at the peer. Over the net data goes
// another way than messages, and a stream may be done with it before.
static bool is_delivered(struct phi_note *note)
{
    const struct ph_channel *channel = note->channel;
    struct phi_link *link = channel->peer->to.link;
    if (link == NULL)
        return true;
    // The lanes of a channel that is retired rest.
    if (!note->marked && !channel->kept.retired && !phi_staging_sent(channel))
        return false;
    note->marked = note->marked || phi_link_mark(link, &note->posts);
    return note->marked && phi_link_delivered(link, note->posts);
}

static int tell(const struct phi_note *note)
{
    struct phi_peer *peer = note->channel->peer;
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_NOTIFICATION, &message);
    message.a = note->text.op_id;
    message.bytes_size = note->text.size;
    memcpy(message.bytes, note->text.bytes, note->text.size);
    return phi_peer_tell(peer, &message);
}

// Returns -EAGAIN while the notification has to wait.
static int send_note(struct phi_self *self, struct phi_note *note)
{
    struct ph_channel *channel = note->channel;
    struct phi_peer *peer = channel->peer;
    if (!phi_mark_done(&note->mark) && peer->state == PHI_PEER_READY)
        return -EAGAIN;
    int rc = peer->state == PHI_PEER_READY ? 0 : PH_EPEER;
    if (rc == 0 && !phi_channel_whole(channel))
        rc = PH_EBROKEN;
    if (rc == 0 && !is_delivered(note))
        return -EAGAIN;
    if (rc == 0)
        rc = tell(note);
    if (rc && rc != -EAGAIN)
        phi_log(self->report, PH_LOG_INFO,
                "operation %llu: rank %d is not notified, as its data did not come whole or it has "
                "ended: %s",
                (unsigned long long)channel->op_id, peer->rank, ph_strerror(rc));
    return rc;
}

// Returns whether one that was given before it waits, to the same peer and from the same stream.
static bool is_behind(const struct phi_notes *notes, const struct phi_note *note)
{
    const struct phi_note *other = notes->given.first;
    while (other != note &&
           (other->mark.done != note->mark.done || other->channel->peer != note->channel->peer))
        other = other->next;
    return other != note;
}

// With the lock. Returns whether some wait.
static bool push(struct phi_self *self)
{
    struct phi_notes *notes = notes_of(self);
    struct phi_note *before = NULL, *next;
    for (struct phi_note *note = notes->given.first; note != NULL; note = next) {
        next = note->next;
        if (is_behind(notes, note) || send_note(self, note) == -EAGAIN) {
            before = note;
            continue;
        }
        take_out(&notes->given, before, note);
        let_go(self, note);
        notes->since = phi_now();
    }
    return notes->given.first != NULL;
}

void phi_note_give(struct phi_self *self, struct phi_note *chain, const struct phi_mark *mark)
{
    struct phi_notes *notes = notes_of(self);
    pthread_mutex_lock(&self->lock);
    for (struct phi_note *note = chain, *next; note != NULL; note = next) {
        next = note->next;
        note->mark = *mark;
        append(&notes->given, note);
    }
    notes->since = phi_now();
    const bool waits = push(self);
    pthread_mutex_unlock(&self->lock);
    if (waits)
        phi_service_wake(self);
}

static int64_t nap_after(int64_t passed)
{
    const int64_t nap = passed / NAP_PART;
    if (passed < EAGER_NS)
        return 0;
    return nap < NAP_LEAST_NS ? NAP_LEAST_NS : nap > PHI_MS ? PHI_MS : nap;
}

int64_t phi_notes_tick(struct phi_self *self)
{
    pthread_mutex_lock(&self->lock);
    const int64_t nap = push(self) ? nap_after(phi_now() - notes_of(self)->since) : -1;
    pthread_mutex_unlock(&self->lock);
    return nap;
}

// With the lock, when streams have done all that they will: those of a device that has failed have
// not done all.
static void drop_undone(struct phi_self *self)
{
    struct phi_notes *notes = notes_of(self);
    struct phi_note *before = NULL, *next;
    for (struct phi_note *note = notes->given.first; note != NULL; note = next) {
        next = note->next;
        if (phi_mark_done(&note->mark)) {
            before = note;
            continue;
        }
        take_out(&notes->given, before, note);
        let_go(self, note);
    }
}

int phi_notes_finish(struct phi_self *self, int64_t deadline)
{
    pthread_mutex_lock(&self->lock);
    drop_undone(self);
    pthread_mutex_unlock(&self->lock);
    for (;;) {
        pthread_mutex_lock(&self->lock);
        const bool waits = push(self);
        const struct phi_note *first = notes_of(self)->given.first;
        const int rank = waits ? first->channel->peer->rank : -1;
        pthread_mutex_unlock(&self->lock);
        if (!waits)
            return 0;
        if (phi_now() >= deadline)
            return phi_fail(self->report, -ETIMEDOUT,
                            "rank %d cannot leave: a notification to rank %d is not sent",
                            self->rank, rank);
        nanosleep(&(struct timespec){.tv_nsec = NAP_LEAST_NS}, NULL);
    }
}

// ---- taking

static bool is_due(const struct phi_notes *notes)
{
    return notes->come.first != NULL || notes->lost != 0;
}

// With the lock: the descriptor is readable where something is due.
static void ring(const struct phi_notes *notes, bool was_due)
{
    const uint64_t one = 1;
    uint64_t count;
    ssize_t ignored = 0;
    if (notes->event == 0 || is_due(notes) == was_due)
        return;
    if (was_due)
        ignored = read(notes->event - 1, &count, sizeof count);
    else
        ignored = write(notes->event - 1, &one, sizeof one);
    (void)ignored; // neither blocks, and the count is never full
}

static int file(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_self *self = peer->self;
    struct phi_notes *notes = notes_of(self);
    if (message->bytes_size > PH_NOTIFICATION_SIZE ||
        peer->notes.come - peer->notes.taken >= PH_NOTIFICATIONS_MAX) {
        phi_log(self->report, PH_LOG_WARN,
                "rank %d sends a notification of %u bytes where %u were not taken: it is dropped",
                peer->rank, message->bytes_size, (unsigned)(peer->notes.come - peer->notes.taken));
        return -EBADMSG;
    }
    struct phi_note *note = new_note(notes);
    if (note == NULL) {
        notes->lost = peer->rank + 1;
        return phi_fail(self->report, -ENOMEM, "a notification of rank %d is lost: no memory",
                        peer->rank);
    }
    note->incarnation = peer->incarnation;
    note->text = (struct ph_notification){
        .op_id = message->a, .peer = peer->rank, .size = message->bytes_size};
    memcpy(note->text.bytes, message->bytes, message->bytes_size);
    append(&notes->come, note);
    peer->notes.come++;
    return 0;
}

int phi_notes_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    const struct phi_notes *notes = notes_of(peer->self);
    const bool was_due = is_due(notes);
    const int rc = file(peer, message);
    ring(notes, was_due);
    phi_self_changed(peer->self);
    return rc;
}

// The peer may give another one, if it is still the one that gave this.
static void make_room(struct phi_self *self, const struct phi_note *note)
{
    struct phi_peer *peer = self->table[note->text.peer];
    if (peer == NULL || peer->incarnation != note->incarnation || peer->segment == NULL)
        return;
    peer->notes.taken++;
    phi_segment_put64(peer->segment, &phi_peer_mine(peer)->notified, peer->notes.taken);
}

int phi_notes_read(struct phi_self *self, struct ph_notification *list, size_t n, size_t *count)
{
    struct phi_notes *notes = notes_of(self);
    size_t taken = 0;
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    const bool was_due = is_due(notes);
    if (notes->lost) {
        rc = phi_refuse(self->report, -ENOMEM, "a notification of rank %d is lost: no memory",
                        notes->lost - 1);
        notes->lost = 0;
    }
    for (; rc == 0 && taken < n && notes->come.first != NULL; taken++) {
        struct phi_note *note = notes->come.first;
        list[taken] = note->text;
        take_out(&notes->come, NULL, note);
        make_room(self, note);
        keep_spare(notes, note);
    }
    ring(notes, was_due);
    pthread_mutex_unlock(&self->lock);
    *count = taken;
    return rc;
}

static int late(struct phi_self *self)
{
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && self->table[rank]->state == PHI_PEER_BROKEN)
            return phi_fail(
                self->report, -ETIMEDOUT,
                "no notification has come; of the ranks that could give one rank %d has "
                "ended",
                rank);
    return phi_fail(self->report, -ETIMEDOUT, "no notification has come");
}

int phi_notes_wait(struct phi_self *self, int64_t deadline)
{
    const struct phi_notes *notes = notes_of(self);
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    while (!is_due(notes) && rc == 0) {
        const int64_t slice = phi_deadline(SLICE_MS);
        if (phi_now() >= deadline)
            rc = late(self);
        else if (atomic_load(&self->end.untold))
            rc = -EINTR;
        else
            phi_self_follow(self, slice < deadline ? slice : deadline);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_notes_descriptor(struct phi_self *self)
{
    struct phi_notes *notes = notes_of(self);
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    if (notes->event == 0) {
        const int event = eventfd(is_due(notes), EFD_CLOEXEC | EFD_NONBLOCK);
        if (event < 0)
            rc = -errno;
        notes->event = event + 1; // 0 where there is none
    }
    const int event = notes->event - 1;
    pthread_mutex_unlock(&self->lock);
    return rc ? phi_fail(self->report, rc, "no descriptor for notifications: %s", ph_strerror(rc))
              : event;
}

static void free_list(struct phi_note *note)
{
    while (note != NULL) {
        struct phi_note *next = note->next;
        free(note);
        note = next;
    }
}

void phi_notes_free(struct phi_self *self)
{
    struct phi_notes *notes = notes_of(self);
    free_list(notes->given.first);
    free_list(notes->come.first);
    free_list(notes->spare);
    if (notes->event > 0)
        close(notes->event - 1);
    *notes = (struct phi_notes){0};
}
