// SPDX-License-Identifier: BSD-3-Clause
#include "base/random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { RANDOM_BITS = 20 };

static int fill(char *at, size_t size)
{
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
    return 0;
}

int phi_random_check(void)
{
    char byte;

    return fill(&byte, 1);
}

void phi_random(void *bytes, size_t size)
{
    int rc = fill(bytes, size);

    if (rc == 0)
        return;
    // Going on with bytes that are not random would let two lives share an identity.
    fprintf(stderr, "peerhop: no random numbers any more: getrandom: %s\n", strerror(-rc));
    abort();
}

uint64_t phi_incarnation(uint64_t last)
{
    struct timespec now;
    uint32_t noise;

    // The wall clock, because lives on different boots and hosts must compare.
    clock_gettime(CLOCK_REALTIME, &now);
    phi_random(&noise, sizeof(noise));
    uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ms <= last >> RANDOM_BITS)
        ms = (last >> RANDOM_BITS) + 1; // the clock was set back, or another host's is behind
    return ms << RANDOM_BITS | (noise & ((1u << RANDOM_BITS) - 2));
}

// The finaliser of MurmurHash3: each input bit flips each output bit with probability near one
// half.
static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

uint64_t phi_hash(uint64_t a, uint64_t b)
{
    return mix(mix(a + 0x9e3779b97f4a7c15ull) ^ b);
}
