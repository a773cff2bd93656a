// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <climits>
#include <cstring>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <peerhop/error.h>
#include <peerhop/version.h>

TEST(Result, ErrnoValuesReadAsStrerror)
{
    EXPECT_STREQ(ph_strerror(0), strerror(0));
    EXPECT_STREQ(ph_strerror(-EINVAL), strerror(EINVAL));
    EXPECT_STREQ(ph_strerror(-ETIMEDOUT), strerror(ETIMEDOUT));
}

TEST(Result, OwnCodesHaveTheirOwnText)
{
    std::set<std::string> texts;
    std::set<int> values;
#define CHECK(name, value, text)                                                                   \
    EXPECT_STREQ(ph_strerror(PH_E##name), text);                                                   \
    EXPECT_LT(PH_E##name, -4095) << "inside the range of errno";                                   \
    texts.insert(ph_strerror(PH_E##name));                                                         \
    values.insert(PH_E##name);
    PH_ERROR_MAP(CHECK)
#undef CHECK
    EXPECT_EQ(texts.size(), values.size());
}

TEST(Result, AnythingElseIsUnknown)
{
    for (int code : {1, EINVAL, -4095, -4999, -6000, INT_MAX, INT_MIN})
        EXPECT_STREQ(ph_strerror(code), "unknown error") << code;
}

TEST(Result, VersionIsThatOfTheHeader)
{
    std::string expected = std::to_string(PH_VERSION_MAJOR) + "." +
                           std::to_string(PH_VERSION_MINOR) + "." +
                           std::to_string(PH_VERSION_PATCH);
    EXPECT_EQ(ph_version(), expected);
}
