// SPDX-License-Identifier: BSD-3-Clause
#include "peer/ranges.h"

#include <stdlib.h>

#include "transport/range_table.h"

bool phi_peer_ranges_has(const struct phi_peer_ranges *ranges, const struct phi_remote_export *e)
{
    for (uint32_t i = 0; i < ranges->count; i++)
        if (phi_peer_range(ranges, i)->export_ == e)
            return true;
    return false;
}

void phi_peer_ranges_forget(struct phi_peer_ranges *ranges, const struct phi_remote_export *e)
{
    for (uint32_t i = 0; i < ranges->count; i++)
        if (phi_peer_range(ranges, i)->export_ == e)
            phi_peer_range(ranges, i)->export_ = NULL;
}

void phi_ranges_free(struct phi_channel_ranges *tables)
{
    if (tables == NULL)
        return;
    if (tables->address != 0)
        phi_range_table_close(tables->device, tables->address);
    free(tables->bases);
    free(tables->remote);
    free(tables);
}
