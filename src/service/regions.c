// SPDX-License-Identifier: BSD-3-Clause
#include "service/regions.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <peerhop/region.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/thread.h"
#include "exchange/exchange.h"
#include "exchange/inbox.h"
#include "memory/memory.h"
#include "peer/node.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/spent.h"

// Attaches under way at once: each has memory of this rank.
#define ATTACHES_MAX 4096

// A peer that refused to be connected to, or memory that was short, is tried again after so long.
#define PAUSE_MS 20

struct ph_region {
    struct phi_self *self;
    struct ph_region *next;
    struct phi_region_key key;
    void *buffer;
    size_t size;
    uint32_t access;
    struct phi_allocation allocation; // in which it lies
    bool closed;                      // the memory was released
};

// A rank attaches a region. There is one at most for a rank and a region.
struct attach {
    struct attach *next;
    uint64_t region; // its number
    int rank;
    bool begun; // the exchange may have met the other rank's
    bool again; // it came once more since: for the next one
    int64_t deadline;
    struct ph_exchange_request *request; // once it is begun
};

// With the lock of the rank.
struct phi_regions {
    struct phi_self *self;
    struct ph_region *first;
    struct attach *attaches;
    uint32_t attaches_count;
    pthread_cond_t asked; // an attach came, or the thread is to stop
    pthread_t thread;
    bool stop;
};

static struct ph_region *find(const struct phi_regions *regions, uint64_t id)
{
    struct ph_region *region = regions ? regions->first : NULL;
    while (region != NULL && (region->key.id != id || region->closed))
        region = region->next;
    return region;
}

// NULL also where its memory was freed: other memory may lie there.
static const struct ph_region *stands_still(const struct phi_regions *regions, uint64_t id)
{
    const struct ph_region *region = find(regions, id);
    return region != NULL &&
                   phi_memory_current(region->self->memory, region->buffer, &region->allocation)
               ? region
               : NULL;
}

// Wherever the thread sleeps.
static void wake(struct phi_regions *regions)
{
    pthread_cond_signal(&regions->asked);
    phi_self_changed(regions->self);
    phi_mailbox_wake(regions->self->mailbox);
}

// ---- the thread

// The attach that is begun, for the exchange.
struct begun {
    const struct phi_regions *regions;
    uint64_t region;
};

static bool stands(void *opaque)
{
    const struct begun *begun = opaque;
    return stands_still(begun->regions, begun->region) != NULL;
}

static int begin(struct phi_regions *regions, struct attach *attach)
{
    struct phi_self *self = regions->self;
    const struct ph_region *region = find(regions, attach->region);
    if (region == NULL)
        return -ESTALE; // closed since
    // The role is the opposite of the attaching rank's.
    const struct ph_operation operation = {
        .op_id = region->key.id,
        .peer = attach->rank,
        .role = region->access == PH_REGION_READ    ? PH_ROLE_SENDER
                : region->access == PH_REGION_WRITE ? PH_ROLE_RECEIVER
                                                    : PH_ROLE_BOTH,
        .buffer = region->buffer,
        .size = region->size,
    };
    pthread_mutex_unlock(&self->lock);
    struct begun begun = {regions, attach->region};
    int rc =
        phi_exchange_serve(self, &operation, &(struct phi_serve){stands, &begun}, &attach->request);
    pthread_mutex_lock(&self->lock);
    return rc;
}

// Returns whether it is over.
static bool carry(struct phi_regions *regions, struct attach *attach)
{
    struct phi_self *self = regions->self;
    struct ph_channel *channel = NULL;
    int rc = 0;
    if (!attach->begun) {
        attach->begun = true; // before the lock is given up
        rc = begin(regions, attach);
    }
    if (rc == 0) {
        rc = phi_exchange_poll(attach->request, &channel, attach->deadline);
        if (rc == -EAGAIN)
            return false;
    }
    attach->request = NULL;
    if (rc) {
        phi_log(self->report, PH_LOG_WARN, "rank %d has not attached region %016llx of rank %d: %s",
                attach->rank, (unsigned long long)attach->region, self->rank, ph_strerror(rc));
        return true;
    }
    pthread_mutex_unlock(&self->lock);
    phi_channel_close(channel); // the attaching rank's handle is enough
    pthread_mutex_lock(&self->lock);
    return true;
}

// Carries all as far as they go without waiting.
static void carry_all(struct phi_regions *regions)
{
    struct attach **at = &regions->attaches;
    while (*at != NULL) {
        struct attach *attach = *at; // others are added at the front, and only we take any out
        if (!carry(regions, attach)) {
            at = &attach->next;
            continue;
        }
        if (attach->again) {
            attach->begun = attach->again = false;
            continue;
        }
        for (at = &regions->attaches; *at != attach;)
            at = &(*at)->next;
        *at = attach->next;
        regions->attaches_count--;
        free(attach);
    }
}

// If the store fails the wait is over at once, but there is nothing to do.
static void rest(struct phi_self *self, uint64_t seen)
{
    const int64_t until = phi_deadline(PAUSE_MS);
    const int rc = phi_self_wait(self, seen, until);
    if (rc && rc != -ETIMEDOUT)
        phi_self_follow(self, until);
}

static void *run(void *opaque)
{
    struct phi_regions *regions = opaque;
    struct phi_self *self = regions->self;
    pthread_mutex_lock(&self->lock);
    while (!regions->stop) {
        const uint64_t seen = self->changes.count;
        carry_all(regions);
        if (regions->stop)
            break;
        if (regions->attaches == NULL)
            pthread_cond_wait(&regions->asked, &self->lock);
        else
            rest(self, seen);
    }
    // What is left ends here: the rank leaves.
    for (struct attach *attach = regions->attaches; attach != NULL; attach = attach->next)
        attach->deadline = 0;
    carry_all(regions);
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

// ---- exports

// With the lock.
static int open_regions(struct phi_self *self)
{
    if (self->serving.regions != NULL)
        return 0;
    struct phi_regions *regions = calloc(1, sizeof *regions);
    if (regions == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for a region");
    regions->self = self;
    pthread_cond_init(&regions->asked, NULL);
    int rc = phi_thread_start(&regions->thread, "peerhop-regions", run, regions);
    if (rc) {
        pthread_cond_destroy(&regions->asked);
        free(regions);
        return phi_fail(self->report, rc, "cannot start the thread for regions: %s",
                        ph_strerror(rc));
    }
    self->serving.regions = regions;
    return 0;
}

int phi_regions_export(struct phi_self *self, void *buffer, size_t size, uint32_t access,
                       struct phi_region_key *key, struct ph_region **out)
{
    struct ph_region *region = calloc(1, sizeof *region);
    uint64_t offset;
    if (region == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for a region");
    *region = (struct ph_region){.self = self, .buffer = buffer, .size = size, .access = access};
    phi_random(&region->key, sizeof region->key);
    int rc = phi_memory_describe(self->memory, buffer, size, &region->allocation, &offset);
    pthread_mutex_lock(&self->lock);
    if (rc == 0)
        rc = open_regions(self);
    if (rc == 0) {
        region->next = self->serving.regions->first;
        self->serving.regions->first = region;
        *key = region->key;
        *out = region;
    } else {
        free(region);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

struct phi_self *phi_regions_self(const struct ph_region *region)
{
    return region->self;
}

void phi_regions_end(struct ph_region *region)
{
    struct phi_self *self = region->self;
    pthread_mutex_lock(&self->lock);
    struct ph_region **at = &self->serving.regions->first;
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    pthread_mutex_unlock(&self->lock);
    free(region);
}

void phi_regions_release(struct phi_self *self, const void *buffer, size_t size)
{
    const uintptr_t begin = (uintptr_t)buffer;
    pthread_mutex_lock(&self->lock);
    struct ph_region *region = self->serving.regions ? self->serving.regions->first : NULL;
    for (; region != NULL; region = region->next)
        if ((uintptr_t)region->buffer < begin + size &&
            begin < (uintptr_t)region->buffer + region->size)
            region->closed = true;
    pthread_mutex_unlock(&self->lock);
}

void phi_regions_stop(struct phi_self *self)
{
    struct phi_regions *regions = self->serving.regions;
    if (regions == NULL)
        return;
    pthread_mutex_lock(&self->lock);
    self->serving.regions = NULL; // the service thread finds none from here on
    regions->stop = true;
    wake(regions);
    pthread_mutex_unlock(&self->lock);
    pthread_join(regions->thread, NULL);
    while (regions->first != NULL) {
        struct ph_region *region = regions->first;
        regions->first = region->next;
        free(region);
    }
    pthread_cond_destroy(&regions->asked);
    free(regions);
}

// ---- answers

// In a time that does not tell how much of it is right.
static bool is_secret(const uint8_t *secret, const uint8_t *given)
{
    unsigned wrong = 0;
    for (int i = 0; i < PHI_REGION_SECRET; i++)
        wrong |= secret[i] ^ given[i];
    return wrong == 0;
}

static int64_t deadline_of(const struct phi_self *self, uint64_t ms)
{
    const uint64_t most = (uint64_t)self->config->deadline_ms;
    return phi_deadline((int64_t)(ms < most ? ms : most));
}

// With the lock.
static int add(struct phi_regions *regions, uint64_t region, int rank, uint64_t ms)
{
    const int64_t deadline = deadline_of(regions->self, ms);
    struct attach *attach = regions->attaches;
    while (attach != NULL && (attach->region != region || attach->rank != rank))
        attach = attach->next;
    if (attach != NULL) {
        attach->again = attach->begun;
        attach->deadline = deadline > attach->deadline ? deadline : attach->deadline;
    } else {
        if (regions->attaches_count == ATTACHES_MAX)
            return -EBUSY;
        attach = calloc(1, sizeof *attach);
        if (attach == NULL)
            return -ENOMEM;
        *attach = (struct attach){.region = region, .rank = rank, .deadline = deadline};
        attach->next = regions->attaches;
        regions->attaches = attach;
        regions->attaches_count++;
    }
    wake(regions);
    return 0;
}

static int answer(struct phi_self *self, const struct phi_node_message *request,
                  struct phi_node_message *answer)
{
    if (request->rank < 0 || request->rank >= self->ranks || request->rank == self->rank ||
        request->bytes_size != PHI_REGION_SECRET)
        return -EINVAL;
    struct phi_regions *regions = self->serving.regions;
    const struct ph_region *region = find(regions, request->a);
    if (region == NULL)
        return -ESTALE;
    if (!is_secret(region->key.secret, request->bytes))
        return -EACCES;
    if (stands_still(regions, request->a) == NULL)
        return -ESTALE;
    if (self->end.leaving || self->end.aborted || self->end.fenced)
        return -ESTALE;
    answer->a = region->key.id;
    answer->b = region->access;
    answer->c = region->size;
    return add(regions, region->key.id, request->rank, request->b);
}

int phi_regions_answer(struct phi_self *self, const struct phi_node_message *request,
                       struct phi_node_message *reply)
{
    pthread_mutex_lock(&self->lock);
    int rc = answer(self, request, reply);
    pthread_mutex_unlock(&self->lock);
    return rc;
}
