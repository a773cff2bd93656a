// SPDX-License-Identifier: BSD-3-Clause
#include "api/pages.h"

#include <errno.h>
#include <stdlib.h>

#include "api/check.h"
#include "base/array.h"
#include "base/config.h"
#include "cuda/device.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/pages.h"
#include "transfer/pages.h"

static int add(struct phi_self *self, struct phi_pages_group *group, const struct ph_group_op *op)
{
    struct ph_group_op *grown =
        phi_array_grow(group->ops, group->n, &group->room, sizeof *group->ops);
    if (grown == NULL)
        return phi_fail(self->report, -ENOMEM, "group: out of memory for a list of pages");
    group->ops = grown;
    group->ops[group->n++] = *op;
    return 0;
}

// Adds a put or a get of one row, or makes the one before it longer.
static int add_row(struct phi_self *self, struct phi_pages_group *group,
                   const struct ph_group_op *list, bool first, const struct phi_page_row *row,
                   uint64_t bytes)
{
    const bool puts = list->kind == PH_GROUP_PUT_PAGES;
    const struct ph_group_op op = {
        .kind = puts ? PH_GROUP_PUT : PH_GROUP_GET,
        .channel = list->channel,
        .local_offset = puts ? row->source : row->destination,
        .peer_offset = puts ? row->destination : row->source,
        .size = bytes,
    };
    struct ph_group_op *last = first ? NULL : &group->ops[group->n - 1];
    if (last == NULL || last->local_offset + last->size != op.local_offset ||
        last->peer_offset + last->size != op.peer_offset)
        return add(self, group, &op);
    last->size += bytes;
    return 0;
}

static int add_rows(struct phi_self *self, struct phi_pages_group *group,
                    const struct ph_group_op *op, const struct phi_page_list *list)
{
    const size_t begin = group->n;
    const uint64_t rows = phi_page_list_rows(list);
    uint64_t skips = 0;
    int rc = 0;
    for (uint64_t i = 0; i < rows && rc == 0; i++) {
        struct phi_page_row row;
        bool skipped;
        if (phi_page_list_row(list, i, &row, &skipped))
            rc = add_row(self, group, op, group->n == begin, &row, list->row_bytes);
        skips += skipped;
    }
    if (rc == 0 && skips > 0 && list->skipped != NULL)
        atomic_fetch_add_explicit(list->skipped, skips, memory_order_relaxed);
    return rc;
}

// Returns whether kernels find the ranges of an end.
static bool has_table(const struct phi_channel_end *end)
{
    return end->ranges == NULL || end->ranges_device != 0;
}

// Returns whether the executor takes a list of the channel's as one item.
static bool is_whole(const struct ph_channel *channel)
{
    const struct phi_self *self = channel->self;
    if (channel->fixed.by_net || channel->fixed.own.zero_sm)
        return false;
    if (self->device && !(has_table(&channel->fixed.own) && has_table(&channel->fixed.theirs)))
        return false;
    return self->device == NULL ||
           (phi_device_info(self->device)->kernels && self->config->method != PHI_METHOD_CE);
}

// Checks what the host has to read of a list.
static int check_readable(const struct ph_channel *channel, const struct ph_pages *pages)
{
    struct phi_device *device = channel->self->device;
    if (device == NULL || pages == NULL || pages->struct_size < sizeof *pages ||
        !(phi_device_holds(device, pages->local.numbers) ||
          phi_device_holds(device, pages->peer.numbers) || phi_device_holds(device, pages->count)))
        return 0;
    return phi_fail(channel->self->report, -ENOTSUP,
                    "operation %llu with rank %d: the numbers of a list of pages, or their count, "
                    "lie in device memory, and this channel needs them in the host's",
                    (unsigned long long)channel->op_id, channel->peer->rank);
}

static bool is_list(const struct phi_self *self, const struct ph_group_op *op)
{
    return phi_group_is_pages(op->kind) && op->channel != NULL && op->channel->self == self &&
           !op->channel->fixed.unbound && !op->channel->fixed.loopback;
}

static int add_list(struct phi_self *self, struct phi_pages_group *group,
                    const struct ph_group_op *op)
{
    const bool whole = is_whole(op->channel);
    struct phi_page_list *list;
    struct ph_group_op made = *op;
    int rc = whole ? 0 : check_readable(op->channel, op->data);
    if (rc)
        return rc;
    rc = phi_pages_list(op->channel, op->kind == PH_GROUP_PUT_PAGES, op->data,
                        !whole || self->device == NULL, &list);
    if (rc)
        return rc;
    made.data = list;
    if (whole) {
        rc = add(self, group, &made);
        if (rc)
            phi_page_list_drop(list);
        return rc;
    }
    // Without a row it is an operation of no bytes, for the checks.
    if (list != NULL)
        rc = add_rows(self, group, op, list);
    phi_page_list_drop(list);
    made =
        (struct ph_group_op){.kind = op->kind == PH_GROUP_PUT_PAGES ? PH_GROUP_PUT : PH_GROUP_GET,
                             .channel = op->channel};
    return rc ? rc : add(self, group, &made);
}

int phi_pages_prepare(struct phi_self *self, const struct ph_group_op *ops, size_t n,
                      struct phi_pages_group *group)
{
    int rc = 0;
    *group = (struct phi_pages_group){0};
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = is_list(self, &ops[i]) ? add_list(self, group, &ops[i]) : add(self, group, &ops[i]);
    if (rc)
        phi_pages_fini(group);
    return rc;
}

void phi_pages_fini(struct phi_pages_group *group)
{
    for (size_t i = 0; i < group->n; i++)
        if (is_list(group->ops[i].channel ? group->ops[i].channel->self : NULL, &group->ops[i]))
            phi_page_list_drop(group->ops[i].data);
    free(group->ops);
    *group = (struct phi_pages_group){0};
}
