// SPDX-License-Identifier: BSD-3-Clause
// peerhop.hpp between two ranks on host memory: each class moves data, gives back what it has, and
// throws with code and sentence.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerhop/peerhop.hpp>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);           \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)

template <class T>
constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<T> &&std::is_nothrow_move_assignable_v<T>
        &&std::is_nothrow_destructible_v<T> && !std::is_copy_constructible_v<T> &&
    !std::is_copy_assignable_v<T>;
static_assert(moves_only<peerhop::context> && moves_only<peerhop::channel> &&
              moves_only<peerhop::queue> && moves_only<peerhop::host_memory> &&
              moves_only<peerhop::request>);
static_assert(std::is_nothrow_move_constructible_v<peerhop::group>);

// What a call throws: its code, and whether the sentence has these words.
template <class Call> static int thrown(Call call, const char *words = "")
{
    try {
        call();
    } catch (const peerhop::error &failure) {
        if (std::strstr(failure.what(), words) == nullptr)
            std::fprintf(stderr, "it says: %s\n", failure.what());
        CHECK(std::strstr(failure.what(), words) != nullptr);
        return failure.code();
    }
    return 0;
}

static peerhop::context join(const char *job)
{
    static const char *const settings[] = {"PEERHOP_DEADLINE_MS=20000", nullptr};
    ph_context_params params{};
    params.device = "host";
    params.job = job;
    params.settings = settings;
    return peerhop::context(params);
}

static void creation_fails()
{
    ph_context_params params{};
    params.device = "nothing";
    char text[8] = "";
    CHECK(thrown([&] { peerhop::context context(params); }, "nothing") == -EINVAL);
    params.error = text;
    params.error_size = sizeof text;
    CHECK(thrown([&] { peerhop::context context(params); }) == -EINVAL && text[0] != '\0');
    CHECK(std::strcmp(peerhop::error(PH_EPEER, "").what(), ph_strerror(PH_EPEER)) == 0);
}

constexpr std::size_t SIZE = 4096;

static void fill(peerhop::host_memory &memory, int value)
{
    std::memset(memory.data(), value, memory.size());
}

static bool holds(const peerhop::host_memory &memory, int value)
{
    for (std::size_t i = 0; i < memory.size(); i++)
        if (memory.as<unsigned char>()[i] != value)
            return false;
    return true;
}

// Each way to move bytes on a channel with buffers, in one direction after the other.
static void bound_channel(peerhop::context &context)
{
    const int rank = context.rank(), peer = 1 - rank;
    peerhop::host_memory memory = context.host_alloc(SIZE);
    peerhop::queue queue = context.make_queue();
    peerhop::channel channel =
        context.exchange(peerhop::bound(1, peer, PH_ROLE_BOTH, memory.data(), SIZE));
    CHECK(channel && channel.peer() == peer && channel.op_id() == 1);
    CHECK(channel.local_size() == SIZE && channel.peer_size() == SIZE);
    CHECK(std::string(channel.path(true).path) == "ipc");

    fill(memory, rank == 0 ? 1 : 0);
    if (rank == 0)
        channel.send(SIZE, queue);
    else
        channel.recv(SIZE, queue);
    channel.complete(queue);
    queue.synchronize();
    CHECK(holds(memory, 1));

    if (rank == 1) {
        fill(memory, 2);
        channel.put_signal(0, 0, SIZE, queue);
        channel.wait(0, queue); // until rank 0 has looked
    } else {
        channel.wait(SIZE, queue);
        queue.synchronize();
        CHECK(holds(memory, 2));
        channel.signal(queue);
    }
    queue.synchronize(std::chrono::seconds(10));

    if (rank == 0) { // what rank 1 has, shifted by a byte, and back by a put
        memory.as<unsigned char>()[SIZE - 1] = 9;
        channel.put(0, SIZE - 1, 1, queue);
        channel.get(1, 0, 1, queue);
        channel.signal(queue);
        queue.synchronize();
        CHECK(memory.as<unsigned char>()[1] == 9);
    } else {
        channel.wait(0, queue);
        queue.synchronize();
        CHECK(memory.as<unsigned char>()[0] == 9);
    }
    channel.status();
    channel.ended();

    int calls = 0;
    queue.host([](void *opaque) { ++*static_cast<int *>(opaque); }, &calls);
    queue.synchronize();
    CHECK(calls == 1);
    CHECK(thrown([&] { channel.put(1, 0, SIZE, queue); }, "do not fit") == -EINVAL);
    CHECK(thrown([&] { memory.free(); }) == -EBUSY && memory); // the channel uses it

    channel.signal(queue); // both have looked
    channel.wait(0, queue);
    queue.synchronize();
    context.release_start(memory.data(), SIZE);
    CHECK(thrown([&] { channel.ended(); }) == -ESTALE);
    context.release_wait(memory.data(), SIZE, PH_RELEASE_CLOSED);
    CHECK(context.release_test(memory.data(), SIZE, PH_RELEASE_CLOSED));
    channel.close();
    CHECK(!channel);
    memory.free();
    CHECK(!memory && memory.size() == 0);
    context.reap();
}

// Rank 0 exports memory; rank 1 gets the bytes by a message, and attaches it.
static void exported_region(peerhop::context &context)
{
    const int rank = context.rank(), peer = 1 - rank;
    peerhop::host_memory memory = context.host_alloc(SIZE), more = context.host_alloc(SIZE);
    peerhop::queue queue = context.make_queue();
    peerhop::channel channel =
        context.exchange(peerhop::bound(9, peer, PH_ROLE_BOTH, memory.data(), SIZE));
    fill(more, rank == 0 ? 5 : 0);
    if (rank == 0) {
        peerhop::region region = context.region_export(more.data(), SIZE, PH_REGION_READ);
        std::memcpy(memory.data(), region.bytes().data(), PH_REGION_BYTES);
        channel.put_signal(0, 0, PH_REGION_BYTES, queue);
        channel.wait(0, queue); // until rank 1 has looked
        queue.synchronize();
        region.close();
        CHECK(!region);
        return;
    }
    channel.wait(PH_REGION_BYTES, queue);
    queue.synchronize();
    CHECK(thrown([&] { context.region_attach(memory.data(), 1, more.data(), SIZE); }) == -EBADMSG);
    peerhop::channel attached =
        context.region_attach(memory.data(), PH_REGION_BYTES, more.data(), SIZE);
    attached.get(0, 0, SIZE, queue);
    queue.synchronize();
    CHECK(holds(more, 5));
    attached.close();
    channel.signal(queue);
    queue.synchronize();
}

// An exchange in two halves, and groups over channels without buffers.
static void unbound_channels(peerhop::context &context)
{
    const int rank = context.rank(), peer = 1 - rank;
    const std::array<ph_operation, 2> operations = {peerhop::unbound(2, peer),
                                                    peerhop::unbound(3, peer)};
    peerhop::request started = context.exchange_start(operations);
    CHECK(started);
    peerhop::request request = std::move(started);
    CHECK(request && !started);
    std::vector<peerhop::channel> channels = request.finish();
    CHECK(!request && channels.size() == 2 && channels[1].op_id() == 3);

    peerhop::group group;
    int out = 10 + rank, in = 0;
    group.send_from(channels[0], &out, sizeof out).recv_into(channels[0], &in, sizeof in);
    group.signal(channels[1]).wait(channels[1], 0);
    peerhop::queue queue = context.make_queue();
    for (int round = 0; round < 3; round++, out += 100) { // the same group again
        group.enqueue(queue);
        queue.synchronize();
        CHECK(in == 10 + peer + 100 * round);
    }
    group.clear();
    if (rank == 0)
        channels[1].send_from(&out, sizeof out, queue);
    else
        channels[1].recv_into(&in, sizeof in, queue);
    queue.synchronize();
    CHECK(rank == 0 || in == out - 1);
    CHECK(context.counters().exchanges >= 2 && context.peer(peer).state == PH_PEER_LIVE);
    CHECK(thrown([&] { context.expel(peer); }) == -EBUSY);

    // The peer comes to this one at the end only: a request that is destroyed meanwhile waits for
    // nobody.
    if (rank == 0) {
        peerhop::request left = context.exchange_start(peerhop::unbound(4, peer));
    }
    channels[0].abort("enough");
    CHECK(thrown([&] { channels[0].ended(); }, "enough") == PH_EABORTED);
    channels = context.exchange(std::vector<ph_operation>{peerhop::unbound(2, peer)});
    CHECK(channels.size() == 1 && channels[0]);
}

// Objects may outlive their context, and be assigned to.
static void lives()
{
    std::optional<peerhop::context> context(join("lives"));
    const int peer = 1 - context->rank();
    peerhop::channel channel = context->exchange(peerhop::unbound(1, peer));
    peerhop::channel other = context->exchange(peerhop::unbound(2, peer));
    peerhop::queue queue = context->make_queue();
    peerhop::host_memory memory = context->host_alloc(SIZE);
    channel = std::move(other); // the handle that it had is closed
    CHECK(channel.op_id() == 2 && !other);

    ph_channel *handle = nullptr; // from C, and back
    const ph_operation operation = peerhop::unbound(3, peer);
    CHECK(ph_exchange(context->get(), &operation, 1, &handle) == 0);
    peerhop::channel adopted = context->adopt(handle);
    CHECK(adopted.get() == handle);
    adopted.close();
    CHECK(ph_channel_close(handle) == -EINVAL);

    peerhop::context moved = std::move(*context);
    CHECK(context->get() == nullptr && moved.ranks() == 2);
    CHECK(std::string(moved.device()) == "host");
    moved.destroy();
    CHECK(moved.get() == nullptr);
    moved.destroy(); // nothing is left
    context.reset();
}

// An exception that leaves a rank aborts it: its peer hears of it at once, and not at its deadline.
static void exceptions()
{
    peerhop::context outer = join("aborts");
    const int rank = outer.rank();
    peerhop::channel channel = outer.exchange(peerhop::unbound(1, 1 - rank));
    if (rank == 0) {
        try {
            peerhop::context context = std::move(outer);
            throw std::runtime_error("of the application");
        } catch (const std::runtime_error &) {
        }
        return;
    }
    int in = 0;
    peerhop::queue queue = outer.make_queue();
    thrown([&] { // whichever call comes after the end
        channel.recv_into(&in, sizeof in, queue);
        queue.synchronize();
    });
    const int code = thrown([&] { channel.ended(); });
    CHECK(code == PH_EBROKEN || code == PH_EPEER);
}

int main()
{
    creation_fails();
    {
        peerhop::context context = join("moves");
        CHECK(context.ranks() == 2);
        bound_channel(context);
        exported_region(context);
        unbound_channels(context);
    }
    lives();
    exceptions();
    std::puts("done");
    return 0;
}
