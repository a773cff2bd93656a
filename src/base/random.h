// SPDX-License-Identifier: BSD-3-Clause
#ifndef PHI_BASE_RANDOM_H
#define PHI_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// phi_random_check asks whether the kernel gives random numbers: 0, or -errno where a policy denies
// the call. Call it before anything else.
int phi_random_check(void);

// phi_random fills bytes from the kernel's generator (for nonces and incarnations). Where that
// fails after the check it ends the process, with a sentence on stderr.
void phi_random(void *bytes, size_t size);

// phi_incarnation makes the number of a new life. The upper 44 bits are the start time in ms, the
// lower 20 are random, so the later of two lives has the larger number. last: the number of the
// latest known life, or 0; the new number is larger, whatever the clock says. It is even: the
// record of an expulsion has the number that follows.
uint64_t phi_incarnation(uint64_t last);

// phi_hash mixes two words into a hash for phi_map.
uint64_t phi_hash(uint64_t a, uint64_t b);

#endif
