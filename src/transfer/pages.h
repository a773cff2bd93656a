// SPDX-License-Identifier: BSD-3-Clause
// From a ph_pages on a channel to a list that an executor takes, or to single copies.
#ifndef PHI_TRANSFER_PAGES_H
#define PHI_TRANSFER_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#include <peerhop/pages.h>

struct phi_page_list;

// phi_pages_list checks a ph_pages and makes its list, which the caller drops. NULL: it copies
// nothing. `keep`: the numbers and the count, which the host reads, are read now. Errors, reported:
// -EINVAL, -ENOMEM, -E2BIG (2^31 rows or more, rows of 4 GiB or more).
int phi_pages_list(struct ph_channel *channel, bool outgoing, const struct ph_pages *pages,
                   bool keep, struct phi_page_list **list);

// phi_pages_skipped returns the count of a channel.
uint64_t phi_pages_skipped(const struct ph_channel *channel);

#endif
