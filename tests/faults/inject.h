// SPDX-License-Identifier: BSD-3-Clause
// Faults on request: the n-th use of a call by the library fails, is slow or is interrupted. Calls
// are those of the C library that libpeerhop.so makes (and hiredis for it), the entries of the
// driver table, the store's replies, and those of libfabric. They are caught in the program itself,
// whose definitions come before the C library's when libpeerhop.so is bound; who calls is told by
// the return address.
#ifndef TESTS_FAULTS_INJECT_H
#define TESTS_FAULTS_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fault_mode {
    FAULT_NONE,
    FAULT_FAIL,      // it returns its error and does nothing
    FAULT_SLOW,      // it takes FAULT_SLOW_MS longer
    FAULT_INTERRUPT, // EINTR; of libfabric: it is to be tried again
};
#define FAULT_SLOW_MS 60

// Calls of the C library: X(symbol, errno or 0 where it cannot fail, whether it may be
// interrupted).
#define FAULT_LIBC_MAP(X)                                                                          \
    X(accept4, EMFILE, 1)                                                                          \
    X(aligned_alloc, ENOMEM, 0)                                                                    \
    X(asprintf, ENOMEM, 0)                                                                         \
    X(bind, EADDRINUSE, 0)                                                                         \
    X(calloc, ENOMEM, 0)                                                                           \
    X(connect, ECONNREFUSED, 1)                                                                    \
    X(dlopen, ENOENT, 0)                                                                           \
    X(dlsym, ENOENT, 0)                                                                            \
    X(epoll_create1, EMFILE, 0)                                                                    \
    X(epoll_ctl, ENOSPC, 0)                                                                        \
    X(epoll_wait, EINVAL, 1)                                                                       \
    X(eventfd, EMFILE, 0)                                                                          \
    X(fallocate64, ENOSPC, 1)                                                                      \
    X(fchmod, EPERM, 0)                                                                            \
    X(fcntl64, EMFILE, 0)                                                                          \
    X(fdopen, ENOMEM, 0)                                                                           \
    X(fdopendir, ENOMEM, 0)                                                                        \
    X(fopen64, EMFILE, 0)                                                                          \
    X(fstat64, EIO, 0)                                                                             \
    X(fstatfs64, EIO, 1)                                                                           \
    X(ftruncate64, EFBIG, 1)                                                                       \
    X(getaddrinfo, ENOMEM, 0)                                                                      \
    X(gethostname, ENAMETOOLONG, 0)                                                                \
    X(getifaddrs, ENOMEM, 0)                                                                       \
    X(getpeername, ENOTCONN, 0)                                                                    \
    X(getrandom, 0, 1) /* nothing else happens to it */                                            \
    X(getsockopt, ENOBUFS, 0)                                                                      \
    X(inotify_add_watch, ENOSPC, 0)                                                                \
    X(inotify_init1, EMFILE, 0)                                                                    \
    X(linkat, ENOSPC, 0)                                                                           \
    X(listen, EADDRINUSE, 0)                                                                       \
    X(lstat64, EIO, 0)                                                                             \
    X(madvise, EINVAL, 0)                                                                          \
    X(malloc, ENOMEM, 0)                                                                           \
    X(memfd_create, EMFILE, 0)                                                                     \
    X(mkdir, EACCES, 0)                                                                            \
    X(mmap64, ENOMEM, 0)                                                                           \
    X(munmap, ENOMEM, 0)                                                                           \
    X(nanosleep, EFAULT, 1)                                                                        \
    X(open64, EMFILE, 1)                                                                           \
    X(openat64, EMFILE, 1)                                                                         \
    X(opendir, EMFILE, 0)                                                                          \
    X(poll, ENOMEM, 1)                                                                             \
    X(posix_memalign, ENOMEM, 0)                                                                   \
    X(ppoll, ENOMEM, 1)                                                                            \
    X(pread64, EIO, 1)                                                                             \
    X(pthread_create, EAGAIN, 0)                                                                   \
    X(pwrite64, ENOSPC, 1)                                                                         \
    X(read, EIO, 1)                                                                                \
    X(realloc, ENOMEM, 0)                                                                          \
    X(recv, ECONNRESET, 1)                                                                         \
    X(recvmsg, ENOMEM, 1)                                                                          \
    X(rename, ENOSPC, 0)                                                                           \
    X(send, EPIPE, 1)                                                                              \
    X(sendmsg, ENOBUFS, 1)                                                                         \
    X(setsockopt, ENOBUFS, 0)                                                                      \
    X(socket, EMFILE, 0)                                                                           \
    X(socketpair, EMFILE, 0)                                                                       \
    X(stat64, EIO, 0)                                                                              \
    X(strdup, ENOMEM, 0)                                                                           \
    X(syscall, ENOSYS, 0)                                                                          \
    X(unlinkat, EIO, 0)                                                                            \
    X(write, EIO, 1)

// Calls of libfabric: X(name, errno, whether it may have to be tried again). Those that close or
// bind have done so all the same: a provider does not survive the end of an endpoint that is bound
// to nothing. A completion that fails is one of an operation that does.
#define FAULT_FABRIC_MAP(X)                                                                        \
    X(fi_av_insert, EIO, 0)                                                                        \
    X(fi_av_open, EIO, 0)                                                                          \
    X(fi_close, EBUSY, 0)                                                                          \
    X(fi_completion, EIO, 0)                                                                       \
    X(fi_control, EIO, 0)                                                                          \
    X(fi_cq_open, EIO, 0)                                                                          \
    X(fi_cq_read, EIO, 1)                                                                          \
    X(fi_cq_readerr, EIO, 0)                                                                       \
    X(fi_cq_sread, EIO, 1)                                                                         \
    X(fi_domain, EIO, 0)                                                                           \
    X(fi_dupinfo, ENOMEM, 0)                                                                       \
    X(fi_enable, EIO, 0)                                                                           \
    X(fi_endpoint, EIO, 0)                                                                         \
    X(fi_ep_bind, EIO, 0)                                                                          \
    X(fi_fabric, EIO, 0)                                                                           \
    X(fi_getinfo, EIO, 0)                                                                          \
    X(fi_getname, EIO, 0)                                                                          \
    X(fi_mr_reg, EIO, 0)                                                                           \
    X(fi_readmsg, EIO, 1)                                                                          \
    X(fi_recv, EIO, 0)                                                                             \
    X(fi_sendmsg, EIO, 1)                                                                          \
    X(fi_trywait, EIO, 1)                                                                          \
    X(fi_writemsg, EIO, 1)

enum fault_call {
#define FAULT_ID(name, error, interruptible) FAULT_CALL_##name,
    FAULT_LIBC_MAP(FAULT_ID)
#undef FAULT_ID
        FAULT_STORE_REPLY,
#define FAULT_ID(name, error, again) FAULT_CALL_##name,
    FAULT_FABRIC_MAP(FAULT_ID)
#undef FAULT_ID
        FAULT_DRIVER, // and on: the entries in the order of entries.h
    FAULT_CALLS_MAX = 224,
};

// What the test and a rank share. Only the rank whose process called fault_arm counts.
struct fault_plan {
    int call, mode;
    uint32_t n; // from 1; 0: count only
    uint32_t fired;
    uint32_t uses[FAULT_CALLS_MAX];
};

unsigned fault_calls(void);            // how many there are
const char *fault_name(unsigned call); // "mmap64", "cuMemAlloc_v2", "store reply"
const char *fault_text(unsigned call); // what the error says: strerror's, or the CUDA error's name
bool fault_interruptible(unsigned call);
bool fault_failing(unsigned call); // whether it can fail otherwise
bool fault_is_libc(unsigned call);
bool fault_is_fabric(unsigned call);

bool fault_ours(const void *return_address); // in the library, or in hiredis
void fault_arm(struct fault_plan *plan);     // after fault_heap_begin; NULL: none any more
// Whether this use is to fail (then *error is the errno or CUresult to give). Sleeps where it is to
// be slow.
bool fault_hit(unsigned call, const void *return_address, int *error);

// Allocations of the library that live now, since fault_heap_begin; where: the return addresses of
// up to `most` of them, as offsets into the library.
void fault_heap_begin(void);
size_t fault_heap_live(uintptr_t *where, size_t most);

// driver.cpp: the hook that stands before an entry of the driver table, or NULL.
void *fault_driver_hook(const char *name, void *entry);
const char *fault_driver_name(unsigned index); // NULL behind the last

// fabric.c: the same for a function of libfabric.
void *fault_fabric_hook(const char *name, void *function);

#ifdef __cplusplus
}
#endif
#endif
