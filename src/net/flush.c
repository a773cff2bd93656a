// SPDX-License-Identifier: BSD-3-Clause
// Posts that say that data has come into memory of a device wait here, until a flush that began
// after them has made the data visible. The driver flushes, on a thread of the net's own, or the
// net reads the same region through the same endpoints, whatever rail the data came by. A link has
// one flush under way at a time. It stands for all posts that wait when it begins. A flush that
// fails, or takes too long, fails the link.
//
// Messages for the service threads that come after such a post wait for it, too: a release or a
// leave must not be seen before the data that was sent first.
#include "net/flush.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"
#include "net/message.h"
#include "net/rail.h"
#include "net/region.h"

#define FLUSH_MS 5000
#define CLOSE_S  1
// At most one post of each word can be on its way. We do not wait for a peer that sends more.
enum { HELD_MAX = 1 << 16 };

// ---- the thread that calls the driver

struct phi_flusher {
    struct phi_net_flush how;
    int ring; // of the proxy
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    uint64_t asked; // guarded
    bool stop;      // guarded
    _Atomic uint64_t done;
    _Atomic int failed;
};

static void *flusher_main(void *opaque)
{
    struct phi_flusher *f = opaque;

    pthread_mutex_lock(&f->lock);
    for (;;) {
        uint64_t asked;

        while (!f->stop && f->asked == atomic_load_explicit(&f->done, memory_order_relaxed))
            pthread_cond_wait(&f->wanted, &f->lock);
        if (f->stop)
            break;
        asked = f->asked;
        pthread_mutex_unlock(&f->lock);
        int rc = f->how.call(f->how.opaque);
        if (rc)
            atomic_store(&f->failed, rc);
        // Release: pairs with the acquire of the thread that polls.
        atomic_store_explicit(&f->done, asked, memory_order_release);
        pthread_mutex_lock(&f->lock);
        if (!f->stop) // else nobody is there any more
            phi_wake_ring(f->ring);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static uint64_t ask(struct phi_flusher *f)
{
    uint64_t asked;

    pthread_mutex_lock(&f->lock);
    asked = ++f->asked;
    pthread_cond_signal(&f->wanted);
    pthread_mutex_unlock(&f->lock);
    return asked;
}

int phi_net_flush_by(struct phi_net *net, const struct phi_net_flush *how)
{
    struct phi_flusher *f;
    int rc;

    net->provider.flush_reads = how->reads;
    if (!how->call)
        return 0;
    f = calloc(1, sizeof(*f));
    if (!f)
        return phi_fail(net->report, -ENOMEM, "out of memory for the flushes of the net");
    *f = (struct phi_flusher){.how = *how, .ring = net->proxy.wake.ring};
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wanted, NULL);
    rc = phi_thread_start(&f->thread, "peerhop-flush", flusher_main, f);
    if (rc) {
        free(f);
        return phi_fail(net->report, rc, "the thread for flushes cannot start: %s",
                        ph_strerror(rc));
    }
    net->flusher = f;
    return 0;
}

void phi_flusher_close(struct phi_net *net)
{
    struct phi_flusher *f = net->flusher;
    struct timespec soon;

    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->wanted);
    pthread_mutex_unlock(&f->lock);
    net->flusher = NULL;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += CLOSE_S;
    if (pthread_timedjoin_np(f->thread, NULL, &soon)) {
        pthread_detach(f->thread); // it has what it needs, for ever if the driver does not return
        return;
    }
    pthread_cond_destroy(&f->wanted);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

// ---- what waits

static bool flushes(const struct phi_net *net)
{
    return net->provider.flush_reads || net->flusher;
}

int phi_flush_open(struct phi_link *link)
{
    if (flushes(link->net))
        link->flush.regions = calloc(link->mirror.capacity, sizeof(*link->flush.regions));
    return flushes(link->net) && !link->flush.regions ? -FI_ENOMEM : 0;
}

// Returns a line's entry: the id of its region, plus 1.
static uint32_t region_of(const struct phi_link *link, uint32_t line)
{
    return link->flush.regions ? link->flush.regions[line] : PHI_HOST_MEMORY + 1;
}

// Only posts of the peer's direction that say so come with data. The peer may be done with an
// exchange before this rank, and post to a line of which nothing is known here.
bool phi_flush_covers(const struct phi_link *link, const struct phi_net_post *post)
{
    const bool tells = post->word == 0 ? post->which == 1 : post->which == 0;

    return tells && post->side != link->staging.side &&
           region_of(link, post->line) != PHI_HOST_MEMORY + 1;
}

// The driver can flush at any time. A read needs the region.
static bool may_start(const struct phi_link *link, const struct phi_held *held)
{
    return link->net->flusher || region_of(link, held->line) != 0;
}

// Puts posts that may be flushed first. They need no order: the words of a line take turns.
static size_t find_ready(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;
    size_t ready = 0;

    for (size_t i = 0; i < flush->count; i++) {
        const struct phi_held held = flush->held[i];

        if (!may_start(link, &held))
            continue;
        flush->held[i] = flush->held[ready];
        flush->held[ready++] = held;
    }
    return ready;
}

static void start(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;
    const size_t ready = find_ready(link);
    uint32_t region;
    int rc;

    flush->covered = ready;
    flush->deadline = phi_deadline(FLUSH_MS);
    if (ready == 0)
        return;
    if (link->net->flusher) {
        flush->asked = ask(link->net->flusher);
        return;
    }
    // A read flushes one region at a time.
    region = region_of(link, flush->held[0].line);
    for (flush->covered = 1;
         flush->covered < ready && region_of(link, flush->held[flush->covered].line) == region;)
        flush->covered++;
    flush->rail = 0;
    rc = phi_region_self(link, region - 1, &flush->self);
    flush->known = rc == 0;
    if (rc && rc != -ENOENT)
        phi_link_fail(link, -EIO, "a region that is to be flushed cannot be read");
}

// The line may be another channel's by now. Then the post has no effect.
static void show(struct phi_link *link, const struct phi_held *held)
{
    char *line = link->mirror.lines[held->side] + (size_t)held->line * PHI_LINE_SIZE;

    if (held->flushing)
        *held->flushing = false;
    else if (atomic_load_explicit((_Atomic uint32_t *)(line + PHI_LINE_LIFE),
                                  memory_order_relaxed) == held->life)
        // Release: a reader that acquires the word sees the data that was flushed.
        atomic_store_explicit((_Atomic uint32_t *)line + held->word, held->value,
                              memory_order_release);
}

// Posts may come before it is known that their line is of host memory. These wait for nothing.
// Posts of a flush that is under way show with it.
static void show_line(struct phi_link *link, uint32_t line)
{
    struct phi_link_flush *flush = &link->flush;
    size_t kept = flush->covered;

    for (size_t i = flush->covered; i < flush->count; i++) {
        if (flush->held[i].line == line)
            show(link, &flush->held[i]);
        else
            flush->held[kept++] = flush->held[i];
    }
    flush->count = kept;
}

void phi_flush_line(struct phi_link *link, uint32_t line, uint32_t id)
{
    if (link->flush.regions)
        link->flush.regions[line] = id + 1;
    if (id == PHI_HOST_MEMORY)
        show_line(link, line);
    if (link->flush.covered == 0 && link->flush.count > 0)
        start(link);
}

void phi_flush_hold(struct phi_link *link, const struct phi_held *held)
{
    struct phi_link_flush *flush = &link->flush;
    struct phi_held *grown = NULL;

    if (flush->count < HELD_MAX)
        grown = phi_array_grow(flush->held, flush->count, &flush->room, sizeof(*grown));
    if (!grown) {
        phi_link_fail(link, -ENOMEM, "no memory for posts that wait for a flush");
        return;
    }
    flush->held = grown;
    flush->held[flush->count] = *held;
    flush->held[flush->count++].number = ++flush->numbered;
    if (flush->covered == 0)
        start(link);
}

bool phi_flush_lane(struct phi_link *link, uint32_t line, bool *flushing)
{
    *flushing = region_of(link, line) != PHI_HOST_MEMORY + 1;
    if (*flushing)
        phi_flush_hold(link, &(struct phi_held){.flushing = flushing, .line = line});
    return *flushing;
}

// ---- reads

// The read is of the region's first byte. When it comes, all that the endpoint has brought before
// is in memory.
static ssize_t read_self(struct phi_link *link, uint32_t i)
{
    const struct phi_rail *rail = &link->rails.list[i];
    struct phi_link_flush *flush = &link->flush;
    struct fi_rma_iov remote = {
        .addr = flush->self.remote, .len = 1, .key = flush->self.rails[i].key};
    struct iovec local = {.iov_base = link->buffers->flushed[i], .iov_len = 1};
    void *desc = phi_rail_desc(rail);
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = rail->self,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = &flush->ops[i]};

    return fi_readmsg(rail->ep, &message, FI_COMPLETION);
}

// is_out: whether a rail was given up and its peer has not greeted. Nothing has come over it. Its
// NIC may be dead, and an operation that it has taken may never end.
static bool is_out(const struct phi_rail *rail)
{
    return rail->given_up && !rail->heard;
}

// Each rail is tried again until it takes its read.
static void read_rails(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;

    while (flush->rail < link->rails.used) {
        ssize_t rc;

        if (is_out(&link->rails.list[flush->rail])) {
            flush->rail++;
            continue;
        }
        rc = read_self(link, flush->rail);
        if (rc == -FI_EAGAIN)
            return;
        if (rc) {
            phi_link_fail(link, -EIO, "a read that is to flush is refused");
            return;
        }
        flush->ops[flush->rail++].busy = true;
    }
}

// A region that was closed meanwhile has been given back.
static bool is_read(const struct phi_link *link)
{
    const struct phi_link_flush *flush = &link->flush;

    for (uint32_t i = 0; i < flush->rail; i++)
        if (flush->ops[i].busy && !is_out(&link->rails.list[i]))
            return false;
    return flush->rail == link->rails.used || !flush->known;
}

// ---- progress

static bool is_over(struct phi_link *link)
{
    struct phi_flusher *f = link->net->flusher;

    if (!f && link->flush.known)
        read_rails(link);
    return link->carries &&
           (f ? atomic_load_explicit(&f->done, memory_order_acquire) >= link->flush.asked
              : is_read(link));
}

// is_behind: whether the oldest message came after a post that still waits. It does not wait for
// posts that may not be flushed yet: these may wait for the message.
static bool is_behind(const struct phi_link *link)
{
    const struct phi_link_flush *flush = &link->flush;

    for (size_t i = 0; i < flush->count; i++)
        if (flush->held[i].number <= flush->frame[0].after && may_start(link, &flush->held[i]))
            return true;
    return false;
}

void phi_flush_take(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;

    while (link->open && flush->frames > 0 && !is_behind(link)) {
        const uint32_t index = flush->frame[0].index;
        const size_t size = flush->frame[0].size;

        // First: it may fail the link.
        memmove(flush->frame, flush->frame + 1, sizeof(flush->frame) - sizeof(flush->frame[0]));
        flush->frames--;
        phi_link_received(link, index, size);
    }
}

static void release(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;

    for (size_t i = 0; i < flush->covered; i++)
        show(link, &flush->held[i]);
    flush->count -= flush->covered;
    memmove(flush->held, flush->held + flush->covered, flush->count * sizeof(*flush->held));
    flush->covered = 0;
    // Before the next flush: where posts come all the time, there always is one.
    phi_flush_take(link);
    if (link->carries && flush->count > 0)
        start(link);
}

bool phi_flush_go(struct phi_link *link)
{
    struct phi_link_flush *flush = &link->flush;
    struct phi_flusher *f = link->net->flusher;

    if (flush->covered == 0)
        return false;
    if (f && atomic_load(&f->failed)) {
        phi_link_fail(link, -EIO, "the driver's flush of what the net has written failed");
    } else if (is_over(link)) {
        release(link);
        return true;
    } else if (link->carries && phi_now() > flush->deadline) {
        phi_link_fail(link, -EIO, "a flush of what the net has written did not end in time");
    }
    return false;
}

bool phi_flush_defers(struct phi_link *link, uint32_t index, size_t size)
{
    struct phi_link_flush *flush = &link->flush;

    if (flush->covered == 0 && flush->frames == 0)
        return false;
    flush->frame[flush->frames].index = index;
    flush->frame[flush->frames].after = flush->numbered;
    flush->frame[flush->frames++].size = size;
    return true;
}

void phi_flush_shut(struct phi_link *link)
{
    link->flush.count = link->flush.covered = 0;
}

void phi_flush_free(struct phi_link *link)
{
    free(link->flush.regions);
    free(link->flush.held);
}
