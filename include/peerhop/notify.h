// SPDX-License-Identifier: BSD-3-Clause
// A notification is up to 256 bytes that the peer's host gets when the data that was enqueued
// before it is there. Neither rank needs a thread of the application's for that: the service
// threads of the two contexts carry it.
//
// Order. A notification comes after all that was enqueued on its stream before it is done, the
// application's own kernels among it. Between ranks of one node, and between hosts over the net,
// what this rank has put is in the peer's buffer by then, and what it has got is read: the peer may
// read the one and write the other at once. Over the net, where a rank has a device, data shows
// with the peer's ph_wait for the signal behind it, as ever. On the notification's channel that
// wait, enqueued when the notification has come, waits for nobody.
//
// Notifications to one peer that were given on one stream come in their order. Those of several
// streams have none.
//
// Room. A peer has at most PH_NOTIFICATIONS_MAX notifications of a rank that it has not taken.
// Those that are not there yet count, too. Where there are so many, ph_notify is -EAGAIN and
// nothing is lost. No rank takes the room of another one.
//
// End of a peer. What has come is still there to be taken after the rank that gave it has ended.
// What has not come by then never comes: of a rank that dies before its data is there, nothing
// does.
#ifndef PEERHOP_NOTIFY_H
#define PEERHOP_NOTIFY_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PH_NOTIFICATION_SIZE 256 // most bytes of one
#define PH_NOTIFICATIONS_MAX 64  // most that a peer has of one rank

// ph_notify gives the peer of the channel `size` bytes (0 is fine, 256 are most), behind all that
// was enqueued on `stream` so far. The bytes are copied at the call. Any role, bound or unbound
// channel. Only enqueues; any thread that may enqueue on the stream.
//
// Where what stands before it on the stream did not come whole, as the channel has ended meanwhile,
// the peer gets nothing; ph_channel_status then says why.
//
// Cost. The stream gets one more operation, which moves nothing. The call takes a lock of the
// context, and may make a system call. The first notifications that are under way at once take
// memory, which the context keeps. While one waits for its data, the service thread of this rank
// looks for that, without a pause for 50 us and then ever more seldom, at least each millisecond.
//
// Errors, beside those of all in transfer.h:
// - -EINVAL: more than 256 bytes, or NULL where there is a size.
// - -EAGAIN: also where the peer has 64 notifications of this rank that it has not taken.
// - -ENOTSUP: the stream captures, or the channel is one of this rank with itself.
// - -ENOMEM.
// Since 0.1.
PH_API int ph_notify(struct ph_channel *channel, const void *bytes, size_t size, void *stream);

// One notification.
struct ph_notification {
    uint64_t op_id; // of the channel on which it was given
    int32_t peer;   // who gave it
    uint32_t size;  // of bytes
    unsigned char bytes[PH_NOTIFICATION_SIZE];
};

// ph_notifications takes up to n notifications, the oldest first, and tells how many. 0 is fine.
// Does not wait; any thread. Each notification is taken once, by one of the threads that call.
//
// Errors:
// - -EINVAL: no list, or no count.
// - -ENOMEM: a notification came for which there was no memory, and is lost. The sentence names the
//   rank. It comes once, and nothing is taken by that call.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_notifications(struct ph_context *context, struct ph_notification *list, size_t n,
                            size_t *count);

// ph_notifications_wait is ph_notifications that waits until there is one at least. n is 1 at
// least. At the deadline (0: the context's) it returns -ETIMEDOUT, and *count is 0. It tells of
// pairs that have ended as ph_queue_synchronize does. Errors: as ph_notifications, -ETIMEDOUT,
// PH_EPEER, PH_EBROKEN, PH_EFENCED. Since 0.1.
PH_API int ph_notifications_wait(struct ph_context *context, struct ph_notification *list, size_t n,
                                 size_t *count, int64_t deadline_ms);

// ph_notifications_fd returns a descriptor for poll, select and epoll. It is readable as long as
// there is something to be taken by ph_notifications, or to be told by it. The descriptor is the
// context's, which closes it in ph_context_destroy: do not read, write or close it. Each call
// returns the same one. Any thread. Errors: -EMFILE, -ENFILE, -ENOMEM, -EINVAL, PH_EFORKED. Since
// 0.1.
PH_API int ph_notifications_fd(struct ph_context *context);

#ifdef __cplusplus
}
#endif
#endif
