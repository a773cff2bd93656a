// SPDX-License-Identifier: BSD-3-Clause
// A rank that lies: the library's own layers, but for what is wrapped at link time. Until a lie is
// chosen nothing differs from an honest rank.
#ifndef TESTS_E2E_HOSTILE_LIES_H
#define TESTS_E2E_HOSTILE_LIES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ph_context;

// lie_choose: from now on this process tells that lie.
void lie_choose(const char *name);

// What a liar does by hand, to peers it is connected to. All take the peer's rank.

// lie_confirm writes a confirm of round 1 for an operation that was started: line and reason as
// given.
void lie_confirm(struct ph_context *context, int peer, uint64_t op_id, uint32_t round,
                 uint32_t line, uint32_t reason);
// lie_publish writes a number for a round of an operation into the own slot.
void lie_publish(struct ph_context *context, int peer, uint64_t op_id, uint32_t round,
                 uint32_t number);
// lie_words writes random words all over the own half of every segment, for so long.
void lie_words(struct ph_context *context, int64_t ms, uint64_t seed);
// lie_steal takes over what a peer said of its own allocation: what is exported from now on claims
// to be that.
void lie_steal(struct ph_context *context, int peer);

#ifdef __cplusplus
}
#endif

#endif
