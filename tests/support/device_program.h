// SPDX-License-Identifier: BSD-3-Clause
// Programs of a test for one end of a channel, run by a kernel or, on the stand-in, by threads: the
// same source does both. Include peerhop/device.cuh before, or device_types.h for the structs.
#ifndef TESTS_SUPPORT_DEVICE_PROGRAM_H
#define TESTS_SUPPORT_DEVICE_PROGRAM_H

#include <assert.h>
#include <stdint.h>

#include "support/test_kernels.h"

enum device_step_kind {
    DEVICE_FILL, // [local_offset, + size) of the own buffer becomes the pattern of the round's seed
    DEVICE_CHECK, // ... must be that
    DEVICE_PUT,
    DEVICE_GET,
    // By `groups` in turn, the last one first; 0: by each thread as a group of its own, at the same
    // time; DEVICE_NO_GROUP: by one that there is not. `seed` is where in the own buffer the
    // counter lies, which must be 0 afterwards.
    DEVICE_PUT_SPLIT,
    DEVICE_GET_SPLIT,
    DEVICE_SIGNAL,
    DEVICE_PUT_SIGNAL,
    DEVICE_WAIT,
    DEVICE_LL_PUT_SIGNAL,
    DEVICE_LL_WAIT,
    DEVICE_LL_WAIT_AGAIN, // by a new port each time that one times out
    DEVICE_LL_SIGNAL,     // the seed of the round is the value
    DEVICE_LL_WAIT_VALUE,
};

#define DEVICE_NO_GROUP UINT32_MAX

enum device_group { DEVICE_THREAD, DEVICE_WARP, DEVICE_BLOCK, DEVICE_GROUPS };

struct device_step {
    uint32_t kind, groups;
    uint64_t peer_offset, local_offset, size;
    uint64_t seed; // of the first round; each next one has one more
};

// Where a program ended: rc of the step that failed, and what did not compare.
struct device_outcome {
    int32_t rc;
    uint32_t step;
    uint64_t round, errors;
};

#define DEVICE_STEPS 16

struct device_program {
    struct ph_device_channel channel;
    struct device_step steps[DEVICE_STEPS];
    uint32_t count, group;
    uint64_t rounds;
    uint64_t outcome; // address of a struct device_outcome of zeros
};

static_assert(sizeof(struct device_program) < 4096, "the parameters of a kernel");

#if defined(__CUDACC__) || defined(PH_DEVICE_PRIMITIVES)

PHI_DEVICE void device_add(uint64_t *sum, uint64_t n)
{
#ifdef __CUDACC__
    atomicAdd_system(reinterpret_cast<unsigned long long *>(sum), n);
#else
    __atomic_fetch_add(sum, n, __ATOMIC_SEQ_CST);
#endif
}

// The pattern's bytes are those of test_pattern's words, whatever the address.
template <class Group>
PHI_DEVICE void device_fill(uint8_t *bytes, uint64_t size, uint64_t seed, const Group &group)
{
    for (uint64_t i = group.rank(); i < size; i += group.size())
        bytes[i] = static_cast<uint8_t>(test_pattern(seed, i / 8) >> (i % 8 * 8));
    group.sync();
}

template <class Group>
PHI_DEVICE uint64_t device_differs(const uint8_t *bytes, uint64_t size, uint64_t seed,
                                   const Group &group)
{
    uint64_t errors = 0;
    for (uint64_t i = group.rank(); i < size; i += group.size())
        errors += bytes[i] != static_cast<uint8_t>(test_pattern(seed, i / 8) >> (i % 8 * 8));
    group.sync();
    return errors;
}

template <class Group>
PHI_DEVICE int device_split(const device_program &p, const device_step &s, uint32_t group,
                            uint32_t groups)
{
    uint32_t *drawn = reinterpret_cast<uint32_t *>(p.channel.local + s.seed);
    return s.kind == DEVICE_PUT_SPLIT
               ? ph_device_put_split<Group>(p.channel, s.peer_offset, s.local_offset, s.size, drawn,
                                            group, groups)
               : ph_device_get_split<Group>(p.channel, s.local_offset, s.peer_offset, s.size, drawn,
                                            group, groups);
}

template <class Group>
PHI_DEVICE int device_splits(const device_program &p, const device_step &s, uint64_t *errors)
{
    int rc = 0;
    if (s.groups == DEVICE_NO_GROUP)
        return device_split<Group>(p, s, 3, 3);
    if (s.groups == 0)
        rc = device_split<ph_thread>(p, s, Group().rank(), Group().size());
    for (uint32_t left = s.groups; left > 0 && rc == 0; left--)
        rc = device_split<Group>(p, s, left - 1, s.groups);
    Group().sync();
    *errors += phi_device::load_relaxed(p.channel.local + s.seed) != 0;
    Group().sync(); // before the next one draws
    return rc;
}

template <class Group>
PHI_DEVICE int device_do(const device_program &p, const device_step &s, uint64_t round,
                         ph_device_port<Group> &port, uint64_t *errors)
{
    const uint64_t seed = s.seed + round;
    uint8_t *local = reinterpret_cast<uint8_t *>(p.channel.local + s.local_offset);
    uint64_t value = 0;
    int rc = 0;
    switch (s.kind) {
    case DEVICE_FILL:
        device_fill(local, s.size, seed, Group());
        return 0;
    case DEVICE_CHECK:
        *errors += device_differs(local, s.size, seed, Group());
        return 0;
    case DEVICE_PUT:
        return ph_device_put<Group>(p.channel, s.peer_offset, s.local_offset, s.size);
    case DEVICE_GET:
        return ph_device_get<Group>(p.channel, s.local_offset, s.peer_offset, s.size);
    case DEVICE_PUT_SPLIT:
    case DEVICE_GET_SPLIT:
        return device_splits<Group>(p, s, errors);
    case DEVICE_SIGNAL:
        return port.signal();
    case DEVICE_PUT_SIGNAL:
        return port.put_signal(s.peer_offset, s.local_offset, s.size);
    case DEVICE_WAIT:
        return port.wait(s.size);
    case DEVICE_LL_PUT_SIGNAL:
        return port.ll_put_signal(s.peer_offset, s.local_offset, s.size);
    case DEVICE_LL_WAIT:
        return port.ll_wait(s.size);
    case DEVICE_LL_WAIT_AGAIN:
        rc = PH_DEVICE_TIMEDOUT;
        for (int tries = 0; tries < 10000 && rc == PH_DEVICE_TIMEDOUT; tries++) {
            ph_device_port<Group> again(p.channel);
            rc = again.ll_wait(s.size);
        }
        return rc;
    case DEVICE_LL_SIGNAL:
        return port.ll_signal(seed);
    default:
        rc = port.ll_wait_value(&value);
        *errors += rc == 0 && value != seed;
        return rc;
    }
}

template <class Group> PHI_DEVICE void device_run(const device_program &p)
{
    device_outcome *outcome = reinterpret_cast<device_outcome *>(p.outcome);
    ph_device_port<Group> port(p.channel);
    uint64_t errors = 0;
    for (uint64_t round = 0; round < p.rounds; round++)
        for (uint32_t i = 0; i < p.count; i++) {
            const int rc = device_do<Group>(p, p.steps[i], round, port, &errors);
            if (rc == 0)
                continue;
            if (Group().rank() == 0) {
                outcome->rc = rc;
                outcome->step = i;
                outcome->round = round;
            }
            i = p.count;
            round = p.rounds;
        }
    if (errors != 0)
        device_add(&outcome->errors, errors);
}

PHI_DEVICE void device_run_any(const device_program &p)
{
    if (p.group == DEVICE_THREAD)
        device_run<ph_thread>(p);
    else if (p.group == DEVICE_WARP)
        device_run<ph_warp>(p);
    else
        device_run<ph_block>(p);
}

#endif
#endif
