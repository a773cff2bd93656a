// SPDX-License-Identifier: BSD-3-Clause
// What peerhop/device.cuh is made of, on a processor: its functions run on threads, on memory that
// the stand-in calls a device's. Named by PH_DEVICE_PRIMITIVES before that header is included.
#ifndef TESTS_SUPPORT_DEVICE_ON_HOST_H
#define TESTS_SUPPORT_DEVICE_ON_HOST_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>

#define PHI_DEVICE inline
#define PHI_DEVICE_ROLLED

namespace phi_device
{

inline uint32_t load_relaxed(uint64_t address)
{
    return __atomic_load_n(reinterpret_cast<const uint32_t *>(address), __ATOMIC_RELAXED);
}

inline uint32_t load_acquire(uint64_t address)
{
    return __atomic_load_n(reinterpret_cast<const uint32_t *>(address), __ATOMIC_ACQUIRE);
}

inline void store_relaxed(uint64_t address, uint32_t value)
{
    __atomic_store_n(reinterpret_cast<uint32_t *>(address), value, __ATOMIC_RELAXED);
}

inline void store_release(uint64_t address, uint32_t value)
{
    __atomic_store_n(reinterpret_cast<uint32_t *>(address), value, __ATOMIC_RELEASE);
}

inline uint32_t draw(uint32_t *address, uint32_t last)
{
    uint32_t was = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(address, &was, was >= last ? 0 : was + 1, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return was;
}

inline void fence()
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

struct line {
    uint32_t low, flag, high, other;
};

// Flags are stored by release and loaded by acquire at the other end, where that is the stand-in's
// kernel: it writes data and flag apart.
inline line load_line(uint64_t address)
{
    const uint64_t *halves = reinterpret_cast<const uint64_t *>(address);
    const uint64_t one = __atomic_load_n(&halves[0], __ATOMIC_ACQUIRE);
    const uint64_t two = __atomic_load_n(&halves[1], __ATOMIC_ACQUIRE);
    return {static_cast<uint32_t>(one), static_cast<uint32_t>(one >> 32),
            static_cast<uint32_t>(two), static_cast<uint32_t>(two >> 32)};
}

inline void store_line(uint64_t address, const line &v)
{
    uint64_t *halves = reinterpret_cast<uint64_t *>(address);
    __atomic_store_n(&halves[0], static_cast<uint64_t>(v.flag) << 32 | v.low, __ATOMIC_RELEASE);
    __atomic_store_n(&halves[1], static_cast<uint64_t>(v.other) << 32 | v.high, __ATOMIC_RELEASE);
}

inline uint64_t now_ns()
{
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

inline void pause(uint32_t)
{
    std::this_thread::yield();
}

// Bytes of the application's, of any type.
struct __attribute__((may_alias)) unit {
    alignas(16) uint32_t x;
    uint32_t y, z, w;
};

inline uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift)
{
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift);
}

// The threads of a block, or of a warp, which is the same here.
class gang
{
  public:
    explicit gang(uint32_t size) : size(size)
    {
    }
    bool all(bool mine)
    {
        std::unique_lock<std::mutex> hold(lock_);
        const uint64_t turn = turn_;
        every_ = every_ && mine;
        if (++here_ == size) {
            said_ = every_;
            every_ = true;
            here_ = 0;
            turn_++;
            met_.notify_all();
        }
        met_.wait(hold, [&] { return turn_ != turn; });
        return said_;
    }
    uint32_t first(uint32_t mine, bool is_first)
    {
        if (is_first)
            first_ = mine;
        all(true);
        const uint32_t first = first_;
        all(true); // before it is written again
        return first;
    }
    const uint32_t size;

  private:
    uint32_t first_ = 0;
    std::mutex lock_;
    std::condition_variable met_;
    uint64_t turn_ = 0;
    uint32_t here_ = 0;
    bool every_ = true, said_ = true;
};

struct member {
    gang *of;
    uint32_t rank;
};
inline thread_local member self;

} // namespace phi_device

struct ph_block {
    uint32_t rank() const
    {
        return phi_device::self.rank;
    }
    uint32_t size() const
    {
        return phi_device::self.of->size;
    }
    void sync() const
    {
        phi_device::self.of->all(true);
    }
    bool all(bool mine) const
    {
        return phi_device::self.of->all(mine);
    }
    uint32_t first(uint32_t mine) const
    {
        return phi_device::self.of->first(mine, rank() == 0);
    }
};

struct ph_warp : ph_block {
};

#endif
