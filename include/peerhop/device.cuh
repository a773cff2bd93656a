// SPDX-License-Identifier: BSD-3-Clause
// Transfers from inside a kernel: put, get, signal and wait on a channel, by a thread, a warp or a
// block. For nvcc, C++17, compute capability 7.5 and later. A kernel takes a struct
// ph_device_channel by value, best as const __grid_constant__.
//
//     __global__ void exchange(const __grid_constant__ ph_device_channel channel)
//     {
//         ph_device_port<ph_block> port(channel);
//         ph_device_put<ph_block>(channel, 0, 0, 4096); // to the peer's buffer
//         port.signal();                                // ... and all of it is there
//         port.wait(0);                                 // until the peer has signalled
//     }
//
// Groups. The template argument says who makes a call: ph_thread, the calling thread alone;
// ph_warp, all 32 lanes of a warp; ph_block, all threads of a block. All threads of the group make
// the call, with the same arguments, and get the same result. Warps are of 32 neighbours by
// threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z).
//
// Memory order, in the terms of the CUDA memory model:
// - put and get are weak operations of the group's threads. put ends without a barrier, get with
//   one of its group (__syncwarp, __syncthreads).
// - signal and put_signal are a release at system scope: everything that the group's threads have
//   done before, their puts above all, and what happened before at device scope (other blocks, by
//   an acquire of this group), happens before what follows the peer's wait for this signal.
// - wait is an acquire at system scope by one thread, and then a barrier of the group.
// - The ll calls order nothing but their own message: whoever has waited for it sees its bytes, and
//   of other memory nothing is promised. That takes no fence.
// - What a stream has done before the kernel, and what it does after it, is ordered as by any
//   kernel. A ph_wait on the peer's stream that takes a signal of a kernel orders as wait does, and
//   wait takes a signal of ph_signal or ph_put_signal likewise.
//
// Calls that may be mixed. A put_signal of a size pairs with the peer's wait, or ph_wait, for that
// size, and the peer's ph_put_signal with wait likewise. signal is put_signal of 0 bytes, as
// ph_signal is. ll_put_signal pairs with ll_wait of the same size, ll_signal with ll_wait_value. If
// channel.out.ll_max (the sender's PEERHOP_LL_MAX, 8192 at most) is not 0, ll_put_signal and
// ll_wait of up to that many bytes are the same message as put_signal and wait, and may be mixed
// with them and with stream calls. So may ll_signal, whose value they drop, and ll_wait_value, to
// which they are the offset they were given. A direction's signals, and its waits, are one sequence
// at each end: of one port at a time, or of stream calls, each after what came before it has
// happened. ph_send and ph_recv are not touched by any of this. Few signals are under way, as by
// ph_put_signal.
//
// How messages go is the channel's affair: by ll and by sm through flags in device memory
// where the channel has them, else by a word in host memory, which takes microseconds instead of
// one. ll calls work there too, by that word, but for values.
//
// Ends. Where the channel ends (the peer died or left, aborts, releases) waits return
// PH_DEVICE_ENDED and nothing is copied; after channel.timeout_ns PH_DEVICE_TIMEDOUT, and the call
// may be made again. A kernel that waits for a peer's kernel needs that peer to run: blocks that
// wait must not fill the device before those that they wait for are on theirs, and two ranks of
// one device take turns of milliseconds.
#ifndef PEERHOP_DEVICE_CUH
#define PEERHOP_DEVICE_CUH

#include <peerhop/device_types.h>

#if defined(__CUDACC__) || defined(PH_DEVICE_PRIMITIVES)

// The primitives of the functions below: PTX, or the stand-in's that a test names.
#ifdef PH_DEVICE_PRIMITIVES
#include PH_DEVICE_PRIMITIVES
#else

#define PHI_DEVICE        __device__ __forceinline__
#define PHI_DEVICE_ROLLED _Pragma("unroll 1") // a loop whose speed is that of what it waits for

namespace phi_device
{

PHI_DEVICE uint32_t load_relaxed(uint64_t address)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

PHI_DEVICE uint32_t load_acquire(uint64_t address)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

PHI_DEVICE void store_relaxed(uint64_t address, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

PHI_DEVICE void store_release(uint64_t address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Adds one, or where it is `last` or more makes it 0, and returns what it was. Among this device's
// threads.
PHI_DEVICE uint32_t draw(uint32_t *address, uint32_t last)
{
    return atomicInc(address, last);
}

PHI_DEVICE void fence()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// 16 bytes: twice 4 bytes of data and the flag. Each half comes whole.
struct line {
    uint32_t low, flag, high, other;
};

PHI_DEVICE line load_line(uint64_t address)
{
    line v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.low), "=r"(v.flag), "=r"(v.high), "=r"(v.other)
                 : "l"(address)
                 : "memory");
    return v;
}

PHI_DEVICE void store_line(uint64_t address, const line &v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.low),
                 "r"(v.flag), "r"(v.high), "r"(v.other)
                 : "memory");
}

PHI_DEVICE uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Between polls: many that wait for long share the device with others.
PHI_DEVICE void pause(uint32_t polls)
{
    if (polls > 32768)
        __nanosleep(200);
}

using unit = uint4; // 16 bytes

PHI_DEVICE uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift)
{
    return __funnelshift_r(low, high, shift);
}

PHI_DEVICE uint32_t thread_of_block()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

} // namespace phi_device

struct ph_warp {
    PHI_DEVICE uint32_t rank() const
    {
        return phi_device::thread_of_block() % 32;
    }
    PHI_DEVICE uint32_t size() const
    {
        return 32;
    }
    PHI_DEVICE void sync() const
    {
        __syncwarp();
    }
    // True where it is true for all threads; and a barrier.
    PHI_DEVICE bool all(bool mine) const
    {
        __syncwarp();
        return __all_sync(0xffffffff, mine) != 0;
    }
    // The value of rank 0.
    PHI_DEVICE uint32_t first(uint32_t mine) const
    {
        return __shfl_sync(0xffffffff, mine, 0);
    }
};

struct ph_block {
    PHI_DEVICE uint32_t rank() const
    {
        return phi_device::thread_of_block();
    }
    PHI_DEVICE uint32_t size() const
    {
        return blockDim.x * blockDim.y * blockDim.z;
    }
    PHI_DEVICE void sync() const
    {
        __syncthreads();
    }
    PHI_DEVICE bool all(bool mine) const
    {
        return __syncthreads_and(mine) != 0;
    }
    PHI_DEVICE uint32_t first(uint32_t mine) const
    {
        __shared__ uint32_t said;
        if (rank() == 0)
            said = mine;
        __syncthreads();
        const uint32_t first = said;
        __syncthreads(); // before it is written again
        return first;
    }
};

#endif // PH_DEVICE_PRIMITIVES

struct ph_thread {
    PHI_DEVICE uint32_t rank() const
    {
        return 0;
    }
    PHI_DEVICE uint32_t size() const
    {
        return 1;
    }
    PHI_DEVICE void sync() const
    {
    }
    PHI_DEVICE bool all(bool mine) const
    {
        return mine;
    }
    PHI_DEVICE uint32_t first(uint32_t mine) const
    {
        return mine;
    }
};

namespace phi_device
{

// While COUNT units are left to each thread: so many loads in flight.
template <uint32_t COUNT, class T, class Group>
PHI_DEVICE uint64_t copy_runs(T *to, const T *from, uint64_t i, uint64_t n, const Group &group)
{
    const uint64_t stride = group.size();
    for (; i + (COUNT - 1) * stride < n; i += COUNT * stride) {
        T held[COUNT];
        for (uint32_t j = 0; j < COUNT; j++)
            held[j] = from[i + j * stride];
        for (uint32_t j = 0; j < COUNT; j++)
            to[i + j * stride] = held[j];
    }
    return i;
}

// n units of T, neighbours by neighbouring threads.
template <class T, class Group>
PHI_DEVICE void copy_units(uint64_t to, uint64_t from, uint64_t n, const Group &group)
{
    T *destination = reinterpret_cast<T *>(to);
    const T *source = reinterpret_cast<const T *>(from);
    uint64_t i = copy_runs<8>(destination, source, group.rank(), n, group);
    i = copy_runs<4>(destination, source, i, n, group);
    copy_runs<1>(destination, source, i, n, group);
}

// Units whose source is not aligned to them: of the words that hold their bytes and no others.
template <class Group>
PHI_DEVICE void copy_shifted(uint64_t to, uint64_t from, uint64_t n, const Group &group)
{
    const uint32_t shift = 8 * static_cast<uint32_t>(from & 3);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(from & ~static_cast<uint64_t>(3));
    for (uint64_t i = group.rank(); i < n; i += group.size()) {
        const uint32_t *w = words + 4 * i;
        const uint32_t w1 = w[1], w2 = w[2], w3 = w[3], w4 = shift ? w[4] : 0;
        unit v;
        v.x = funnel(w[0], w1, shift);
        v.y = funnel(w1, w2, shift);
        v.z = funnel(w2, w3, shift);
        v.w = funnel(w3, w4, shift);
        reinterpret_cast<unit *>(to)[i] = v;
    }
}

// Any alignment: bytes up to the first whole unit of the destination, units, bytes after the last.
template <class Group>
PHI_DEVICE void copy(uint64_t to, uint64_t from, uint64_t size, const Group &group)
{
    uint64_t head = (16 - (to & 15)) & 15;
    if (head > size)
        head = size;
    const uint64_t units = (size - head) / 16, tail = head + 16 * units;
    copy_units<uint8_t>(to, from, head, group);
    if (((from + head) & 15) == 0)
        copy_units<unit>(to + head, from + head, units, group);
    else
        copy_shifted(to + head, from + head, units, group);
    copy_units<uint8_t>(to + tail, from + tail, size - tail, group);
}

// copy_drawn copies what one of `groups` groups copies: its first piece, and the pieces that it
// draws. Each piece is drawn for once, by a group that has copied one, so that *drawn comes back to
// 0. All pieces but the first begin at a whole unit of the destination.
template <class Group>
PHI_DEVICE void copy_drawn(uint64_t to, uint64_t from, uint64_t size, uint32_t *drawn,
                           uint32_t group, uint32_t groups, const Group &by)
{
    const uint64_t piece = 4096ull * (by.size() < 64 ? 1 : by.size() / 32);
    const uint64_t before = to & 15;
    const uint32_t pieces =
        size == 0 ? 0 : static_cast<uint32_t>((size + before + piece - 1) / piece);
    PHI_DEVICE_ROLLED
    for (uint64_t i = group; i < pieces;) {
        const uint32_t next = by.rank() == 0 ? draw(drawn, pieces - 1) : 0; // comes meanwhile
        const uint64_t begin = i == 0 ? 0 : i * piece - before;
        const uint64_t end = (i + 1) * piece - before;
        copy(to + begin, from + begin, (end < size ? end : size) - begin, by);
        i = static_cast<uint64_t>(by.first(next)) + groups;
    }
}

PHI_DEVICE bool fits(const ph_device_channel &channel, uint64_t peer_offset, uint64_t local_offset,
                     uint64_t size)
{
    return peer_offset <= channel.remote_size && size <= channel.remote_size - peer_offset &&
           local_offset <= channel.local_size && size <= channel.local_size - local_offset;
}

// Up to 8 bytes, of which `left` are the message's.
PHI_DEVICE uint64_t gather(uint64_t from, uint64_t left)
{
    if (left >= 8 && (from & 7) == 0)
        return *reinterpret_cast<const uint64_t *>(from);
    uint64_t data = 0;
    for (uint32_t i = 0; i < 8 && i < left; i++)
        data |= static_cast<uint64_t>(reinterpret_cast<const uint8_t *>(from)[i]) << 8 * i;
    return data;
}

PHI_DEVICE void scatter(uint64_t to, uint64_t data, uint64_t left)
{
    if (left >= 8 && (to & 7) == 0) {
        *reinterpret_cast<uint64_t *>(to) = data;
        return;
    }
    for (uint32_t i = 0; i < 8 && i < left; i++)
        reinterpret_cast<uint8_t *>(to)[i] = static_cast<uint8_t>(data >> 8 * i);
}

// The patience of one call. It looks at host memory and the clock rarely: each look goes over PCIe,
// or takes long.
class patience
{
  public:
    PHI_DEVICE explicit patience(const ph_device_channel &channel) : channel_(channel)
    {
    }
    // After so many looks: 0, or why to give up. Before it gives up it looks once more at the
    // awaited word, so that it takes what came before.
    PHI_DEVICE int over(uint32_t looks = 1)
    {
        polls_ += looks;
        if (polls_ % 512 >= looks)
            return 0;
        pause(polls_);
        if (load_acquire(channel_.over) != 0)
            return PH_DEVICE_ENDED;
        const uint64_t now = now_ns();
        if (since_ == 0)
            since_ = now;
        return channel_.timeout_ns != 0 && now - since_ > channel_.timeout_ns ? PH_DEVICE_TIMEDOUT
                                                                              : 0;
    }

  private:
    const ph_device_channel &channel_;
    uint32_t polls_ = 0;
    uint64_t since_ = 0;
};

} // namespace phi_device

// ph_device_put copies size bytes from local_offset of this rank's buffer to peer_offset of the
// peer's. The peer learns nothing: order it by a signal. PH_DEVICE_INVALID. Since 0.1.
template <class Group>
PHI_DEVICE int ph_device_put(const ph_device_channel &channel, uint64_t peer_offset,
                             uint64_t local_offset, uint64_t size)
{
    if (channel.out.word == 0 || !phi_device::fits(channel, peer_offset, local_offset, size))
        return PH_DEVICE_INVALID;
    phi_device::copy(channel.remote + peer_offset, channel.local + local_offset, size, Group());
    return 0;
}

// ph_device_get copies size bytes from peer_offset of the peer's buffer to local_offset of this
// rank's, and returns when all threads of the group may read them. PH_DEVICE_INVALID. Since 0.1.
template <class Group>
PHI_DEVICE int ph_device_get(const ph_device_channel &channel, uint64_t local_offset,
                             uint64_t peer_offset, uint64_t size)
{
    if (channel.in.word == 0 || !phi_device::fits(channel, peer_offset, local_offset, size))
        return PH_DEVICE_INVALID;
    phi_device::copy(channel.local + local_offset, channel.remote + peer_offset, size, Group());
    Group().sync();
    return 0;
}

// ph_device_put_split and ph_device_get_split are a put and a get by `groups` groups together, of
// which the caller is number `group`: all of them call it with the same other arguments, each once.
// They draw pieces, by *drawn, until none is left: multiprocessors do not get the same of a link,
// and by equal parts the quick ones wait for the slow. By warps, whose pieces are 4 KiB, 16 blocks
// fill NVLink; a block's are 4 KiB for each of its warps. Blocks meet in it as often as they draw.
// A group that returns has copied its pieces, and knows nothing of the others' pieces. Of a get the
// group may read its own pieces.
//
// *drawn is in this device's memory, 0 before the first use, and 0 again when all have returned: it
// serves one copy after the other, where all groups meet between them (a grid's barrier, or the end
// of the kernel). A group that does not call, or calls again before all have returned, leaves it
// wrong, and with it the bytes of the copies that follow, until it is set to 0.
// PH_DEVICE_INVALID, where nothing is drawn. Since 0.1.
template <class Group>
PHI_DEVICE int ph_device_put_split(const ph_device_channel &channel, uint64_t peer_offset,
                                   uint64_t local_offset, uint64_t size, uint32_t *drawn,
                                   uint32_t group, uint32_t groups)
{
    if (channel.out.word == 0 || !phi_device::fits(channel, peer_offset, local_offset, size) ||
        group >= groups)
        return PH_DEVICE_INVALID;
    phi_device::copy_drawn(channel.remote + peer_offset, channel.local + local_offset, size, drawn,
                           group, groups, Group());
    return 0;
}
template <class Group>
PHI_DEVICE int ph_device_get_split(const ph_device_channel &channel, uint64_t local_offset,
                                   uint64_t peer_offset, uint64_t size, uint32_t *drawn,
                                   uint32_t group, uint32_t groups)
{
    if (channel.in.word == 0 || !phi_device::fits(channel, peer_offset, local_offset, size) ||
        group >= groups)
        return PH_DEVICE_INVALID;
    phi_device::copy_drawn(channel.local + local_offset, channel.remote + peer_offset, size, drawn,
                           group, groups, Group());
    Group().sync();
    return 0;
}

// A port is how a group signals and waits on a channel: it keeps the numbers of messages in
// registers while it lives, so that a persistent kernel makes it once. It is made by all threads of
// the group, and the channel's struct outlives it. There is one port at a time for the signals of a
// direction, and one for its waits; whoever makes the next one (another block, a later kernel) does
// so after the last call on this one has happened. Each call ends with a barrier of the group, but
// where it returns PH_DEVICE_INVALID or PH_DEVICE_NOPATH. Since 0.1.
template <class Group> class ph_device_port
{
  public:
    PHI_DEVICE explicit ph_device_port(const ph_device_channel &channel) : channel_(channel)
    {
        if (channel_.out.own != 0) {
            pushed_ = phi_device::load_relaxed(out(&ph_device_lane::pushed));
            credit_ = phi_device::load_relaxed(out(&ph_device_lane::credit));
            to_.begin(channel_.out.slots, pushed_ + 1);
        }
        if (channel_.in.own != 0) {
            taken_ = phi_device::load_relaxed(in(&ph_device_lane::taken));
            from_.begin(channel_.in.slots, taken_ + 1);
        }
        group_.sync(); // all have read what the first call counts
    }

    // put_signal is ph_device_put, and a signal behind it that the peer waits for with the same
    // size. Waits until there is room for one more. PH_DEVICE_INVALID, _ENDED, _TIMEDOUT.
    PHI_DEVICE int put_signal(uint64_t peer_offset, uint64_t local_offset, uint64_t size)
    {
        if (!may_send(peer_offset, local_offset, size))
            return PH_DEVICE_INVALID;
        if (!by_lines(channel_.out, size))
            return by_copy(channel_.out, size) ? move(peer_offset, local_offset, size)
                                               : note(peer_offset, local_offset, size);
        group_.sync();
        if (group_.rank() == 0)
            phi_device::fence(); // what the group did before, before its line 0
        return push(peer_offset, local_offset, size);
    }

    // signal is put_signal of nothing.
    PHI_DEVICE int signal()
    {
        return put_signal(0, 0, 0);
    }

    // wait returns when the peer's next signal has come, and takes it. size is what it carries,
    // which is in this rank's buffer then. PH_DEVICE_INVALID, _ENDED, _TIMEDOUT.
    PHI_DEVICE int wait(uint64_t size)
    {
        if (!may_wait(size))
            return PH_DEVICE_INVALID;
        if (!by_lines(channel_.in, size))
            return by_copy(channel_.in, size) ? arrive() : await_note();
        const int rc = take(size, nullptr);
        if (rc == 0 && group_.rank() == 0)
            phi_device::fence(); // pairs with that of put_signal
        group_.sync();
        return rc;
    }

    // ll_put_signal and ll_wait: one message of at most PH_DEVICE_LL_MAX bytes, each 8 of them in
    // one store with their flag. Nothing else is ordered. PH_DEVICE_INVALID, _ENDED, _TIMEDOUT.
    PHI_DEVICE int ll_put_signal(uint64_t peer_offset, uint64_t local_offset, uint64_t size)
    {
        if (!may_send(peer_offset, local_offset, size) || size > PH_DEVICE_LL_MAX)
            return PH_DEVICE_INVALID;
        return channel_.out.own != 0 ? push(peer_offset, local_offset, size)
                                     : note(peer_offset, local_offset, size);
    }
    PHI_DEVICE int ll_wait(uint64_t size)
    {
        if (!may_wait(size) || size > PH_DEVICE_LL_MAX)
            return PH_DEVICE_INVALID;
        return channel_.in.own != 0 ? take(size, nullptr) : await_note();
    }

    // ll_signal and ll_wait_value: 8 bytes from register to register, the least that there is.
    // value is written by each thread of the group. PH_DEVICE_INVALID, _NOPATH, _ENDED, _TIMEDOUT.
    PHI_DEVICE int ll_signal(uint64_t value)
    {
        if (to_.now == 0)
            return channel_.out.word == 0 ? PH_DEVICE_INVALID : PH_DEVICE_NOPATH;
        return push(value, 0, 0);
    }
    PHI_DEVICE int ll_wait_value(uint64_t *value)
    {
        if (from_.now == 0)
            return channel_.in.word == 0 ? PH_DEVICE_INVALID : PH_DEVICE_NOPATH;
        return take(0, value);
    }

  private:
    template <class Member> PHI_DEVICE static uint64_t at(uint64_t lane, Member member)
    {
        return reinterpret_cast<uint64_t>(&(reinterpret_cast<ph_device_lane *>(lane)->*member));
    }
    template <class Member> PHI_DEVICE uint64_t out(Member member) const
    {
        return at(channel_.out.own, member);
    }
    template <class Member> PHI_DEVICE uint64_t in(Member member) const
    {
        return at(channel_.in.own, member);
    }
    PHI_DEVICE bool may_send(uint64_t peer_offset, uint64_t local_offset, uint64_t size) const
    {
        return channel_.out.word != 0 &&
               (size == 0 || phi_device::fits(channel_, peer_offset, local_offset, size));
    }
    PHI_DEVICE bool may_wait(uint64_t size) const
    {
        return channel_.in.word != 0 && size <= channel_.local_size;
    }
    PHI_DEVICE static bool by_lines(const ph_device_way &way, uint64_t size)
    {
        return way.own != 0 && way.ll_max > 0 && size <= way.ll_max;
    }
    PHI_DEVICE static bool by_copy(const ph_device_way &way, uint64_t size)
    {
        return way.own != 0 && way.sm_max > 0 && size <= way.sm_max;
    }

    // The group's result: 0 where all are done; and a barrier.
    PHI_DEVICE int agree(int mine) const
    {
        if (group_.all(mine == 0))
            return 0;
        return group_.all(mine != PH_DEVICE_ENDED) ? PH_DEVICE_TIMEDOUT : PH_DEVICE_ENDED;
    }

    // ---- by ll

    // The slots of a direction take turns. Each call leaves the next message's address in a
    // register: parameters of a kernel are looked up anew where they are used, which takes time
    // between a message and its answer.
    struct turns {
        uint64_t now = 0, next = 0; // 0: the direction has no lines
        PHI_DEVICE void begin(uint64_t slots, uint32_t message)
        {
            static_assert(PH_DEVICE_LL_SLOTS == 2, "two take turns");
            const uint64_t odd = message % 2;
            now = slots + odd * PH_DEVICE_LL_SLOT;
            next = slots + (1 - odd) * PH_DEVICE_LL_SLOT;
        }
        PHI_DEVICE void turn()
        {
            const uint64_t other = next;
            next = now;
            now = other;
        }
    };

    // Pairs with the credit of take(): the slot's last message was read before it was given.
    PHI_DEVICE int await_credit(uint32_t message)
    {
        phi_device::patience patience(channel_);
        PHI_DEVICE_ROLLED
        while (static_cast<int32_t>(credit_ + PH_DEVICE_LL_SLOTS - message) < 0) {
            const int rc = patience.over();
            credit_ = phi_device::load_relaxed(out(&ph_device_lane::credit));
            if (rc != 0 && static_cast<int32_t>(credit_ + PH_DEVICE_LL_SLOTS - message) < 0)
                return rc;
        }
        return 0;
    }

    PHI_DEVICE static uint32_t lines_of(uint64_t size)
    {
        return static_cast<uint32_t>((size + 7) / 8) + 1;
    }

    // The data of a line: line 0 carries the offset, or a value, the others 8 bytes each.
    PHI_DEVICE static uint64_t data_of_line(uint32_t line, uint64_t offset, uint64_t from,
                                            uint64_t size)
    {
        const uint64_t at = 8 * (line - 1ull);
        return line == 0 ? offset : at < size ? phi_device::gather(from + at, size - at) : 0;
    }

    // Neighbouring lines by neighbouring threads: those of a small message are one store of a warp.
    PHI_DEVICE int push(uint64_t offset, uint64_t local_offset, uint64_t size)
    {
        const uint32_t message = pushed_ + 1;
        const uint64_t from = channel_.local + local_offset;
        uint32_t i = group_.rank();
        group_.sync(); // what the group has written is there to be read
        uint64_t data =
            data_of_line(i, offset, from, size); // on its way while the credit is looked at
        const int rc = agree(await_credit(message));
        if (rc != 0)
            return rc;
        const uint32_t lines = message % PH_DEVICE_LL_REFRESH < PH_DEVICE_LL_SLOTS
                                   ? PH_DEVICE_LL_SLOT / 16
                                   : lines_of(size);
        if (i < lines)
            write_line(i, data, message);
        PHI_DEVICE_ROLLED
        for (i += group_.size(); i < lines; i += group_.size())
            write_line(i, data_of_line(i, offset, from, size), message);
        pushed_ = message;
        to_.turn();
        if (group_.rank() == 0)
            phi_device::store_relaxed(out(&ph_device_lane::pushed), message);
        // For the next push: nobody waits for it now, and then it is here.
        credit_ = phi_device::load_relaxed(out(&ph_device_lane::credit));
        group_.sync();
        return 0;
    }

    PHI_DEVICE void write_line(uint32_t i, uint64_t data, uint32_t message) const
    {
        phi_device::store_line(to_.now + 16ull * i, {static_cast<uint32_t>(data), message,
                                                     static_cast<uint32_t>(data >> 32), message});
    }

    PHI_DEVICE static bool has(const phi_device::line &line, uint32_t message)
    {
        return line.flag == message && line.other == message;
    }
    PHI_DEVICE static uint64_t data_of(const phi_device::line &line)
    {
        return static_cast<uint64_t>(line.high) << 32 | line.low;
    }

    // One line, or two: both loads are on their way together.
    struct look {
        phi_device::line one, two;
    };
    template <bool PAIR> PHI_DEVICE static look look_at(uint64_t one, uint64_t two)
    {
        look l;
        l.one = phi_device::load_line(one);
        l.two = PAIR ? phi_device::load_line(two) : l.one;
        return l;
    }
    PHI_DEVICE static bool has(const look &l, uint32_t message)
    {
        return has(l.one, message) && has(l.two, message);
    }

    template <bool PAIR>
    PHI_DEVICE static int await_lines(uint64_t one, uint64_t two, uint32_t message, look *found,
                                      phi_device::patience &patience)
    {
        constexpr uint32_t looks = 4; // between two thoughts of giving up
        int rc = 0;
        PHI_DEVICE_ROLLED
        for (;;) {
            for (uint32_t i = 0; i < looks; i++) {
                *found = look_at<PAIR>(one, two);
                if (has(*found, message))
                    return 0;
            }
            if (rc != 0)
                return rc;
            rc = patience.over(looks);
        }
    }

    // Each thread looks at its own lines and, unless it has none and nobody asks, at line 0. What
    // the peer says of the offset is not believed: nothing is written outside the buffer.
    PHI_DEVICE int take_lines(uint64_t slot, uint32_t message, uint64_t size, bool all,
                              uint64_t *head) const
    {
        const uint32_t lines = lines_of(size);
        uint32_t i = group_.rank();
        if (i >= lines && !all)
            return 0;
        phi_device::patience patience(channel_);
        const uint64_t own = i < lines ? slot + 16ull * i : slot;
        look found;
        int rc = lines == 1 ? await_lines<false>(slot, slot, message, &found, patience)
                            : await_lines<true>(slot, own, message, &found, patience);
        *head = data_of(found.one);
        const bool fits = *head <= channel_.local_size && size <= channel_.local_size - *head;
        PHI_DEVICE_ROLLED
        while (rc == 0 && i < lines) {
            const uint64_t at = 8 * (i - 1ull);
            if (fits && i > 0)
                phi_device::scatter(channel_.local + *head + at, data_of(found.two), size - at);
            i += group_.size();
            if (i < lines)
                rc = await_lines<false>(slot + 16ull * i, 0, message, &found, patience);
        }
        return rc;
    }

    // Credit for a message is given when the next one is waited for: it costs no time then, and a
    // push may have to wait until the take of the message before has begun. So is the message
    // counted, before it has come.
    PHI_DEVICE int take(uint64_t size, uint64_t *value)
    {
        const uint32_t message = taken_ + 1;
        uint64_t head = 0;
        if (group_.rank() == 0) {
            phi_device::store_relaxed(at(channel_.in.peer, &ph_device_lane::credit), taken_);
            phi_device::store_relaxed(in(&ph_device_lane::taken), message);
        }
        const int rc = agree(take_lines(from_.now, message, size, value != nullptr, &head));
        if (rc != 0) {
            if (group_.rank() == 0)
                phi_device::store_relaxed(in(&ph_device_lane::taken), taken_); // it has not
            group_.sync(); // before any of the group makes another port
            return rc;
        }
        if (value != nullptr)
            *value = head;
        taken_ = message;
        from_.turn();
        return 0;
    }

    // ---- by sm

    // By at most so many threads: more would only fence.
    PHI_DEVICE uint32_t helpers() const
    {
        return group_.size() < 32 ? group_.size() : 32;
    }

    // Until a word is not 0. The acquire pairs with the relaxed store and the fence before it.
    PHI_DEVICE static int await_set(uint64_t address, uint32_t *said,
                                    phi_device::patience &patience)
    {
        PHI_DEVICE_ROLLED
        for (;;) {
            const int rc = patience.over();
            *said = phi_device::load_acquire(address);
            if (*said != 0 || rc != 0)
                return *said != 0 ? 0 : rc;
        }
    }

    // Until the peer has allowed one copy more than were made. By thread 0; the acquire pairs with
    // the relaxed store and the fence before it.
    PHI_DEVICE int await_go(uint32_t *moved) const
    {
        if (group_.rank() != 0)
            return 0;
        phi_device::patience patience(channel_);
        *moved = phi_device::load_relaxed(out(&ph_device_lane::moved));
        PHI_DEVICE_ROLLED
        for (;;) {
            const int rc = patience.over();
            const uint32_t go = phi_device::load_acquire(out(&ph_device_lane::go));
            const bool may = static_cast<int32_t>(go - *moved) > 0;
            if (may || rc != 0)
                return may ? 0 : rc;
        }
    }

    // As a copy of one block. A wait that was given up can begin anew.
    PHI_DEVICE int move(uint64_t peer_offset, uint64_t local_offset, uint64_t size)
    {
        uint32_t moved = 0;
        const int rc = agree(await_go(&moved));
        if (rc != 0)
            return rc;
        phi_device::copy(channel_.remote + peer_offset, channel_.local + local_offset, size,
                         group_);
        group_.sync();
        if (group_.rank() == 0) {
            // before the full word
            phi_device::store_relaxed(out(&ph_device_lane::moved), moved + 1);
            phi_device::fence(); // all of the group's, gathered by the barrier
            phi_device::store_relaxed(at(channel_.out.peer, &ph_device_lane::full), 1);
        }
        group_.sync();
        return 0;
    }

    // The first word says how many there are; it is the peer's.
    PHI_DEVICE int await_full(uint64_t full, uint32_t *blocks) const
    {
        phi_device::patience patience(channel_);
        uint32_t said;
        int rc = await_set(full, blocks, patience);
        if (*blocks > PH_DEVICE_BLOCKS)
            *blocks = PH_DEVICE_BLOCKS;
        PHI_DEVICE_ROLLED
        for (uint32_t i = group_.rank(); rc == 0 && i < *blocks; i += helpers())
            rc = await_set(full + 4ull * i, &said, patience);
        return rc;
    }

    PHI_DEVICE int arrive()
    {
        const uint64_t full = in(&ph_device_lane::full), given = in(&ph_device_lane::allowed);
        const bool helps = group_.rank() < helpers();
        uint32_t blocks = 0;
        const int rc = agree(helps ? await_full(full, &blocks) : 0);
        if (rc != 0)
            return rc;
        PHI_DEVICE_ROLLED
        for (uint32_t i = group_.rank(); helps && i < blocks; i += helpers())
            phi_device::store_relaxed(full + 4ull * i, 0);
        group_.sync(); // gathers the zeros for the fence
        if (group_.rank() == 0) {
            const uint32_t allowed = phi_device::load_relaxed(given) + 1;
            phi_device::store_relaxed(given, allowed);
            phi_device::fence(); // before the go
            phi_device::store_relaxed(at(channel_.in.peer, &ph_device_lane::go), allowed);
        }
        group_.sync();
        return 0;
    }

    // ---- by word

    // By thread 0. Who ends a channel adds its bits to those that are there: a word of more than
    // one is no signal. The acquire pairs with the other end's post.
    PHI_DEVICE int await_word(uint64_t word, uint32_t bit) const
    {
        phi_device::patience patience(channel_);
        int rc = 0;
        for (uint32_t said; group_.rank() == 0 && (said = phi_device::load_acquire(word)) != bit;) {
            if (rc != 0 || (said & bit) != 0)
                return rc != 0 ? rc : static_cast<int>(PH_DEVICE_ENDED);
            rc = patience.over();
        }
        return 0;
    }

    PHI_DEVICE void post(uint64_t word, uint32_t bit) const
    {
        group_.sync(); // gathers what the group did for the release
        if (group_.rank() == 0)
            phi_device::store_release(word, bit);
        group_.sync();
    }

    PHI_DEVICE int note(uint64_t peer_offset, uint64_t local_offset, uint64_t size)
    {
        const int rc = agree(await_word(channel_.out.word, PH_DEVICE_FREE));
        if (rc != 0)
            return rc;
        phi_device::copy(channel_.remote + peer_offset, channel_.local + local_offset, size,
                         group_);
        post(channel_.out.word, PH_DEVICE_NOTED);
        return 0;
    }

    PHI_DEVICE int await_note()
    {
        const int rc = agree(await_word(channel_.in.word, PH_DEVICE_NOTED));
        if (rc == 0)
            post(channel_.in.word, PH_DEVICE_FREE);
        return rc;
    }

    const ph_device_channel &channel_;
    Group group_;
    uint32_t pushed_ = 0, credit_ = 0, taken_ = 0;
    turns to_, from_;
};

#endif // __CUDACC__ || PH_DEVICE_PRIMITIVES
#endif
