// SPDX-License-Identifier: BSD-3-Clause
// One-sided regions: who attaches by the bytes of an export, while the owner's application sleeps,
// and what becomes of it when the region is closed, released, or its owner ends.
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <thread>

#include <unistd.h>

#include "e2e/exchanging.h"
#include "e2e/own_pids.h"

extern "C" {
#include "base/clock.h"
#include "base/random.h"
#include "peer/node.h"
}

class OneSided : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(OneSided);

class OneSidedHost : public testing::Test
{
};

namespace
{

const size_t size = 100000;

// ---- the owner

struct Owner {
    void *memory = nullptr;
    ph_region *region = nullptr;
};

// Exports memory with a pattern, and leaves the bytes where the others look.
Owner export_to_all(Rank &rank, uint32_t access, size_t bytes = size)
{
    Owner owner;
    owner.memory = rank.device->alloc(bytes);
    rank.device->fill(owner.memory, bytes, 7);
    unsigned char exported[PH_REGION_BYTES];
    CHECK_OK(ph_region_export(rank.context, owner.memory, bytes, access, exported, &owner.region));
    memcpy(rank.shared->text[0], exported, sizeof exported);
    rank.shared->value[0] = 1;
    return owner;
}

// The application sleeps in a system call until the test wakes it. No thread of the library takes
// the signal.
void sleep_until_woken(Rank &rank)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    rank.shared->value[1] = 1;
    const timespec longest = {60, 0};
    CHECK(sigtimedwait(&set, nullptr, &longest) == SIGUSR1);
}

// ---- those who attach

std::vector<unsigned char> exported_bytes(Rank &rank)
{
    CHECK(reaches(rank.shared->value[0], 1));
    const auto *bytes = reinterpret_cast<const unsigned char *>(rank.shared->text[0]);
    return {bytes, bytes + PH_REGION_BYTES};
}

ph_channel *attach(Rank &rank, const std::vector<unsigned char> &bytes, void *memory)
{
    ph_channel *channel = nullptr;
    CHECK_OK(ph_region_attach(rank.context, bytes.data(), bytes.size(), memory, size,
                              patience(20000).count(), &channel));
    return channel;
}

void refused(Rank &rank, const std::vector<unsigned char> &bytes, void *memory, int rc,
             const std::string &what)
{
    ph_channel *channel = nullptr;
    CHECK_RC(ph_region_attach(rank.context, bytes.data(), bytes.size(), memory, size, 0, &channel),
             rc);
    CHECK(channel == nullptr);
    CHECK_SAYS(rank.error(), what);
}

void pull(Rank &rank, ph_channel *channel, void *memory)
{
    void *stream = rank.device->stream();
    rank.device->fill(memory, size, 99);
    CHECK_OK(ph_get(channel, 0, 0, size, stream));
    rank.synchronize(stream);
    rank.verify(memory, size, 7, "what was pulled");
}

// Where the members of an export lie (service/attach.c).
enum { LIFE = 12, JOB = 20, SECRET = 36, HOST = 52 };

// Bytes with some changed, and a right sum again: as one makes them who knows the form.
std::vector<unsigned char> forged(std::vector<unsigned char> bytes, size_t at,
                                  const std::string &text = "")
{
    if (text.empty())
        bytes[at] ^= 1;
    else
        std::copy(text.begin(), text.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
    uint64_t sum = 0x47524850;
    for (size_t i = 0; i < PH_REGION_BYTES - 8; i++)
        sum = phi_hash(sum, bytes[i]);
    for (size_t i = 0; i < 8; i++)
        bytes[PH_REGION_BYTES - 8 + i] = static_cast<unsigned char>(sum >> (8 * i));
    return bytes;
}

// The same export, with the name of a socket at which nobody listens.
std::vector<unsigned char> elsewhere(const std::vector<unsigned char> &bytes)
{
    const size_t host = bytes[HOST], name = HOST + 4 + host + 4;
    return forged(bytes, name + bytes[name - 4] - 16, "0000000000000000");
}

// A process of this user that has found the socket, and asks whatever it likes.
void asks_nonsense(Rank &rank, const std::vector<unsigned char> &bytes)
{
    const size_t name = HOST + 8 + bytes[HOST];
    const std::string path(bytes.begin() + static_cast<ptrdiff_t>(name),
                           bytes.begin() + static_cast<ptrdiff_t>(name + bytes[name - 4]));
    phi_node_message good = {};
    good.magic = PHI_NODE_MAGIC;
    good.version = PHI_NODE_VERSION;
    good.type = PHI_NODE_ATTACH;
    good.rank = rank.rank;
    memcpy(&good.to, &bytes[LIFE], sizeof good.to);
    memcpy(&good.a, &bytes[SECRET - 8], sizeof good.a);
    good.bytes_size = 16;
    memcpy(good.bytes, &bytes[SECRET], 16);
    const auto ask = [&](const phi_node_message &request) {
        int fd = -1, socket = -1;
        phi_node_message answer = {};
        CHECK(phi_node_connect(path.c_str(), &socket) == 0);
        CHECK(phi_node_call(socket, &request, &answer, &fd, phi_deadline(20000)) == 0);
        CHECK(fd < 0);
        close(socket);
        if (answer.status) // it tells nothing else
            CHECK(answer.a == 0 && answer.b == 0 && answer.c == 0);
        return answer.status;
    };
    for (const int32_t other : {-1, rank.ranks, INT32_MAX, 0}) {
        phi_node_message request = good;
        request.rank = other;
        CHECK(ask(request) == -EINVAL);
    }
    for (const uint32_t length : {0u, 15u, 17u}) {
        phi_node_message request = good;
        request.bytes_size = length;
        CHECK(ask(request) == -EINVAL);
    }
    phi_node_message request = good;
    request.a ^= 1;
    CHECK(ask(request) == -ESTALE);
    request = good;
    request.b = 1; // a rank that asks, and does not come
    CHECK(ask(request) == 0);
}

} // namespace

// ---- attach

RANK_FUNCTION(is_pulled_from)
{
    rank.open();
    if (rank.rank == 1) {
        const Owner owner = export_to_all(rank, PH_REGION_READ);
        sleep_until_woken(rank);
        rank.verify(owner.memory, size, 7, "what others have read");
        return;
    }
    const auto bytes = exported_bytes(rank);
    CHECK(reaches(rank.shared->value[1], 1)); // the owner sleeps
    void *memory = rank.device->alloc(size);
    ph_channel *channel = attach(rank, bytes, memory);
    CHECK(ph_channel_peer(channel) == 1);
    CHECK_EQUAL(ph_channel_peer_size(channel), size);
    for (int i = 0; i < 3; i++)
        pull(rank, channel, memory);
    CHECK_RC(ph_put(channel, 0, 0, 8, rank.device->stream()), -EINVAL); // it may be read alone
    const Stopwatch watch;
    CHECK(attach(rank, bytes, memory) == channel);
    const int64_t ms = watch.ms();
    printf("rank %d attached what is mapped in %lld ms (bar 2)\n", rank.rank,
           static_cast<long long>(ms));
    CHECK(ms <= (getenv("PEERHOP_TEST_BARS") ? 2 : patience(5000).count()));
    // Other memory of this rank: another channel.
    void *other = rank.device->alloc(size);
    ph_channel *second = attach(rank, bytes, other);
    CHECK(second != channel);
    pull(rank, second, other);
    CHECK_OK(ph_channel_close(channel));
    CHECK_OK(ph_channel_close(channel));
    CHECK_OK(ph_channel_close(second));
    rank.shared->value[2]++;
}

TEST_P(OneSided, IsPulledFromWhileTheOwnerSleeps)
{
    const int ranks = 4;
    Job job(GetParam(), ranks);
    job.start("is_pulled_from");
    EXPECT_TRUE(reaches(job.shared()->value[2], ranks - 1, 60000)) << job.wait(100);
    job.signal(1, SIGUSR1);
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(is_written_to)
{
    rank.open();
    const bool both = rank.argument == "both";
    if (rank.rank == 0) {
        const Owner owner = export_to_all(rank, both ? PH_REGION_READ | PH_REGION_WRITE
                                                     : uint32_t{PH_REGION_WRITE});
        sleep_until_woken(rank);
        rank.verify(owner.memory, size, 3, "what was put");
        return;
    }
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = attach(rank, exported_bytes(rank), memory);
    if (both)
        pull(rank, channel, memory);
    else
        CHECK_RC(ph_get(channel, 0, 0, 8, stream), -EINVAL);
    rank.device->fill(memory, size, 3);
    CHECK_OK(ph_put(channel, 0, 0, size, stream));
    rank.synchronize(stream);
    CHECK(reaches(rank.shared->value[1], 1));
    rank.shared->value[2] = 1;
}

TEST_P(OneSided, IsWrittenToWhereTheExportSaysSo)
{
    for (const char *access : {"write", "both"}) {
        SCOPED_TRACE(access);
        Job job(GetParam(), 2);
        job.start("is_written_to", access);
        EXPECT_TRUE(reaches(job.shared()->value[2], 1, 60000)) << job.wait(100);
        job.signal(0, SIGUSR1);
        EXPECT_EQ(job.wait(), "");
    }
}

// Each rank is owner and attaches, in threads, while its application exchanges besides.
RANK_FUNCTION(attaches_all)
{
    rank.open();
    char *memory = static_cast<char *>(rank.device->alloc(size * 8));
    rank.device->fill(memory, size, 7);
    unsigned char exported[PH_REGION_BYTES];
    ph_region *region = nullptr;
    CHECK_OK(ph_region_export(rank.context, memory, size, PH_REGION_READ, exported, &region));
    memcpy(rank.shared->text[rank.rank], exported, sizeof exported);
    rank.barrier();
    std::vector<std::thread> threads;
    std::vector<ph_channel *> channels(static_cast<size_t>(rank.ranks), nullptr);
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            threads.emplace_back([&, peer] {
                for (int i = 0; i < 10; i++)
                    CHECK_OK(ph_region_attach(
                        rank.context, rank.shared->text[peer], PH_REGION_BYTES,
                        memory + size * static_cast<size_t>(peer + 1), size,
                        patience(20000).count(), &channels[static_cast<size_t>(peer)]));
            });
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            rank.channel(peer, 1, PH_ROLE_BOTH, memory + size * 7, size);
    for (std::thread &thread : threads)
        thread.join();
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            pull(rank, channels[static_cast<size_t>(peer)],
                 memory + size * static_cast<size_t>(peer + 1));
    rank.barrier();
    rank.close();
}

TEST_P(OneSided, EachAttachesEachAtOnce)
{
    Job job(GetParam(), 4);
    EXPECT_EQ(job.run("attaches_all"), "");
}

// The bar: 2 ms for 1 GiB that is mapped, be it attached again or with other memory.
RANK_FUNCTION(attaches_much)
{
    const size_t much = size_t{1} << 30;
    rank.open();
    if (rank.rank == 0) {
        unsigned char exported[PH_REGION_BYTES];
        ph_region *region = nullptr;
        CHECK_OK(ph_region_export(rank.context, rank.device->alloc(much), much, PH_REGION_READ,
                                  exported, &region));
        memcpy(rank.shared->text[0], exported, sizeof exported);
        rank.shared->value[0] = 1;
        sleep_until_woken(rank);
        return;
    }
    const auto bytes = exported_bytes(rank);
    char *memory = static_cast<char *>(rank.device->alloc(size * 12));
    for (const bool other : {false, true}) {
        std::vector<int64_t> all;
        for (size_t i = 0; i < 12; i++) {
            const auto begin = std::chrono::steady_clock::now();
            attach(rank, bytes, memory + (other ? i * size : 0));
            all.push_back(std::chrono::duration_cast<std::chrono::microseconds>(
                              std::chrono::steady_clock::now() - begin)
                              .count());
        }
        printf("1 GiB, %s: first %lld us", other ? "with other memory" : "again",
               static_cast<long long>(all[0]));
        all.erase(all.begin());
        std::sort(all.begin(), all.end());
        printf(", then median %lld us, at most %lld (bar 2000)\n",
               static_cast<long long>(all[all.size() / 2]), static_cast<long long>(all.back()));
        CHECK(all[all.size() / 2] <= (getenv("PEERHOP_TEST_BARS") ? 2000 : 2000000));
    }
    rank.shared->value[2] = 1;
}

TEST_F(OneSidedHost, AttachesOneGiB)
{
    Job job("host", 2);
    job.start("attaches_much");
    EXPECT_TRUE(reaches(job.shared()->value[2], 1, 60000)) << job.wait(100);
    job.signal(0, SIGUSR1);
    EXPECT_EQ(job.wait(), "");
}

// ---- bytes that are refused

RANK_FUNCTION(is_refused)
{
    rank.open();
    void *memory = rank.device->alloc(size);
    if (rank.rank == 0) {
        const Owner owner = export_to_all(rank, PH_REGION_READ);
        refused(rank, exported_bytes(rank), memory, -EINVAL, "is of this rank (0) itself");
        unsigned char more[PH_REGION_BYTES];
        ph_region *none = nullptr;
        CHECK_RC(ph_region_export(rank.context, memory, size, 0, more, &none), -EINVAL);
        CHECK_RC(ph_region_export(rank.context, memory, size, 4, more, &none), -EINVAL);
        CHECK_RC(ph_region_export(rank.context, nullptr, size, 1, more, &none), -EINVAL);
        CHECK_RC(ph_region_export(rank.context, memory, size << 20, 1, more, &none), -EINVAL);
        CHECK(none == nullptr);
        CHECK(reaches(rank.shared->value[2], 1));
        ph_region *region = owner.region;
        CHECK_OK(ph_region_close(&region));
        CHECK(region == nullptr);
        CHECK_RC(ph_region_close(&region), -EINVAL);
        rank.shared->value[3] = 1;
        rank.barrier();
        return;
    }
    const auto bytes = exported_bytes(rank);
    const std::string none = "are no export of a region";
    refused(rank, {bytes.begin(), bytes.end() - 1}, memory, -EBADMSG, none);
    refused(rank, {bytes.begin(), bytes.begin() + 3}, memory, -EBADMSG, none);
    refused(rank, std::vector<unsigned char>(PH_REGION_BYTES), memory, -EBADMSG, none);
    for (size_t at = 8; at < PH_REGION_BYTES; at++) { // behind the magic and the version
        auto damaged = bytes;
        damaged[at] ^= 0x10;
        refused(rank, damaged, memory, -EBADMSG, "has been damaged");
    }
    refused(rank, forged(bytes, 4), memory, -EBADMSG, "one version of the library");
    refused(rank, forged(bytes, SECRET), memory, -EACCES, "does not know the secret");
    refused(rank, forged(bytes, SECRET + 15), memory, -EACCES, "does not know the secret");
    refused(rank, forged(bytes, LIFE), memory, -ESTALE, "this life of the rank is over");
    refused(rank, forged(bytes, JOB), memory, PH_EMISMATCH, "of another job");
    refused(rank, forged(bytes, HOST + 3), memory, -EBADMSG, "malformed");
    refused(rank, bytes, nullptr, -EINVAL, "are no buffer");
    if (geteuid() == 0 && seteuid(65533) == 0) {
        ph_channel *channel = nullptr;
        const int rc =
            ph_region_attach(rank.context, bytes.data(), bytes.size(), memory, size, 0, &channel);
        CHECK(seteuid(0) == 0);
        CHECK_RC(rc, -EPERM);
        CHECK_SAYS(rank.error(), "its process is of another user");
    }
    asks_nonsense(rank, bytes);
    // None of these has harmed the region, or the rank.
    ph_channel *channel = attach(rank, bytes, memory);
    pull(rank, channel, memory);
    rank.shared->value[2] = 1;
    CHECK(reaches(rank.shared->value[3], 1));
    refused(rank, bytes, memory, -ESTALE, "it was closed");
    pull(rank, channel, memory); // what was attached goes on
    rank.barrier();
}

TEST_P(OneSided, RefusesBytesThatAreForgedOldOrCut)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_refused"), "");
}

// The owner's socket is not to be reached.
RANK_FUNCTION(has_no_socket)
{
    rank.open();
    void *memory = rank.device->alloc(size);
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ);
    } else {
        const auto bytes = elsewhere(exported_bytes(rank));
        refused(rank, bytes, memory, PH_ENOPATH, "the two ranks have not met");
    }
    rank.channel(1 - rank.rank, 1, PH_ROLE_BOTH, memory, size); // now they have
    if (rank.rank == 1) {
        const auto bytes = elsewhere(exported_bytes(rank));
        if (rank.argument == "net")
            pull(rank, attach(rank, bytes, memory), memory);
        else
            refused(rank, bytes, memory, PH_ENOPATH, "its socket is not reached from here");
    }
    rank.barrier();
}

TEST_P(OneSided, OverTheNetRanksThatHaveMetNeedNoSocket)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("has_no_socket", on_net() ? "net" : ""), "");
}

// ---- the end of a region

RANK_FUNCTION(is_released)
{
    rank.open();
    if (rank.rank == 0) {
        const Owner owner = export_to_all(rank, PH_REGION_READ);
        CHECK(reaches(rank.shared->value[2], 1)); // the other makes no call until value[3]
        const Stopwatch watch;
        release_to(rank, owner.memory, size, PH_RELEASE_DRAINED);
        const int64_t ms = watch.ms();
        printf("a region was drained in %lld ms (bar 100)\n", static_cast<long long>(ms));
        CHECK(ms <= (getenv("PEERHOP_TEST_BARS") ? 100 : patience(5000).count()));
        rank.shared->value[3] = 1;
        CHECK(reaches(rank.shared->value[2], 2));
        // The memory is free for another export.
        ph_region *region = owner.region;
        CHECK_OK(ph_region_close(&region));
        export_to_all(rank, PH_REGION_READ);
        rank.shared->value[3] = 2;
        rank.barrier();
        return;
    }
    const auto bytes = exported_bytes(rank);
    void *memory = rank.device->alloc(size);
    ph_channel *channel = attach(rank, bytes, memory);
    pull(rank, channel, memory);
    rank.shared->value[2] = 1;
    CHECK(reaches(rank.shared->value[3], 1));
    CHECK_RC(ph_channel_ended(channel), -ESTALE);
    CHECK_RC(ph_get(channel, 0, 0, 8, rank.device->stream()), -ESTALE);
    refused(rank, bytes, memory, -ESTALE, "its memory was released");
    CHECK_OK(ph_channel_close(channel));
    rank.shared->value[2] = 2;
    CHECK(reaches(rank.shared->value[3], 2));
    refused(rank, bytes, memory, -ESTALE, "it was closed");
    pull(rank, attach(rank, exported_bytes(rank), memory), memory);
    rank.barrier();
}

TEST_P(OneSided, ReleasedMemoryDrainsWithoutACallOfThePuller)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_released"), "");
}

// Memory that was freed without a release, and other memory at its address.
RANK_FUNCTION(is_freed)
{
    rank.open();
    if (rank.rank == 0) {
        const Owner owner = export_to_all(rank, PH_REGION_READ);
        rank.device->release(owner.memory);
        rank.shared->value[2] = 1;
    } else {
        CHECK(reaches(rank.shared->value[2], 1));
        refused(rank, exported_bytes(rank), rank.device->alloc(size), -ESTALE, "released or freed");
    }
    rank.barrier();
}

TEST_P(OneSided, FreedMemoryIsNotAttached)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_freed"), "");
}

// ---- ends

RANK_FUNCTION(loses_its_owner)
{
    rank.open();
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ);
        sleep_until_woken(rank); // it is killed
        return;
    }
    const auto bytes = exported_bytes(rank);
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = attach(rank, bytes, memory);
    int rc = 0;
    const Stopwatch watch;
    while (rc == 0 && watch.ms() < patience(45000).count()) {
        rc = ph_get(channel, 0, 0, size, stream);
        if (rc == 0)
            rank.goes_on_without(0, stream);
        rank.shared->value[2]++;
    }
    CHECK_RC(rc, PH_EPEER);
    CHECK_SAYS(rank.error(), "rank 0");
    ph_channel *none = nullptr;
    rc = ph_region_attach(rank.context, bytes.data(), bytes.size(), memory, size, 0, &none);
    CHECK(rc == PH_ENOPATH || rc == -ESTALE);
    CHECK_SAYS(rank.error(), "of rank 0");
    CHECK_OK(ph_channel_close(channel));
}

TEST_P(OneSided, TheOwnerIsKilledInMidPull)
{
    Job job(GetParam(), 2);
    job.expect_failure(0);
    job.start("loses_its_owner");
    EXPECT_TRUE(reaches(job.shared()->value[2], 5, 60000)) << job.wait(100);
    job.signal(0, SIGKILL);
    job.status(0, 45000);
    EXPECT_EQ(job.wait(), "");
}

// A rank that attaches ends in the middle of it: others go on.
RANK_FUNCTION(outlives_who_attaches)
{
    rank.open();
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ);
        sleep_until_woken(rank);
        return;
    }
    const auto bytes = exported_bytes(rank);
    void *memory = rank.device->alloc(size);
    if (rank.rank == 1) {
        rank.shared->value[3] = 1;
        for (;;) {
            ph_channel *channel = attach(rank, bytes, memory);
            CHECK_OK(ph_channel_close(channel));
            rank.shared->value[4]++;
        }
    }
    CHECK(reaches(rank.shared->value[5], 1)); // rank 1 is dead
    pull(rank, attach(rank, bytes, memory), memory);
    rank.shared->value[2] = 1;
}

TEST_P(OneSided, WhoAttachesIsKilledAndOthersGoOn)
{
    Job job(GetParam(), 3);
    job.expect_failure(1);
    job.start("outlives_who_attaches");
    EXPECT_TRUE(reaches(job.shared()->value[4], 20, 60000)) << job.wait(100);
    job.signal(1, SIGKILL);
    job.status(1, 45000);
    job.shared()->value[5] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 1, 60000)) << job.wait(100);
    job.signal(0, SIGUSR1);
    EXPECT_EQ(job.wait(), "");
}

// The owner destroys its context while others attach.
RANK_FUNCTION(leaves_those_who_attach)
{
    rank.open();
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ); // destroy closes it
        CHECK(reaches(rank.shared->value[2], 20));
        rank.close();
        return;
    }
    const auto bytes = exported_bytes(rank);
    void *memory = rank.device->alloc(size);
    int rc = 0;
    while (rc == 0) {
        ph_channel *channel = nullptr;
        rc = ph_region_attach(rank.context, bytes.data(), bytes.size(), memory, size,
                              patience(3000).count(), &channel);
        if (rc == 0)
            CHECK_OK(ph_channel_close(channel));
        rank.shared->value[2]++;
    }
    // -ETIMEDOUT: it left between its answer and the exchange, before the two ranks had met.
    if (rc != PH_EPEER && rc != PH_ENOPATH && rc != -ESTALE && rc != -ETIMEDOUT)
        rank_failed(__FILE__, __LINE__, ph_strerror(rc) + (": " + rank.error()));
    rank.close();
}

TEST_P(OneSided, TheOwnerLeavesWhileOthersAttach)
{
    Job job(GetParam(), 4);
    EXPECT_EQ(job.run("leaves_those_who_attach"), "");
}

// ---- many, and far

RANK_FUNCTION(joins_late)
{
    rank.open();
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ);
        sleep_until_woken(rank);
        return;
    }
    void *memory = rank.device->alloc(size);
    pull(rank, attach(rank, exported_bytes(rank), memory), memory);
    rank.close();
}

TEST_F(OneSidedHost, SixtyThreeRanksJoinLateOneByOne)
{
    const int ranks = 64;
    Job job("host", ranks);
    job.start_rank(0, "joins_late");
    ASSERT_TRUE(reaches(job.shared()->value[1], 1));
    for (int rank = 1; rank < ranks; rank++) {
        job.start_rank(rank, "joins_late");
        ASSERT_EQ(job.status(rank, 60000), 0) << "rank " << rank << ": " << job.wait(100);
    }
    job.signal(0, SIGUSR1);
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(pulls_from_a_container)
{
    rank.open();
    if (rank.rank == 0) {
        export_to_all(rank, PH_REGION_READ);
    } else {
        void *memory = rank.device->alloc(size);
        ph_channel *channel = attach(rank, exported_bytes(rank), memory);
        pull(rank, channel, memory);
        CHECK_SAYS(report_of(rank, channel, false).path, "ipc");
    }
    rank.barrier();
}

TEST_F(OneSidedHost, InPidNamespacesOfTheirOwn)
{
    auto job = std::make_unique<Job>("host", 2);
    pid_t first[2];
    for (int rank = 0; rank < 2; rank++)
        if ((first[rank] = start_in_a_container(*job, rank, "pulls_from_a_container", "")) < 0)
            GTEST_SKIP() << "this process may not make namespaces";
    EXPECT_EQ(job->wait(), "");
    job.reset();
    for (pid_t pid : first)
        end_container(pid);
}
