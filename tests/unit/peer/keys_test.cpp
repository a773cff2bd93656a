// SPDX-License-Identifier: BSD-3-Clause
// The buffers of a peer as a key knows them.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "peer/keys.h"
#include "peer/peer.h"
}

namespace
{

class Keys : public testing::Test
{
  protected:
    phi_key key = {};

    Keys()
    {
        key.peer = static_cast<phi_peer *>(calloc(1, sizeof(phi_peer))); // not connected
        key.slot = PHI_NO_SLOT;
    }
    ~Keys() override
    {
        free(key.theirs.list);
        free(key.peer);
    }
    int tell(uint32_t number, uint64_t size = 0)
    {
        phi_peer_buffer buffer = {};
        buffer.number = number;
        buffer.size = size ? size : number;
        buffer.ranges.count = 1;
        return phi_key_tell(&key, &buffer);
    }
};

TEST_F(Keys, TheirBuffersAreFoundInWhateverOrderTheyCome)
{
    std::vector<uint32_t> numbers;
    for (uint32_t i = 1; i <= 500; i++)
        numbers.push_back(3 * i);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
    for (uint32_t number : numbers)
        ASSERT_EQ(tell(number), 0);
    for (uint32_t number : numbers) {
        ASSERT_EQ(tell(number, 1), 0); // keeps what it means
        ASSERT_EQ(phi_key_theirs(&key, number)->size, number);
        ASSERT_EQ(phi_key_theirs(&key, number - 1), nullptr);
        ASSERT_EQ(phi_key_theirs(&key, number + 1), nullptr);
    }
    EXPECT_EQ(key.theirs.count, 500u);
    EXPECT_EQ(tell(0), -EBADMSG);
    EXPECT_EQ(tell(PHI_AGREEMENT_GONE), -EBADMSG);
}

// As many as there may be: what each message costs does not grow with them.
TEST_F(Keys, APeerThatOffersWithoutEndTakesLittleTime)
{
    const clock_t begin = clock(); // of this process: what else runs does not count
    const uint32_t most = 65536;
    for (uint32_t number = 1; number <= most; number++)
        ASSERT_EQ(tell(2 * number), 0);
    EXPECT_EQ(tell(2 * most + 2), -EBADMSG);
    for (int round = 0; round < 4; round++)
        for (uint32_t number = 1; number <= most; number++)
            ASSERT_EQ(phi_key_theirs(&key, 2 * number)->number, 2 * number);
    EXPECT_LT(static_cast<double>(clock() - begin) / CLOCKS_PER_SEC, 3);
}

TEST_F(Keys, APeerWhoseNumbersShrinkIsRefusedInTheEnd)
{
    const uint32_t most = 65536;
    uint32_t number = most;
    while (number > 1 && tell(number) == 0)
        number--;
    EXPECT_LT(most - number, 2000u); // 1 + 2 + 3 + ... moved
    EXPECT_GT(most - number, 1000u);
    EXPECT_EQ(tell(most + 1), 0) << "what grows is taken";
}

} // namespace
