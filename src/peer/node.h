// SPDX-License-Identifier: BSD-3-Clause
// Calls between ranks of one node over a unix socket. Each rank's service thread answers; any
// thread calls. The socket proves that both run on one node (the answer carries the nonce of the
// member record), carries descriptors, and its end tells of a peer's exit.
#ifndef PHI_PEER_NODE_H
#define PHI_PEER_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"

// The bytes of PHI_NODE_REVOKE, which name the part of the export that is given back. gone: all of
// it, for good; then there is no release id, and the answer is PHI_NODE_UNMAPPED. number: the
// largest number that a buffer had when the release began. The same memory may be exchanged again,
// under a larger number, before this message comes, or comes again.
struct phi_revoke {
    uint64_t offset, size;
    uint32_t gone, number;
};

// The bytes of PHI_NODE_REVOKED: how far the peer is, and what is left on the first channel that is
// not drained.
struct phi_revoked {
    uint32_t drained;
    uint32_t waiting; // line + 1 of a channel with a wait of a word that has not come, or 0
    uint64_t op_id;
    uint32_t streams, graphs;
    uint32_t devices, reserved; // device channels
    uint64_t graph;             // names one of the graphs
};

// Requests. The answer has the same type, `status` 0 or a negative result, and the members that are
// named here.
enum phi_node_type {
    PHI_NODE_HELLO = 1,   // a: nonce expected. Answer: a: the nonce, b: PEERHOP_CHANNELS,
                          // c: ranks of the job; descriptor: what rings at the rank (base/wake.h)
    PHI_NODE_SEGMENT = 2, // to the lower rank. a: 1 where the two were to meet over the net, which
                          // does not serve. Answer: descriptor of the pair's segment
    PHI_NODE_EXPORT = 3,  // a: export id. Answer: its descriptor
    // Answer: record of the trial memory, its descriptor where the kind needs one
    PHI_NODE_TRIAL_MEMORY = 4,
    // a: offset in the trial memory, b: seed. Answer: status of phi_trial_memory_verify
    PHI_NODE_VERIFY = 5,
    PHI_NODE_TAKEN = 6, // a: slot, b: round. Answer: a: 1 taken, 0 not
    // a: rank + 1, or 0; b: an op id with that rank. Answer: a: rank + 1 of the rank that the
    // application waits for to come to an exchange, or 0 (also where another of its threads may
    // come, and where the exchange of b with a is under way); b: op id; c: how many exchanges it
    // has begun
    PHI_NODE_WAITING = 7,
    // a: op id, b: the role in which the sender waits in it for the receiver, c: the roles (1 <<
    // role) in which it is under way there, and 1 where no other thread of it may come. Answer: a:
    // the role in which the receiver waits in it, where neither joins the other; else 0; c: 1 where
    // no other thread of it may come
    PHI_NODE_ROLES = 32,
    PHI_NODE_NOTIFY = 8,   // look at my side of the segment. No answer
    PHI_NODE_EXPELLED = 9, // a: rank, b: its life that was expelled. No answer

    // Any process of the same user may send this, a rank or not, without a hello; see
    // service/status.h.
    // a: nonce expected; if `to` names no life, a is 0, and whoever listens is asked. Answer:
    // bytes: struct phi_status
    PHI_NODE_STATUS = 30,
    PHI_NODE_ABOUT = 35, // asks whoever listens. Answer: bytes: struct phi_about

    // Any process of the same user may send this, too: the secret shows that it may attach. a:
    // region, b: for how many ms it attaches; bytes: the secret. Answer: a: op id under which the
    // receiver exchanges the region with rank `rank`, b: enum ph_region_access, c: its size. See
    // service/regions.h
    PHI_NODE_ATTACH = 36,

    // Answer: descriptor: a pidfd of the process, which tells of its end also to ranks that live in
    // another PID namespace; -ENOENT: this kernel, or a policy, gives none
    PHI_NODE_PROCESS = 33,

    // Asks whether ipc serves; see meeting/trial.h. a: the sender's outcome, enum phi_reason + 1,
    // or 0: it has none so far; bytes: record of its trial memory. Answer: the same of the
    // receiver; b: 1: the receiver leaves, 2: it has aborted
    PHI_NODE_TRIAL = 31,

    // First contact over the net; neither is answered. See meeting/hello.h. a: the receiver's
    // nonce; bytes: the sender's hello.
    PHI_NODE_CONNECT = 40,
    PHI_NODE_CONNECTED = 41,

    // Messages about releases; none is answered. See release/release.h.
    PHI_NODE_REVOKE = 20,   // a: release id, b: export id; bytes: struct phi_revoke
    PHI_NODE_REVOKED = 21,  // a: release id; bytes: struct phi_revoked
    PHI_NODE_LET_GO = 22,   // a: line of a revoked channel: nothing will come there any more
    PHI_NODE_ABORT = 34,    // a: line of a channel, b: numbers of its buffers, the sender's and the
                            // receiver's, c: minus its result; bytes: why
    PHI_NODE_UNMAPPED = 23, // a: export id of the receiver's: the sender does not map it any more

    // A notification, see notify/note.h. a: op id; bytes: the application's
    PHI_NODE_NOTIFICATION = 50,

    // Messages about room for new channels; see rules/retire.h.
    PHI_NODE_RETIRE = 24,  // a: slot, b: next round, life of the slot << 32, c: line, or
                           // PHI_NO_LINE: the key; | PHI_RETIRE_SPENT
    PHI_NODE_REFUSED = 26, // a: op id, b: role of the sender; bytes: struct phi_refusal
    PHI_NODE_RETIRED = 25, // a: slot, b: enum phi_retire_answer, c: as it was asked
};

struct phi_node_message {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    int32_t rank; // of the sender
    int32_t status;
    uint64_t from; // incarnation of the sender
    uint64_t to;   // incarnation of the receiver
    uint64_t call; // of the caller; the answer repeats it
    uint64_t a, b, c;
    uint32_t bytes_size;
    uint8_t bytes[PHI_EXPORT_MAX];
};
#define PHI_NODE_MAGIC   0x4e4f4850u // "PHON"
#define PHI_NODE_VERSION 3

static inline bool phi_node_answered(unsigned type)
{
    return type < PHI_NODE_NOTIFY || type == PHI_NODE_STATUS || type == PHI_NODE_ABOUT ||
           type == PHI_NODE_PROCESS || type == PHI_NODE_TRIAL || type == PHI_NODE_ROLES ||
           type == PHI_NODE_ATTACH; // not PHI_NODE_ABORT
}

// phi_node_listen opens the listening socket under a random name: abstract, or in `directory` where
// that is not empty, for this user only. Writes the name ('@' for abstract) into name[108]. node: a
// number of this node, or 0 where that is not known: names that killed ranks of it have left in the
// directory, which other nodes may share, are removed.
int phi_node_listen(struct phi_report *report, const char *directory, uint32_t node, char *name);
// unlisten removes the name of a path socket; the descriptor is the caller's to close.
void phi_node_unlisten(const char *name);

// phi_node_trusts returns whether the other end of a connection runs as the same user (the
// effective uid that it had when it connected, or began to listen); false with errno.
bool phi_node_trusts(int socket);

// phi_node_ambiguous returns whether this process cannot tell the user of that id from others: all
// users that the user namespace does not map have this id. Such a user is not trusted.
bool phi_node_ambiguous(uint32_t uid);

// phi_node_is_self returns whether the other end is this process.
bool phi_node_is_self(int socket);

// phi_node_connect connects to the named socket and checks that the other end runs as the same
// user. -ECONNREFUSED and the like when nobody listens there, -EBADMSG where the name is none of
// phi_node_listen's, -EPERM for another user's socket.
int phi_node_connect(const char *name, int *fd);

// send and receive move one message and at most one descriptor (fd -1: none). receive: -EAGAIN
// nothing there, -ECONNRESET the other end is gone, -EMFILE no room for its descriptor,
// -EPROTONOSUPPORT message->version is another one, and no more of it is read, -EBADMSG not ours.
// Neither blocks.
int phi_node_send(int socket, const struct phi_node_message *message, int fd);
int phi_node_receive(int socket, struct phi_node_message *message, int *fd);

// phi_node_call sends a request and waits for its answer. Serialise calls on one socket.
int phi_node_call(int socket, const struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline);

#endif
