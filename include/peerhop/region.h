// SPDX-License-Identifier: BSD-3-Clause
// One-sided regions: memory that a rank exports as bytes, and that others of its job attach without
// a call of the owner's application.
//
// The owner exports memory, and gets PH_REGION_BYTES bytes. They travel out of band, e.g. in the
// answer of a scheduler. A rank that has them attaches the region with memory of its own, and gets
// an ordinary channel. It puts and gets on this channel, and closes it, as on any other. A thread
// of the library answers at the owner, whose application may compute or sleep meanwhile.
//
// Who may attach. The bytes are the right to attach: whoever has them, and is a rank of the job,
// may attach any number of times, until the region is closed or its memory is released. They hold a
// secret of 128 bits. docs/security.md says what forged and old ones get.
//
// The owner hears nothing of an attach that succeeds. One that fails is a warning in its log, and
// may be the sentence of its ph_context_error.
//
// What is not there so far:
// - Ranks of other jobs, and of the numbers that a job does not have, cannot attach.
// - A rank that reaches the owner over the net from another node, or whose node does not show it
//   the owner's socket, attaches only if the two have exchanged before.
// - An attach names memory of the attaching rank; without, it is refused.
#ifndef PEERHOP_REGION_H
#define PEERHOP_REGION_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

// What ranks that attach may do.
enum ph_region_access {
    PH_REGION_READ = 1,  // they get: the channel's role is PH_ROLE_RECEIVER
    PH_REGION_WRITE = 2, // they put: PH_ROLE_SENDER; with both, PH_ROLE_BOTH
};

enum { PH_REGION_BYTES = 256 };

struct ph_region;

// ph_region_export makes [buffer, buffer + size) a region that ranks of the job may attach, and
// writes the bytes that they need. access: enum ph_region_access, or both.
//
// The memory is what a buffer of an exchange may be (channel.h), and stays the caller's. A rank
// that attaches maps the allocation that it lies in, as with an exchange, and can read and write
// all of that whatever `access` says: access is what its channel offers. See docs/security.md.
//
// The caller owns *region until ph_region_close or ph_context_destroy. The first export of a
// context starts its thread for regions. Waits for no peer; any thread.
//
// Errors: -EINVAL (context, buffer, size, access, NULL), PH_EKIND, PH_EDRIVER, -ENOMEM, -EAGAIN (no
// thread), PH_EFORKED. Since 0.1.
PH_API int ph_region_export(struct ph_context *context, void *buffer, size_t size, uint32_t access,
                            unsigned char bytes[PH_REGION_BYTES], struct ph_region **region);

// ph_region_close ends an export: from now on nobody attaches by its bytes. Clears *region. It does
// not wait; any thread.
//
// Channels that were attached before go on. ph_release_start takes them away, with the memory (see
// release.h); it also closes all exports that overlap what is released, whose handles are still to
// be closed.
//
// Errors: -EINVAL, PH_EFORKED. Since 0.1.
PH_API int ph_region_close(struct ph_region **region);

// ph_region_attach attaches the region of these bytes, with [buffer, buffer + size) as this rank's
// own memory, and yields a channel with the owner. The role is as the export allows
// (ph_region_access). ph_channel_peer_size tells the size of the region.
//
// The channel belongs to the context, and the caller has a handle on it (ph_channel_close). The
// owner has none: messages (ph_send, ph_signal) find nobody there. Attached again with the same
// memory it is the same channel, found without mapping anything.
//
// Blocks at most deadline_ms (0: the context's). Any thread. Of one region a rank has one attach at
// a time under way (-EALREADY).
//
// The owner may reach the memory of this rank, too, as with an exchange. ph_release_start takes it
// back.
//
// Errors, beside those of ph_exchange:
// - -EINVAL: no memory of this rank, or the region is its own.
// - -EBADMSG: the bytes are no export: cut, damaged, or of another version.
// - -EACCES: the owner does not know the secret: the bytes are forged.
// - -ESTALE: the region was closed, or its memory was released or freed, or the owner's life that
//   exported it is over.
// - PH_EMISMATCH: the region is of another job.
// - PH_ENOPATH: the owner's socket cannot be reached, and the two have not met.
// - -EPERM: the owner's process is of another user.
// - -EBUSY: too many ranks attach at once.
// - -ETIMEDOUT: the owner did not answer, or not to the end: also where it closed the region in the
//   middle of the attach.
// Since 0.1.
PH_API int ph_region_attach(struct ph_context *context, const void *bytes, size_t bytes_size,
                            void *buffer, size_t size, int64_t deadline_ms,
                            struct ph_channel **channel);

#ifdef __cplusplus
}
#endif
#endif
