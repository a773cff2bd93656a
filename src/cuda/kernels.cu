// SPDX-License-Identifier: BSD-3-Clause
// The kernels of the library. Inline PTX instead of libcu++: same instructions, a third of the compile time.
#include "cuda/kernel_args.h"

static __device__ uint32_t load_acquire(uint64_t address)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ void store_release(uint64_t address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

static __device__ void store_release_64(uint64_t address, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// The acquire pairs with the post of whose turn it is (kernel, memory operation or host store). Polling goes over PCIe to host
// memory, 1 us a read, so the pause only matters where many wait for long.
static __device__ void wait_word(const phi_brace_item &item)
{
    unsigned pause = 20;
    for (unsigned polls = 0; (load_acquire(item.word) & item.value) == 0; polls++) {
        if (item.broken != 0 && load_acquire(item.broken) != 0)
            return;
        if (polls > 1000) {
            __nanosleep(pause);
            pause = pause < 1000 ? pause * 2 : pause;
        }
    }
}

extern "C" __global__ void phi_brace(const __grid_constant__ phi_brace_args args)
{
    if (threadIdx.x != 0 || blockIdx.x != 0)
        return;
    for (uint32_t i = 0; i < args.count; i++) {
        const phi_brace_item &item = args.items[i];
        if (item.kind == PHI_BRACE_WAIT)
            wait_word(item);
        else
            store_release(item.word, item.value);
    }
    if (args.done != 0)
        store_release_64(args.done, args.number); // pairs with the acquire load of drained()
}

// Copies n units of T, neighbours by neighbouring threads, four loads in flight each.
template <typename T> static __device__ void copy_units(T *destination, const T *source, uint64_t n)
{
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        T a = source[i], b = source[i + stride], c = source[i + 2 * stride],
          d = source[i + 3 * stride];
        destination[i] = a;
        destination[i + stride] = b;
        destination[i + 2 * stride] = c;
        destination[i + 3 * stride] = d;
    }
    for (; i < n; i += stride)
        destination[i] = source[i];
}

// Units of 16 bytes whose source lies `shift` bits into 4-byte words: five aligned words make one unit. The words that
// hold the unit's bytes are all that is read.
static __device__ void copy_shifted(uint4 *destination, uint64_t source, uint64_t n)
{
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    const uint32_t shift = 8 * static_cast<uint32_t>(source & 3);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(source & ~3ull);
    uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < n; i += stride) {
        const uint32_t *w = words + 4 * i;
        uint32_t w1 = w[1], w2 = w[2], w3 = w[3], w4 = shift ? w[4] : 0;
        destination[i] = make_uint4(__funnelshift_r(w[0], w1, shift), __funnelshift_r(w1, w2, shift),
                                    __funnelshift_r(w2, w3, shift), __funnelshift_r(w3, w4, shift));
    }
}

extern "C" __global__ void __launch_bounds__(PHI_COPY_THREADS)
    phi_copy(const __grid_constant__ phi_copy_args args)
{
    if (args.size == 0 || (args.broken != 0 && load_acquire(args.broken) != 0))
        return;
    // Bytes up to the first aligned unit of the destination, units, bytes after the last.
    uint64_t head = (16 - (args.destination & 15)) & 15;
    if (head > args.size)
        head = args.size;
    const uint64_t units = (args.size - head) / 16;
    const uint64_t tail = head + units * 16;
    char *destination = reinterpret_cast<char *>(args.destination);
    const char *source = reinterpret_cast<const char *>(args.source);

    copy_units(destination, source, head);
    if (((args.source + head) & 15) == 0)
        copy_units(reinterpret_cast<uint4 *>(destination + head),
                   reinterpret_cast<const uint4 *>(source + head), units);
    else
        copy_shifted(reinterpret_cast<uint4 *>(destination + head), args.source + head, units);
    copy_units(destination + tail, source + tail, args.size - tail);
}
