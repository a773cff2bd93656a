// SPDX-License-Identifier: BSD-3-Clause
// The kernels that only tests launch (test_kernels.cu, a fatbin of its own). Each takes one struct
// by value.
#ifndef TESTS_SUPPORT_TEST_KERNELS_H
#define TESTS_SUPPORT_TEST_KERNELS_H

#include <assert.h>
#include <stdint.h>

// The word at index i (of 8 bytes) of the pattern of a seed.
#if defined(__CUDACC__)
__host__ __device__
#endif
    static inline uint64_t
    test_pattern(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + index * 0xbf58476d1ce4e5b9ull + 1;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 32);
}

// phi_test_fill: any grid; byte j of [address, address + size) becomes byte (j % 8) of
// test_pattern(seed, j / 8). phi_test_verify: any grid; every block reads all of [address, address
// + size) and adds the number of bytes that differ from that pattern to the 64-bit word `errors`
// (atomically on one device). A grid of as many blocks as the device has multiprocessors lets every
// one of them read. seed_word: device address of a 64-bit word that is added to seed when the
// kernel runs (so that a graph's replays differ), or 0.
struct test_pattern_args {
    uint64_t address;
    uint64_t size;
    uint64_t seed;
    uint64_t seed_word;
    uint64_t errors;
};

// phi_test_spin: one thread; until the 32-bit word is at least 1 (an application's own waiting
// kernel).
struct test_spin_args {
    uint64_t word;
};

// phi_test_occupy: at most 384 threads, any grid; of an application's kernel that has a
// multiprocessor to itself (as a matrix product has): 168 registers a thread. Each block stays for
// ns, and stores 1 to the 32-bit word of its multiprocessor, of as many words as the device has.
struct test_occupy_args {
    uint64_t where;
    uint64_t ns;
};

static_assert(sizeof(struct test_pattern_args) == 40, "shared with the device");

#endif
