// SPDX-License-Identifier: BSD-3-Clause
// Physical memory: memfds that other processes can open, with a trailer behind the data that says
// what it is.
#include "standin.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC   0x6e692d646e617473ull
#define TRAILER 20480

_Static_assert(sizeof(struct si_trailer) <= TRAILER && TRAILER % 4096 == 0, "pages of its own");

static struct si_trailer *trailer_map(int fd, size_t size)
{
    void *trailer = mmap(NULL, TRAILER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)size);
    return trailer == MAP_FAILED ? NULL : trailer;
}

static struct si_physical *physical_new(int fd, size_t size)
{
    struct si_physical *physical = calloc(1, sizeof(*physical));
    if (!physical)
        return NULL;
    physical->refs = 1;
    physical->fd = fd;
    physical->size = size;
    physical->id = ++si.next_id;
    physical->trailer = trailer_map(fd, size);
    if (physical->trailer)
        return physical;
    free(physical);
    return NULL;
}

CUresult si_physical_create(int device, size_t size, unsigned types, struct si_physical **out)
{
    size = (size + SI_BLOCK - 1) & ~(SI_BLOCK - 1);
    int fd = memfd_create("peerhop-standin", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(size + TRAILER)) < 0)
        goto close_fd;
    struct si_physical *physical = physical_new(fd, size);
    if (!physical)
        goto close_fd;
    physical->physical = device;
    physical->types = types;
    physical->own = true;
    struct si_trailer *trailer = physical->trailer; // zeroed
    trailer->cookie = si.cookie;
    trailer->size = size;
    trailer->physical = (uint32_t)device;
    trailer->types = types;
    trailer->id = physical->id;
    trailer->magic = MAGIC;
    *out = physical;
    return CUDA_SUCCESS;
close_fd:
    if (fd >= 0)
        close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult si_physical_open(int fd, struct si_physical **out)
{
    struct stat status;
    if (fstat(fd, &status) < 0 || status.st_size < (off_t)(SI_BLOCK + TRAILER) ||
        ((size_t)status.st_size - TRAILER) % SI_BLOCK)
        goto close_fd;
    struct si_physical *physical = physical_new(fd, (size_t)status.st_size - TRAILER);
    if (!physical)
        goto close_fd;
    if (physical->trailer->magic != MAGIC || physical->trailer->size != physical->size) {
        si_physical_drop(physical);
        return CUDA_ERROR_UNKNOWN;
    }
    physical->physical = (int)physical->trailer->physical;
    physical->types = physical->trailer->types;
    *out = physical;
    return CUDA_SUCCESS;
close_fd:
    if (fd >= 0)
        close(fd);
    return CUDA_ERROR_UNKNOWN;
}

void si_physical_drop(struct si_physical *physical)
{
    if (--physical->refs)
        return;
    munmap(physical->trailer, TRAILER);
    close(physical->fd);
    free(physical);
}

bool si_physical_map(struct si_physical *physical, uint64_t address, bool access)
{
    int protection = access ? PROT_READ | PROT_WRITE : PROT_NONE;
    return mmap((void *)address, physical->size, protection, MAP_SHARED | MAP_FIXED, physical->fd,
                0) != MAP_FAILED;
}
