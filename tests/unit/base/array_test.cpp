// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include <gtest/gtest.h>

extern "C" {
#include "base/array.h"
}

TEST(Array, KeepsWhatItHasWhileItGrows)
{
    int *numbers = nullptr;
    size_t room = 0, moves = 0;
    for (size_t count = 0; count < 1000; count++) {
        const size_t before = room;
        numbers = static_cast<int *>(phi_array_grow(numbers, count, &room, sizeof *numbers));
        ASSERT_NE(numbers, nullptr);
        ASSERT_GT(room, count);
        moves += room != before;
        numbers[count] = static_cast<int>(count);
    }
    EXPECT_LE(moves, 11u); // by doubling
    for (int i = 0; i < 1000; i++)
        ASSERT_EQ(numbers[i], i);
    free(numbers);
}
