// SPDX-License-Identifier: BSD-3-Clause
#include "api/group_notes.h"

#include <errno.h>

#include <peerhop/notify.h>

#include "api/check.h"
#include "api/group_calls.h"
#include "api/loopback.h"
#include "notify/note.h"
#include "peer/peer.h"
#include "peer/self.h"

int phi_group_notes_check(const struct ph_channel *channel, const void *bytes, size_t size)
{
    if (channel->fixed.loopback)
        return phi_loopback_refuse(channel, "a notification");
    if (size <= PH_NOTIFICATION_SIZE && (size == 0 || bytes != NULL))
        return 0;
    return phi_fail(channel->self->report, -EINVAL,
                    "operation %llu with rank %d: a notification of %zu bytes%s: %d are most",
                    (unsigned long long)channel->op_id, channel->peer->rank, size,
                    bytes == NULL ? ", which lie nowhere" : "", PH_NOTIFICATION_SIZE);
}

static int mark(const struct phi_group *group, struct phi_mark *mark)
{
    struct phi_executor *executor = group->self->executor;
    return executor->ops->mark(executor, group->stream, mark);
}

int phi_group_notes_begin(struct phi_group *group)
{
    struct phi_mark before;
    int rc = mark(group, &before); // whether the stream can have one
    for (size_t i = 0; i < group->count && rc == 0; i++) {
        const struct ph_group_op *op = &group->ops[i];
        if (phi_group_is_notify(op))
            rc = phi_check_refused(op->channel,
                                   phi_note_take(op->channel, op->data, op->size, &group->notes));
    }
    return rc;
}

// A group of notifications alone has nothing on the stream so far.
static int issue(struct phi_group *group)
{
    if (group->begun)
        return 0;
    const int rc = phi_issue_nothing(group->ops[0].channel, group->stream);
    group->begun = rc == 0;
    return rc ? phi_check_refused(group->ops[0].channel, rc) : 0;
}

int phi_group_notes_end(struct phi_group *group, int rc)
{
    struct phi_mark behind;
    if (group->notes == NULL)
        return rc;
    if (rc == 0)
        rc = issue(group);
    if (rc == 0)
        rc = mark(group, &behind);
    if (rc == 0)
        phi_note_give(group->self, group->notes, &behind);
    else
        phi_note_drop(group->self, group->notes);
    return rc;
}
