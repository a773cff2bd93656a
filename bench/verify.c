// SPDX-License-Identifier: BSD-3-Clause
#include "verify.h"

#include <string.h>

uint64_t bench_pattern_seed(unsigned channel, unsigned direction, uint64_t block)
{
    return ((uint64_t)channel * 2 + direction) << 40 | (block & 0xffffffffff);
}

// The low byte of the seed is added to every byte by exclusive or; the rest goes through a mixer
// with the index, so that data of other channels and shifted data differ too.
static uint64_t word(uint64_t index, uint64_t seed)
{
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15 ^ (seed >> 8) * 0xd6e8feb86659fd93;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93;
    x ^= x >> 29;
    return x ^ (seed & 0xff) * 0x0101010101010101;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// The part of a word that lies at the byte `at` of the pattern, at most `left` bytes of it.
static size_t piece(uint64_t *value, size_t at, size_t left, uint64_t seed)
{
    *value = word(at / 8, seed) >> 8 * (at % 8);
    return least(8 - at % 8, left);
}

// Whole words, so that the compiler knows what it copies; offset is a multiple of 8.
static size_t fill_words(unsigned char *out, size_t offset, size_t size, uint64_t seed)
{
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t value = word((offset + i) / 8, seed);
        memcpy(out + i, &value, 8);
    }
    return i;
}

void bench_pattern_fill(void *destination, size_t offset, size_t size, uint64_t seed)
{
    unsigned char *out = destination;
    for (size_t i = 0, n; i < size; i += n) {
        if ((offset + i) % 8 == 0)
            i += fill_words(out + i, offset + i, size - i, seed);
        uint64_t value;
        n = piece(&value, offset + i, size - i, seed);
        memcpy(out + i, &value, n);
    }
}

static size_t first_difference(const unsigned char *a, const unsigned char *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

// Bytes at the start of data, in whole runs of words, that are as the pattern says; offset is a
// multiple of 8. A run has no branch inside.
static size_t good_words(const unsigned char *in, size_t offset, size_t size, uint64_t seed)
{
    enum { RUN = 512 };
    size_t i = 0;
    for (; i + RUN <= size; i += RUN) {
        uint64_t differences = 0, value;
        for (size_t j = 0; j < RUN; j += 8) {
            memcpy(&value, in + i + j, 8);
            differences |= value ^ word((offset + i + j) / 8, seed);
        }
        if (differences)
            break;
    }
    return i;
}

size_t bench_pattern_check(const void *data, size_t offset, size_t size, uint64_t seed)
{
    const unsigned char *in = data;
    for (size_t i = 0, n; i < size; i += n) {
        if ((offset + i) % 8 == 0)
            i += good_words(in + i, offset + i, size - i, seed);
        uint64_t value;
        n = piece(&value, offset + i, size - i, seed);
        size_t at = first_difference(in + i, (const unsigned char *)&value, n);
        if (at < n)
            return i + at;
    }
    return size;
}
