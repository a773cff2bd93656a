// SPDX-License-Identifier: BSD-3-Clause
// The context's device: the CUDA driver behind one table, one device's primary context, its
// attributes and our kernels. Where CUDA is left out of the build, device_stub.c answers -ENOTSUP
// and nothing above has an #ifdef.
#ifndef PHI_CUDA_DEVICE_H
#define PHI_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/closer.h"
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
// PH_EDRIVER, -ENOTSUP (built without CUDA), -ENOMEM, -EAGAIN (no more threads); -ETIMEDOUT: a
// stream of the process waits, and loading does behind it.
int phi_device_open(struct phi_report *report, const char *library, int ordinal, int64_t deadline,
                    struct phi_device **device);
// close ends the device behind all that was handed over, and is not waited for beyond the deadline:
// then its closer goes on alone, and tells nobody. NULL is fine.
void phi_device_close(struct phi_device *device, int64_t deadline);

// Driver calls that can block behind any stream of the device: cuMemFree, cuMemFreeHost,
// cuMemHostUnregister, cuIpcCloseMemHandle, cuModuleLoadData and cuModuleUnload. Only the device's
// closer makes them (base/closer.h): nobody else ever waits without a deadline. While one of them
// blocks no thread of the process can launch anything, which the peer may wait for; so they are not
// begun while an operation of the library's is in flight (gate). On the closer's thread the
// device's context is current.
void phi_device_gate(struct phi_device *device, bool (*quiet)(void *opaque), void *opaque);
void phi_device_hand(struct phi_device *device, struct phi_closing *closing);
uint64_t phi_device_handed(struct phi_device *device); // how many, so far
// phi_device_ended returns whether so many calls are done, at the deadline at the latest.
bool phi_device_ended(struct phi_device *device, uint64_t handed, int64_t deadline);

const struct phi_device_info *phi_device_info(const struct phi_device *device);

// The ways by which this device reaches another device's memory: 0, or bits.
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

// Host memory that streams write and wait on: a mapping, registered as portable, mapped; returns
// the device address. unmap hands the end of it over, and with it the munmap; of a mapping that is
// not registered, or whose registration failed, too. unmap_now is for the closer's thread.
int phi_device_register(struct phi_device *device, void *base, size_t size, uint64_t *address);
void phi_device_unmap(struct phi_device *device, void *base, size_t size);
void phi_device_unmap_now(struct phi_device *device, void *base, size_t size);

// phi_device_holds returns whether an address is in device memory. NULL is not.
bool phi_device_holds(const struct phi_device *device, const void *address);

// phi_device_view tells by which address kernels of the device know host memory that was
// registered.
int phi_device_view(struct phi_device *device, uint64_t host, uint64_t *address);

// Memory of the library (cudaMalloc's), and bounded copies to and from it on a private stream:
// never behind the application's streams; -ETIMEDOUT at the deadline. Not on the data path. free
// hands over. bytes: what is allocated now; any thread.
int phi_device_alloc(struct phi_device *device, size_t size, void **address);
void phi_device_free(struct phi_device *device, void *address);
uint64_t phi_device_bytes(const struct phi_device *device);
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

// These return what this build holds, for peerhop-info: "13.0" or "left out", and the architectures
// of the kernels or "left out".
const char *phi_device_build(void);
const char *phi_device_architectures(void);

#endif
