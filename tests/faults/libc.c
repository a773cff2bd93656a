// SPDX-License-Identifier: BSD-3-Clause
// The C library's calls as libpeerhop.so sees them in this program: counted, and made to fail.
#undef _FILE_OFFSET_BITS // each symbol by its own name
#include "faults/inject.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

void fault_heap_note(void *pointer, const void *from);
void fault_heap_forget(void *pointer);

#define FROM __builtin_return_address(0)

static void *next(const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        memcpy(&real, &found, sizeof(real));
    }
    return real(RTLD_NEXT, name);
}

// A call that gives `failure` and sets errno.
#define FAULTY(type, name, failure, params, args)                                                  \
    type name params                                                                               \
    {                                                                                              \
        static type(*real) params;                                                                 \
        if (!real) {                                                                               \
            void *found = next(#name);                                                             \
            memcpy(&real, &found, sizeof(real));                                                   \
        }                                                                                          \
        int error;                                                                                 \
        if (fault_hit(FAULT_CALL_##name, FROM, &error)) {                                          \
            errno = error;                                                                         \
            return failure;                                                                        \
        }                                                                                          \
        return real args;                                                                          \
    }

FAULTY(int, accept4, -1, (int fd, struct sockaddr *a, socklen_t *s, int f), (fd, a, s, f))
FAULTY(int, bind, -1, (int fd, const struct sockaddr *a, socklen_t s), (fd, a, s))
FAULTY(int, connect, -1, (int fd, const struct sockaddr *a, socklen_t s), (fd, a, s))
FAULTY(int, epoll_create1, -1, (int f), (f))
FAULTY(int, epoll_ctl, -1, (int e, int o, int fd, struct epoll_event *v), (e, o, fd, v))
FAULTY(int, epoll_wait, -1, (int e, struct epoll_event *v, int n, int t), (e, v, n, t))
FAULTY(int, eventfd, -1, (unsigned v, int f), (v, f))
FAULTY(int, fallocate64, -1, (int fd, int m, off64_t o, off64_t l), (fd, m, o, l))
FAULTY(int, fchmod, -1, (int fd, mode_t m), (fd, m))
FAULTY(int, fstat64, -1, (int fd, struct stat64 *s), (fd, s))
FAULTY(int, fstatfs64, -1, (int fd, struct statfs64 *s), (fd, s))
FAULTY(int, ftruncate64, -1, (int fd, off64_t l), (fd, l))
FAULTY(int, gethostname, -1, (char *n, size_t s), (n, s))
FAULTY(int, getifaddrs, -1, (struct ifaddrs * *a), (a))
FAULTY(int, getpeername, -1, (int fd, struct sockaddr *a, socklen_t *s), (fd, a, s))
FAULTY(ssize_t, getrandom, -1, (void *b, size_t s, unsigned f), (b, s, f))
FAULTY(int, getsockopt, -1, (int fd, int l, int o, void *v, socklen_t *s), (fd, l, o, v, s))
FAULTY(int, inotify_add_watch, -1, (int fd, const char *n, uint32_t m), (fd, n, m))
FAULTY(int, inotify_init1, -1, (int f), (f))
FAULTY(int, linkat, -1, (int d, const char *o, int e, const char *n, int f), (d, o, e, n, f))
FAULTY(int, listen, -1, (int fd, int n), (fd, n))
FAULTY(int, lstat64, -1, (const char *n, struct stat64 *s), (n, s))
FAULTY(int, madvise, -1, (void *a, size_t s, int w), (a, s, w))
FAULTY(int, memfd_create, -1, (const char *n, unsigned f), (n, f))
FAULTY(int, mkdir, -1, (const char *n, mode_t m), (n, m))
FAULTY(void *, mmap64, MAP_FAILED, (void *a, size_t s, int p, int f, int fd, off64_t o),
       (a, s, p, f, fd, o))
FAULTY(int, munmap, -1, (void *a, size_t s), (a, s))
FAULTY(int, nanosleep, -1, (const struct timespec *t, struct timespec *r), (t, r))
FAULTY(int, poll, -1, (struct pollfd * p, nfds_t n, int t), (p, n, t))
FAULTY(int, ppoll, -1, (struct pollfd * p, nfds_t n, const struct timespec *t, const sigset_t *m),
       (p, n, t, m))
FAULTY(ssize_t, pread64, -1, (int fd, void *b, size_t s, off64_t o), (fd, b, s, o))
FAULTY(ssize_t, pwrite64, -1, (int fd, const void *b, size_t s, off64_t o), (fd, b, s, o))
FAULTY(ssize_t, read, -1, (int fd, void *b, size_t s), (fd, b, s))
FAULTY(ssize_t, recv, -1, (int fd, void *b, size_t s, int f), (fd, b, s, f))
FAULTY(ssize_t, recvmsg, -1, (int fd, struct msghdr *m, int f), (fd, m, f))
FAULTY(int, rename, -1, (const char *o, const char *n), (o, n))
FAULTY(ssize_t, send, -1, (int fd, const void *b, size_t s, int f), (fd, b, s, f))
FAULTY(ssize_t, sendmsg, -1, (int fd, const struct msghdr *m, int f), (fd, m, f))
FAULTY(int, setsockopt, -1, (int fd, int l, int o, const void *v, socklen_t s), (fd, l, o, v, s))
FAULTY(int, socket, -1, (int d, int t, int p), (d, t, p))
FAULTY(int, socketpair, -1, (int d, int t, int p, int e[2]), (d, t, p, e))
FAULTY(int, stat64, -1, (const char *n, struct stat64 *s), (n, s))
FAULTY(int, unlinkat, -1, (int d, const char *n, int f), (d, n, f))
FAULTY(ssize_t, write, -1, (int fd, const void *b, size_t s), (fd, b, s))
FAULTY(DIR *, fdopendir, NULL, (int fd), (fd))
FAULTY(DIR *, opendir, NULL, (const char *n), (n))
FAULTY(FILE *, fdopen, NULL, (int fd, const char *m), (fd, m))
FAULTY(FILE *, fopen64, NULL, (const char *n, const char *m), (n, m))
FAULTY(void *, dlopen, NULL, (const char *n, int f), (n, f))

// ---- Those with arguments of their own kind, or that return an error number.

int open64(const char *name, int flags, ...)
{
    int error;
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fault_hit(FAULT_CALL_open64, FROM, &error)) {
        errno = error;
        return -1;
    }
    return openat(AT_FDCWD, name, flags | O_LARGEFILE, mode);
}

int openat64(int directory, const char *name, int flags, ...)
{
    int error;
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fault_hit(FAULT_CALL_openat64, FROM, &error)) {
        errno = error;
        return -1;
    }
    return openat(directory, name, flags | O_LARGEFILE, mode);
}

int fcntl64(int fd, int command, ...)
{
    static int (*real)(int, int, ...);
    if (!real) {
        void *found = next("fcntl64");
        memcpy(&real, &found, sizeof(real));
    }
    int error;
    va_list args;
    va_start(args, command);
    void *argument = va_arg(args, void *);
    va_end(args);
    if (fault_hit(FAULT_CALL_fcntl64, FROM, &error)) {
        errno = error;
        return -1;
    }
    return real(fd, command, argument);
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    if (!real) {
        void *found = next("syscall");
        memcpy(&real, &found, sizeof(real));
    }
    int error;
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number != SYS_futex && fault_hit(FAULT_CALL_syscall, FROM, &error)) {
        errno = error;
        return -1;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) {
        void *symbol = next("getaddrinfo");
        memcpy(&real, &symbol, sizeof(real));
    }
    int error;
    return fault_hit(FAULT_CALL_getaddrinfo, FROM, &error) ? EAI_MEMORY
                                                           : real(node, service, hints, found);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *data)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) {
        void *symbol = next("pthread_create");
        memcpy(&real, &symbol, sizeof(real));
    }
    int error;
    return fault_hit(FAULT_CALL_pthread_create, FROM, &error) ? error
                                                              : real(thread, attributes, run, data);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*real)(void *, const char *);
    if (!real) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        memcpy(&real, &found, sizeof(real));
    }
    // A jump, not a call: RTLD_NEXT is what comes after whoever called us.
    if (!fault_ours(FROM))
        return real(handle, name);
    int error;
    if (fault_hit(FAULT_CALL_dlsym, FROM, &error))
        return NULL;
    void *found = real(handle, name);
    void *hook = found ? fault_driver_hook(name, found) : NULL;
    if (found && !hook)
        hook = fault_fabric_hook(name, found);
    return hook ? hook : found;
}

// ---- Memory

#ifndef FAULTS_LEAVE_THE_HEAP
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *pointer, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *pointer);

#define ALLOCATION(call, expression)                                                               \
    int error;                                                                                     \
    if (fault_hit(FAULT_CALL_##call, FROM, &error)) {                                              \
        errno = ENOMEM;                                                                            \
        return NULL;                                                                               \
    }                                                                                              \
    void *pointer = expression;                                                                    \
    fault_heap_note(pointer, FROM);                                                                \
    return pointer;

void *malloc(size_t size)
{
    ALLOCATION(malloc, __libc_malloc(size))
}

void *calloc(size_t count, size_t size)
{
    ALLOCATION(calloc, __libc_calloc(count, size))
}

void *aligned_alloc(size_t align, size_t size)
{
    ALLOCATION(aligned_alloc, __libc_memalign(align, size))
}

void *realloc(void *before, size_t size)
{
    int error;
    if (fault_hit(FAULT_CALL_realloc, FROM, &error)) {
        errno = ENOMEM;
        return NULL;
    }
    void *after = __libc_realloc(before, size);
    if (after || !size)
        fault_heap_forget(before);
    fault_heap_note(after, FROM);
    return after;
}

int posix_memalign(void **pointer, size_t align, size_t size)
{
    int error;
    if (fault_hit(FAULT_CALL_posix_memalign, FROM, &error))
        return ENOMEM;
    *pointer = __libc_memalign(align, size);
    fault_heap_note(*pointer, FROM);
    return *pointer ? 0 : ENOMEM;
}

void free(void *pointer)
{
    fault_heap_forget(pointer);
    __libc_free(pointer);
}

char *strdup(const char *text)
{
    int error;
    if (fault_hit(FAULT_CALL_strdup, FROM, &error)) {
        errno = ENOMEM;
        return NULL;
    }
    size_t size = strlen(text) + 1;
    char *copy = __libc_malloc(size);
    fault_heap_note(copy, FROM);
    return copy ? memcpy(copy, text, size) : NULL;
}

int asprintf(char **out, const char *format, ...)
{
    int error;
    if (fault_hit(FAULT_CALL_asprintf, FROM, &error))
        return -1;
    va_list args;
    va_start(args, format);
    int length = vasprintf(out, format, args);
    va_end(args);
    if (length >= 0)
        fault_heap_note(*out, FROM);
    return length;
}
#endif

// ---- The store's replies: counted where one has arrived; the failure is an error reply.

int redisReaderGetReply(redisReader *reader, void **reply)
{
    static int (*real)(redisReader *, void **);
    if (!real) {
        void *found = next("redisReaderGetReply");
        memcpy(&real, &found, sizeof(real));
    }
    int error, result = real(reader, reply);
    if (result != REDIS_OK || !*reply || !fault_hit(FAULT_STORE_REPLY, FROM, &error))
        return result;
    freeReplyObject(*reply);
    redisReader *other = redisReaderCreate();
    redisReaderFeed(other, "-ERR injected\r\n", 15);
    result = real(other, reply);
    redisReaderFree(other);
    return result;
}
