// SPDX-License-Identifier: BSD-3-Clause
// Stands for device_use.c and device_life.c in a build without cuda.h.
#include "cuda/device.h"

#include <errno.h>
#include <stdio.h>

int phi_device_count_why(const char *library, char *why, size_t why_size)
{
    (void)library;
    snprintf(why, why_size, "CUDA is left out of this build");
    return 0;
}

int phi_device_count(struct phi_report *report, const char *library)
{
    (void)library;
    phi_log(report, PH_LOG_INFO, "CUDA is left out of this build");
    return 0;
}

int phi_device_current(struct phi_report *report, const char *library)
{
    (void)report;
    (void)library;
    return -1;
}

int phi_device_open(struct phi_report *report, const char *library, int ordinal, int64_t deadline,
                    struct phi_device **device)
{
    (void)library;
    (void)deadline;
    (void)device;
    return phi_fail(report, -ENOTSUP, "device cuda:%d: CUDA is left out of this build", ordinal);
}

void phi_device_close(struct phi_device *device, int64_t deadline)
{
    (void)device;
    (void)deadline;
}

void phi_device_gate(struct phi_device *device, bool (*quiet)(void *opaque), void *opaque)
{
    (void)device;
    (void)quiet;
    (void)opaque;
}

void phi_device_hand(struct phi_device *device, struct phi_closing *closing)
{
    (void)device;
    (void)closing;
}

uint64_t phi_device_handed(struct phi_device *device)
{
    (void)device;
    return 0;
}

bool phi_device_ended(struct phi_device *device, uint64_t handed, int64_t deadline)
{
    (void)device;
    (void)handed;
    (void)deadline;
    return true;
}

const struct phi_device_info *phi_device_info(const struct phi_device *device)
{
    (void)device;
    return NULL;
}

bool phi_device_holds(const struct phi_device *device, const void *address)
{
    (void)device;
    (void)address;
    return false;
}

size_t phi_device_others(struct phi_device *device, uint8_t (*uuids)[16], uint8_t *access, size_t n)
{
    (void)device;
    (void)uuids;
    (void)access;
    (void)n;
    return 0;
}

int phi_device_enter(struct phi_device *device, void **token)
{
    (void)device;
    (void)token;
    return -ENOTSUP;
}

void phi_device_leave(struct phi_device *device, void *token)
{
    (void)device;
    (void)token;
}

int phi_device_thread_start(struct phi_device *device)
{
    (void)device;
    return -ENOTSUP;
}

int phi_device_register(struct phi_device *device, void *base, size_t size, uint64_t *address)
{
    (void)device;
    (void)base;
    (void)size;
    (void)address;
    return -ENOTSUP;
}

int phi_device_view(struct phi_device *device, uint64_t host, uint64_t *address)
{
    (void)device;
    (void)host;
    (void)address;
    return -ENOTSUP;
}

void phi_device_unmap_now(struct phi_device *device, void *base, size_t size)
{
    (void)device;
    (void)base;
    (void)size;
}

void phi_device_unmap(struct phi_device *device, void *base, size_t size)
{
    (void)device;
    (void)base;
    (void)size;
}

int phi_device_alloc(struct phi_device *device, size_t size, void **address)
{
    (void)device;
    (void)size;
    (void)address;
    return -ENOTSUP;
}

void phi_device_free(struct phi_device *device, void *address)
{
    (void)device;
    (void)address;
}

uint64_t phi_device_bytes(const struct phi_device *device)
{
    (void)device;
    return 0;
}

int phi_device_write(struct phi_device *device, void *destination, const void *source, size_t size,
                     int64_t deadline)
{
    (void)device;
    (void)destination;
    (void)source;
    (void)size;
    (void)deadline;
    return -ENOTSUP;
}

int phi_device_read(struct phi_device *device, void *destination, const void *source, size_t size,
                    int64_t deadline)
{
    (void)device;
    (void)destination;
    (void)source;
    (void)size;
    (void)deadline;
    return -ENOTSUP;
}

int phi_device_repeat(struct phi_device *device, void *address, size_t size, size_t times,
                      int64_t deadline)
{
    (void)device;
    (void)address;
    (void)size;
    (void)times;
    (void)deadline;
    return -ENOTSUP;
}

int phi_device_dmabuf(struct phi_device *device, uint64_t base, size_t size, int *fd,
                      uint64_t *offset)
{
    (void)device;
    (void)base;
    (void)size;
    (void)fd;
    (void)offset;
    return -ENOTSUP;
}

int phi_device_flush(struct phi_device *device, bool all)
{
    (void)device;
    (void)all;
    return -ENOTSUP;
}

const char *phi_device_build(void)
{
    return "left out";
}

const char *phi_device_architectures(void)
{
    return "left out";
}
