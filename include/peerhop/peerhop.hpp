// SPDX-License-Identifier: BSD-3-Clause
// Peerhop for C++17: what owns something gives it back at its end, and what fails throws. Header
// only.
//
//     peerhop::context context;
//     peerhop::host_memory numbers = context.host_alloc(1024 * sizeof(int));
//     peerhop::queue queue = context.make_queue();
//     peerhop::channel channel = context.exchange(
//         peerhop::bound(1, 1 - context.rank(), PH_ROLE_BOTH, numbers.data(), numbers.size()));
//     channel.send(numbers.size(), queue);
//
// Names. A method is the C function of its name, whose comment states blocking, threads and errors:
// channel::send is ph_send. Structs, enums and codes are those of C. A deadline of 0 is the
// context's.
//
// Errors. A code becomes an exception of class peerhop::error, with the code and its sentence.
// If several threads use one context the sentence may be that of another thread's failure, as
// ph_context_error says.
//
// Ownership. Objects can be moved, and not copied. Channels, queues, memory and requests may end
// after their context: they give back nothing then. Once context::destroy has returned they may
// only be destroyed or assigned to. A destructor throws nothing: who wants to hear of a failure
// calls close, destroy or free before.
//
// Cost. A call on a channel is the C call and a comparison of its result: it allocates nothing and
// takes no lock. What throws is not inlined. An exchange allocates its result, and counts a
// reference for each channel.
#ifndef PEERHOP_HPP
#define PEERHOP_HPP

#include <cerrno>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerhop/peerhop.h>

namespace peerhop
{

using std::chrono::milliseconds;

// The exception of a call of the library that returned a code other than 0. what() is the sentence,
// or the code's text where there is none.
class PH_API error : public std::runtime_error
{
  public:
    error(int code, const char *sentence)
        : std::runtime_error(sentence != nullptr && *sentence != '\0' ? sentence
                                                                      : ph_strerror(code)),
          code_(code)
    {
    }

    // A negative errno value, or one of enum ph_error.
    int code() const noexcept
    {
        return code_;
    }

  private:
    int code_;
};

namespace detail
{

// The part that all objects of a context share. The context is NULL once it has ended.
struct life {
    ph_context *context = nullptr;
};

[[noreturn, gnu::noinline, gnu::cold]] inline void fail(int code, const life *of)
{
    char text[1024] = "";
    if (of != nullptr && of->context != nullptr)
        ph_context_error(of->context, text, sizeof text);
    throw error(code, text);
}

inline void check(int code, const std::shared_ptr<life> &of)
{
    if (__builtin_expect(code != 0, 0))
        fail(code, of.get());
}

// A handle and what it belongs to. give_back is called where the context has not ended.
template <class T, void (*give_back)(ph_context *context, T *handle)> class owned
{
  public:
    owned() noexcept = default;
    owned(T *handle, std::shared_ptr<life> life) noexcept : handle_(handle), life_(std::move(life))
    {
    }
    owned(owned &&from) noexcept
        : handle_(std::exchange(from.handle_, nullptr)), life_(std::move(from.life_))
    {
    }
    owned &operator=(owned &&from) noexcept
    {
        owned old(std::move(*this));
        handle_ = std::exchange(from.handle_, nullptr);
        life_ = std::move(from.life_);
        return *this;
    }
    ~owned()
    {
        if (handle_ != nullptr && life_ != nullptr && life_->context != nullptr)
            give_back(life_->context, handle_);
    }

    // True where there is a handle: not where it was moved from, or made without arguments.
    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }
    T *get() const noexcept
    {
        return handle_;
    }

  protected:
    T *handle_ = nullptr;
    std::shared_ptr<life> life_;
};

inline void give_back_channel(ph_context *, ph_channel *handle)
{
    ph_channel_close(handle);
}

inline void give_back_queue(ph_context *, ph_queue *handle)
{
    ph_queue_destroy(&handle);
}

inline void give_back_region(ph_context *, ph_region *handle)
{
    ph_region_close(&handle);
}

// In a device context this waits for streams, which may wait for peers that are still to hear of an
// exception.
inline void give_back_memory(ph_context *context, void *address)
{
    if (std::uncaught_exceptions() == 0)
        ph_host_free(context, address, 0);
}

// The operations of a container: their address and number.
template <class Operations>
using if_operations =
    std::enable_if_t<std::is_convertible_v<decltype(std::data(std::declval<const Operations &>())),
                                           const ph_operation *>>;

} // namespace detail

class context;
class queue;

// A stream on which calls are enqueued: a CUstream or cudaStream_t in a device context, a queue in
// a host context. NULL is the legacy stream, or the context's default queue.
class stream
{
  public:
    stream(std::nullptr_t = nullptr) noexcept
    {
    }
    template <class T> stream(T *handle) noexcept : handle_(handle)
    {
    }
    inline stream(const queue &of) noexcept;

    void *get() const noexcept
    {
        return handle_;
    }

  private:
    void *handle_ = nullptr;
};

// An operation on a buffer of the caller's, and one whose sends and receives name their memory.
// The caller sets other members (protocol, limits, flags) in the struct.
inline ph_operation bound(std::uint64_t op_id, int peer, ph_role role, void *buffer,
                          std::size_t size) noexcept
{
    ph_operation operation{};
    operation.op_id = op_id;
    operation.peer = peer;
    operation.role = role;
    operation.buffer = buffer;
    operation.size = size;
    return operation;
}

inline ph_operation unbound(std::uint64_t op_id, int peer, ph_role role = PH_ROLE_BOTH) noexcept
{
    return bound(op_id, peer, role, nullptr, 0);
}

// An operation on several ranges, which live until the exchange returns (exchange_start: until that
// does).
template <class Ranges>
inline ph_operation bound(std::uint64_t op_id, int peer, ph_role role,
                          const Ranges &ranges) noexcept
{
    ph_operation operation{};
    operation.op_id = op_id;
    operation.peer = peer;
    operation.role = role;
    operation.range_count = static_cast<std::uint32_t>(std::size(ranges));
    operation.ranges = std::data(ranges);
    return operation;
}

// One handle on a channel.
class channel : public detail::owned<ph_channel, detail::give_back_channel>
{
  public:
    channel() noexcept = default;
    using owned::get;

    void put(std::size_t peer_offset, std::size_t local_offset, std::size_t size, stream on)
    {
        detail::check(ph_put(handle_, peer_offset, local_offset, size, on.get()), life_);
    }
    void get(std::size_t local_offset, std::size_t peer_offset, std::size_t size, stream on)
    {
        detail::check(ph_get(handle_, local_offset, peer_offset, size, on.get()), life_);
    }
    void put_signal(std::size_t peer_offset, std::size_t local_offset, std::size_t size, stream on)
    {
        detail::check(ph_put_signal(handle_, peer_offset, local_offset, size, on.get()), life_);
    }
    void signal(stream on)
    {
        detail::check(ph_signal(handle_, on.get()), life_);
    }
    void wait(std::size_t size, stream on)
    {
        detail::check(ph_wait(handle_, size, on.get()), life_);
    }

    // On a channel with buffers: from the start of the one to the start of the other.
    void send(std::size_t size, stream on)
    {
        detail::check(ph_send(handle_, size, on.get()), life_);
    }
    void recv(std::size_t size, stream on)
    {
        detail::check(ph_recv(handle_, size, on.get()), life_);
    }
    void complete(stream on)
    {
        detail::check(ph_complete(handle_, on.get()), life_);
    }

    // On an unbound channel.
    void send_from(const void *data, std::size_t size, stream on)
    {
        detail::check(ph_send_from(handle_, data, size, on.get()), life_);
    }
    void recv_into(void *data, std::size_t size, stream on)
    {
        detail::check(ph_recv_into(handle_, data, size, on.get()), life_);
    }

    // Each throws what the C function of its name returns.
    void status() const
    {
        detail::check(ph_channel_status(handle_), life_);
    }
    void ended() const
    {
        detail::check(ph_channel_ended(handle_), life_);
    }
    void abort(const char *reason = nullptr)
    {
        detail::check(ph_channel_abort(handle_, reason), life_);
    }

    // Gives the handle back. Where that fails it is kept.
    void close()
    {
        detail::check(ph_channel_close(handle_), life_);
        handle_ = nullptr;
    }

    int peer() const noexcept
    {
        return ph_channel_peer(handle_);
    }
    std::uint64_t op_id() const noexcept
    {
        return ph_channel_op_id(handle_);
    }
    std::size_t local_size() const noexcept
    {
        return ph_channel_local_size(handle_);
    }
    std::size_t peer_size() const noexcept
    {
        return ph_channel_peer_size(handle_);
    }

    ph_path_report path(bool outgoing) const
    {
        ph_path_report report{};
        detail::check(ph_channel_path(handle_, outgoing, &report, sizeof report), life_);
        return report;
    }

  private:
    friend class context;
    friend class group;
    friend class request;
    friend void copy(channel &, std::size_t, channel &, std::size_t, std::size_t, stream);

    channel(ph_channel *handle, std::shared_ptr<detail::life> life) noexcept
        : owned(handle, std::move(life))
    {
    }
};

inline void copy(channel &to, std::size_t to_offset, channel &from, std::size_t from_offset,
                 std::size_t size, stream on)
{
    detail::check(ph_copy(to.handle_, to_offset, from.handle_, from_offset, size, on.get()),
                  to.life_);
}

// A queue of a host context. One that is destroyed while operations are left in it goes on, and
// ends with the context.
class queue : public detail::owned<ph_queue, detail::give_back_queue>
{
  public:
    queue() noexcept = default;

    void synchronize(milliseconds deadline = milliseconds(0))
    {
        detail::check(ph_queue_synchronize(handle_, deadline.count()), life_);
    }
    void host(void (*function)(void *opaque), void *opaque)
    {
        detail::check(ph_queue_host(handle_, function, opaque), life_);
    }
    void destroy()
    {
        detail::check(ph_queue_destroy(&handle_), life_);
    }

  private:
    friend class context;
    queue(ph_queue *handle, std::shared_ptr<detail::life> life) noexcept
        : owned(handle, std::move(life))
    {
    }
};

inline stream::stream(const queue &of) noexcept : handle_(of.get())
{
}

// Host memory that peers can map. Destroyed by an exception, or while a channel uses it, it lives
// until the context ends.
class host_memory : public detail::owned<void, detail::give_back_memory>
{
  public:
    host_memory() noexcept = default;

    void *data() const noexcept
    {
        return get();
    }
    std::size_t size() const noexcept
    {
        return handle_ == nullptr ? 0 : size_; // bytes
    }
    template <class T> T *as() const noexcept
    {
        return static_cast<T *>(handle_);
    }

    // -EINVAL and -EBUSY: the memory is kept. After every other failure it is given back all the
    // same.
    void free(milliseconds deadline = milliseconds(0))
    {
        if (handle_ == nullptr)
            return;
        const int code = ph_host_free(life_->context, handle_, deadline.count());
        if (code != -EINVAL && code != -EBUSY)
            handle_ = nullptr;
        detail::check(code, life_);
    }

  private:
    friend class context;
    host_memory(void *address, std::size_t size, std::shared_ptr<detail::life> life) noexcept
        : owned(address, std::move(life)), size_(size)
    {
    }

    std::size_t size_ = 0;
};

// An exported region, and the bytes by which ranks attach it. Destroyed, nobody attaches it any
// more.
class region : public detail::owned<ph_region, detail::give_back_region>
{
  public:
    region() noexcept = default;

    const std::array<unsigned char, PH_REGION_BYTES> &bytes() const noexcept
    {
        return bytes_;
    }
    void close()
    {
        detail::check(ph_region_close(&handle_), life_);
    }

  private:
    friend class context;
    explicit region(std::shared_ptr<detail::life> life) noexcept : owned(nullptr, std::move(life))
    {
    }

    std::array<unsigned char, PH_REGION_BYTES> bytes_ = {};
};

// An exchange that was started. Destroyed before it is finished it waits for peers no more than a
// millisecond, and gives back the channels that it got.
class request
{
  public:
    request() noexcept = default;
    request(request &&from) noexcept
        : handle_(std::exchange(from.handle_, nullptr)), channels_(std::move(from.channels_)),
          life_(std::move(from.life_))
    {
    }
    request &operator=(request &&from) noexcept
    {
        std::swap(handle_, from.handle_); // what this had ends with from
        std::swap(channels_, from.channels_);
        std::swap(life_, from.life_);
        return *this;
    }
    ~request()
    {
        if (handle_ == nullptr || life_->context == nullptr ||
            ph_exchange_finish(&handle_, channels_.data(), 1) != 0)
            return;
        for (ph_channel *handle : channels_)
            ph_channel_close(handle);
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    // The channels, in the order of the operations. Ends the request, also where it throws what
    // ph_exchange_finish returned.
    std::vector<channel> finish(milliseconds deadline = milliseconds(0))
    {
        std::vector<channel> result;
        result.reserve(channels_.size());
        detail::check(ph_exchange_finish(&handle_, channels_.data(), deadline.count()), life_);
        for (ph_channel *handle : channels_)
            result.push_back(channel(handle, life_));
        return result;
    }

  private:
    friend class context;
    request(std::size_t n, std::shared_ptr<detail::life> life)
        : channels_(n), life_(std::move(life))
    {
    }

    ph_exchange_request *handle_ = nullptr;
    std::vector<ph_channel *> channels_; // where finish writes them
    std::shared_ptr<detail::life> life_;
};

// Operations that have no order among themselves. A group may be enqueued any number of times,
// which allocates nothing; its channels must live as long.
class group
{
  public:
    group &send(channel &on, std::size_t size)
    {
        return add(PH_GROUP_SEND, on, size);
    }
    group &recv(channel &on, std::size_t size)
    {
        return add(PH_GROUP_RECV, on, size);
    }
    group &send_from(channel &on, const void *data, std::size_t size)
    {
        return add(PH_GROUP_SEND, on, size, 0, 0, const_cast<void *>(data)); // which is only read
    }
    group &recv_into(channel &on, void *data, std::size_t size)
    {
        return add(PH_GROUP_RECV, on, size, 0, 0, data);
    }
    group &put(channel &on, std::size_t peer_offset, std::size_t local_offset, std::size_t size)
    {
        return add(PH_GROUP_PUT, on, size, peer_offset, local_offset);
    }
    group &get(channel &on, std::size_t local_offset, std::size_t peer_offset, std::size_t size)
    {
        return add(PH_GROUP_GET, on, size, peer_offset, local_offset);
    }
    group &put_signal(channel &on, std::size_t peer_offset, std::size_t local_offset,
                      std::size_t size)
    {
        return add(PH_GROUP_PUT_SIGNAL, on, size, peer_offset, local_offset);
    }
    group &signal(channel &on)
    {
        return add(PH_GROUP_SIGNAL, on, 0);
    }
    group &wait(channel &on, std::size_t size)
    {
        return add(PH_GROUP_WAIT, on, size);
    }

    void enqueue(stream on) const
    {
        detail::check(ph_group(operations_.data(), operations_.size(), on.get()), life_);
    }

    void clear() noexcept
    {
        operations_.clear();
        life_.reset();
    }

  private:
    group &add(ph_group_kind kind, channel &on, std::size_t size, std::size_t peer_offset = 0,
               std::size_t local_offset = 0, void *data = nullptr)
    {
        ph_group_op operation{};
        operation.kind = kind;
        operation.channel = on.get();
        operation.peer_offset = peer_offset;
        operation.local_offset = local_offset;
        operation.size = size;
        operation.data = data;
        operations_.push_back(operation);
        if (life_ == nullptr)
            life_ = on.life_;
        return *this;
    }

    std::vector<ph_group_op> operations_;
    std::shared_ptr<detail::life> life_; // of the first channel, for the sentence of a failure
};

// A rank's membership of a job. An exception that destroys it aborts it first, so that peers do not
// wait for this rank. The destructor blocks as ph_context_destroy does, for the context's deadline
// at most; where that fails the context lives on until the process ends.
class context
{
  public:
    explicit context(ph_context_params params = {}) : life_(std::make_shared<detail::life>())
    {
        char text[1024] = "";
        if (params.error == nullptr)
            params.error = text, params.error_size = sizeof text;
        const int code = ph_context_create(&params, &life_->context);
        if (code != 0)
            throw error(code, params.error_size > 0 ? params.error : nullptr);
    }
    context(context &&from) noexcept : life_(std::move(from.life_))
    {
    }
    context &operator=(context &&from) noexcept
    {
        context old(std::move(*this));
        life_ = std::move(from.life_);
        return *this;
    }
    ~context()
    {
        if (life_ == nullptr || life_->context == nullptr)
            return;
        if (std::uncaught_exceptions() > exceptions_)
            ph_context_abort(life_->context, "an exception ended it");
        ph_context_destroy(&life_->context, 0);
    }

    // Throws where the membership does not end: then the context lives on, and may be destroyed
    // again.
    void destroy(milliseconds deadline = milliseconds(0))
    {
        if (life_ != nullptr)
            detail::check(ph_context_destroy(&life_->context, deadline.count()), life_);
    }

    // NULL once it was destroyed or moved from.
    ph_context *get() const noexcept
    {
        return life_ == nullptr ? nullptr : life_->context;
    }

    int rank() const noexcept
    {
        return ph_context_rank(get());
    }
    int ranks() const noexcept
    {
        return ph_context_ranks(get());
    }
    const char *device() const noexcept
    {
        return ph_context_device(get());
    }

    channel exchange(const ph_operation &operation)
    {
        ph_channel *handle = nullptr;
        detail::check(ph_exchange(get(), &operation, 1, &handle), life_);
        return channel(handle, life_);
    }
    // Exchanges the operations of an array, a vector, or whatever else has operations in a row.
    template <class Operations, class = detail::if_operations<Operations>>
    std::vector<channel> exchange(const Operations &operations)
    {
        std::vector<ph_channel *> handles(std::size(operations));
        std::vector<channel> result;
        result.reserve(handles.size());
        detail::check(ph_exchange(get(), std::data(operations), handles.size(), handles.data()),
                      life_);
        for (ph_channel *handle : handles)
            result.push_back(channel(handle, life_));
        return result;
    }

    request exchange_start(const ph_operation &operation)
    {
        return start(&operation, 1);
    }
    template <class Operations, class = detail::if_operations<Operations>>
    request exchange_start(const Operations &operations)
    {
        return start(std::data(operations), std::size(operations));
    }

    // Takes over a handle that a C function returned.
    channel adopt(ph_channel *handle) const noexcept
    {
        return channel(handle, life_);
    }

    queue make_queue()
    {
        queue made(nullptr, life_);
        detail::check(ph_queue_create(get(), &made.handle_), life_);
        return made;
    }

    host_memory host_alloc(std::size_t size)
    {
        void *address = nullptr;
        detail::check(ph_host_alloc(get(), size, &address), life_);
        return host_memory(address, size, life_);
    }
    host_memory host_register(int fd, std::uint64_t offset, std::size_t size)
    {
        void *address = nullptr;
        detail::check(ph_host_register(get(), fd, offset, size, &address), life_);
        return host_memory(address, size, life_);
    }

    // access: enum ph_region_access, or both.
    region region_export(void *buffer, std::size_t size, std::uint32_t access)
    {
        region made(life_);
        detail::check(
            ph_region_export(get(), buffer, size, access, made.bytes_.data(), &made.handle_),
            life_);
        return made;
    }
    channel region_attach(const void *bytes, std::size_t bytes_size, void *buffer, std::size_t size,
                          milliseconds deadline = milliseconds(0))
    {
        ph_channel *handle = nullptr;
        detail::check(
            ph_region_attach(get(), bytes, bytes_size, buffer, size, deadline.count(), &handle),
            life_);
        return channel(handle, life_);
    }

    void release_start(const void *buffer, std::size_t size)
    {
        detail::check(ph_release_start(get(), buffer, size), life_);
    }
    // false where the state has not been reached yet (-EAGAIN).
    bool release_test(const void *buffer, std::size_t size, ph_release_state state)
    {
        const int code = ph_release_test(get(), buffer, size, state);
        if (code == -EAGAIN)
            return false;
        detail::check(code, life_);
        return true;
    }
    void release_wait(const void *buffer, std::size_t size, ph_release_state state,
                      milliseconds deadline = milliseconds(0))
    {
        detail::check(ph_release_wait(get(), buffer, size, state, deadline.count()), life_);
    }
    void reap(milliseconds deadline = milliseconds(0))
    {
        detail::check(ph_reap(get(), deadline.count()), life_);
    }

    void abort(const char *reason = nullptr)
    {
        detail::check(ph_context_abort(get(), reason), life_);
    }
    void expel(int rank)
    {
        detail::check(ph_context_expel(get(), rank), life_);
    }
    ph_peer_report peer(int rank) const
    {
        ph_peer_report report{};
        detail::check(ph_context_peer(get(), rank, &report, sizeof report), life_);
        return report;
    }
    ph_counters counters() const
    {
        ph_counters counters{};
        detail::check(ph_context_counters(get(), &counters, sizeof counters), life_);
        return counters;
    }

  private:
    request start(const ph_operation *operations, std::size_t n)
    {
        request started(n, life_);
        detail::check(ph_exchange_start(get(), operations, n, &started.handle_), life_);
        return started;
    }

    std::shared_ptr<detail::life> life_;
    int exceptions_ = std::uncaught_exceptions(); // more when it ends: an exception destroys it
};

} // namespace peerhop

#endif
