// SPDX-License-Identifier: BSD-3-Clause
// The context's device: the CUDA driver behind one table, one device's primary context, its
// attributes and our kernels. Where CUDA is left out of the build, device_stub.c answers -ENOTSUP
// and nothing above has an #ifdef.
#ifndef PHI_CUDA_DEVICE_H
#define PHI_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/report.h"

struct phi_device;
struct phi_driver; // cuda/driver.h: the entry points; only for files that need cuda.h

// Plain facts about a device, filled once.
struct phi_device_info {
    int ordinal; // in this process only
    uint8_t uuid[16];
    char name[64];
    char driver[32]; // version, e.g. "13.0"
    int compute_major, compute_minor;
    int multiprocessors;
    bool memory_operations; // 32-bit stream memory operations (v2)
    bool flush_remote_writes;
    bool vmm_fd;       // POSIX descriptors of VMM memory
    bool pools;        // memory pools with POSIX descriptors
    bool kernels;      // our kernels are loaded
    bool early_launch; // phi_hop, its kin and phi_copies may begin while the kernel before them
                       // ends: their code waits for that
    bool copy_batches; // cuMemcpyBatchAsync_v2 takes its copies
    bool dma_buf;      // exports its memory as DMA-BUF
    int rdma_ordering; // GPU_DIRECT_RDMA_WRITES_ORDERING and _FLUSH_WRITES_OPTIONS, as the driver
                       // says them
    uint32_t rdma_flushes;
    char pci[24];    // "0000:17:00.0"; "": the driver does not tell
    int connections; // CUDA_DEVICE_MAX_CONNECTIONS as the driver sees it: 8 where unset
};

// phi_device_count returns the number of devices of the driver, 0 with a reason in the report's log
// (info) where there is none. `library` is the name to dlopen.
int phi_device_count(struct phi_report *report, const char *library);
// phi_device_count_why: the same, with the reason in `why`.
int phi_device_count_why(const char *library, char *why, size_t why_size);

// phi_device_current is the ordinal of the calling thread's current device, or -1.
int phi_device_current(struct phi_report *report, const char *library);

// phi_device_open retains the primary context, reads the attributes and loads the kernels whole
// (never lazily). Leaves the calling thread's current context as it was. Errors: -ENODEV,
// PH_EDRIVER, -ENOTSUP (built without CUDA).
int phi_device_open(struct phi_report *report, const char *library, int ordinal,
                    struct phi_device **device);
// close may block while streams of the device run. NULL is fine.
void phi_device_close(struct phi_device *device);

const struct phi_device_info *phi_device_info(const struct phi_device *device);

// What reaches another device's memory from this one: nothing, or bits.
enum phi_access {
    PHI_ACCESS_MAP = 1,    // it can be mapped
    PHI_ACCESS_ATOMIC = 2, // and atomic operations go over the link: NVLink, and no bus
                           // (CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
    PHI_ACCESS_BITS = PHI_ACCESS_MAP | PHI_ACCESS_ATOMIC
};

// phi_device_others lists the other devices that are visible here, at most n: their UUIDs, and what
// reaches memory of theirs (enum phi_access). What the driver fails to tell of is left out.
size_t phi_device_others(struct phi_device *device, uint8_t (*uuids)[16], uint8_t *access,
                         size_t n);

// enter makes the device's context current on this thread if it is not, leave puts back what was.
// `token` holds it. For threads of the library: thread_start pushes the context once and switches
// to relaxed capture mode once.
int phi_device_enter(struct phi_device *device, void **token);
void phi_device_leave(struct phi_device *device, void *token);
int phi_device_thread_start(struct phi_device *device);

// Host memory that streams write and wait on: registered as portable, mapped; returns the device
// address. unregister may block behind waiting streams.
int phi_device_register(struct phi_device *device, void *base, size_t size, uint64_t *address);
void phi_device_unregister(struct phi_device *device, void *base);

// A small allocation of the library for the probe (cudaMalloc memory), and bounded copies to and
// from it on a private stream: never behind the application's streams; -ETIMEDOUT at the deadline.
// Not on the data path.
int phi_device_alloc(struct phi_device *device, size_t size, void **address);
void phi_device_free(struct phi_device *device, void *address);
int phi_device_write(struct phi_device *device, void *destination, const void *source, size_t size,
                     int64_t deadline);
int phi_device_read(struct phi_device *device, void *destination, const void *source, size_t size,
                    int64_t deadline);
// phi_device_repeat: what the first `size` bytes hold, the next ones hold too, `times` in all. Else
// as write.
int phi_device_repeat(struct phi_device *device, void *address, size_t size, size_t times,
                      int64_t deadline);

// phi_device_dmabuf exports an allocation as a DMA-BUF: the descriptor is the caller's to close,
// the allocation begins `offset` bytes after its beginning. -ENOTSUP, or the driver's error, which
// is not reported: there are other ways.
int phi_device_dmabuf(struct phi_device *device, uint64_t base, size_t size, int *fd,
                      uint64_t *offset);

// phi_device_flush makes what NICs have written into the device's memory visible to it, or to `all`
// devices. The driver may take its time: only from a thread of its own, and the device may be
// closed before it returns. -ENOTSUP, or the driver's error, which is not reported.
int phi_device_flush(struct phi_device *device, bool all);

// What this build holds, for peerhop-info: "13.0" or "left out", and the architectures of the
// kernels or "left out".
const char *phi_device_build(void);
const char *phi_device_architectures(void);

#endif
