// SPDX-License-Identifier: BSD-3-Clause
// Initialisation, threads, contexts, and the rules that hold for every call.
#include "standin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct si_driver si = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void thread_end(void *data)
{
    struct si_thread *thread = data;
    if (!si.forked) {
        pthread_mutex_lock(&si.lock);
        si_thread_streams_drop(thread);
        pthread_mutex_unlock(&si.lock);
    }
    *thread = (struct si_thread){0};
}

static void after_fork(void)
{
    si.forked =
        true; // the engines did not come along: like the real driver, nothing works in the child
}

static void thread_setup(void)
{
    pthread_key_create(&thread_key, thread_end);
    pthread_atfork(NULL, NULL, after_fork);
}

struct si_thread *si_thread(void)
{
    pthread_once(&thread_once, thread_setup);
    // Not from the heap: in a forked child nobody could give back what the other threads had.
    static _Thread_local struct si_thread own;
    struct si_thread *thread = pthread_getspecific(thread_key);
    if (!thread) {
        thread = &own;
        thread->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        pthread_setspecific(thread_key, thread);
    }
    return thread;
}

static long environment_number(const char *name, long least, long most, long otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    long value = strtol(text, NULL, 10);
    return value < least ? least : value > most ? most : value;
}

static void devices_add(int physical)
{
    struct si_device *device = &si.devices[si.device_count];
    device->physical = physical;
    device->context.ordinal = si.device_count++;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->context.work, &attributes);
    pthread_condattr_destroy(&attributes);
}

// "1": all; "0-1,2-3": pairs of the machine's devices.
static void no_peer_fill(const char *list)
{
    if (list && !strcmp(list, "1"))
        memset(si.no_peer, 0xff, sizeof(si.no_peer));
    unsigned a, b;
    int length;
    while (list && sscanf(list, "%u-%u%n", &a, &b, &length) == 2) {
        if (a < SI_DEVICES_MAX && b < SI_DEVICES_MAX) {
            si.no_peer[a] |= 1u << b;
            si.no_peer[b] |= 1u << a;
        }
        list += length + (list[length] == ',');
    }
}

bool si_peers(int physical, int other)
{
    return physical == other || !(si.no_peer[physical] >> other & 1);
}

// The machine's devices in the order of the list, cut off at the first that does not exist, as the
// driver's documentation says.
static void devices_fill(int total)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        for (int i = 0; i < total; i++)
            devices_add(i);
        return;
    }
    while (*list && si.device_count < SI_DEVICES_MAX) {
        char *end;
        long physical = strtol(list, &end, 10);
        if (end == list || physical < 0 || physical >= total)
            return;
        devices_add((int)physical);
        list = *end == ',' ? end + 1 : end;
    }
}

SI_EXPORT CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (si.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    si_thread();
    pthread_mutex_lock(&si.lock);
    if (!si.initialised) {
        if (getrandom(&si.cookie, sizeof(si.cookie), 0) != sizeof(si.cookie))
            abort();
        si_life_begin();
        no_peer_fill(getenv("PEERHOP_STANDIN_NO_PEER"));
        si_lose_read();
        si.checks = environment_number("PEERHOP_STANDIN_CHECK", 0, 1, 1);
        si.connections = (unsigned)environment_number("CUDA_DEVICE_MAX_CONNECTIONS", 1, 32, 8);
        si.multiprocessors = (unsigned)environment_number("PEERHOP_STANDIN_MULTIPROCESSORS", 0,
                                                          SI_MULTIPROCESSORS, 0);
        si.ptx = (int)environment_number("PEERHOP_STANDIN_PTX", 50, 90, 90);
        devices_fill((int)environment_number("PEERHOP_STANDIN_DEVICES", 0, SI_DEVICES_MAX, 2));
        si.initialised = true;
    }
    CUresult result = si.device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&si.lock);
    return result;
}

SI_EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}

SI_EXPORT void (*si_on_call)(void);

CUresult si_begin_any(void)
{
    if (si_on_call)
        si_on_call();
    if (si.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct si_thread *thread = si_thread();
    if (thread->callback)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&si.lock);
    if (si.initialised && si.device_count)
        return CUDA_SUCCESS;
    pthread_mutex_unlock(&si.lock);
    return CUDA_ERROR_NOT_INITIALIZED;
}

CUresult si_begin(struct si_context **context)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_thread *thread = si_thread();
    struct si_context *top = thread->depth ? thread->stack[thread->depth - 1] : NULL;
    if (!top)
        return si_end(CUDA_ERROR_INVALID_CONTEXT);
    if (!top->retained)
        return si_end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *context = top;
    return CUDA_SUCCESS;
}

CUresult si_begin_stream(CUstream handle, struct CUstream_st **stream)
{
    struct si_context *context = NULL;
    bool own = handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
    CUresult result = own ? si_begin_any() : si_begin(&context);
    if (result)
        return result;
    result = si_stream_find(context, handle, stream);
    return result ? si_end(result) : CUDA_SUCCESS;
}

struct si_context *si_current(void)
{
    const struct si_thread *thread = si_thread();
    return thread->depth ? thread->stack[thread->depth - 1] : &si.devices[0].context;
}

CUresult si_end(CUresult result)
{
    pthread_mutex_unlock(&si.lock);
    return result;
}

struct si_context *si_context_of(CUdevice device)
{
    return device >= 0 && device < si.device_count ? &si.devices[device].context : NULL;
}

int si_ordinal(int physical)
{
    for (int i = 0; i < si.device_count; i++) {
        if (si.devices[i].physical == physical)
            return i;
    }
    return -1;
}

// The rules of cuThreadExchangeStreamCaptureMode.
static bool disturbs(const struct si_thread *thread, const struct si_capture *capture)
{
    if (capture->thread == thread && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return thread->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           thread->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult si_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    for (struct si_capture *capture = si.captures; capture; capture = capture->next) {
        if (disturbs(si_thread(), capture)) {
            si_capture_invalidate(capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

void si_gate(struct si_context *context)
{
    while (context->blocked)
        pthread_cond_wait(&si.changed, &si.lock);
}

void si_block(struct si_context *context)
{
    uint64_t until = context->number;
    if (si_idle(context, until))
        return;
    context->blocked++;
    si_wait_idle(context, until);
    context->blocked--;
    pthread_cond_broadcast(&si.changed);
}

SI_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_thread *thread = si_thread();
    CUstreamCaptureMode before = thread->mode;
    thread->mode = *mode;
    *mode = before;
    return si_end(CUDA_SUCCESS);
}
