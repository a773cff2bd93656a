// SPDX-License-Identifier: BSD-3-Clause
#include "channel/peers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/wake.h"
#include "channel/attempt.h"
#include "channel/end.h"
#include "channel/expel.h"
#include "channel/hello.h"
#include "channel/lives.h"
#include "channel/offer.h"
#include "channel/release.h"
#include "channel/request.h"
#include "channel/service.h"

struct phi_peer *phi_peers_get(struct phi_peers *peers, int rank)
{
    if (peers->table[rank] == NULL)
        peers->table[rank] = phi_peer_new(peers, rank);
    return peers->table[rank];
}

static int announce(struct phi_peers *peers, int64_t deadline)
{
    struct phi_writer writer = {0};
    phi_capabilities_encode(&peers->mine, &writer);
    int rc = writer.error;
    if (rc)
        phi_fail(peers->report, rc, "out of memory for the member record");
    else
        rc = phi_mailbox_announce(peers->mailbox, writer.bytes, writer.size, deadline);
    phi_writer_fini(&writer);
    return rc;
}

static int open_mailbox(struct phi_peers *peers, const struct phi_peers_params *params,
                        int64_t deadline)
{
    struct phi_mailbox_params mailbox = {
        .report = params->report,
        .counters = params->counters,
        .config = params->config,
        .callbacks = params->callbacks,
        .job = params->job,
        .epoch = params->epoch,
        .rank = params->rank,
        .ranks = params->ranks,
        .incarnation = params->incarnation,
    };
    int rc = phi_mailbox_open(&mailbox, deadline, &peers->mailbox);
    if (rc == 0)
        peers->incarnation = phi_mailbox_incarnation(peers->mailbox);
    return rc;
}

// A page that the kernel clears in a forked child: the child has neither our threads nor a right to
// our words.
static int make_life(struct phi_peers *peers)
{
    uint8_t *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -errno;
    *page = 1;
    peers->life = page;
    peers->executor->life = page;
    return madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0 ? 0 : -errno;
}

// Peers learn by it that this process has ended. Where the kernel or a policy gives none they go
// without; that none is left to be had is a failure like any other.
static int open_pidfd(struct phi_peers *peers)
{
    peers->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0); // close-on-exec by definition
    int rc = peers->pidfd < 0 ? -errno : 0;
    if (rc != -EMFILE && rc != -ENFILE && rc != -ENOMEM)
        return 0;
    return phi_fail(peers->report, rc, "no descriptor of this process for its peers: %s",
                    ph_strerror(rc));
}

static int make_peers(const struct phi_peers_params *params, struct phi_peers **out)
{
    struct phi_peers *peers = calloc(1, sizeof *peers);
    if (peers == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for the context");
    peers->report = params->report;
    peers->counters = params->counters;
    peers->config = params->config;
    peers->size_table = params->size_table;
    peers->memory = params->memory;
    peers->executor = params->executor;
    peers->device = params->device;
    peers->net_wake = (struct phi_wake){-1, -1};
    peers->events = (struct phi_events){.epoll = -1, .event = -1};
    peers->pidfd = -1;
    peers->rank = params->rank;
    peers->ranks = params->ranks;
    size_t ranks = (size_t)params->ranks;
    peers->table = calloc(ranks, sizeof *peers->table);
    peers->wanted = calloc(ranks, sizeof *peers->wanted);
    peers->wanted_now = calloc(ranks, sizeof *peers->wanted_now);
    peers->silent_since = calloc(ranks, sizeof *peers->silent_since);
    peers->executor->silent_since = peers->silent_since;
    pthread_mutex_init(&peers->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = peers;
    if (peers->table == NULL || peers->wanted == NULL || peers->wanted_now == NULL ||
        peers->silent_since == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for %d ranks", params->ranks);
    int rc = make_life(peers);
    return rc ? phi_fail(params->report, rc, "no page that tells a forked child: %s",
                         ph_strerror(rc))
              : 0;
}

static void describe_self(struct phi_peers *peers)
{
    int rc = phi_capabilities_fill(&peers->mine, peers->device, phi_memory_kinds(peers->memory));
    if (rc)
        phi_log(peers->report, PH_LOG_WARN,
                "rank %d cannot read the boot id of its node (%s): for it all other ranks are on "
                "other nodes",
                peers->rank, ph_strerror(rc));
    peers->mine.path = (uint8_t)peers->config->path;
    peers->mine.net = phi_net_built();
}

int phi_peers_open(const struct phi_peers_params *params, int64_t deadline, struct phi_peers **out)
{
    struct phi_peers *peers = NULL;
    int rc = make_peers(params, &peers);
    if (rc)
        goto close;
    describe_self(peers);
    if ((rc = open_pidfd(peers)))
        goto close;
    if ((rc = phi_wake_open(&peers->net_wake))) {
        phi_fail(peers->report, rc, "no sockets to wake the service thread by: %s",
                 ph_strerror(rc));
        goto close;
    }
    if ((rc = phi_probe_open(peers->memory, peers->device, &peers->probe)) ||
        (rc = open_mailbox(peers, params, deadline)))
        goto close;
    // The service must answer before anybody can learn of it.
    if ((rc = phi_service_open(peers, &peers->service)) || (rc = announce(peers, deadline)))
        goto close;
    *out = peers;
    return 0;
close:
    phi_peers_close(peers, deadline);
    return rc;
}

void phi_peers_close(struct phi_peers *peers, int64_t deadline)
{
    if (peers == NULL)
        return;
    phi_service_close(peers->service);
    phi_attempt_stop(peers);
    for (int rank = 0; peers->table != NULL && rank < peers->ranks; rank++)
        phi_peer_free(peers->table[rank]);
    while (peers->former != NULL) {
        struct phi_peer *peer = peers->former;
        peers->former = peer->former;
        phi_peer_free(peer);
    }
    while (peers->requests != NULL) {
        struct ph_exchange_request *request = peers->requests;
        peers->requests = request->next;
        free(request);
    }
    free(peers->spare);
    for (int i = 0; i < PHI_SPARE_WORK; i++)
        free(peers->spare_work[i]);
    phi_probe_close(peers->memory, peers->device, &peers->probe);
    for (uint32_t i = 0; i < peers->exports_count; i++)
        phi_export_free(peers->exports[i]);
    while (peers->ended != NULL) {
        struct phi_local_export *e = peers->ended;
        peers->ended = e->next;
        phi_export_free(e);
    }
    phi_net_close(peers->net);
    phi_wake_close(&peers->net_wake);
    if (peers->pidfd >= 0)
        close(peers->pidfd);
    phi_releases_free(peers);
    free(peers->exports);
    if (peers->is_late)
        phi_mailbox_message_free(&peers->late);
    phi_mailbox_close(peers->mailbox, deadline);
    free(peers->table);
    free(peers->wanted);
    free(peers->wanted_now);
    peers->executor->silent_since = NULL; // it outlives us
    free(peers->silent_since);
    if (peers->life != NULL)
        munmap((void *)peers->life, 1);
    pthread_cond_destroy(&peers->changed);
    pthread_mutex_destroy(&peers->lock);
    free(peers);
}

// Whether an exchange that is not finished has a buffer there.
static bool exchanges(const struct phi_peers *peers, uint64_t base)
{
    for (const struct ph_exchange_request *r = peers->requests; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n && !r->abandoned; i++) {
            const struct phi_own_buffer *own =
                phi_key_mine(r->pending[i].key, r->pending[i].number);
            if (own != NULL && !own->released && own->export_->export_.allocation.base == base)
                return true;
        }
    return false;
}

bool phi_peers_use(struct phi_peers *peers, const void *base)
{
    pthread_mutex_lock(&peers->lock);
    bool used = phi_release_pending(peers, (uintptr_t)base) || exchanges(peers, (uintptr_t)base);
    for (int rank = 0; rank < peers->ranks && !used; rank++) {
        const struct phi_peer *peer = peers->table[rank];
        for (struct ph_channel *c = peer ? peer->channels : NULL; c != NULL && !used; c = c->next)
            used = c->local_base == (uintptr_t)base &&
                   (atomic_load(&c->uses.revoked) == 0 || !phi_revoke_drained(c));
    }
    pthread_mutex_unlock(&peers->lock);
    return used;
}

// ---- waiting

void phi_peers_changed(struct phi_peers *peers)
{
    peers->changes++;
    pthread_cond_broadcast(&peers->changed);
}

void phi_peers_want(struct phi_peers *peers, int rank, int delta)
{
    peers->wanted[rank] = (uint32_t)((int)peers->wanted[rank] + delta);
    // A thread that receives looked at who is wanted before: it looks again.
    if (peers->receiving)
        phi_mailbox_wake(peers->mailbox);
}

// Tells every connected peer whether this rank sleeps. The exchange is the waiter's half of a
// store-buffering pattern, before it looks once more at what it waits for; phi_peer_ring has the
// other half, after its store of that. Both are read-modify-writes of one word, so whichever comes
// second sees what the other did.
static void set_sleeping(struct phi_peers *peers, bool sleeping)
{
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (peer == NULL || peer->segment == NULL)
            continue;
        struct phi_side *mine = phi_peer_mine(peer);
        atomic_exchange(&mine->sleeping, sleeping ? 1 : 0);
    }
    peers->registered = sleeping;
}

static int file_member(struct phi_peers *peers, const struct phi_message *message)
{
    struct phi_capabilities theirs;
    const bool own = message->rank == peers->rank;
    struct phi_peer *peer = own ? NULL : phi_peers_get(peers, message->rank);
    if (peer == NULL && !own)
        return -ENOMEM;
    if (message->size == 0) // the record of an expulsion: it takes the place of a later life's
        phi_expel_file(peers, message->rank, message->incarnation - 1);
    if (message->size == 0 || own)
        return 0;
    if (message->incarnation <= peer->incarnation || message->incarnation <= peer->newer ||
        message->incarnation <= peer->expelled_life)
        return 0;
    if (phi_capabilities_decode(&theirs, message->bytes, message->size))
        return -EBADMSG;
    if (phi_capabilities_same_device(&peers->mine, &theirs))
        phi_cuda_executor_share(peers->executor, true);
    phi_peer_record(peer, message->incarnation, &theirs);
    return 0;
}

static int file_offer(struct phi_peers *peers, const struct phi_message *message)
{
    struct phi_peer *peer = phi_peers_get(peers, message->rank);
    if (peer == NULL)
        return -ENOMEM;
    if (peer->incarnation != message->incarnation)
        return -ESTALE; // a newer life, while the former one is not over yet: it is not connected,
                        // and offers nothing
    int rc = phi_hello_is(message->bytes, message->size)
                 ? phi_hello_file(peer, message->bytes, message->size)
                 : phi_offer_file(peer, message->bytes, message->size);
    if (rc != -ENOMEM) { // else it is filed again, and its sender is to keep it
        peer->filed = message->sequence;
        phi_peer_acknowledge(peer);
    }
    return rc;
}

// Takes the message over. -ENOMEM: it is kept for later, since nobody sends it again.
static int file_message(struct phi_peers *peers, struct phi_message *message)
{
    int rc = message->member                ? file_member(peers, message)
             : message->rank != peers->rank ? file_offer(peers, message)
                                            : 0;
    if (rc && !(rc == -ENOMEM && peers->is_late))
        phi_log(peers->report, PH_LOG_WARN, "%s %llu of rank %d %s: %s",
                message->member ? "member record" : "offer",
                (unsigned long long)(message->member ? message->incarnation : message->sequence),
                message->rank, rc == -ENOMEM ? "is taken later" : "dropped", ph_strerror(rc));
    peers->is_late = rc == -ENOMEM;
    if (peers->is_late)
        peers->late = *message;
    else
        phi_mailbox_message_free(message);
    return peers->is_late ? rc : 0;
}

void phi_peer_acknowledge(struct phi_peer *peer)
{
    if (peer->segment != NULL)
        phi_segment_put64(peer->segment, &phi_peer_mine(peer)->acknowledged, peer->filed);
}

bool phi_peers_wanted(const struct phi_peers *peers, int rank)
{
    const struct phi_peer *peer = peers->table[rank];
    return peers->wanted[rank] > 0 ||
           (peer != NULL && peer->state == PHI_PEER_READY &&
            atomic_load_explicit(&phi_peer_theirs(peer)->acknowledged, memory_order_acquire) <
                phi_mailbox_sequence(peers->mailbox, rank));
}

// How long a store that failed is left alone by who only watches it.
#define WATCH_PAUSE_MS 250
// How long until what there was no memory for is filed again.
#define LATE_PAUSE_MS 10

// Without the lock.
static int pause_for(struct phi_peers *peers, int64_t ms, int64_t deadline)
{
    int64_t soon = phi_deadline(ms);
    int rc = phi_mailbox_sleep(peers->mailbox, soon < deadline ? soon : deadline);
    return rc == -ETIMEDOUT && phi_now() < deadline ? -EINTR : rc;
}

// Without the lock. A store that fails while it is only watched, lest it forgets, is no failure of
// whoever waits for something else.
static int receive_or_sleep(struct phi_peers *peers, bool awaited, int64_t deadline,
                            struct phi_message *message)
{
    int rc = phi_mailbox_receive(peers->mailbox, peers->wanted_now, deadline, message);
    if (awaited || rc == 0 || rc == -EINTR || rc == -ETIMEDOUT || rc == PH_EFENCED)
        return rc;
    return pause_for(peers, WATCH_PAUSE_MS, deadline);
}

// With the lock given up; files what comes. Nothing else is taken before what is late, so that the
// messages of a rank stay in their order.
static int receive(struct phi_peers *peers, int64_t deadline)
{
    bool awaited = false;
    for (int rank = 0; rank < peers->ranks; rank++) {
        peers->wanted_now[rank] = phi_peers_wanted(peers, rank);
        awaited = awaited || peers->wanted[rank] > 0;
    }
    peers->receiving = true;
    bool over = peers->leaving || peers->fenced; // nothing that the store has matters any more
    bool late = peers->is_late && !over;
    pthread_mutex_unlock(&peers->lock);
    struct phi_message message = {0};
    int rc = over   ? phi_mailbox_sleep(peers->mailbox, deadline)
             : late ? pause_for(peers, LATE_PAUSE_MS, deadline)
                    : receive_or_sleep(peers, awaited, deadline, &message);
    pthread_mutex_lock(&peers->lock);
    peers->receiving = false;
    if (late)
        message = peers->late;
    if (late || (rc == 0 && !over))
        rc = file_message(peers, &message) && rc ? rc : 0;
    else if (rc == PH_EFENCED)
        phi_fence(peers, "a later life of it, or its expulsion, was announced in the store");
    phi_peers_changed(peers);
    return rc == -EINTR ? 0 : rc;
}

int phi_peers_follow(struct phi_peers *peers, int64_t deadline)
{
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    if (deadline == PHI_FOREVER)
        return -pthread_cond_wait(&peers->changed, &peers->lock);
    return -pthread_cond_timedwait(&peers->changed, &peers->lock, &until);
}

int phi_peers_wait(struct phi_peers *peers, uint64_t seen, int64_t deadline)
{
    if (peers->changes != seen)
        return 0;
    if (peers->receiving)
        return phi_peers_follow(peers, deadline);
    if (!peers->registered) {
        // From here on peers ring; what they stored before, the caller sees when it looks again.
        set_sleeping(peers, true);
        phi_peers_changed(peers);
        return 0;
    }
    int rc = receive(peers, deadline);
    set_sleeping(peers, false);
    return rc;
}

void phi_peers_awake(struct phi_peers *peers)
{
    if (peers->registered && !peers->receiving)
        set_sleeping(peers, false);
}

int phi_peers_drain(struct phi_peers *peers)
{
    while (!peers->receiving) {
        int rc = receive(peers, phi_now());
        if (rc == -ETIMEDOUT)
            return 0;
        if (rc)
            return rc;
    }
    return 0;
}

void phi_peers_look(struct phi_peers *peers, int rank)
{
    phi_peers_want(peers, rank, 1);
    phi_peers_drain(peers);
    phi_peers_want(peers, rank, -1);
}

// ---- one peer

struct phi_side *phi_peer_mine(const struct phi_peer *peer)
{
    return phi_segment_side(peer->segment, peer->segment->side);
}

struct phi_side *phi_peer_theirs(const struct phi_peer *peer)
{
    return phi_segment_side(peer->segment, !peer->segment->side);
}

void phi_peer_told(struct phi_peer *peer)
{
    if (peer->segment == NULL || atomic_load(&phi_peer_mine(peer)->told) != 0)
        return;
    phi_segment_put32(peer->segment, &phi_peer_mine(peer)->told, 1);
    // What the application does now that it knows comes behind that, plain stores too. Pairs with a
    // reader's look after it has read (phi_channel_status).
    atomic_thread_fence(memory_order_seq_cst);
}

void phi_peer_note_told(const struct phi_peer *peer, struct phi_net_told *told)
{
    if (peer->link != NULL)
        phi_link_told(peer->link, told);
}

bool phi_peer_heard(const struct phi_peer *peer, const struct phi_net_told *told)
{
    return peer->link == NULL || phi_link_heard(peer->link, told);
}

void phi_peer_ring(struct phi_peer *peer)
{
    if (peer->segment->link != NULL)
        return; // over there whoever applies a store wakes the sleepers
    // The storer's half of the pattern in set_sleeping: a read-modify-write, so that it is ordered
    // with the sleeper's.
    if (atomic_fetch_add(&phi_peer_theirs(peer)->sleeping, 0) == 0 || peer->wake_fd < 0)
        return;
    phi_wake_ring(peer->wake_fd);
}

void phi_peer_message(const struct phi_peer *peer, enum phi_node_type type,
                      struct phi_node_message *message)
{
    memset(message, 0, sizeof *message);
    message->magic = PHI_NODE_MAGIC;
    message->version = PHI_NODE_VERSION;
    message->type = (uint16_t)type;
    message->rank = peer->peers->rank;
    message->from = peer->peers->incarnation;
    message->to = peer->incarnation;
}

int phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline)
{
    *fd = -1;
    int rc = phi_gate_enter(&peer->calling, deadline);
    if (rc)
        return rc;
    request->call = ++peer->calls;
    if (peer->link != NULL)
        rc = phi_hello_call(peer, request, answer, deadline);
    else
        rc = peer->socket < 0 ? -ECONNRESET
                              : phi_node_call(peer->socket, request, answer, fd, deadline);
    phi_gate_leave(&peer->calling);
    if (rc == 0 && answer->status != 0) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        rc = answer->status < 0 ? answer->status : -EBADMSG;
    }
    return rc;
}

int phi_peer_tell(struct phi_peer *peer, const struct phi_node_message *message)
{
    if (peer->link != NULL)
        return phi_hello_tell(peer, message, false);
    return peer->socket < 0 ? -ECONNRESET : phi_node_send(peer->socket, message, -1);
}

int phi_peer_failure(struct phi_peer *peer)
{
    // Pairs with the releaser's look: from here on it may let our copies into the peer's buffers
    // end.
    phi_peer_told(peer);
    char why[PHI_HELLO_WHY] = "";
    const char *more = !peer->expelled        ? ""
                       : phi_expel_over(peer) ? " (it was expelled)"
                                              : " (it was expelled, and its process has neither "
                                                "acknowledged nor exited)";
    const bool ended = !peer->expelled && phi_hello_why(peer, why, sizeof why);
    return phi_fail(peer->peers->report, peer->code, "rank %d (process %u on %s): %s%s%s%s",
                    peer->rank, peer->theirs.pid, peer->theirs.host, ph_strerror(peer->code), more,
                    ended ? "; its link has ended: " : "", why);
}
