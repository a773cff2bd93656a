// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages in a group: before the group is checked, each becomes a list that the executor
// takes, or single copies.
#ifndef PHI_API_PAGES_H
#define PHI_API_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#include <peerhop/transfer.h>

struct phi_self;

static inline bool phi_group_is_pages(enum ph_group_kind kind)
{
    return kind == PH_GROUP_PUT_PAGES || kind == PH_GROUP_GET_PAGES;
}

// The operations of a group, of which `data` of a list of pages is a struct phi_page_list, or NULL
// where it copies nothing.
struct phi_pages_group {
    struct ph_group_op *ops;
    size_t n, room;
};

// phi_pages_prepare makes the operations anew. Lists that cannot be, as their channel or kind is
// wrong, stay as they are: the group's checks refuse them. Errors, reported: those of
// phi_pages_list, and of a channel that cannot be used.
int phi_pages_prepare(struct phi_self *self, const struct ph_group_op *ops, size_t n,
                      struct phi_pages_group *group);
void phi_pages_fini(struct phi_pages_group *group);

#endif
