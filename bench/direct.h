// SPDX-License-Identifier: BSD-3-Clause
// The direct program: what the same provider of libfabric gives to who writes on it directly. Its
// own endpoint, its own loop over the completion queue, nothing of the library's net path but the
// choice of the provider: what the net path is measured beside.
//
// All calls from one thread at a time. Those that move data block until they have posted, and end
// where the peer makes the call that answers them; open and connect return 0 or a negative code
// with a sentence in error.
#ifndef BENCH_DIRECT_H
#define BENCH_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_direct;

// What the peer needs.
struct bench_direct_name {
    uint8_t address[64];
    uint64_t address_size;
    uint64_t arena, arena_key; // where its first byte is for the peer
    uint64_t slot, slot_key;   // of the ping-pong
};

// bench_direct_open makes an endpoint with the provider and the domain that the library takes, and
// registers the arena.
int bench_direct_open(void *arena, size_t size, struct bench_direct **direct,
                      struct bench_direct_name *mine, char *error, size_t error_size);
int bench_direct_connect(struct bench_direct *direct, const struct bench_direct_name *peer,
                         char *error, size_t error_size);

// bench_direct_move posts a write to, or a read from, the peer's arena; several are in flight at
// once, complete when delivered.
void bench_direct_move(struct bench_direct *direct, bool read, size_t local_offset,
                       size_t peer_offset, size_t size);

// bench_direct_flags: count round trips of a write of 8 bytes with immediate data. The leader sends
// first.
void bench_direct_flags(struct bench_direct *direct, bool leader, size_t count);

// bench_direct_drain waits until all that was posted is delivered.
void bench_direct_drain(struct bench_direct *direct);

// bench_direct_finish waits until both ranks have called it, and serves the peer meanwhile: a
// target that does not look at its queue delays who writes to it.
void bench_direct_finish(struct bench_direct *direct);

// Whether a call of the provider has failed; the sentence stays with the object.
const char *bench_direct_failure(const struct bench_direct *direct);

void bench_direct_close(struct bench_direct *direct); // NULL is fine

#endif
