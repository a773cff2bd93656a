// SPDX-License-Identifier: BSD-3-Clause
#include "peer/target.h"

#include <errno.h>
#include <string.h>

#include "base/wire.h"
#include "net/net.h"

void phi_put_target(struct phi_writer *writer, const struct phi_net_target *target)
{
    phi_put_u64(writer, target->base);
    phi_put_u8(writer, target->rails);
    for (int i = 0; i < target->rails; i++)
        phi_put_u64(writer, target->keys[i]);
    phi_put_blob(writer, target->raw, target->raw_size);
}

void phi_get_target(struct phi_reader *reader, struct phi_net_target *target)
{
    size_t size;
    *target = (struct phi_net_target){.base = phi_get_u64(reader)};
    target->rails = phi_get_u8(reader);
    if (target->rails > PHI_NET_RAILS_MAX)
        reader->error = -EBADMSG;
    for (int i = 0; i < target->rails && !reader->error; i++)
        target->keys[i] = phi_get_u64(reader);
    const uint8_t *raw = phi_get_blob(reader, PHI_NET_KEY_MAX, &size);
    target->raw_size = (uint8_t)size;
    if (size > 0)
        memcpy(target->raw, raw, size);
}
