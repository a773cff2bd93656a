// SPDX-License-Identifier: BSD-3-Clause
// The inside of the net layer, for its own files.
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
#include "net/net.h"
#include "net/staging.h"

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

// What the provider is given as the context of an operation: its own part of it comes first.
struct phi_net_op {
    struct fi_context2 provider;
    enum phi_op_kind kind;
    bool busy;
    struct phi_move *move; // of a part
    uint64_t number;       // of those that carry data or posts: when it was posted
};

// What a link sends and receives messages in; one registered piece of memory for each link.
struct phi_link_buffers {
    uint8_t send[PHI_SENDS][PHI_NET_MESSAGE_MAX];
    uint8_t receive[PHI_RECEIVES][PHI_NET_MESSAGE_MAX];
    uint8_t nothing[64];                     // what posts without data write from
    uint8_t greeting[PHI_NET_RAILS_MAX][64]; // what comes of the peer's
    uint8_t flushed[PHI_NET_RAILS_MAX][64];  // what reads that flush bring, one for each endpoint
};

// A log of entries, read in order.
struct phi_log_buffer {
    uint8_t *bytes;
    size_t size, room, at; // entries lie in [at, size)
    size_t newest;         // where the last one begins
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

// How many parts of the post that is coming for a word have come, in which life of its line.
struct phi_arrival {
    uint32_t life, count;
};

// Each operation that is tried on a connection that is gone may make the provider try to connect
// once more. So the pauses grow with the time that it has been refused.
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
    bool greets;                         // that was sent, or need not be: data may go over the first
    bool ready;                          // it, or a message, was delivered: data may go here
    bool given_up;                       // it does not reach the peer
    bool heard;                          // the peer's has come: data may come here
};

// What a link has of each NIC.
struct phi_port {
    struct fid_cq *cq; // of all its endpoints there
    struct fid_av *av;
    int fd;      // of the queue; -1: it cannot be slept on
    bool calmed; // phi_link_calm, and nothing came since
    bool failed; // it had an error
    char why[160];
};

// Of a link whose peer's memory, or ours, is staged.
struct phi_link_staging {
    struct phi_route route;        // from the slots that are filled here to those of the peer
    struct phi_arrivals *arrivals; // by line, direction and word; NULL: not staged
    int side;                      // of this end
    uint32_t writing;              // records on their way
    struct phi_lane *active;
    struct phi_lane *closed; // of which the provider still has records
};

// A post that waits for a flush, or what a lane of bells has read.
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
        uint64_t after; // number of the newest one that came before it
    } frame[PHI_RECEIVES]; // messages that came behind them, oldest first
    uint32_t frames;
};

struct phi_link {
    struct phi_net *net;
    struct phi_link *next;
    int rank;
    struct phi_mirror mirror;
    bool open;               // false: ended
    bool carries;            // data; false: ended, or cut
    int64_t doubt;           // data fails: until then the peer may say why; or 0
    char doubted[160];       // ... as the provider put it
    struct phi_rail control; // stores and messages
    struct phi_rail rails[PHI_NET_RAILS_MAX];
    uint32_t rails_open, rails_used; // used: what the peer has, too
    uint32_t turn;                   // of the rails
    uint32_t ungreeted;              // so many of those in use do not yet `greet`
    int64_t reached;                 // when the first one's greeting was delivered
    struct phi_port ports[PHI_NET_RAILS_MAX];
    int64_t came; // when something did
    uint8_t address[PHI_NET_ADDRESS_MAX]; // all, and our token
    size_t address_size;
    uint8_t peers_address[PHI_NET_ADDRESS_MAX]; // of as many rails as it has, each of so many bytes
    size_t peers_name_size, peers_names;
    uint64_t token, peers_token; // what frames from the peer, and to it, have
    bool disturbed;              // some without came
    bool connected;
    _Atomic int lost;
    char why[160];
    struct phi_link_buffers *buffers;
    struct phi_net_op sends[PHI_SENDS], receives[PHI_RECEIVES], posts[PHI_POSTS], parts[PHI_PARTS];
    uint32_t sending, posting, flying; // of sends, posts and parts
    uint64_t numbered;                 // the last number of an operation
    uint64_t posts_sent, posts_come;   // immediate data
    uint64_t posts_due;                // as many had gone before the newest frame that came
    int64_t stalled; // since then nothing can be sent although nothing is on its way, or 0
    struct phi_patience messages, data, greetings;
    struct phi_move *moves, **moves_end; // posted
    bool due;                            // one of them has parts to be posted
    struct phi_arrival *arrivals;        // by line, side and word
    bool holds;                          // a post that waits for another one
    uint32_t held;
    struct phi_route held_route;
    struct phi_log_buffer out, in;
    struct phi_net_region *regions;
    struct phi_raw_key *raw_keys;
    struct phi_link_staging staging;
    struct phi_link_flush flush;
};

// One that data goes over.
struct phi_nic {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
};

struct phi_net {
    struct phi_report *report;
    const struct phi_config *config;
    const struct phi_libfabric *library;
    struct phi_nic nics[PHI_NET_RAILS_MAX]; // alike; stores and messages go over the first
    uint32_t nic_count;
    struct phi_net_wire wire;
    char name[160], address[INET6_ADDRSTRLEN];
    uint64_t mr_mode;
    size_t part;    // most bytes of one RMA operation
    bool in_order;  // writes of one endpoint come in the order in which they are posted
    uint64_t told;  // FI_DELIVERY_COMPLETE, or 0: of a write of nothing the provider does not tell that
    uint32_t rails; // of each link, by turns on the NICs; at least one for each
    bool devices;   // memory of devices is to be registered,
    bool hmem;      // ... and the provider takes it
    struct phi_pci_place near;
    bool flush_reads;
    struct phi_flusher *flusher; // NULL: the driver is not asked
    int message_ring, store_ring;
    char missed[256]; // the best candidate that was tried in vain, and why

    pthread_mutex_t lock;     // guards the links and all calls of the provider
    _Atomic uint32_t waiting; // threads that wait for the lock: who only tries leaves it to them
    struct phi_link *links;
    _Atomic uint64_t polls; // by others than the proxy
    pthread_t proxy;
    bool started;
    _Atomic bool stop;
    struct phi_wake wake; // of the proxy

    _Atomic(struct phi_lane *) kicked; // not yet among their links' active ones
    _Atomic uint32_t asleep;           // the proxy, so that a kick has to wake it
    uint32_t lanes;                    // active ones
};

// The lock. Threads that poll try it again and again: without `waiting` one that waits for it could
// starve.
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

// phi_link_fail ends a link that the provider or the peer has given up: closes its endpoint, fails its moves, and then
// lets phi_link_lost say so: who knows of the end may write where the peer was reading.
void phi_link_fail(struct phi_link *link, int code, const char *why);
// phi_link_doubt: an operation of data has failed. The peer may have closed its end of the data (phi_link_cut), and what
// it says of that is on its way as a message: nothing is posted any more and no move fails, until this rank cuts the
// link, too, or the time is over (phi_link_check) and the link fails.
void phi_link_doubt(struct phi_link *link, const char *why);
void phi_link_check(struct phi_link *link);
// A peer that is gone is a connection that cannot be made again, about which providers say no more than "try again", for
// ever: after so long that ends the messages, or puts the data in doubt. One that only does not read has something of
// ours on its way, but for posts over a provider that does not tell of their delivery (phi_net.told).
#define PHI_STALL_MS 1500
extern const char phi_stall[]; // the sentence
// phi_link_poll takes what has completed; returns whether something did.
bool phi_link_poll(struct phi_link *link);
// Ports (port.c). open: rc of libfabric. read takes what has completed; returns whether something did. check: an error
// that was read ends the link.
int phi_ports_open(struct phi_link *link);
bool phi_ports_read(struct phi_link *link);
void phi_ports_check(struct phi_link *link);
void phi_ports_close(struct phi_link *link);
// phi_link_calm is for a link whose descriptor says that there is something when there is not: of the provider "net" of
// libfabric 1.17 it says so after the first completion, until somebody waits by the library's own call, which this does
// for a millisecond. False: not ready, or done before and nothing came since.
bool phi_link_calm(struct phi_link *link);
// phi_link_flush sends what the log has, as far as there is room; true where something went out.
bool phi_link_flush(struct phi_link *link);
bool phi_link_idle(const struct phi_link *link); // nothing to send, nothing on its way
// phi_link_shut ends a link: closes what it has of the provider. phi_links_free: all, also those
// that nobody has freed.
void phi_link_shut(struct phi_link *link);
void phi_links_free(struct phi_net *net);
// phi_link_deafen (ears.c): before its endpoints of data are closed, or, where it has ended, all.
// Nobody connects to them any more, and who was about to is cut off.
void phi_link_deafen(struct phi_link *link);
void phi_link_received(struct phi_link *link, uint32_t index, size_t size);

// Frames of the wire: a header, then its bytes. Between libraries of one version of this layout
// only: the two ends compare PHI_HELLO_VERSION before they connect.
enum phi_frame { PHI_FRAME_STORES = 1, PHI_FRAME_MESSAGE = 2, PHI_FRAME_BYE = 3 };
struct phi_frame_header {
    uint64_t token; // of the receiving end
    uint32_t kind, size;
    uint64_t posts; // so many the sender has told before
};
struct phi_store {
    uint32_t offset, size;
    uint64_t value;
};
int phi_message_await(struct phi_link *link, int i); // posts a receive

// Patience: whether to try now; it was refused; it was taken.
bool phi_may_try(const struct phi_patience *patience);
void phi_was_refused(struct phi_patience *patience);
static inline void phi_was_taken(struct phi_patience *patience)
{
    patience->refused = 0;
}

int phi_log_add(struct phi_log_buffer *log, uint32_t kind, const void *bytes, uint32_t size);
// phi_log_peek returns the oldest entry's bytes, or NULL; drop takes it out.
const void *phi_log_peek(const struct phi_log_buffer *log, uint32_t *kind, uint32_t *size);
// phi_log_newest returns the newest entry's bytes where it is of the kind and size, and its first
// `key` bytes are these; else NULL.
void *phi_log_newest(const struct phi_log_buffer *log, uint32_t kind, uint32_t size,
                     const void *bytes, size_t key);
void phi_log_drop(struct phi_log_buffer *log);
void phi_log_free(struct phi_log_buffer *log);

// Data of 8 bytes have room for two posts; this stands where there is no second one: no post is of 128 parts.
#define PHI_NO_POST 0xffffffffu

// Moves and posts.
void phi_part_completed(struct phi_link *link, struct phi_net_op *op);
void phi_moves_go(struct phi_link *link); // posts the parts that are due
void phi_moves_fail(struct phi_link *link);
void phi_posts_arrive(struct phi_link *link, uint64_t data); // of an immediate
void phi_posts_go(struct phi_link *link);                    // the one that is held
// phi_move_post is phi_move_start, of a link that carries data. phi_post_send sends a post without data; -FI_EAGAIN:
// later.
void phi_move_post(struct phi_link *link, struct phi_move *move);
ssize_t phi_post_send(struct phi_link *link, const struct phi_route *route, uint32_t immediate);

// phi_rail_post posts an operation on the next rail that takes it, with the post that is held if it
// has room for it. -FI_EAGAIN: none takes it now. The operation is busy until it completes.
struct phi_rma {
    const struct phi_route *route;
    uint64_t offset;
    void *local; // NULL: no bytes
    size_t size;
    bool read, tells; // tells: with `immediate`
    bool loose;       // it is over when `local` may be written again; else when it is delivered
    uint32_t immediate;
};
ssize_t phi_rail_post(struct phi_link *link, const struct phi_rma *rma, struct phi_net_op *op);
struct phi_net_op *phi_op_free(struct phi_net_op *ops, int n); // NULL: all are busy

// Rails. open: rc of libfabric; address fills the link's; insert takes the
// peer's; await posts the receive of a greeting, and greet sends those that are due. give_up: false: the link cannot
// do without it.
int phi_rail_open(struct phi_link *link, struct phi_rail *rail, uint32_t nic);
int phi_rails_address(struct phi_link *link);
int phi_rail_insert(struct phi_link *link, const struct phi_rail *rail, fi_addr_t *to,
                    const uint8_t *address, size_t size);
int phi_rail_await(struct phi_link *link, uint32_t i);
void phi_rails_greet(struct phi_link *link);
void phi_rail_greets(struct phi_link *link, const struct phi_net_op *op); // its greeting was delivered
void phi_rail_greeted(struct phi_link *link, const struct phi_net_op *op); // one has come
// phi_rail_of: of a greeting, or of a read that flushes where nothing has come over the rail; NULL: of nothing that the
// link can do without.
struct phi_rail *phi_rail_of(struct phi_link *link, const struct phi_net_op *op);
bool phi_rail_give_up(struct phi_link *link, struct phi_rail *rail, const char *why);
void *phi_rail_desc(const struct phi_rail *rail); // of the link's buffers
ssize_t phi_rail_send(const struct phi_rail *rail, void *bytes, size_t size, struct phi_net_op *op);
void phi_rail_close(struct phi_rail *rail);

// Staging (staging.h). take makes kicked lanes active. go moves active lanes on; returns whether
// something did. completed: of a record that was delivered. apply takes an immediate that STAGED
// marks. rest lets others run when nothing has moved for `quiet` ns. busy: a record that was filled
// is not yet delivered. shut: the link has ended, or was cut.
#define PHI_STAGED     (5u << 29) // where a post has its parts
#define PHI_STAGED_ALL (7u << 29)
void phi_staging_take(struct phi_net *net);
bool phi_staging_go(struct phi_link *link);
void phi_record_completed(struct phi_link *link, struct phi_net_op *op);
void phi_staging_apply(struct phi_link *link, uint32_t immediate);
void phi_staging_rest(const struct phi_net *net, int64_t quiet);
bool phi_staging_busy(const struct phi_link *link);
void phi_link_staging_shut(struct phi_link *link);
// phi_bells_end, after the link's endpoints are closed: what was rung is over.
void phi_bells_end(struct phi_link *link);
void phi_link_staging_free(struct phi_link *link);

// Flushes (flush.c). open, with the link. covers: whether a post is one that waits for a flush. hold keeps it until then.
// go moves the flush under way on; returns whether something showed. defers: whether a message that
// has come waits behind posts. take: the messages that nothing is before any more. shut: the link has
// ended, or was cut: what was held comes to nothing.
// lane: what was read into a line's region is to be flushed; *flushing is true until then. false: it
// need not be.
bool phi_flush_covers(const struct phi_link *link, const struct phi_net_post *post);
bool phi_flush_lane(struct phi_link *link, uint32_t line, bool *flushing);
int phi_flush_open(struct phi_link *link);
void phi_flush_hold(struct phi_link *link, const struct phi_held *held);
bool phi_flush_go(struct phi_link *link);
bool phi_flush_defers(struct phi_link *link, uint32_t index, size_t size);
// phi_flush_reads: whether the flush under way reads by that key.
bool phi_flush_reads(const struct phi_link *link, uint64_t key);
void phi_flush_shut(struct phi_link *link);
void phi_flush_take(struct phi_link *link);
void phi_flush_free(struct phi_link *link);
void phi_flusher_close(struct phi_net *net);

// phi_region_self: the way to a region of this rank's own; -ENOENT: it is closed.
int phi_region_self(struct phi_link *link, uint32_t id, struct phi_route *route);

// Regions. Of a rail's NIC, and of its endpoint where the provider ties them.
int phi_region_open(struct phi_net *net, const struct phi_rail *rail,
                    const struct phi_net_memory *memory, uint64_t access, struct fid_mr **mr);
// phi_region_register is phi_link_register_memory with access of the caller's choice.
int phi_region_register(struct phi_link *link, uint32_t id, const struct phi_net_memory *memory,
                        uint64_t access);
void phi_regions_close(struct phi_link *link);
// phi_keys_unmap: the peer's raw keys, when the endpoints that have used them are closed.
void phi_keys_unmap(struct phi_link *link);

// phi_net_fail reports a failed call of the provider: its error to ours.
int phi_net_fail(struct phi_net *net, int rc, const char *call);
const char *phi_net_error(const struct phi_net *net, int rc);

// provider.c: tries candidates in our order until one serves, and then those that are like it. try gets a candidate
// and may write why it cannot serve. -ETIMEDOUT: it was too slow, and so would its provider be at
// another address: that is not tried.
typedef int (*phi_provider_try)(void *opaque, struct fi_info *info, char *why, size_t size);
int phi_provider_find(struct phi_report *report, const struct phi_config *config,
                      const struct phi_libfabric *library, const struct phi_pci_place *near,
                      phi_provider_try try_one, void *opaque,
                      struct phi_net_candidate *candidates, size_t n, size_t *count);

// phi_provider_is_tcp: one of those that PEERHOP_NET_PROVIDER=tcp names.
bool phi_provider_is_tcp(const struct fi_info *info);
bool phi_provider_is_shm(const struct fi_info *info);

// phi_provider_pci: where its NIC sits; false: it has none, or nobody knows.
bool phi_provider_pci(const struct fi_info *info, const char *sysfs, char device[PHI_PCI_NAME]);

// phi_provider_address writes its address in figures; "": it has none of IP.
void phi_provider_address(const struct fi_info *info, char text[INET6_ADDRSTRLEN]);

// phi_provider_near: its address reaches no other node, or only those on the same cable. more:
// there is an interface that may reach others, which providers may not offer yet when it has just come
// up.
bool phi_provider_near(const struct fi_info *info, const struct sockaddr *home);
bool phi_provider_more(const struct sockaddr *home);

// phi_provider_hmem gives the same offer where its provider takes memory of devices, to be freed;
// NULL: it does not.
struct fi_info *phi_provider_hmem(const struct phi_libfabric *library, const struct fi_info *info);

// phi_proxy_start starts the proxy, on the CPUs near the net's NIC where these are known (progress.c).
int phi_proxy_start(struct phi_net *net);

// probe.c: whether what the domain promises is so: writes, reads, immediate data, messages. Takes
// the lock. -ETIMEDOUT: not within so many ms; -EIO: it is not so.
int phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size);

#endif
