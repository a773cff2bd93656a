// SPDX-License-Identifier: BSD-3-Clause
// The network: one provider of libfabric for each context that needs it, and a link to each peer
// that is reached through it. A link is one endpoint, for one life of one peer: its end closes the
// regions that the peer was given and then the endpoint, so that nothing late of the peer can land.
//
// What goes through a link:
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
// Threads. Everything of a net is serialised by its lock, which is held for posting and polling
// only, never while anything waits. Whoever waits for the network polls it (phi_net_poll); where
// nobody does, the net's own thread (the proxy) does, and sleeps when nothing comes. No function
// blocks unless it says so; all may be called from any thread.
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

// phi_net_open loads libfabric, takes the first provider that serves and passes the probe, and
// those of its NICs that are to be used besides, and starts the proxy, on the CPUs near its NIC
// where these are known. PH_ENOPATH: none; the sentence has the reason against each. -ETIMEDOUT:
// none, but one was only too slow to be judged, as on a machine that is very busy. May take 0.3 s.
// close ends all links that are left. NULL is fine.
int phi_net_open(const struct phi_net_params *params, struct phi_net **net);
void phi_net_close(struct phi_net *net);

// phi_net_list writes a line for each provider that there is: whether it would be taken near to
// that place, or why not.
struct phi_net_candidate {
    char provider[64], domain[64];
    char reason[160]; // "": it would be taken
    int lack;         // -EMFILE, -ENFILE or -ENOMEM: it is this process that does not serve
    bool taken;       // the first of them, and those that data goes over besides
};
// Returns the number of candidates written, at most n; where it is 0, why says why.
size_t phi_net_list(struct phi_report *report, const struct phi_config *config,
                    const struct phi_pci_place *near, struct phi_net_candidate *candidates,
                    size_t n, char *why, size_t why_size);

// phi_net_library writes which libfabric was loaded, and which one this was built for; "" before
// the first net or list of the process. Any thread.
void phi_net_library(char *text, size_t size);

// What both ends of a link must have alike, and its name for people.
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

// What the provider and libfabric say they can do with memory of devices.
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

// What makes visible what has come into memory of a device, before a post shows.
struct phi_net_flush {
    bool reads; // an RMA read of the same region through the same endpoints
    // or this, on a thread of its own; 0, or it has failed. NULL: nothing
    int (*call)(void *opaque);
    void *opaque;
};

// phi_net_flush_by: before any link is opened that needs it. May fail where it starts the thread.
int phi_net_flush_by(struct phi_net *net, const struct phi_net_flush *how);

// phi_link_flushes: data that comes with the posts of a line comes into the region of that id,
// which is memory of a device, or is PHI_HOST_MEMORY; PHI_NO_REGION: the line's channel has ended,
// and of the next one it is not known yet. Neither is the id of a region.
void phi_link_flushes(struct phi_link *link, uint32_t line, uint32_t id);
#define PHI_NO_REGION   UINT32_MAX
#define PHI_HOST_MEMORY (UINT32_MAX - 3)

// phi_net_try has two links of this process write into the first PHI_NET_TRY bytes of a device's
// memory, and out of them, as peers would. bytes: what they hold now, if that is true, which is
// for the caller to see. -EIO, -ETIMEDOUT: why says what does not work.
#define PHI_NET_TRY 256
int phi_net_try(struct phi_net *net, const struct phi_net_memory *memory, void *bytes, int64_t ms,
                char *why, size_t size);

// phi_net_poll moves everything on that can be; false: nothing happened, or another thread is at
// it.
bool phi_net_poll(struct phi_net *net);

// phi_net_settle waits until every post has been delivered, or its link has ended. -ETIMEDOUT:
// *rank is a peer that one is still on its way to.
int phi_net_settle(struct phi_net *net, int64_t deadline, int *rank);

// ---- links

// Where a link's posts and stores go. Lines: two arrays (by side) of `capacity` lines of 64 bytes;
// a word of a line is at 4 * word in it, and its life, 32 bits, at PHI_LINE_LIFE. Stores: what the
// peer publishes: an array of bytes.
#define PHI_LINE_SIZE 64
#define PHI_LINE_LIFE 12
struct phi_mirror {
    char *lines[2];
    uint32_t capacity;
    char *stores;
    size_t stores_size;
};

// A post: line (20 bits), side of the line, word, which of the word's two bits, the lower 6 bits of
// the line's life, and how many parts of a move it comes with: 1, 2, 4, 8 or 16.
#define PHI_LIFE_MASK     0x3fu
#define PHI_NET_PARTS_MAX 16
struct phi_net_post {
    uint32_t line;
    uint8_t side, word, which, life, parts; // parts: 0 is 1
};
uint32_t phi_net_post_encode(const struct phi_net_post *post);
bool phi_net_post_decode(uint32_t immediate, struct phi_net_post *post); // false: no such number

// phi_link_open makes the endpoints for a peer (its rank is for sentences). The link's own
// addresses, and a token behind them, go to the peer by other means. Whoever finds the endpoints
// can send to them: stores, messages and a bye without the token are dropped. mirror is copied.
int phi_link_open(struct phi_net *net, int rank, const struct phi_mirror *mirror,
                  struct phi_link **link);
const uint8_t *phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails);

// phi_link_connect tells where the peer's end is: from now on messages go out. Once. Of the two
// ends' rails the fewer are used. -EBADMSG: these are no addresses.
int phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size, uint32_t rails);

// phi_link_told notes the newest message or store that is here. phi_link_heard: whether the posts
// are here that the peer had told before that: they go over other endpoints, and may come later.
// Those that do not within a second have been lost, and the link has them, too, as one without data
// does.
struct phi_net_told {
    uint64_t posts;
    int64_t until;
};
void phi_link_told(struct phi_link *link, struct phi_net_told *told);
bool phi_link_heard(struct phi_link *link, const struct phi_net_told *told);

// phi_link_cut ends the link's data: on return its regions are closed, the peer reads and writes
// nothing here any more, and moves under way have failed. Stores and messages still go. A move of
// the peer's that fails by it does so when this rank's last words have had two seconds to come.
void phi_link_cut(struct phi_link *link);

// phi_link_end closes the regions and the endpoints; moves under way fail. The object stays until
// free, which nothing may race with; of a link that has been freed no move or route may be left.
// bye: the peer is told first, and 0.2 s may pass until it knows.
void phi_link_end(struct phi_link *link, bool bye);
void phi_link_free(struct phi_link *link);

// phi_link_guard: what a provider over TCP has opened for the link ends with this program: it is
// closed where that executes another one, and in forked children. To be called again for sockets
// that are opened later.
void phi_link_guard(struct phi_link *link);

// phi_link_lost: 0, or why the link ended without our doing: -ECONNRESET (the provider says that
// the peer is gone, or the peer said bye) and the like; the sentence in text.
int phi_link_lost(const struct phi_link *link, char *text, size_t size);

// phi_link_store publishes a value of 4 or 8 bytes at an offset of the peer's copy of our stores.
// phi_link_tell sends a message. -ECONNRESET: the link has ended. Both are in one order. Of a value
// that changes before it has gone out, and nothing else behind it, only the last one goes.
// phi_link_tell_again: what was told before and may not have arrived; not twice while it waits.
int phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size);
int phi_link_tell(struct phi_link *link, const void *bytes, size_t size);
int phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size);

// phi_link_receive takes the oldest message of the peer; false: none. *size: at most
// PHI_NET_MESSAGE_MAX.
bool phi_link_receive(struct phi_link *link, void *bytes, size_t *size);

// ---- regions: memory of this process registered for one link, under an id of its owner's

// What the peer needs of a region. Travels in export records.
struct phi_net_target {
    uint64_t base; // how the region's first byte is addressed
    uint64_t keys[PHI_NET_RAILS_MAX];
    uint8_t rails;                // so many keys; 1: one for all rails
    uint8_t raw_size;             // 0: no raw key
    uint8_t raw[PHI_NET_KEY_MAX]; // where the provider has raw keys, which belong to keys[0] then
    // not sent: that key as phi_link_route has mapped it here, or NULL. A copy of a target that has
    // a route is given to neither that nor phi_link_forget
    struct phi_raw_key *mapped;
};

// phi_link_register may block (pinning memory). An id that is registered already is fine.
int phi_link_register(struct phi_link *link, uint32_t id, void *base, size_t size);
int phi_link_register_memory(struct phi_link *link, uint32_t id,
                             const struct phi_net_memory *memory);
// phi_link_target fills what the peer needs; false: not registered.
bool phi_link_target(struct phi_link *link, uint32_t id, struct phi_net_target *target);
// phi_link_unregister closes the region: the provider refuses what the peer still sends there.
void phi_link_unregister(struct phi_link *link, uint32_t id);

// ---- data

// How an end of a channel moves: from a region of ours to one of the peer's. Filled by
// phi_link_route, constant afterwards.
struct phi_route {
    struct phi_link *link; // NULL: no route
    uint64_t remote;       // address of the peer's buffer
    bool to_device;        // that is memory of a device; set by who knows, before any move
    struct {
        void *desc; // of the own region
        uint64_t key;
    } rails[PHI_NET_RAILS_MAX];
};
// phi_link_route: id: of the own region; target and offset: the peer's. -ENOENT: not registered.
// The first route to a target maps its raw key, where it has one, until the link ends, or until
// phi_link_forget: whoever keeps the target tells by it that no route to it is used any more. To
// that the caller sees: no move by one is under way, all posts by one are delivered
// (phi_link_mark), and none is started before the next phi_link_route. Not with a link that was
// freed.
int phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                   uint64_t offset, struct phi_route *route);
void phi_link_forget(struct phi_link *link, struct phi_net_target *target);

// phi_route_lend makes *lent a route whose moves are of other memory of ours: [memory, memory +
// size), which it registers for the link under `id`, of PHI_LENT_IDS and the 255 after it, where
// the provider asks for that; it stays so until the link ends. -EAGAIN: again; -ECONNRESET: the
// link has ended; or the provider refuses.
#define PHI_LENT_IDS (UINT32_MAX - 1000)
int phi_route_lend(const struct phi_route *route, uint32_t id, void *memory, size_t size,
                   struct phi_route *lent);

enum phi_move_state { PHI_MOVE_IDLE, PHI_MOVE_POSTED, PHI_MOVE_DONE, PHI_MOVE_FAILED };

// One move. Zeroed at first; the caller fills the lower half while it is IDLE, and sets it IDLE
// again after DONE or FAILED. Must stay where it is while POSTED.
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

// phi_move_start posts it. -EAGAIN: later (the lock is taken); any other error: the link has ended.
int phi_move_start(struct phi_move *move);

// phi_link_post sends a post without data. As phi_move_start; it is delivered some time later.
// phi_link_hold is the same for one that soon another post or a move with one may follow: where the
// provider's immediate data has room for two it waits for that one, until somebody polls the link
// or phi_link_unhold sends it off.
int phi_link_post(const struct phi_route *route, uint32_t immediate);
int phi_link_hold(const struct phi_route *route, uint32_t immediate);
void phi_link_unhold(const struct phi_route *route);

// phi_link_mark gives a number that stands for all posts until now; false: later, one of them could
// not be sent yet. phi_link_delivered tells whether they are all delivered, or the link has ended.
bool phi_link_mark(struct phi_link *link, uint64_t *mark);
bool phi_link_delivered(struct phi_link *link, uint64_t mark);

// phi_route_in_order: whether of two writes of one link that are under way together the later one
// is what the same bytes hold in the end, and does not come before the earlier one. Not where that
// one posts: it may wait, for its own first parts or for what it is behind. Never in memory of a
// device.
bool phi_route_in_order(const struct phi_route *route);

// phi_route_poll polls the net of a route.
bool phi_route_poll(const struct phi_route *route);

// phi_route_nap sleeps for ns, less than a second, or until there may be something for the route's
// link: no completion tells of large data before the last of them, and they move only while
// somebody polls. false: it did not sleep, since the provider has no descriptor for that, or
// another thread polls.
bool phi_route_nap(const struct phi_route *route, int64_t ns);

#endif
