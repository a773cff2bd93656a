// SPDX-License-Identifier: BSD-3-Clause
// The network: one provider of libfabric for each context that needs it, and a link to each peer
// that is reached through it. A link serves one life of one peer. Its end closes the regions that
// the peer was given, and then the endpoints, so that nothing late of the peer can land.
//
// These go through a link:
//   moves     RMA writes and reads between a region here and one of the peer's, in parts that are
//             under way together and in no order. A move is done when all its data is delivered
//             (FI_DELIVERY_COMPLETE). A write may carry a post.
//   posts     one word of a line gets a value at the peer. 32 bits, as immediate data of a write;
//             that of a move comes with each of its parts, and counts when it has come with all.
//   stores    what a side of a mirrored segment publishes, applied to the peer's copy in order.
//   messages  bytes for the peer's service thread, in one order with the stores.
//
// Moves and posts go over the link's rails: as many endpoints as PEERHOP_NET_RAILS says at both
// ends. Stores and messages have an endpoint of their own, so that they wait behind no data.
//
// Threads. The lock of a net serialises all that it does. It is held for posting and polling only,
// never while anything waits. A thread that waits for the network polls it (phi_net_poll). Where no
// thread does, the net's own thread (the proxy) does, and sleeps when nothing comes. No function
// blocks unless it says so. All may be called from any thread.
#ifndef PHI_NET_NET_H
#define PHI_NET_NET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/report.h"
#include "net/pci.h"

struct phi_net;
struct phi_link;

#define PHI_NET_RAILS_MAX  4
#define PHI_NET_TOKEN_SIZE 8
#define PHI_NET_ADDRESS_MAX                                                                        \
    ((size_t)64 * (1 + PHI_NET_RAILS_MAX) + PHI_NET_TOKEN_SIZE) // of all endpoints of a link
#define PHI_NET_KEY_MAX     64
#define PHI_NET_MESSAGE_MAX 1024 // bytes of one message

struct phi_net_params {
    struct phi_report *report;
    const struct phi_config *config;
    int message_ring;          // rung (base/wake.h) when a message has come, or a link is lost
    int store_ring;            // ... when stores have been applied
    bool devices;              // memory of devices is to be registered, where the provider takes it
    struct phi_pci_place near; // of NICs that are as fast the nearest is taken
};

bool phi_net_built(void); // false: the stub

// phi_net_open loads libfabric, and takes the first provider that serves and passes the probe, and
// all of its NICs that are to be used. It starts the proxy, on the CPUs near its NIC where these
// are known. It may take 0.3 s.
// Errors:
//   PH_ENOPATH: no provider serves. The sentence has the reason against each.
//   -ETIMEDOUT: none serves, but one was only too slow to be judged, as on a very busy machine.
//
// phi_net_close ends all links that are left. NULL is fine.
int phi_net_open(const struct phi_net_params *params, struct phi_net **net);
void phi_net_close(struct phi_net *net);

// phi_net_list fills one of these for each provider: whether a rank near to that place would take
// it, or why not.
struct phi_net_candidate {
    char provider[64], domain[64];
    char reason[160]; // "": it would be taken
    int lack;         // -EMFILE, -ENFILE or -ENOMEM: it is this process that does not serve
    bool taken;       // the first of them, and those that data goes over besides
};
// Returns the number of candidates written, at most n. Where it is 0, why has the reason.
size_t phi_net_list(struct phi_report *report, const struct phi_config *config,
                    const struct phi_pci_place *near, struct phi_net_candidate *candidates,
                    size_t n, char *why, size_t why_size);

// phi_net_library writes which libfabric was loaded, and for which one this was built. "" before
// the first net or list of the process. Any thread.
void phi_net_library(char *text, size_t size);

// Both ends of a link must have these alike. `name` is for people.
struct phi_net_wire {
    char provider[64];
    uint32_t protocol, protocol_version; // of the provider
    uint32_t immediate;                  // bytes of immediate data: 4 or 8
    uint32_t format;                     // of addresses: an endpoint of one takes none of another
};
const struct phi_net_wire *phi_net_wire(const struct phi_net *net);
const char *phi_net_name(const struct phi_net *net); // "net lo", ...
const char *
phi_net_address(const struct phi_net *net); // of its first NIC, in figures; "": none of IP

// The provider and libfabric say so of themselves:
bool phi_net_hmem(const struct phi_net *net);   // the provider takes it
bool phi_net_dmabuf(const struct phi_net *net); // it may be registered as DMA-BUF

// Memory that is to be registered.
struct phi_net_memory {
    void *base;
    size_t size;
    bool on_device;
    int device; // its number in this process
    // a descriptor of memory in which it lies, `offset` bytes after the beginning; or -1
    int dmabuf;
    uint64_t offset;
};

// A flush makes data that has come into memory of a device visible, before a post shows.
struct phi_net_flush {
    bool reads; // an RMA read of the same region through the same endpoints
    // or this, on a thread of its own; 0, or it has failed. NULL: nothing
    int (*call)(void *opaque);
    void *opaque;
};

// phi_net_flush_by tells how this net flushes, before any link that needs it is opened. It may fail
// to start its thread.
int phi_net_flush_by(struct phi_net *net, const struct phi_net_flush *how);

// phi_link_flushes tells into which memory data with the posts of a line comes: into the region of
// that id, memory of a device; PHI_HOST_MEMORY; or PHI_NO_REGION: the line's channel has ended, and
// the memory of the next one is not known yet. No region has either as its id.
void phi_link_flushes(struct phi_link *link, uint32_t line, uint32_t id);
#define PHI_NO_REGION   UINT32_MAX
#define PHI_HOST_MEMORY (UINT32_MAX - 3)

// phi_net_try has two links of this process write into the first PHI_NET_TRY bytes of a device's
// memory, and out of them, as peers would. bytes: the content of that memory afterwards, if the
// provider does what it says; the caller compares. -EIO,
//   ETIMEDOUT: why says what does not work.
#define PHI_NET_TRY 256
int phi_net_try(struct phi_net *net, const struct phi_net_memory *memory, void *bytes, int64_t ms,
                char *why, size_t size);

// phi_net_poll moves on all that can move. false: nothing happened, or another thread does it.
bool phi_net_poll(struct phi_net *net);

// phi_net_settle waits until every post has been delivered, or its link has ended. -ETIMEDOUT: a
// post to peer *rank is still on its way.
int phi_net_settle(struct phi_net *net, int64_t deadline, int *rank);

// ---- links

// The memory that a link's posts and stores change. Lines: two arrays (by side) of `capacity` lines
// of 64 bytes. A word of a line is at 4 * word in it, and its life, 32 bits, at PHI_LINE_LIFE.
// Stores: an array of bytes that the peer publishes.
#define PHI_LINE_SIZE 64
#define PHI_LINE_LIFE 12
struct phi_mirror {
    char *lines[2];
    uint32_t capacity;
    char *stores;
    size_t stores_size;
};

// A post: line (20 bits), side of the line, word, which of the word's two bits, the lower 6 bits of
// the line's life, and the number of a move's parts that it comes with: 1, 2, 4, 8 or 16.
#define PHI_LIFE_MASK     0x3fu
#define PHI_NET_PARTS_MAX 16
struct phi_net_post {
    uint32_t line;
    uint8_t side, word, which, life, parts; // parts: 0 is 1
};
uint32_t phi_net_post_encode(const struct phi_net_post *post);
bool phi_net_post_decode(uint32_t immediate, struct phi_net_post *post); // false: no such number

// phi_link_open makes the endpoints for a peer (its rank is for sentences). The link's own
// addresses, and a token behind them, go to the peer by other means. Anybody who finds the
// endpoints can send to them: the link drops stores, messages and a bye without the token. It
// copies mirror.
int phi_link_open(struct phi_net *net, int rank, const struct phi_mirror *mirror,
                  struct phi_link **link);
const uint8_t *phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails);

// phi_link_connect tells where the peer's end is. From now on messages go out. Call it once. Both
// ends use the smaller of their two numbers of rails. -EBADMSG: these are no addresses.
int phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size, uint32_t rails);

// phi_link_told notes the newest message or store that is here.
// phi_link_heard: whether the posts are here that the peer told before that. Posts go over other
// endpoints, and may come later. A post that does not come within a second was lost, and counts as
// here. So it does where the link carries no data.
struct phi_net_told {
    uint64_t posts;
    int64_t until;
};
void phi_link_told(struct phi_link *link, struct phi_net_told *told);
bool phi_link_heard(struct phi_link *link, const struct phi_net_told *told);

// phi_link_cut ends the link's data. On return its regions are closed, the peer reads and writes
// nothing here any more, and moves under way have failed. Stores and messages still go. A move of
// the peer that fails by this fails only after this rank's last words have had two seconds to come.
void phi_link_cut(struct phi_link *link);

// phi_link_end closes the regions and the endpoints. Moves under way fail. bye: the peer is told
// first, and 0.2 s may pass until it knows. The object stays until phi_link_free.
// phi_link_free: nothing may race with it, and no move or route of the link may be left.
void phi_link_end(struct phi_link *link, bool bye);
void phi_link_free(struct phi_link *link);

// phi_link_guard makes sockets that a provider over TCP has opened for the link end with this
// program. They are closed where it executes another program, and in forked children. Call it again
// for sockets that are opened later.
void phi_link_guard(struct phi_link *link);

// phi_link_lost: 0, or why the link ended without our doing, with the sentence in text: -ECONNRESET
// (the provider says that the peer is gone, or the peer said bye) and the like.
int phi_link_lost(const struct phi_link *link, char *text, size_t size);

// phi_link_store publishes a value of 4 or 8 bytes at an offset of the peer's copy of our stores. A
// value that changes again before it has gone out, with nothing else after it, goes out only once.
// phi_link_tell sends a message, in one order with the stores.
// phi_link_tell_again repeats a message that may not have arrived, unless the first one still
// waits.
// -ECONNRESET: the link has ended.
int phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size);
int phi_link_tell(struct phi_link *link, const void *bytes, size_t size);
int phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size);

// phi_link_receive takes the peer's oldest message. false: there is none. *size: at most
// PHI_NET_MESSAGE_MAX.
bool phi_link_receive(struct phi_link *link, void *bytes, size_t *size);

// ---- regions: memory of this process registered for one link, under an id of its owner's

// The peer needs this of a region. It travels in export records.
struct phi_net_target {
    uint64_t base; // how the region's first byte is addressed
    uint64_t keys[PHI_NET_RAILS_MAX];
    uint8_t rails;                // so many keys; 1: one for all rails
    uint8_t raw_size;             // 0: no raw key
    uint8_t raw[PHI_NET_KEY_MAX]; // where the provider has raw keys, which belong to keys[0] then
    // Not sent: that raw key as phi_link_route has mapped it here, or NULL. A copy of a target that
    // has a route must not be given to phi_link_route or phi_link_forget.
    struct phi_raw_key *mapped;
};

// phi_link_register may block (pinning memory). An id that is registered already is fine.
int phi_link_register(struct phi_link *link, uint32_t id, void *base, size_t size);
int phi_link_register_memory(struct phi_link *link, uint32_t id,
                             const struct phi_net_memory *memory);
// phi_link_target fills what the peer needs. false: no region has this id.
bool phi_link_target(struct phi_link *link, uint32_t id, struct phi_net_target *target);
// phi_link_unregister closes the region: the provider refuses all that the peer still sends there.
void phi_link_unregister(struct phi_link *link, uint32_t id);

// ---- data

// A route is how an end of a channel moves: from a region of ours to one of the peer's.
// phi_link_route fills it, and it is constant afterwards.
struct phi_route {
    struct phi_link *link; // NULL: no route
    uint64_t remote;       // address of the peer's buffer
    bool to_device;        // that is memory of a device; set by who knows, before any move
    struct {
        void *desc; // of the own region
        uint64_t key;
    } rails[PHI_NET_RAILS_MAX];
};
// phi_link_route fills a route. id names the own region, target and offset the peer's. -ENOENT: no
// region has this id. The first route to a target maps its raw key, where it has one. The mapping
// stays until the link ends, or until phi_link_forget.
//
// phi_link_forget unmaps it. The owner of the target calls it when no route to it is used any more,
// and sees to that: no move by one is under way, all posts by one are delivered (phi_link_mark),
// and none is started before the next phi_link_route. Not with a link that was freed.
int phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                   uint64_t offset, struct phi_route *route);
void phi_link_forget(struct phi_link *link, struct phi_net_target *target);

// phi_route_lend makes *lent a route from other memory of ours: [memory, memory + size). Where the
// provider asks for it the memory is registered for the link under `id`, one of PHI_LENT_IDS and
// the 255 after it. It stays registered until the link ends. -EAGAIN: call again. -ECONNRESET: the
// link has ended. Or the provider refuses.
#define PHI_LENT_IDS (UINT32_MAX - 1000)
int phi_route_lend(const struct phi_route *route, uint32_t id, void *memory, size_t size,
                   struct phi_route *lent);

enum phi_move_state { PHI_MOVE_IDLE, PHI_MOVE_POSTED, PHI_MOVE_DONE, PHI_MOVE_FAILED };

// One move. Zeroed at first. The caller fills the lower half while it is IDLE, and sets it IDLE
// again after DONE or FAILED. It must stay where it is while it is POSTED.
struct phi_move {
    _Atomic uint32_t state; // enum phi_move_state; acquire pairs with the release of who polls
    uint32_t parts, posted, delivered;
    uint32_t counted;      // so many of the parts, the last ones, carry the post
    size_t part;           // bytes of each but the last
    struct phi_move *next; // of the link, while posted

    const struct phi_route *route;
    void *local;
    uint64_t offset; // of the peer's buffer
    size_t size;     // > 0
    bool read;
    bool posts;  // of a write: the peer gets the post when all its bytes are there,
    bool behind; // ... and those of the moves of its route without a post that were started before
                 // it: it goes when these are delivered, or where it cannot come before them. What
                 // is started after it does not wait
    uint32_t immediate;
};

// phi_move_start posts it. -EAGAIN: try later, as the lock is taken. Any other error: the link has
// ended.
int phi_move_start(struct phi_move *move);

// phi_link_post sends a post without data. Errors as phi_move_start. It is delivered some time
// later.
// phi_link_hold is the same for a post that another one, or a move with one, may soon follow. Where
// the provider's immediate data has room for two, it waits for that one, until somebody polls the
// link.
// phi_link_unhold sends it off.
int phi_link_post(const struct phi_route *route, uint32_t immediate);
int phi_link_hold(const struct phi_route *route, uint32_t immediate);
void phi_link_unhold(const struct phi_route *route);

// phi_link_mark gives a number that stands for all posts until now. false: call again, one of them
// could not be sent yet.
// phi_link_delivered: whether they are all delivered, or the link has ended.
bool phi_link_mark(struct phi_link *link, uint64_t *mark);
bool phi_link_delivered(struct phi_link *link, uint64_t mark);

// phi_route_in_order: two writes of one link to the same bytes are under way together. Does the
// later one come last? It does not where the earlier one posts: that one may wait, for its own
// first parts or for moves that its post covers. It never does in memory of a device.
bool phi_route_in_order(const struct phi_route *route);

// phi_route_poll polls the net of a route.
bool phi_route_poll(const struct phi_route *route);

// phi_route_nap sleeps for ns, less than a second, or until there may be something for the route's
// link. Large data has no completion before its last part, and moves only while somebody polls.
// false: it did not sleep, since the provider has no descriptor for that, or another thread polls.
bool phi_route_nap(const struct phi_route *route, int64_t ns);

#endif
