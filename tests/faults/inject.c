// SPDX-License-Identifier: BSD-3-Clause
#include "faults/inject.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    int error;
    bool interruptible;
} libc_calls[] = {
#define FAULT_ROW(name, error, interruptible) {#name, error, interruptible},
    FAULT_LIBC_MAP(FAULT_ROW)
#undef FAULT_ROW
};

static const struct {
    const char *name;
    int error;
    bool again;
} fabric_calls[] = {
#define FAULT_ROW(name, error, again) {#name, error, again},
    FAULT_FABRIC_MAP(FAULT_ROW)
#undef FAULT_ROW
};

#define INJECTED_CUDA_ERROR 304 // CUDA_ERROR_OPERATING_SYSTEM

static struct fault_plan *volatile armed;

// Text of libpeerhop.so and of hiredis, which works for it.
static struct span {
    uintptr_t begin, end, base;
} spans[4];
static int span_count;

unsigned fault_calls(void)
{
    unsigned entries = 0;
    while (fault_driver_name(entries))
        entries++;
    return FAULT_DRIVER + entries;
}

bool fault_is_libc(unsigned call)
{
    return call < FAULT_STORE_REPLY;
}

bool fault_is_fabric(unsigned call)
{
    return call > FAULT_STORE_REPLY && call < FAULT_DRIVER;
}

static unsigned fabric_index(unsigned call)
{
    return call - FAULT_STORE_REPLY - 1;
}

const char *fault_name(unsigned call)
{
    if (fault_is_libc(call))
        return libc_calls[call].name;
    if (fault_is_fabric(call))
        return fabric_calls[fabric_index(call)].name;
    return call == FAULT_STORE_REPLY ? "store reply" : fault_driver_name(call - FAULT_DRIVER);
}

const char *fault_text(unsigned call)
{
    if (fault_is_libc(call))
        return strerror(libc_calls[call].error);
    if (fault_is_fabric(call))
        return strerror(fabric_calls[fabric_index(call)].error);
    return call == FAULT_STORE_REPLY ? "injected" : "CUDA_ERROR_OPERATING_SYSTEM";
}

bool fault_failing(unsigned call)
{
    return !fault_is_libc(call) || libc_calls[call].error;
}

bool fault_interruptible(unsigned call)
{
    if (fault_is_fabric(call))
        return fabric_calls[fabric_index(call)].again;
    return fault_is_libc(call) && libc_calls[call].interruptible;
}

static int note_span(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (!strstr(info->dlpi_name, "libpeerhop.so") && !strstr(info->dlpi_name, "libhiredis"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && span_count < 4; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        spans[span_count].begin = info->dlpi_addr + header->p_vaddr;
        spans[span_count].end = spans[span_count].begin + header->p_memsz;
        spans[span_count++].base = info->dlpi_addr;
    }
    return 0;
}

static const struct span *span_of(const void *address)
{
    for (int i = 0; i < span_count; i++) {
        if ((uintptr_t)address >= spans[i].begin && (uintptr_t)address < spans[i].end)
            return &spans[i];
    }
    return NULL;
}

bool fault_ours(const void *return_address)
{
    return span_of(return_address) != NULL;
}

void fault_arm(struct fault_plan *plan)
{
    armed = plan;
}

bool fault_hit(unsigned call, const void *return_address, int *error)
{
    struct fault_plan *plan = armed;
    if (!plan || (return_address && !span_of(return_address)))
        return false;
    uint32_t use = __atomic_add_fetch(&plan->uses[call], 1, __ATOMIC_RELAXED);
    if ((int)call != plan->call || use != plan->n)
        return false;
    __atomic_store_n(&plan->fired, 1, __ATOMIC_RELAXED);
    if (plan->mode == FAULT_SLOW) {
        struct timespec pause = {.tv_nsec = FAULT_SLOW_MS * 1000000L};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        return false;
    }
    if (plan->mode == FAULT_INTERRUPT)
        *error = fault_is_fabric(call) ? EAGAIN : EINTR;
    else
        *error = fault_is_libc(call)     ? libc_calls[call].error
                 : fault_is_fabric(call) ? fabric_calls[fabric_index(call)].error
                                         : INJECTED_CUDA_ERROR;
    return true;
}

// ---- What the library has allocated

#define HEAP_SLOTS 65536

static struct {
    uintptr_t pointer, from;
} heap[HEAP_SLOTS];
static size_t heap_live;
static bool heap_watched;
static atomic_flag heap_lock = ATOMIC_FLAG_INIT;

static void lock_heap(void)
{
    while (atomic_flag_test_and_set_explicit(&heap_lock, memory_order_acquire)) {
    }
}

static void unlock_heap(void)
{
    atomic_flag_clear_explicit(&heap_lock, memory_order_release);
}

static size_t slot_of(uintptr_t pointer)
{
    return (size_t)((pointer >> 4) * 0x9e3779b97f4a7c15u >> 40) % HEAP_SLOTS;
}

void fault_heap_note(void *pointer, const void *from);
void fault_heap_forget(void *pointer);

void fault_heap_note(void *pointer, const void *from)
{
    if (!heap_watched || !pointer || !span_of(from))
        return;
    lock_heap();
    size_t i = slot_of((uintptr_t)pointer);
    while (heap[i].pointer > 1) // 0: never used, 1: given back
        i = (i + 1) % HEAP_SLOTS;
    heap[i].pointer = (uintptr_t)pointer;
    heap[i].from = (uintptr_t)from;
    heap_live++;
    unlock_heap();
}

void fault_heap_forget(void *pointer)
{
    if (!heap_watched || !pointer)
        return;
    lock_heap();
    for (size_t i = slot_of((uintptr_t)pointer); heap[i].pointer; i = (i + 1) % HEAP_SLOTS) {
        if (heap[i].pointer == (uintptr_t)pointer) {
            heap[i].pointer = 1;
            heap_live--;
            break;
        }
    }
    unlock_heap();
}

void fault_heap_begin(void)
{
    if (!span_count)
        dl_iterate_phdr(note_span, NULL);
    memset(heap, 0, sizeof(heap));
    heap_live = 0;
    heap_watched = true;
}

size_t fault_heap_live(uintptr_t *where, size_t most)
{
    lock_heap();
    size_t live = heap_live, found = 0;
    for (size_t i = 0; i < HEAP_SLOTS && found < most; i++) {
        if (heap[i].pointer > 1)
            where[found++] = heap[i].from - span_of((void *)heap[i].from)->base;
    }
    unlock_heap();
    return live;
}
