// SPDX-License-Identifier: BSD-3-Clause
// The structs of nets and links. Each file of the folder has a header of its own, and uses only
// what is below it. From bottom to top: interface, log, pci, library, provider; state; ears, lane,
// region; rail; message, post; flush, move; bells; records; arrive; port; link; progress; probe;
// domain. Other folders may call the functions of net.h and staging.h, which have no .c of that
// name.
#ifndef PHI_NET_STATE_H
#define PHI_NET_STATE_H

#include <netinet/in.h>
#include <pthread.h>

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "base/wake.h"
#include "net/library.h"
#include "net/log.h"
#include "net/net.h"

enum phi_op_kind {
    PHI_OP_PART,
    PHI_OP_POST,
    PHI_OP_SEND,
    PHI_OP_RECEIVE,
    PHI_OP_GREETING,
    PHI_OP_GREETED,
    PHI_OP_RECORD,
    PHI_OP_FLUSH
};

enum { PHI_SENDS = 8, PHI_RECEIVES = 16, PHI_POSTS = 64, PHI_PARTS = 64 };

// The provider gets this as the context of an operation. Its own part comes first.
struct phi_net_op {
    struct fi_context2 provider;
    enum phi_op_kind kind;
    bool busy;
    struct phi_move *move; // of a part
    uint64_t number;       // of those that carry data or posts: when it was posted
};

// A link sends and receives messages in this memory; one registered piece for each link.
struct phi_link_buffers {
    uint8_t send[PHI_SENDS][PHI_NET_MESSAGE_MAX];
    uint8_t receive[PHI_RECEIVES][PHI_NET_MESSAGE_MAX];
    uint8_t nothing[64];                     // what posts without data write from
    uint8_t greeting[PHI_NET_RAILS_MAX][64]; // what comes of the peer's
    uint8_t flushed[PHI_NET_RAILS_MAX][64];  // what reads that flush bring, one for each endpoint
};

struct phi_net_region {
    struct phi_net_region *next;
    uint32_t id;
    uint64_t base;
    uint32_t count; // one for each NIC, or for each rail where regions belong to endpoints
    struct fid_mr *mr[PHI_NET_RAILS_MAX];
    struct phi_net_target self; // of reads that flush; no rails: nothing has been read so far
};

// A raw key, mapped. Regions of the same memory may have the same one.
struct phi_raw_key {
    struct phi_raw_key *next;
    struct phi_net_target target;
    uint64_t key;
    uint32_t targets; // that have it
};

// How many parts of the post that is coming for a word have come, and in which life of its line.
struct phi_arrival {
    uint32_t life, count;
};

// Each operation that is tried on a connection that is gone may make the provider try to connect
// once more. So the pauses grow with the time since it began to refuse.
struct phi_patience {
    int64_t refused, retry; // since when, or 0; when it is asked next
};

// One endpoint of a link.
struct phi_rail {
    uint32_t nic;
    struct fid_ep *ep;
    fi_addr_t peer, self;
    struct fid_mr *buffers;              // the link's, NULL: the provider asks for none
    struct phi_net_op greeting, greeted; // its first message, either way
    bool greets;   // that was sent, or need not be: data may go over the first
    bool ready;    // it, or a message, was delivered: data may go here
    bool given_up; // it does not reach the peer
    bool heard;    // the peer's has come: data may come here
};

// A link has one of these for each NIC.
struct phi_port {
    struct fid_cq *cq; // of all its endpoints there
    struct fid_av *av;
    int fd;      // of the queue; -1: it cannot be slept on
    bool calmed; // phi_link_calm, and nothing came since
    bool failed; // it had an error
    char why[160];
};

// For a link whose peer's memory, or ours, is staged.
struct phi_link_staging {
    struct phi_route route;        // from the slots that are filled here to those of the peer
    struct phi_arrivals *arrivals; // by line, direction and word; NULL: not staged
    int side;                      // of this end
    uint32_t writing;              // records on their way
    struct phi_lane *active;
    struct phi_lane *closed; // of which the provider still has records
};

// A post that waits for a flush, or a read of a lane of bells that does.
struct phi_held {
    uint64_t number; // as they came
    bool *flushing;  // NULL: a post
    uint32_t line, life, value;
    uint8_t side, word;
};

struct phi_link_flush {
    uint32_t *regions; // by line: id of the region and 1; 0: not known. NULL: nothing is flushed
    struct phi_held *held;
    size_t count, room;
    uint64_t numbered;     // the newest one's
    size_t covered;        // so many of them, the first ones, by the flush that is under way; or 0
    uint64_t asked;        // of the flusher
    int64_t deadline;      // of the flush
    struct phi_route self; // reads: to the region,
    bool known;            // ... which is still there
    uint32_t rail;         // the next rail that is to read
    struct phi_net_op ops[PHI_NET_RAILS_MAX];
    struct {
        uint32_t index;
        size_t size;
        uint64_t after;    // number of the newest one that came before it
    } frame[PHI_RECEIVES]; // messages that came behind them, oldest first
    uint32_t frames;
};

// How a link failed, or may fail.
struct phi_failing {
    int code;          // of phi_link_fail, until the link is ended for it; or 0
    int64_t doubt;     // data fails: until then the peer may say why; or 0
    char doubted[160]; // ... as the provider put it
    _Atomic int lost;  // the code for which the link was ended
    char why[160];
};

// The endpoints of a link.
struct phi_rails {
    struct phi_rail control; // stores and messages
    struct phi_rail list[PHI_NET_RAILS_MAX];
    uint32_t open, used; // used: what the peer has, too
    uint32_t turn;
    uint32_t ungreeted; // so many of those in use do not yet `greet`
    int64_t reached;    // when the first one's greeting was delivered
};

// The names of both ends' endpoints, and their tokens.
struct phi_names {
    uint8_t address[PHI_NET_ADDRESS_MAX]; // all, and our token
    size_t address_size;
    uint8_t peers_address[PHI_NET_ADDRESS_MAX]; // of as many rails as it has, each of so many bytes
    size_t peers_name_size, peers_names;
    uint64_t token, peers_token; // what frames from the peer, and to it, have
    bool disturbed;              // some without came
};

// Operations that the provider has, or may be given.
struct phi_link_ops {
    struct phi_net_op sends[PHI_SENDS], receives[PHI_RECEIVES], posts[PHI_POSTS], parts[PHI_PARTS];
    uint32_t sending, posting, flying; // of sends, posts and parts
    uint64_t numbered;                 // the last number of an operation
};

// Posts, by their immediate data.
struct phi_post_counts {
    uint64_t sent, come;
    uint64_t due; // as many had gone before the newest frame that came
};

struct phi_patiences {
    struct phi_patience messages, data, greetings;
    int64_t stalled; // since then nothing can be sent although nothing is on its way, or 0
};

// Moves that are posted.
struct phi_moves {
    struct phi_move *first, **end;
    bool due; // one of them has parts to be posted
};

// A post that waits for another one.
struct phi_waiting_post {
    bool any;
    uint32_t index;
    struct phi_route route;
};

struct phi_link {
    struct phi_net *net;
    struct phi_link *next;
    int rank;
    bool open;    // false: ended, or failed
    bool carries; // data; false: ended, failed, or cut
    bool connected;
    struct phi_mirror mirror;
    struct phi_failing failing;
    struct phi_rails rails;
    struct phi_port ports[PHI_NET_RAILS_MAX];
    int64_t came; // when something did
    struct phi_names names;
    struct phi_link_buffers *buffers;
    struct phi_link_ops ops;
    struct phi_post_counts counts;
    struct phi_patiences patience;
    struct phi_moves moves;
    struct phi_arrival *arrivals; // by line, side and word
    struct phi_waiting_post hold;
    struct phi_log_buffer out, in;
    struct phi_net_region *regions;
    struct phi_raw_key *raw_keys;
    struct phi_link_staging staging;
    struct phi_link_flush flush;
};

// A NIC that data goes over.
struct phi_nic {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
};

// The chosen provider: facts about it, and how it is used.
struct phi_provider {
    struct phi_net_wire wire;
    char name[160], address[INET6_ADDRSTRLEN];
    uint64_t mr_mode;
    size_t part;   // most bytes of one RMA operation
    bool in_order; // writes of one endpoint come in the order in which they are posted
    // FI_DELIVERY_COMPLETE, or 0: the provider does not tell the delivery of a write of no bytes.
    uint64_t told;
    uint32_t rails; // of each link, by turns on the NICs; at least one for each
    bool devices;   // memory of devices is to be registered,
    bool hmem;      // ... and the provider takes it
    struct phi_pci_place near;
    bool flush_reads;
    int message_ring, store_ring;
    char missed[256]; // the best candidate that was tried in vain, and why
};

// The thread that polls where no other does, and the lanes that it serves.
struct phi_proxy {
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    struct phi_wake wake;
    _Atomic uint64_t polls;            // by others
    _Atomic(struct phi_lane *) kicked; // not yet among their links' active ones
    _Atomic uint32_t asleep;           // so that a kick has to wake it
    uint32_t lanes;                    // active ones
};

struct phi_net {
    struct phi_report *report;
    const struct phi_config *config;
    const struct phi_libfabric *library;
    struct phi_nic nics[PHI_NET_RAILS_MAX]; // alike; stores and messages go over the first
    uint32_t nic_count;
    struct phi_provider provider;
    struct phi_flusher *flusher; // NULL: the driver is not asked

    pthread_mutex_t lock;     // guards the links and all calls of the provider
    _Atomic uint32_t waiting; // threads that wait for the lock: who only tries leaves it to them
    struct phi_link *links;
    struct phi_proxy proxy;
};

// The lock. Threads that poll try it again and again. Without `waiting` a thread that waits for it
// could starve.
static inline void phi_net_lock(struct phi_net *net)
{
    atomic_fetch_add_explicit(&net->waiting, 1, memory_order_relaxed);
    pthread_mutex_lock(&net->lock);
    atomic_fetch_sub_explicit(&net->waiting, 1, memory_order_relaxed);
}

static inline bool phi_net_trylock(struct phi_net *net)
{
    return atomic_load_explicit(&net->waiting, memory_order_relaxed) == 0 &&
           pthread_mutex_trylock(&net->lock) == 0;
}

// All with the lock held.

// phi_link_fail only marks a link that the provider or the peer has given up, with a code and a
// sentence; the first ones count. From then on it is not open and carries nothing: nothing is
// posted, and nothing further is read. Its endpoints, regions, moves and lanes stay as they are,
// for callers that are amid their work with them. link.c ends the link: each function there that
// calls what may fail a link ends it before the lock is free again. Other files call those
// functions only from below, or by phi_link_poll and phi_link_calm. So a thread that takes the lock
// finds no link that has failed and has not ended.
void phi_link_fail(struct phi_link *link, int code, const char *why);
// phi_link_doubt: an operation of data has failed. The peer may have closed its end of the data
// (phi_link_cut), and its message about that may be on its way. Nothing is posted any more, and no
// move fails, until this rank cuts the link, too, or the time is over (phi_ports_check) and the
// link fails.
void phi_link_doubt(struct phi_link *link, const char *why);
// A peer that is gone is a connection that cannot be made again. Providers say no more about that
// than "try again", for ever. After so long that ends the messages, or puts the data in doubt. A
// peer that only does not read has something of ours on its way, except for posts over a provider
// that does not tell of their delivery (phi_provider.told).
#define PHI_STALL_MS 1500
extern const char phi_stall[]; // the sentence

// phi_may_try: whether to try now. phi_was_refused and phi_was_taken note what came of a try.
bool phi_may_try(const struct phi_patience *patience);
void phi_was_refused(struct phi_patience *patience);
static inline void phi_was_taken(struct phi_patience *patience)
{
    patience->refused = 0;
}

struct phi_net_op *phi_op_free(struct phi_net_op *ops, int n); // NULL: all are busy

// phi_net_fail reports a failed call of the provider: its error to ours.
int phi_net_fail(struct phi_net *net, int rc, const char *call);
const char *phi_net_error(const struct phi_net *net, int rc);

#endif
