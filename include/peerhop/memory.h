// SPDX-License-Identifier: BSD-3-Clause
// Host memory that peers can map: memfds. (Device memory is the caller's own and needs no call
// here.)
#ifndef PEERHOP_MEMORY_H
#define PEERHOP_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// ph_host_alloc makes size bytes (> 0) of zeroed host memory in a sealed memfd and maps it. The
// context owns it until ph_host_free or ph_context_destroy. Any part of it may be a buffer of
// ph_exchange. Allocations of up to 16 GiB share memfds: they take no descriptor of their own. In a
// device context the driver registers it in this call, for which it waits for no stream, nor this
// call for others. Errors: -EINVAL, -ENOMEM, -EMFILE. Does not wait for others; any thread. Since
// 0.1.
PH_API int ph_host_alloc(struct ph_context *context, size_t size, void **address);

// ph_host_register maps size bytes at offset (a multiple of the page size) of a memfd of the
// caller. The descriptor is duplicated: the caller may close its own. The file must not shrink
// under those who map it: it is sealed with F_SEAL_SHRINK if it is not yet. Errors: -EINVAL (offset
// or size outside the file, not a memory file, or one that cannot be sealed), -ENOMEM, -EMFILE.
// Does not wait for others; any thread. Since 0.1.
PH_API int ph_host_register(struct ph_context *context, int fd, uint64_t offset, size_t size,
                            void **address);

// ph_host_free unmaps what ph_host_alloc or ph_host_register mapped. Peers that imported it keep
// their mapping until they end. Any thread.
//
// In a host context it waits for nothing. In a device context the driver unmaps the memory, once no
// operation of the library's is in flight and every stream of the device is done with what it had.
// The call waits for that, at most deadline_ms (0: the context's). While it waits it tells of pairs
// that have ended, as ph_queue_synchronize does.
//
// Errors:
// - -EINVAL: not such an address.
// - -EBUSY: a channel of this context uses the memory, or an exchange that was started and is not
//   finished.
// - -ETIMEDOUT: the sentence says what is in the way (of the library's own operations, which word
//   of which rank). The memory is given back all the same: it is unmapped behind that, and not to
//   be used or freed again.
// - PH_EPEER, PH_EBROKEN, PH_EFENCED: a pair has ended, or this rank is fenced. The memory is given
//   back as with -ETIMEDOUT.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_host_free(struct ph_context *context, void *address, int64_t deadline_ms);

#ifdef __cplusplus
}
#endif
#endif
