// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/map.h"
#include "base/random.h"
}

namespace
{

bool same(const void *value, const void *key)
{
    return *static_cast<const int *>(value) == *static_cast<const int *>(key);
}

class Map : public testing::Test
{
  protected:
    void TearDown() override
    {
        phi_map_fini(&map);
    }

    std::set<void *> walk() const
    {
        std::set<void *> values;
        size_t cursor = 0;
        while (void *value = phi_map_next(&map, &cursor))
            EXPECT_TRUE(values.insert(value).second) << "a value came twice";
        return values;
    }

    phi_map map{};
};

TEST_F(Map, EmptyHoldsNothing)
{
    int key = 1;
    size_t cursor = 0;
    EXPECT_EQ(phi_map_find(&map, 1, same, &key), nullptr);
    EXPECT_FALSE(phi_map_remove(&map, 1, &key));
    EXPECT_EQ(phi_map_next(&map, &cursor), nullptr);
    phi_map_fini(&map);
}

TEST_F(Map, TellsEqualHashesApart)
{
    int values[40];
    for (int i = 0; i < 40; i++) {
        values[i] = i;
        ASSERT_EQ(phi_map_insert(&map, 5, &values[i]), 0);
    }
    for (int i = 0; i < 40; i++)
        EXPECT_EQ(phi_map_find(&map, 5, same, &i), &values[i]);
    int absent = 40;
    EXPECT_EQ(phi_map_find(&map, 5, same, &absent), nullptr);
    EXPECT_EQ(phi_map_find(&map, 6, same, &values[0]), nullptr) << "the hash is part of the key";
    EXPECT_TRUE(phi_map_remove(&map, 5, &values[3]));
    EXPECT_FALSE(phi_map_remove(&map, 5, &values[3]));
    EXPECT_EQ(phi_map_find(&map, 5, same, &values[3]), nullptr);
    EXPECT_EQ(phi_map_find(&map, 5, same, &values[39]), &values[39]) << "the chain was cut";
}

TEST_F(Map, RemoveIsByIdentity)
{
    int value = 1, twin = 1;
    ASSERT_EQ(phi_map_insert(&map, 9, &value), 0);
    EXPECT_FALSE(phi_map_remove(&map, 9, &twin));
    EXPECT_TRUE(phi_map_remove(&map, 9, &value));
    EXPECT_EQ(map.count, 0u);
}

TEST_F(Map, WalkWithRemovalSeesEveryValueOnce)
{
    std::vector<int> values(1000);
    for (int i = 0; i < 1000; i++) {
        values[i] = i;
        ASSERT_EQ(phi_map_insert(&map, phi_hash(i, 0), &values[i]), 0);
    }
    EXPECT_EQ(walk().size(), 1000u);
    size_t cursor = 0;
    while (void *value = phi_map_next(&map, &cursor))
        EXPECT_TRUE(phi_map_remove(&map, phi_hash(*static_cast<int *>(value), 0), value));
    EXPECT_EQ(map.count, 0u);
    EXPECT_TRUE(walk().empty());
}

// Deleted entries must not fill the table: it would grow, or a search would never end.
TEST_F(Map, ChurnDoesNotGrowTheTable)
{
    int value = 1;
    for (uint64_t i = 0; i < 100000; i++) {
        ASSERT_EQ(phi_map_insert(&map, phi_hash(i, 1), &value), 0);
        ASSERT_TRUE(phi_map_remove(&map, phi_hash(i, 1), &value));
    }
    EXPECT_LE(map.capacity, 64u);
    EXPECT_LT(map.used, map.capacity);
}

TEST_F(Map, AgreesWithAModel)
{
    std::mt19937 random(1);
    std::vector<int> values(500);
    std::set<int> model;
    for (int i = 0; i < 500; i++)
        values[i] = i;
    for (int step = 0; step < 50000; step++) {
        int i = (int)(random() % 500);
        uint64_t hash = phi_hash(i % 100, 0); // five values share each hash
        if (model.count(i)) {
            ASSERT_TRUE(phi_map_remove(&map, hash, &values[i]));
            model.erase(i);
        } else {
            ASSERT_EQ(phi_map_insert(&map, hash, &values[i]), 0);
            model.insert(i);
        }
        int probe = (int)(random() % 500);
        void *found = phi_map_find(&map, phi_hash(probe % 100, 0), same, &probe);
        ASSERT_EQ(found, model.count(probe) ? &values[probe] : nullptr);
        ASSERT_EQ(map.count, model.size());
    }
    EXPECT_EQ(walk().size(), model.size());
}

} // namespace
