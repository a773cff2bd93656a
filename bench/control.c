// SPDX-License-Identifier: BSD-3-Clause
// How ranks keep in step: channels between rank 0 and each other rank. The arena starts with one
// slot per rank for what goes up to rank 0, and as many for what comes down.
#include <string.h>

#include "bench.h"

enum { OP_UP = 1, OP_DOWN = 2, OP_FIRST = BENCH_OP_LONE + 2 };

static char *up_slot(const struct bench *bench, int rank)
{
    return (char *)bench->arena.base + (size_t)rank * BENCH_SLOT;
}

static char *down_slots(const struct bench *bench)
{
    return up_slot(bench, bench->ranks);
}

size_t bench_control_size(int ranks)
{
    return 2 * (size_t)ranks * BENCH_SLOT;
}

static void describe(const struct bench *bench, int peer, struct ph_operation ops[2])
{
    bool root = bench->rank == 0;
    ops[0] = (struct ph_operation){
        .op_id = OP_UP,
        .peer = peer,
        .role = root ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
        .protocol = PH_PROTOCOL_PUT,
        .buffer = up_slot(bench, root ? peer : 0),
        .size = BENCH_SLOT,
    };
    ops[1] = (struct ph_operation){
        .op_id = OP_DOWN,
        .peer = peer,
        .role = root ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
        .protocol = PH_PROTOCOL_PUT,
        .buffer = down_slots(bench),
        .size = (size_t)bench->ranks * BENCH_SLOT,
    };
}

// Rank 0 has a channel pair with each other rank at that rank's index, the others have theirs at
// index 0.
static int links(const struct bench *bench)
{
    return bench->rank == 0 ? bench->ranks : 1;
}

static int first_link(const struct bench *bench)
{
    return bench->rank == 0 ? 1 : 0;
}

int bench_control_open(struct bench *bench)
{
    struct ph_operation ops[2 * BENCH_RANKS_MAX];
    struct ph_channel *channels[2 * BENCH_RANKS_MAX];
    size_t n = 0;
    for (int i = first_link(bench); i < links(bench); i++, n += 2)
        describe(bench, i, &ops[n]);
    int rc = ph_exchange(bench->context, ops, n, channels);
    if (rc)
        return bench_fail(bench, rc, "first exchange");
    n = 0;
    for (int i = first_link(bench); i < links(bench); i++, n += 2) {
        bench->up[i] = channels[n];
        bench->down[i] = channels[n + 1];
    }
    bench->next_op = OP_FIRST;
    return 0;
}

static int signal_all(struct bench *bench, struct ph_channel **channels)
{
    int rc = 0;
    for (int i = first_link(bench); i < links(bench) && rc == 0; i++)
        rc = BENCH_ISSUE(bench, ph_signal(channels[i], bench->stream));
    return rc;
}

static int wait_all(struct bench *bench, struct ph_channel **channels)
{
    int rc = 0;
    for (int i = first_link(bench); i < links(bench) && rc == 0; i++)
        rc = BENCH_ISSUE(bench, ph_wait(channels[i], 0, bench->stream));
    return rc;
}

int bench_barrier(struct bench *bench)
{
    bool root = bench->rank == 0;
    int rc = root ? wait_all(bench, bench->up) : signal_all(bench, bench->up);
    if (rc == 0)
        rc = root ? signal_all(bench, bench->down) : wait_all(bench, bench->down);
    return rc ? rc : bench_synchronize(bench);
}

static int send_all(struct bench *bench, struct ph_channel **channels, size_t size)
{
    int rc = 0;
    for (int i = first_link(bench); i < links(bench) && rc == 0; i++) {
        rc = BENCH_ISSUE(bench, ph_send(channels[i], size, bench->stream));
        if (rc == 0)
            rc = BENCH_ISSUE(bench, ph_complete(channels[i], bench->stream));
    }
    return rc ? rc : bench_synchronize(bench);
}

static int recv_all(struct bench *bench, struct ph_channel **channels, size_t size)
{
    int rc = 0;
    for (int i = first_link(bench); i < links(bench) && rc == 0; i++) {
        rc = BENCH_ISSUE(bench, ph_recv(channels[i], size, bench->stream));
        if (rc == 0)
            rc = BENCH_ISSUE(bench, ph_complete(channels[i], bench->stream));
    }
    return rc ? rc : bench_synchronize(bench);
}

static int store(struct bench *bench, void *slot, const void *data, size_t size)
{
    int rc = bench->device->ops->write(bench->device, slot, data, size);
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

static int load(struct bench *bench, void *data, const void *slot, size_t size)
{
    int rc = bench->device->ops->read(bench->device, data, slot, size);
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

static int gather_root(struct bench *bench, const void *mine, char *all, size_t size)
{
    int rc = recv_all(bench, bench->up, size);
    memcpy(all, mine, size);
    for (int i = 1; i < bench->ranks && rc == 0; i++)
        rc = load(bench, all + (size_t)i * size, up_slot(bench, i), size);
    if (rc == 0)
        rc = store(bench, down_slots(bench), all, (size_t)bench->ranks * size);
    return rc ? rc : send_all(bench, bench->down, (size_t)bench->ranks * size);
}

static int gather_leaf(struct bench *bench, const void *mine, char *all, size_t size)
{
    int rc = store(bench, up_slot(bench, 0), mine, size);
    if (rc == 0)
        rc = send_all(bench, bench->up, size);
    if (rc == 0)
        rc = recv_all(bench, bench->down, (size_t)bench->ranks * size);
    return rc ? rc : load(bench, all, down_slots(bench), (size_t)bench->ranks * size);
}

int bench_allgather(struct bench *bench, const void *mine, void *all, size_t size)
{
    return bench->rank == 0 ? gather_root(bench, mine, all, size)
                            : gather_leaf(bench, mine, all, size);
}
