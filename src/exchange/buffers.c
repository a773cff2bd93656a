// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/buffers.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "exchange/request.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/start.h"
#include "transport/bounce.h"

// Looks at most once per exchange call and allocation whether the allocation is still what it was.
static bool is_range_there(struct phi_self *self, const struct phi_own_range *range)
{
    struct phi_local_export *e = range->export_;
    if (e->checked == self->exchanges.calls)
        return true;
    if (!phi_memory_current(self->memory, range->address, &e->export_.allocation))
        return false;
    e->checked = self->exchanges.calls;
    return true;
}

static bool still_there(struct phi_self *self, struct phi_own_buffer *own)
{
    bool there = is_range_there(self, &own->first);
    for (uint32_t i = 1; i < own->range_count && there; i++)
        there = is_range_there(self, &own->rest[i - 1]);
    return there;
}

static bool is_unbound(const struct ph_operation *op)
{
    return op->buffer == NULL && op->range_count == 0;
}

static struct phi_local_export *find_export(struct phi_self *self,
                                            const struct phi_allocation *allocation)
{
    for (uint32_t i = self->exports.count; i-- > 0;)
        if (phi_allocation_equal(&self->exports.live[i]->export_.allocation, allocation))
            return self->exports.live[i];
    return NULL;
}

static int make_export(struct phi_self *self, const struct phi_allocation *allocation,
                       struct phi_local_export **out)
{
    struct phi_local_export *e = calloc(1, sizeof *e);
    if (e == NULL)
        return -ENOMEM;
    e->export_.fd = -1;
    e->sent = calloc((size_t)self->ranks, 1);
    int rc = e->sent ? phi_memory_export(self->memory, allocation, &e->export_) : -ENOMEM;
    if (rc)
        phi_export_free(e);
    else
        *out = e;
    return rc;
}

static int add_export(struct phi_self *self, struct phi_local_export *e)
{
    void *grown = phi_array_grow(self->exports.live, self->exports.count, &self->exports.room,
                                 sizeof *self->exports.live);
    if (grown == NULL) {
        phi_export_free(e);
        return -ENOMEM;
    }
    self->exports.live = grown;
    e->id = self->exports.ids++;
    self->exports.live[self->exports.count++] = e;
    return 0;
}

static int get_export(struct phi_self *self, const struct phi_allocation *allocation,
                      struct phi_local_export **out)
{
    *out = find_export(self, allocation);
    if (*out != NULL)
        return 0;
    phi_release_gone(self, allocation);
    int rc = make_export(self, allocation, out);
    return rc ? rc : add_export(self, *out);
}

// A choice has the settings that fix a direction, which are its sender's, and the flag that this
// rank asks for. An operation with another choice is another operation.
struct choice {
    uint8_t protocol;
    struct phi_limits limits;
    bool zero_sm;
};

static struct choice choice_of(const struct phi_self *self, const struct ph_operation *op)
{
    struct choice choice = {(uint8_t)op->protocol, {-1, -1}, (op->flags & PH_ZERO_SM) != 0};
    if (op->protocol == PH_PROTOCOL_DEFAULT)
        choice.protocol = self->config->protocol == 0 ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET;
    if (is_unbound(op)) // its sender copies, whatever it asks for
        choice.protocol = PH_PROTOCOL_PUT;
    if (op->limits != NULL && (op->role & PH_ROLE_SENDER))
        choice.limits = (struct phi_limits){op->limits->ll_max, op->limits->sm_max};
    return choice;
}

static bool is_choice(const struct phi_own_buffer *own, const struct choice *choice)
{
    return own->protocol == choice->protocol && own->limits.ll_max == choice->limits.ll_max &&
           own->limits.sm_max == choice->limits.sm_max && own->zero_sm == choice->zero_sm;
}

// Finds where a range lies, and the export of its allocation.
static int find_range(struct phi_self *self, const struct ph_range *given,
                      struct phi_own_range *range)
{
    struct phi_allocation allocation;
    int rc =
        phi_memory_describe(self->memory, given->base, given->size, &allocation, &range->offset);
    if (rc == 0)
        rc = get_export(self, &allocation, &range->export_);
    range->address = given->base;
    range->size = given->size;
    return rc;
}

static bool is_host(const struct phi_own_range *range)
{
    return range->export_->export_.allocation.kind == PHI_KIND_HOST;
}

// Finds all ranges of an operation. Copies have one kind of address at an end, so a list is of
// device memory or of host memory. Without a list `buffer` is the one range.
static int find_ranges(struct phi_self *self, const struct ph_operation *op,
                       const struct ph_range *buffer, struct phi_own_buffer *own)
{
    own->range_count = op->range_count > 0 ? op->range_count : 1; // a buffer is a list of one
    own->rest = own->range_count > 1 ? calloc(own->range_count - 1, sizeof *own->rest) : NULL;
    int rc = own->range_count > 1 && own->rest == NULL ? -ENOMEM : 0;
    for (uint32_t i = 0; i < own->range_count && rc == 0; i++) {
        const struct ph_range given = op->range_count > 0 ? op->ranges[i] : *buffer;
        rc = find_range(self, &given, phi_own_range(own, i));
        own->size += given.size;
        if (rc == 0 && is_host(phi_own_range(own, i)) != is_host(&own->first))
            rc = phi_fail(self->report, PH_EKIND,
                          "operation %llu with rank %d: range %u is %s memory, and the first one "
                          "is not: all ranges are host memory, or all are memory of the device",
                          (unsigned long long)op->op_id, op->peer, i,
                          is_host(phi_own_range(own, i)) ? "host" : "device");
    }
    if (rc)
        phi_own_buffer_fini(own);
    return rc;
}

static void hold_exports(struct phi_self *self, struct phi_own_buffer *own)
{
    for (uint32_t i = 0; i < own->range_count; i++) {
        struct phi_local_export *e = phi_own_range(own, i)->export_;
        e->checked = self->exchanges.calls;
        e->buffers++;
        e->entries++;
    }
}

static int add_own(struct phi_self *self, struct phi_key *key, const struct ph_operation *op,
                   const struct choice *choice)
{
    struct phi_bounce *bounce = is_unbound(op) ? self->exchanges.bounces : NULL;
    const struct ph_range buffer = bounce ? (struct ph_range){bounce->address, bounce->size}
                                          : (struct ph_range){op->buffer, op->size};
    struct phi_own_buffer own = {
        .unbound = bounce != NULL,
        .protocol = choice->protocol,
        .limits = choice->limits,
        .zero_sm = choice->zero_sm,
    };
    void *grown =
        phi_array_grow(key->own.list, key->own.count, &key->own.room, sizeof *key->own.list);
    if (grown == NULL)
        return -ENOMEM;
    key->own.list = grown;
    int rc = find_ranges(self, op, &buffer, &own);
    if (rc)
        return rc;
    if (bounce) {
        self->exchanges.bounces = bounce->next;
        own.first.export_->bounce = bounce;
    }
    hold_exports(self, &own);
    own.number = ++key->peer->keys.numbers;
    key->own.list[key->own.count++] = own;
    return 0;
}

static bool is_list_of(struct phi_own_buffer *own, const struct ph_operation *op)
{
    if (own->unbound || own->range_count != op->range_count)
        return false;
    for (uint32_t i = 0; i < own->range_count; i++) {
        const struct phi_own_range *range = phi_own_range(own, i);
        if (range->address != op->ranges[i].base || range->size != op->ranges[i].size)
            return false;
    }
    return true;
}

static bool is_memory_of(struct phi_own_buffer *own, const struct ph_operation *op)
{
    if (op->range_count > 0)
        return is_list_of(own, op);
    return op->buffer == NULL ? own->unbound
                              : !own->unbound && own->range_count == 1 &&
                                    own->first.address == op->buffer && own->size == op->size;
}

static struct phi_own_buffer *find_own(struct phi_self *self, const struct phi_key *key,
                                       const struct ph_operation *op, const struct choice *choice)
{
    for (uint32_t i = key->own.count; i-- > 0;) {
        struct phi_own_buffer *own = &key->own.list[i];
        if (!own->released && is_memory_of(own, op) && is_choice(own, choice) &&
            still_there(self, own))
            return own;
    }
    return NULL;
}

// Finds or adds this rank's buffer of a key.
static int own_buffer(struct phi_self *self, struct phi_key *key, const struct ph_operation *op,
                      uint32_t *number)
{
    const struct choice choice = choice_of(self, op);
    const struct phi_own_buffer *own = find_own(self, key, op, &choice);
    int rc = own ? 0 : add_own(self, key, op, &choice);
    if (rc == 0)
        *number = own ? own->number : key->own.list[key->own.count - 1].number;
    return rc;
}

static struct phi_key *search_key(struct phi_self *self, const struct ph_operation *op,
                                  struct phi_key *last, int *rc)
{
    struct phi_peer *peer = phi_self_peer(self, op->peer);
    *rc = -ENOMEM;
    struct phi_key *key = peer ? phi_key_get(peer, op->op_id, (uint8_t)op->role, rc) : NULL;
    if (last != NULL) {
        last->follower.key = key;
        last->follower.at = self->exchanges.keys_freed;
    }
    return key;
}

// Calls repeat themselves: where the same key follows the last one again, nothing is searched.
static struct phi_key *key_after(struct phi_self *self, const struct ph_operation *op,
                                 struct phi_key *last, int *rc)
{
    struct phi_key *next =
        last != NULL && last->follower.at == self->exchanges.keys_freed ? last->follower.key : NULL;
    return next != NULL && next->op_id == op->op_id && next->role == (uint8_t)op->role &&
                   next->peer == self->table[op->peer]
               ? next
               : search_key(self, op, last, rc);
}

// no_key reports -ENOMEM. All other errors were reported where they came up.
static int no_key(struct phi_self *self, const struct ph_operation *op, int rc)
{
    if (rc == -ENOMEM)
        phi_fail(self->report, rc, "out of memory for operation %llu with rank %d",
                 (unsigned long long)op->op_id, op->peer);
    return rc;
}

// ---- Bounce buffers

static bool has_own(struct phi_self *self, const struct ph_operation *op)
{
    const struct phi_peer *peer = self->table[op->peer];
    const struct phi_key *key = peer ? phi_key_find(peer, op->op_id, (uint8_t)op->role) : NULL;
    const struct choice choice = choice_of(self, op);
    return key != NULL && find_own(self, key, op, &choice) != NULL;
}

static bool wants_bounce(struct phi_self *self, const struct ph_operation *op)
{
    return is_unbound(op) && !has_own(self, op);
}

// Small ones beyond the rank's budget.
static size_t next_size(struct phi_self *self)
{
    const uint64_t most = (uint64_t)self->config->device_bytes;
    if (self->device == NULL)
        return PHI_BOUNCE_LARGE;
    if (self->flags.used + PHI_BOUNCE_LARGE > most)
        return PHI_BOUNCE_SMALL;
    self->flags.used += PHI_BOUNCE_LARGE;
    return PHI_BOUNCE_LARGE;
}

static int add_bounce(struct phi_self *self)
{
    struct phi_bounce *bounce = NULL;
    const size_t size = next_size(self);
    pthread_mutex_unlock(&self->lock);
    int rc = phi_bounce_make(self->memory, self->device, size,
                             phi_deadline(self->config->deadline_ms), &bounce);
    pthread_mutex_lock(&self->lock);
    if (bounce != NULL) {
        bounce->next = self->exchanges.bounces;
        self->exchanges.bounces = bounce;
    } else if (self->device != NULL && size == PHI_BOUNCE_LARGE) {
        self->flags.used -= PHI_BOUNCE_LARGE;
    }
    return rc == -ENOMEM ? phi_fail(self->report, rc, "out of memory for a bounce buffer") : rc;
}

static bool has_bounces(struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    const struct phi_bounce *next = self->exchanges.bounces;
    for (size_t i = 0; i < n; i++) {
        if (!wants_bounce(self, &ops[i]))
            continue;
        if (next == NULL)
            return false;
        next = next->next;
    }
    return true;
}

int phi_request_bounces(struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    int rc = 0;
    while (rc == 0 && !has_bounces(self, ops, n)) // another thread may take them meanwhile
        rc = add_bounce(self);
    return rc;
}

// ---- Exports of many ranges

// An export of device memory may take more than 1 ms. Those of a list are made without the lock,
// so that this rank serves its peers meanwhile. Nothing holds them until the request is taken: what
// is gone by then is made there.
static int export_early(struct phi_self *self, const struct ph_range *range)
{
    struct phi_allocation allocation;
    uint64_t offset;
    struct phi_local_export *e = NULL;
    int rc = phi_memory_describe(self->memory, range->base, range->size, &allocation, &offset);
    if (rc || find_export(self, &allocation) != NULL)
        return rc;
    pthread_mutex_unlock(&self->lock);
    rc = make_export(self, &allocation, &e);
    pthread_mutex_lock(&self->lock);
    if (rc)
        return rc;
    if (find_export(self, &allocation) == NULL) {
        phi_release_gone(self, &allocation);
        return add_export(self, e);
    }
    phi_export_free(e); // another thread was first
    return 0;
}

int phi_request_exports(struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const bool known = ops[i].range_count > 0 && has_own(self, &ops[i]);
        for (uint32_t j = 0; j < ops[i].range_count && !known && rc == 0; j++)
            rc = export_early(self, &ops[i].ranges[j]);
    }
    return rc == -ENOMEM ? phi_fail(self->report, rc, "out of memory for an export") : rc;
}

int phi_request_renew(struct phi_pending *pending)
{
    struct phi_key *key = pending->key;
    struct phi_self *self = key->peer->self;
    const struct ph_operation none = {0};
    int rc = 0;
    while (rc == 0 && self->exchanges.bounces == NULL)
        rc = add_bounce(self);
    const struct phi_own_buffer *old = phi_key_mine(key, pending->number);
    const struct choice choice = {old->protocol, old->limits, old->zero_sm};
    if (rc == 0)
        rc = add_own(self, key, &none, &choice);
    if (rc)
        return rc;
    pending->number = key->own.list[key->own.count - 1].number;
    pending->state = PHI_PENDING_PEER;
    return 0;
}

int phi_request_take(struct ph_exchange_request *request, const struct ph_operation *ops)
{
    struct phi_self *self = request->self;
    struct phi_key *last = NULL;
    for (size_t i = 0; i < request->capacity; i++) {
        int rc = 0;
        struct phi_key *key = key_after(self, &ops[i], last, &rc);
        if (key == NULL)
            return no_key(self, &ops[i], rc);
        if (key->request != NULL)
            return phi_fail(
                self->report, -EALREADY,
                "operation %llu with rank %d (role %d) is in another unfinished exchange",
                (unsigned long long)ops[i].op_id, ops[i].peer, (int)ops[i].role);
        struct phi_pending *pending = &request->pending[i];
        *pending = (struct phi_pending){.key = key};
        rc = own_buffer(self, key, &ops[i], &pending->number);
        if (rc)
            return no_key(self, &ops[i], rc);
        key->request = request;
        key->used = self->exchanges.calls;
        request->n++;
        last = key;
    }
    return 0;
}
