// SPDX-License-Identifier: BSD-3-Clause
// The notifications of a group.
#ifndef PHI_API_GROUP_NOTES_H
#define PHI_API_GROUP_NOTES_H

#include <stddef.h>

struct ph_channel;
struct phi_group;

// phi_group_notes_check checks one of a channel that can be used.
int phi_group_notes_check(const struct ph_channel *channel, const void *bytes, size_t size);

// phi_group_notes_begin makes those of a group that is checked, before anything of it is enqueued.
// -EAGAIN, -ENOMEM, -ENOTSUP: the stream captures; or as of executors.
int phi_group_notes_begin(struct phi_group *group);

// phi_group_notes_end gives them behind the group, or drops them where rc is an error. Returns the
// result of the group, of which rc is that so far.
int phi_group_notes_end(struct phi_group *group, int rc);

#endif
