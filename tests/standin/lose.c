// SPDX-License-Identifier: BSD-3-Clause
// A machine whose devices lose bytes between each other, and say nothing.
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 1 << 16 }; // the library's own probes are smaller

static struct {
    char how[8]; // "": nothing is lost
    int by, of;  // devices of the machine
} loss;

void si_lose_read(void)
{
    const char *text = getenv("PEERHOP_STANDIN_LOSES");
    if (text && sscanf(text, "%7s %d-%d", loss.how, &loss.by, &loss.of) != 3)
        abort();
}

static bool loses(const char *how, int device, uint64_t address, size_t size)
{
    if (strcmp(loss.how, how) != 0 || device != loss.by || size < LEAST)
        return false;
    const struct si_allocation *allocation = si_find(address);
    return allocation && allocation->physical && allocation->physical->physical == loss.of;
}

static void spoil(uint64_t last)
{
    *(uint8_t *)last = (uint8_t) ~*(const uint8_t *)last;
}

void si_lose_copy(int device, uint64_t destination, uint64_t source, size_t size)
{
    if (loses("write", device, destination, size) || loses("read", device, source, size))
        spoil(destination + size - 1);
}

void si_lose_store(void *destination, size_t size)
{
    if (strcmp(loss.how, "kernel") != 0)
        return;
    pthread_mutex_lock(&si.lock);
    const bool lost = loses("kernel", si_running_device, (uint64_t)destination, size);
    pthread_mutex_unlock(&si.lock);
    if (lost)
        spoil((uint64_t)destination + size - 1);
}
