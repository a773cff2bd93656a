// SPDX-License-Identifier: BSD-3-Clause
// Patterns that make every wrong byte visible.
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include <stddef.h>
#include <stdint.h>

// bench_pattern_seed gives the seed of a block's data on one channel. The patterns of consecutive
// blocks differ in every single byte, so that a byte that was not written anew is seen.
uint64_t bench_pattern_seed(unsigned channel, unsigned direction, uint64_t block);

// bench_pattern_fill writes bytes [offset, offset + size) of the seed's pattern to destination.
void bench_pattern_fill(void *destination, size_t offset, size_t size, uint64_t seed);

// bench_pattern_check returns the index of the first byte of data that differs from what fill
// writes; size: none does.
size_t bench_pattern_check(const void *data, size_t offset, size_t size, uint64_t seed);

#endif
