// SPDX-License-Identifier: BSD-3-Clause
// Stream records, with the test in the device's place: it stores the numbers.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "semaphore/record.h"
}

namespace
{

class Records : public testing::Test
{
  protected:
    std::unique_ptr<phi_records> records{new phi_records};
    std::vector<uint64_t> done = std::vector<uint64_t>(PHI_STREAMS_MAX);

    void SetUp() override
    {
        phi_records_init(records.get(), done.data());
    }
    void TearDown() override
    {
        phi_records_fini(records.get());
    }
    int claim(uint64_t key)
    {
        return phi_record_claim(records.get(), key);
    }
    // As an issue does: n operations that touch `uses`.
    void issue(int index, phi_uses *uses)
    {
        phi_work work{};
        work.uses = uses;
        ASSERT_TRUE(phi_uses_take(records.get(), index, &work, 1));
        records->record[index].issued++;
    }
};

TEST_F(Records, KeysFindTheirRecord)
{
    EXPECT_EQ(phi_record_find(records.get(), 7), -1);
    int a = claim(7), b = claim(7 + PHI_RECORD_HINTS); // the same hint
    EXPECT_NE(a, b);
    for (int round = 0; round < 3; round++) {
        EXPECT_EQ(phi_record_find(records.get(), 7), a);
        EXPECT_EQ(phi_record_find(records.get(), 7 + PHI_RECORD_HINTS), b);
    }
    EXPECT_EQ(claim(7), a) << "claiming twice is finding";
}

TEST_F(Records, DrainedRecordsAreUsedAgainAndBusyOnesAreNot)
{
    phi_uses uses{};
    for (uint64_t key = 1; key <= PHI_STREAMS_MAX; key++) {
        int index = claim(key);
        ASSERT_GE(index, 0);
        issue(index, &uses);
    }
    EXPECT_EQ(claim(1000), -EAGAIN) << "all have something in flight";

    int freed = phi_record_find(records.get(), 17);
    done[(size_t)freed] = 1;
    EXPECT_EQ(claim(1000), freed);
    EXPECT_EQ(phi_record_find(records.get(), 17), -1);
    // The numbers go on, so that a use by the stream before it stays done.
    issue(freed, &uses);
    EXPECT_EQ(records->record[freed].issued, 2u);
    EXPECT_EQ(phi_uses_streams(records.get(), &uses), (uint32_t)PHI_STREAMS_MAX);
}

TEST_F(Records, LockSeesThatARecordWasPassedOn)
{
    int index = claim(5);
    EXPECT_TRUE(phi_record_lock(records.get(), index, 5));
    phi_record_unlock(records.get(), index);
    EXPECT_FALSE(phi_record_lock(records.get(), index, 6));
    EXPECT_TRUE(phi_record_lock(records.get(), index, 5)) << "a refused lock is not kept";
    phi_record_unlock(records.get(), index);
}

TEST_F(Records, ALockedRecordIsNotPassedOn)
{
    for (uint64_t key = 1; key <= PHI_STREAMS_MAX; key++)
        ASSERT_TRUE(phi_record_lock(records.get(), claim(key), key));
    EXPECT_EQ(claim(1000), -EAGAIN);
}

TEST_F(Records, UsesAreDrainedWhenTheirNumbersAreDone)
{
    phi_uses uses{}, other{};
    int a = claim(1), b = claim(2);
    EXPECT_EQ(phi_uses_streams(records.get(), &uses), 0u);
    issue(a, &uses);
    issue(b, &uses);
    issue(b, &other);
    EXPECT_EQ(phi_uses_streams(records.get(), &uses), 2u);
    done[(size_t)a] = 1;
    done[(size_t)b] = 1;
    EXPECT_EQ(phi_uses_streams(records.get(), &uses), 0u)
        << "later work on the stream is another's";
    EXPECT_EQ(phi_uses_streams(records.get(), &other), 1u);
}

TEST_F(Records, RevokedUsesRefuseAndTheNumberIsTakenBack)
{
    phi_uses good{}, revoked{};
    int index = claim(1);
    issue(index, &good);
    done[(size_t)index] = 1;
    revoked.revoked = 1;
    phi_work work[2]{};
    work[0].uses = &good;
    work[1].uses = &revoked;
    EXPECT_FALSE(phi_uses_take(records.get(), index, work, 2));
    EXPECT_EQ(phi_uses_streams(records.get(), &good), 0u);
    EXPECT_EQ(phi_uses_streams(records.get(), &revoked), 0u);
}

TEST_F(Records, WaitingStreamsAreCounted)
{
    int a = claim(1), b = claim(2), c = claim(3);
    records->record[a].kernel_wait = 1;
    records->record[b].memory_wait = 1;
    records->record[c].kernel_wait = 1;
    phi_waiting waiting{};
    phi_records_waiting(records.get(), -1, &waiting);
    EXPECT_EQ(waiting.kernels, 2u);
    EXPECT_EQ(waiting.memory_operations, 1u);
    waiting = {};
    phi_records_waiting(records.get(), a, &waiting);
    EXPECT_EQ(waiting.kernels, 1u) << "the asking stream itself does not count";
    EXPECT_TRUE(phi_record_waits(records.get(), a));
    done[(size_t)a] = 1;
    EXPECT_FALSE(phi_record_waits(records.get(), a));
    waiting = {};
    phi_records_waiting(records.get(), -1, &waiting);
    EXPECT_EQ(waiting.kernels, 1u);
}

TEST_F(Records, OldestWaitIsNamed)
{
    int a = claim(1), b = claim(2);
    phi_wait_note note;
    phi_work work{};
    EXPECT_FALSE(phi_records_oldest(records.get(), &note));
    for (int i = 1; i <= 3; i++) {
        work.peer = i;
        phi_record_note(records.get(), a, (uint64_t)i, &work);
    }
    work.peer = 9;
    phi_record_note(records.get(), b, 1, &work);
    ASSERT_TRUE(phi_records_oldest(records.get(), &note));
    EXPECT_EQ(note.peer, 1);
    done[(size_t)a] = 1; // what came between the first and the last is not kept
    ASSERT_TRUE(phi_records_oldest(records.get(), &note));
    EXPECT_EQ(note.peer, 3);
    done[(size_t)a] = 3;
    ASSERT_TRUE(phi_records_oldest(records.get(), &note));
    EXPECT_EQ(note.peer, 9);
    done[(size_t)b] = 1;
    EXPECT_FALSE(phi_records_oldest(records.get(), &note));
}

TEST_F(Records, InFlightIsIssuedMinusDone)
{
    phi_uses uses{};
    uint32_t streams;
    int a = claim(1), b = claim(2);
    issue(a, &uses);
    issue(a, &uses);
    issue(b, &uses);
    done[(size_t)b] = 1;
    EXPECT_EQ(phi_records_in_flight(records.get(), &streams), 2u);
    EXPECT_EQ(streams, 1u);
}

// Enqueuers against a revoker: whatever was not refused is seen by the revoker.
TEST_F(Records, RevokerSeesEveryUseThatWasNotRefused)
{
    for (int round = 0; round < 2000; round++) {
        phi_uses uses{};
        int index = claim(1);
        uint64_t before = records->record[index].issued;
        bool taken = false;
        std::thread enqueuer([&] {
            phi_work work{};
            work.uses = &uses;
            taken = phi_uses_take(records.get(), index, &work, 1);
        });
        atomic_store_explicit(&uses.revoked, 1u, memory_order_seq_cst);
        uint32_t seen = phi_uses_streams(records.get(), &uses);
        enqueuer.join();
        if (taken) {
            ASSERT_EQ(seen, 1u) << "round " << round;
            records->record[index].issued = before + 1;
            done[(size_t)index] = before + 1;
        }
    }
}

} // namespace
