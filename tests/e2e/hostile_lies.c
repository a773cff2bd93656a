// SPDX-License-Identifier: BSD-3-Clause
#include "e2e/hostile_lies.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/context_internal.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/stage.h"
#include "exchange/fifo.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "semaphore/segment.h"

static const char *chosen = "";

void lie_choose(const char *name)
{
    chosen = strdup(name);
}

static bool is(const char *name)
{
    return strcmp(chosen, name) == 0;
}

static bool begins(const char *with)
{
    return strncmp(chosen, with, strlen(with)) == 0;
}

static bool ends(const char *with)
{
    size_t size = strlen(chosen), end = strlen(with);
    return size >= end && strcmp(chosen + size - end, with) == 0;
}

// ---- descriptors

static int memory_file(off_t size, int seals)
{
    int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(fd, size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0)
        abort();
    return fd;
}

static int a_pipe(bool full, bool reader)
{
    static const char zeros[65536];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        abort();
    while (full && write(ends[1], zeros, sizeof zeros) > 0)
        ;
    fcntl(ends[1], F_SETFL, 0); // whoever writes to it blocks
    if (!reader)
        close(ends[0]);
    return ends[1];
}

static int dead_socket(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        abort();
    close(ends[0]);
    return ends[1];
}

// The bytes of a file, in one that is not sealed: it is cut to nothing once the peer has had time
// to map it.
static void *cut(void *opaque)
{
    int fd = *(int *)opaque;
    usleep(100000);
    if (ftruncate(fd, 0) != 0)
        abort();
    return NULL;
}

static int unsealed_copy(int from)
{
    static int fd;
    char bytes[65536];
    pthread_t thread;
    fd = memory_file(lseek(from, 0, SEEK_END), 0);
    // Of a sparse file the pages that it has.
    for (off_t at = 0; (at = lseek(from, at, SEEK_DATA)) >= 0;) {
        const ssize_t n = pread(from, bytes, sizeof bytes, at);
        if (n <= 0 || pwrite(fd, bytes, (size_t)n, at) != n)
            abort();
        at += n;
    }
    if (pthread_create(&thread, NULL, cut, &fd) != 0)
        abort();
    return fd;
}

// What stands for a descriptor, by the last words of the lie's name.
static int false_descriptor(int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (ends("is a full pipe"))
        return a_pipe(true, true);
    if (ends("is a pipe that nobody reads"))
        return a_pipe(false, false);
    if (ends("is a closed socket"))
        return dead_socket();
    if (ends("is a folder of proc"))
        return open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ends("is a directory"))
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ends("is small"))
        return memory_file(4096, seals);
    if (ends("is huge and sparse"))
        return memory_file((off_t)1 << 42, seals);
    if (ends("is cut off later"))
        return unsealed_copy(fd);
    if (ends("is missing"))
        return -1;
    return fd;
}

// ---- answers

int __real_phi_node_send(int socket, const struct phi_node_message *message, int fd);
int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd);

struct flood {
    int socket;
    struct phi_node_message message;
};

// Answers to questions that nobody asked, without end.
static void *flood(void *opaque)
{
    struct flood *f = opaque;
    const int fd = ends("with descriptors") ? memory_file(4096, 0) : -1;
    f->message.call = 0;
    for (int64_t end = phi_deadline(20000); phi_now() < end;) {
        int rc = __real_phi_node_send(f->socket, &f->message, fd);
        if (rc && rc != -EAGAIN && rc != -ETOOMANYREFS)
            break;
    }
    return NULL;
}

static int start_flood(int socket, const struct phi_node_message *message)
{
    static struct flood f;
    pthread_t thread;
    f = (struct flood){fcntl(socket, F_DUPFD_CLOEXEC, 0), *message};
    return pthread_create(&thread, NULL, flood, &f);
}

static void change_answer(struct phi_node_message *answer)
{
    if (answer->type == PHI_NODE_HELLO && is("another nonce"))
        answer->a++;
    if (answer->type == PHI_NODE_HELLO && is("another size of segments"))
        answer->b++;
    if (is("an answer that is neither"))
        answer->status = 5;
    if (is("an answer with another magic"))
        answer->magic++;
    if (is("an answer of another version"))
        answer->version = 999;
    if (answer->type == PHI_NODE_PROBE && is("a probe record of nonsense"))
        memset(answer->bytes, 0x55, sizeof answer->bytes);
    if (answer->type == PHI_NODE_PROBE && is("a probe record that is too long"))
        answer->bytes_size = UINT32_MAX;
    if (answer->type == PHI_NODE_VERIFY && is("no probe is ever seen"))
        answer->status = -EIO;
    if (answer->type == PHI_NODE_TAKEN && is("a round that was never taken"))
        answer->a = 1;
}

int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd)
{
    struct phi_node_message answer = *message;
    char longer[4096] = {0};
    if (is("no answer"))
        return 0;
    if (is("half an answer"))
        return send(socket, message, sizeof *message / 2, MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
    if (is("an answer and a half")) {
        memcpy(longer, message, sizeof *message);
        return send(socket, longer, sizeof longer, MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
    }
    if (begins("a flood of answers"))
        return start_flood(socket, message);
    change_answer(&answer);
    if ((answer.type == PHI_NODE_HELLO && begins("what rings")) ||
        (answer.type == PHI_NODE_PROCESS && begins("the process")) ||
        (answer.type == PHI_NODE_SEGMENT && begins("the segment")) ||
        (answer.type == PHI_NODE_EXPORT && begins("the memory")))
        fd = false_descriptor(fd);
    return __real_phi_node_send(socket, &answer, fd);
}

// ---- export records

int __real_phi_memory_export(struct phi_memory *memory, const struct phi_allocation *allocation,
                             struct phi_export *export_);
int __wrap_phi_memory_export(struct phi_memory *memory, const struct phi_allocation *allocation,
                             struct phi_export *export_);

enum { AT_KIND = 6, AT_BASE = 8, AT_SIZE = 16, AT_PART = 36, STOLEN_SIZE = AT_PART + 8 };
static uint8_t stolen[STOLEN_SIZE];

static void put(uint8_t *record, size_t at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        record[at + i] = (uint8_t)(value >> (8 * i));
}

int __wrap_phi_memory_export(struct phi_memory *memory, const struct phi_allocation *allocation,
                             struct phi_export *export_)
{
    int rc = __real_phi_memory_export(memory, allocation, export_);
    if (rc || allocation->size == (uint64_t)PHI_PROBE_SLOTS * PHI_PROBE_SIZE)
        return rc; // that is the probe's
    if (is("a record of 0 bytes"))
        put(export_->record, AT_SIZE, 0, 8);
    if (is("a record of 2^63 bytes"))
        put(export_->record, AT_SIZE, 1ull << 63, 8);
    if (is("a record that wraps around"))
        put(export_->record, AT_BASE, UINT64_MAX - 100, 8);
    if (is("a record of an unknown kind"))
        put(export_->record, AT_KIND, 77, 2);
    if (is("a record of another kind"))
        put(export_->record, AT_KIND, PHI_KIND_CUDA, 2);
    if (is("a record larger than its file"))
        put(export_->record, AT_SIZE, 1ull << 40, 8);
    if (is("memory of the peer's own")) {
        // Base, size and id, but not the length of the part that follows; then the process.
        memcpy(export_->record + AT_BASE, stolen + AT_BASE, 24);
        memcpy(export_->record + AT_PART, stolen + AT_PART, 8);
    }
    return 0;
}

// ---- places of staged channels, which the lower rank gives

bool __real_phi_staging_reserve(struct phi_key *key);
bool __wrap_phi_staging_reserve(struct phi_key *key);

bool __wrap_phi_staging_reserve(struct phi_key *key)
{
    const uint64_t controls = 4 * sizeof(struct phi_stage_lane);
    static uint64_t first = UINT64_MAX; // where the first one lies
    struct phi_segment *segment = key->peer->segment;
    uint64_t at;
    if (!__real_phi_staging_reserve(key))
        return false;
    if (key->peer->staging == NULL || !begins("a place"))
        return true;
    at = key->made.place.at;
    if (first == UINT64_MAX)
        first = at;
    else if (is("a place that another one has"))
        at = first;
    else if (is("a place inside the slots of another one")) // those of signals: their data is there
        at = first + controls + (key->made.place.size - controls) / 2 + PHI_STAGE_HEAD;
    if (is("a place that is not all there"))
        at = segment->staging_size / 2 - 64;
    else if (is("a place far outside"))
        at = UINT64_MAX / 64 * 64;
    else if (is("a place at an odd address"))
        at++;
    phi_segment_put64(segment, &phi_segment_slot(segment, segment->side, key->slot)->staging, at);
    return true;
}

// ---- offers

int __real_phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t life, const void *bytes,
                            size_t size, int64_t deadline);
int __wrap_phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t life, const void *bytes,
                            size_t size, int64_t deadline);

// A descriptor ends an offer of one operation.
enum {
    DESCRIPTOR =
        64, // of a buffer of one range; with 18 bytes of sizes and of what it is, at the end
    D_ROLE = 8,
    D_SLOT = 9,
    D_NUMBER = 17,
    D_COUNT = 21,
    D_EXPORT = 25,
    D_OFFSET = 29,
    D_SIZE = 37,
    D_PROTOCOL = 45,
    D_UNBOUND = 62,
    RANGE = 20 // of export, offset and size
};

static void change_offer(uint8_t *d)
{
    if (is("an offset past the allocation"))
        put(d, D_OFFSET, 1ull << 40, 8);
    if (is("an offset that wraps around"))
        put(d, D_OFFSET, UINT64_MAX - 10, 8);
    if (is("a buffer of 0 bytes"))
        put(d, D_SIZE, 0, 8);
    if (is("a buffer of 2^63 bytes"))
        put(d, D_SIZE, 1ull << 63, 8);
    if (is("a buffer that ends past the allocation"))
        put(d, D_SIZE, 1u << 20, 8);
    if (is("a foreign export"))
        put(d, D_EXPORT, 999, 4);
    if (is("an unknown role"))
        put(d, D_ROLE, 9, 1);
    if (is("an unknown protocol"))
        put(d, D_PROTOCOL, 9, 1);
    if (is("a bounce buffer of another size"))
        put(d, D_UNBOUND, 1, 1);
    if (is("a slot out of range"))
        put(d, D_SLOT, 1u << 30, 4);
    if (is("number 0"))
        put(d, D_NUMBER, 0, 4);
    if (is("no range"))
        put(d, D_COUNT, 0, 4);
    if (is("1025 ranges"))
        put(d, D_COUNT, PHI_RANGES_MAX + 1, 4);
    if (is("a range more than there is"))
        put(d, D_COUNT, 2, 4);
    if (is("2^32 - 1 ranges"))
        put(d, D_COUNT, UINT32_MAX, 4);
}

// Makes a list of two ranges of a buffer: the second is the same one again, but for the lie.
static void double_range(uint8_t *d)
{
    memmove(d + D_EXPORT + 2 * RANGE, d + D_EXPORT + RANGE, DESCRIPTOR - D_EXPORT - RANGE);
    memcpy(d + D_EXPORT + RANGE, d + D_EXPORT, RANGE);
    put(d, D_COUNT, 2, 4);
    if (is("a second range past the allocation"))
        put(d, D_OFFSET + RANGE, 1ull << 40, 8);
    if (is("a second range of 0 bytes"))
        put(d, D_SIZE + RANGE, 0, 8);
    if (is("a second range of a foreign export"))
        put(d, D_EXPORT + RANGE, 999, 4);
    if (is("a bounce buffer of two ranges"))
        put(d, D_UNBOUND + RANGE, 1, 1);
}

static bool is_of_two_ranges(void)
{
    return is("a second range past the allocation") || is("a second range of 0 bytes") ||
           is("a second range of a foreign export") || is("a bounce buffer of two ranges");
}

static uint8_t *changed(const void *bytes, size_t *size)
{
    uint8_t *copy = malloc(*size + RANGE);
    if (copy == NULL || *size < DESCRIPTOR)
        abort();
    memcpy(copy, bytes, *size);
    change_offer(copy + *size - DESCRIPTOR);
    if (is_of_two_ranges()) {
        double_range(copy + *size - DESCRIPTOR);
        *size += RANGE;
    }
    if (is("half an offer"))
        *size /= 2;
    return copy;
}

static void send_garbage(struct phi_mailbox *mailbox, int peer, uint64_t life, int64_t deadline)
{
    uint8_t bytes[200];
    for (int i = 0; i < 300; i++) {
        phi_random(bytes, sizeof bytes);
        __real_phi_mailbox_send(mailbox, peer, life, bytes, (size_t)i % sizeof bytes, deadline);
    }
}

int __wrap_phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t life, const void *bytes,
                            size_t size, int64_t deadline)
{
    if (is("no offer"))
        return 0;
    if (is("a flood of offers"))
        send_garbage(mailbox, peer, life, deadline);
    uint8_t *copy = changed(bytes, &size);
    int rc = __real_phi_mailbox_send(mailbox, peer, life, copy, size, deadline);
    free(copy);
    return rc;
}

bool __real_phi_fifo_put(struct phi_peer *peer, const void *bytes, size_t size);
bool __wrap_phi_fifo_put(struct phi_peer *peer, const void *bytes, size_t size);
bool __wrap_phi_fifo_put(struct phi_peer *peer, const void *bytes, size_t size)
{
    if (is("a flood of offers")) // through the store
        return false;
    if (is("no offer"))
        return true;
    const bool none = is("no message in the FIFO");
    if (none || is("more than a FIFO holds")) {
        // Nothing that is right is posted before it: a peer that spins would take that.
        if (!phi_fifo_serves(peer) || atomic_load(&phi_peer_theirs(peer)->mapped) == 0)
            return false;
        memset(phi_segment_fifo(peer->segment, peer->segment->side), 0xff, PHI_FIFO_BYTES);
        phi_segment_put64(peer->segment, &phi_peer_mine(peer)->posted,
                          none ? peer->fifo.posted + 64 : UINT64_MAX / 2);
        phi_peer_ring(peer);
        return true;
    }
    uint8_t *copy = changed(bytes, &size);
    const bool put = __real_phi_fifo_put(peer, copy, size);
    free(copy);
    return put;
}

// ---- by hand

static struct phi_key *find_key(struct phi_peer *peer, uint64_t op_id)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        if (key->op_id == op_id && key->slot != PHI_NO_SLOT)
            return key;
    abort(); // the test's mistake
}

void lie_confirm(struct ph_context *context, int peer, uint64_t op_id, uint32_t round,
                 uint32_t line, uint32_t reason)
{
    struct phi_peer *p = context->self->table[peer];
    uint64_t confirm = (uint64_t)round << 32 | 1u << 31 | line << 11 | reason;
    atomic_store(phi_segment_confirm(p->segment, p->segment->side, find_key(p, op_id)->slot),
                 confirm);
    phi_peer_ring(p);
}

void lie_publish(struct ph_context *context, int peer, uint64_t op_id, uint32_t round,
                 uint32_t number)
{
    struct phi_peer *p = context->self->table[peer];
    const uint32_t slot = find_key(p, op_id)->slot;
    for (uint32_t i = 0; i < 2; i++)
        atomic_store(phi_segment_word(p->segment, p->segment->side, slot, i),
                     phi_agreement_word(round, number));
    phi_peer_ring(p);
}

static void write_words(const struct phi_segment *segment, uint64_t *seed)
{
    for (uint32_t i = 0; i < 64; i++) {
        uint64_t r = *seed = phi_hash(*seed, i);
        atomic_store(phi_segment_word(segment, segment->side, i % 8, (uint32_t)r),
                     phi_agreement_word((uint32_t)(r >> 8) % 5, (uint32_t)(r >> 16) % 5));
        atomic_store(phi_segment_confirm(segment, segment->side, i % 8),
                     (r >> 32 & 3) << 32 | 1u << 31 | ((uint32_t)r & 0x7fffffff));
        atomic_store(&phi_segment_line(segment, segment->side, i % 8)->word[r >> 20 & 1],
                     (uint32_t)r);
    }
    struct phi_side *side = phi_segment_side(segment, segment->side);
    atomic_store(&side->sleeping, (uint32_t)*seed);
    atomic_store(&side->acknowledged, *seed);
    atomic_store(&side->drained, (uint32_t)*seed);
    atomic_store(&side->told, (uint32_t)*seed);
}

void lie_words(struct ph_context *context, int64_t ms, uint64_t seed)
{
    for (int64_t end = phi_deadline(ms); phi_now() < end;)
        for (int rank = 0; rank < context->self->ranks; rank++) {
            const struct phi_peer *peer = context->self->table[rank];
            if (peer != NULL && peer->segment != NULL)
                write_words(peer->segment, &seed);
        }
}

void lie_steal(struct ph_context *context, int peer)
{
    size_t cursor = 0;
    struct phi_remote_export *e = phi_map_next(&context->self->table[peer]->imports.all, &cursor);
    if (e == NULL || e->record_size < STOLEN_SIZE)
        abort();
    memcpy(stolen, e->record, STOLEN_SIZE);
}
