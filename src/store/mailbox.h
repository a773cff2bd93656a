// SPDX-License-Identifier: BSD-3-Clause
// Mailboxes: how ranks send each other messages through a key-value store, with nothing lost and
// nothing twice.
//
// Two layers. A store backend (store/backend.h: redis.c, callbacks.c) moves numbered messages. The
// mailbox above it, the same for every backend, keeps what the peer has not acknowledged, sends it
// again after a reconnect or when the server lost its memory, and drops what was seen before.
#ifndef PHI_STORE_MAILBOX_H
#define PHI_STORE_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/store.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/report.h"

struct phi_file_store;
struct phi_mailbox;
struct sockaddr;

struct phi_mailbox_params {
    struct phi_report *report;       // these three must outlive the mailbox
    struct phi_counters *counters;   // store_commands
    const struct phi_config *config; // store (URI), store_password_file, expiry_s, socket
    const struct ph_store_callbacks *callbacks; // instead of the URI, or NULL; copied
    const char *job;                            // printable, 1..100 bytes
    uint64_t epoch;
    int rank, ranks;
    uint64_t incarnation; // that this life asks for; > 0. Where the store knows of a life of this
                          // rank that has it or a later one, this one gets the next
    struct phi_file_store *file; // the mailbox's own, behind callbacks; NULL
};

// What came in. bytes belongs to the mailbox until phi_mailbox_message_free.
struct phi_message {
    bool member;          // a member record (else a message for this rank)
    int rank;             // who it is from
    uint64_t incarnation; // of the sender
    uint64_t sequence; // of the sender's messages to us, growing from 1 (0 for member records); a
                       // gap stands for a message that its sender withdrew
    const uint8_t *bytes;
    size_t size;
};
void phi_mailbox_message_free(struct phi_message *message);

// Largest message, in bytes.
#define PHI_MESSAGE_MAX (16u << 20)

// open connects (deadline in phi_now() terms), enters this life's number, and publishes nothing.
// Errors: -EINVAL (URI, job), -ETIMEDOUT, -EMFILE (no descriptor left), PH_ESTORE (refused: wrong
// password, not a Redis server, too old), -ECONNREFUSED and the like while the deadline lasts are
// tried again; each names the address, never the password.
int phi_mailbox_open(const struct phi_mailbox_params *params, int64_t deadline,
                     struct phi_mailbox **mailbox);

// incarnation returns the number of this life: the largest of its rank so far.
uint64_t phi_mailbox_incarnation(const struct phi_mailbox *mailbox);

// job returns the job's name, which lives as long as the mailbox, and its epoch.
const char *phi_mailbox_job(const struct phi_mailbox *mailbox, uint64_t *epoch);

// announce publishes this rank's member record for everyone, present and future.
int phi_mailbox_announce(struct phi_mailbox *mailbox, const void *bytes, size_t size,
                         int64_t deadline);

// send delivers one message to one life of a peer (its incarnation, from its member record). When
// it returns 0 the store has it; the mailbox keeps a copy until phi_mailbox_acknowledged and sends
// it again when the store forgot. -EINVAL (no such peer), -EMSGSIZE, -ETIMEDOUT, -ENOMEM, PH_ESTORE
// (an error reply, in its words: READONLY, OOM, NOAUTH, ...), PH_EPEER (a newer life of the peer
// was sent to before), PH_EFENCED. After a failure nothing was sent as far as the caller is
// concerned: the message is withdrawn, that is, replaced by an empty one that the receiver skips.
// Only a receiver that reads between the two sees a copy that reached the store after all.
int phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t peer_incarnation,
                     const void *bytes, size_t size, int64_t deadline);

// receive waits for the next message or member record of any rank and returns it; -ETIMEDOUT at the
// deadline; -EINTR when phi_mailbox_wake was called (a wake that comes before receive counts).
// Messages of one sender come in order of sequence, once each, whatever the store delivered; those
// for another incarnation of this rank, those of an older incarnation of the sender than the newest
// seen, and malformed ones are dropped with a warning. A message for which no member record has
// come yet is held back until it has. `wanted` (ranks entries, may be NULL: all) says of whom
// something is still awaited: a backend that can only wait for one key at a time looks there. Where
// no entry is true, receive only waits for a wake. Reconnects by itself. Redis: no polling; one
// outstanding XREAD BLOCK, left standing when receive returns. PH_ESTORE (the store refuses to be
// read, or to take again what it forgot), PH_EFENCED (a newer life of this rank has announced
// itself; from then on receive and send fail with it).
int phi_mailbox_receive(struct phi_mailbox *mailbox, const bool *wanted, int64_t deadline,
                        struct phi_message *message);
void phi_mailbox_wake(struct phi_mailbox *mailbox);

// sleep waits for a wake only, whatever the store has or lost: -EINTR, or -ETIMEDOUT.
int phi_mailbox_sleep(struct phi_mailbox *mailbox, int64_t deadline);

// expel publishes for everyone, present and future, that a life of a rank was expelled: receive
// hands it out as a member record of no bytes under the next incarnation, and that rank finds
// itself fenced by it. Errors as send.
int phi_mailbox_expel(struct phi_mailbox *mailbox, int rank, uint64_t incarnation,
                      int64_t deadline);

// wake_fd is what wake rings with (base/wake.h): for peer processes, which get a copy. Owned by the
// mailbox.
int phi_mailbox_wake_fd(const struct phi_mailbox *mailbox);

// local returns this node's address of its first connection to the store, or NULL: none of IP.
// Lives as long as the mailbox.
const struct sockaddr *phi_mailbox_local(const struct phi_mailbox *mailbox);

// doubt: something that was to come through the store did not, in all of its time. The next receive
// that has time for it listens anew and sends again what is not acknowledged: a connection may be
// dead without having said so, a store of the user's may have lost keys. Any thread; no I/O.
void phi_mailbox_doubt(struct phi_mailbox *mailbox);

// trouble copies what is wrong with the store at the moment, in words, and returns the length; 0
// where nothing is known to be. Any thread; no I/O.
size_t phi_mailbox_trouble(struct phi_mailbox *mailbox, char *text, size_t size);

// sequence returns that of the last message to a peer's present life, 0 before the first. While it
// is not acknowledged, a store that forgets loses it unless somebody of this rank receives.
uint64_t phi_mailbox_sequence(const struct phi_mailbox *mailbox, int peer);

// acknowledged: the peer has taken our messages up to this sequence (it says so in shared memory or
// in a message).
void phi_mailbox_acknowledged(struct phi_mailbox *mailbox, int peer, uint64_t sequence);

// refresh renews the expiry of this rank's keys and publishes the member record again if the store
// lost it. For the service thread, rarely (every expiry_s / 3).
int phi_mailbox_refresh(struct phi_mailbox *mailbox, int64_t deadline);

// close removes this rank's keys (its inbound mailboxes, its outbound ones that are acknowledged,
// its member record; the rest expires), ends the connections and frees. Waits at most until the
// deadline for the store; it always frees. NULL is fine.
void phi_mailbox_close(struct phi_mailbox *mailbox, int64_t deadline);

// Thread-safety: send, announce, refresh, acknowledged and wake from any thread, also while another
// is in receive; receive by one thread at a time.

#endif
