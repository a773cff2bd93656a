// SPDX-License-Identifier: BSD-3-Clause
// Ranks send each other messages by mailboxes, through a key-value store. Nothing is lost, and
// nothing comes twice.
//
// Two layers. A store backend (store/backend.h: redis.c, callbacks.c) moves numbered messages. The
// mailbox above is the same for every backend. It keeps what the peer has not acknowledged, sends
// that again after a reconnect or when the server lost its memory, and drops what was seen before.
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

// A message that came in. bytes belongs to the mailbox until phi_mailbox_message_free.
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

// phi_mailbox_open connects (deadline in phi_now() terms), enters this life's number, and publishes
// nothing. While the deadline lasts it tries again after -ECONNREFUSED and the like.
// Errors; each sentence names the address, never the password:
//   -EINVAL: the URI or the job is wrong
//   -ETIMEDOUT
//   -EMFILE: no descriptor is left
//   PH_ESTORE: refused: a wrong password, not a Redis server, too old
int phi_mailbox_open(const struct phi_mailbox_params *params, int64_t deadline,
                     struct phi_mailbox **mailbox);

// phi_mailbox_incarnation returns the number of this life: the largest of its rank so far.
uint64_t phi_mailbox_incarnation(const struct phi_mailbox *mailbox);

// phi_mailbox_job returns the job's name, which lives as long as the mailbox, and its epoch.
const char *phi_mailbox_job(const struct phi_mailbox *mailbox, uint64_t *epoch);

// phi_mailbox_announce publishes this rank's member record for everyone, present and future.
int phi_mailbox_announce(struct phi_mailbox *mailbox, const void *bytes, size_t size,
                         int64_t deadline);

// phi_mailbox_send delivers one message to one life of a peer (its incarnation, from its member
// record). When it returns 0 the store has it. The mailbox keeps a copy until
// phi_mailbox_acknowledged, and sends it again when the store forgot.
//
// After a failure the message counts as not sent: it is withdrawn, that is, replaced by an empty
// one that the receiver skips. If a copy reached the store after all, only a receiver that reads
// between the two sees it.
// Errors:
//   -EINVAL: there is no such peer
//   -EMSGSIZE, -ETIMEDOUT, -ENOMEM
//   PH_ESTORE: an error reply, in the store's words: READONLY, OOM, NOAUTH, ...
//   PH_EPEER: a newer life of the peer was sent to before
//   PH_EFENCED
int phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t peer_incarnation,
                     const void *bytes, size_t size, int64_t deadline);

// phi_mailbox_receive waits for the next message or member record of any rank, and returns it.
// Messages of one sender come in order of sequence, once each, whatever the store delivered. Some
// are dropped with a warning: those for another incarnation of this rank, those of an older
// incarnation of the sender than the newest seen, and malformed ones. A message without a member
// record so far is held back until that has come.
//
// wanted (ranks entries; NULL: all) says from which ranks something is still awaited. A backend
// that can only wait for one key at a time looks there. Where no entry is true, receive only waits
// for a wake.
//
// It reconnects by itself. Over Redis there is no polling: one XREAD BLOCK is outstanding, and left
// standing when receive returns.
// Errors:
//   -ETIMEDOUT: the deadline passed
//   -EINTR: phi_mailbox_wake was called; a wake that comes before receive counts
//   PH_ESTORE: the store refuses to be read, or to take again what it forgot
//   PH_EFENCED: a newer life of this rank has announced itself; from then on receive and send fail
//     with it
int phi_mailbox_receive(struct phi_mailbox *mailbox, const bool *wanted, int64_t deadline,
                        struct phi_message *message);
void phi_mailbox_wake(struct phi_mailbox *mailbox);

// phi_mailbox_sleep waits for a wake only, whatever the store has or lost: -EINTR, or -ETIMEDOUT.
int phi_mailbox_sleep(struct phi_mailbox *mailbox, int64_t deadline);

// phi_mailbox_expel publishes for everyone, present and future, that a life of a rank was expelled.
// receive hands it out as a member record of no bytes under the next incarnation. The rank itself
// finds that it is fenced. Errors as send.
int phi_mailbox_expel(struct phi_mailbox *mailbox, int rank, uint64_t incarnation,
                      int64_t deadline);

// phi_mailbox_wake_fd is the ringing end of the wake (base/wake.h), for peer processes, which get a
// copy. The mailbox owns it.
int phi_mailbox_wake_fd(const struct phi_mailbox *mailbox);

// phi_mailbox_local returns this node's address of its first connection to the store, or NULL: none
// of IP. It lives as long as the mailbox.
const struct sockaddr *phi_mailbox_local(const struct phi_mailbox *mailbox);

// phi_mailbox_doubt: something was to come through the store, and did not in all of its time. A
// connection may be dead without having said so, or a user's store may have lost keys. The next
// receive that has time for it listens anew, and sends again what is not acknowledged. Any thread;
// no I/O.
void phi_mailbox_doubt(struct phi_mailbox *mailbox);

// phi_mailbox_trouble copies the store's present trouble, in words, and returns the length. 0: none
// is known. Any thread; no I/O.
size_t phi_mailbox_trouble(struct phi_mailbox *mailbox, char *text, size_t size);

// phi_mailbox_sequence returns the sequence of the last message to a peer's present life, 0 before
// the first. Until that message is acknowledged, a store that forgets loses it unless a thread of
// this rank receives.
uint64_t phi_mailbox_sequence(const struct phi_mailbox *mailbox, int peer);

// phi_mailbox_acknowledged: the peer has taken our messages up to this sequence. It says so in
// shared memory or in a message.
void phi_mailbox_acknowledged(struct phi_mailbox *mailbox, int peer, uint64_t sequence);

// phi_mailbox_refresh renews the expiry of this rank's keys, and publishes the member record again
// if the store lost it. For the service thread, rarely (every expiry_s / 3).
int phi_mailbox_refresh(struct phi_mailbox *mailbox, int64_t deadline);

// phi_mailbox_close removes this rank's keys: its inbound mailboxes, its outbound ones that are
// acknowledged, its member record. The others expire. It ends the connections and frees. It waits
// for the store until the deadline at most, and always frees. NULL is fine.
void phi_mailbox_close(struct phi_mailbox *mailbox, int64_t deadline);

// Thread-safety: send, announce, refresh, acknowledged and wake from any thread, also while another
// is in receive; receive by one thread at a time.

#endif
