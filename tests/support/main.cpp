// SPDX-License-Identifier: BSD-3-Clause
// The main function of every test binary. One whose tests were all skipped must not count as
// passed.
#include <cstdio>

#include <gtest/gtest.h>

static const int SKIPPED = 77; // as Meson and CTest understand it

// A test that starts its own binary as a rank ("--child ROLE ...") defines this; the weak one says
// that there is none.
extern "C" __attribute__((weak)) int test_child_main(int argc, char **argv);

int main(int argc, char **argv)
{
    if (test_child_main && argc > 1 && std::string(argv[1]) == "--child")
        return test_child_main(argc - 2, argv + 2);

    setvbuf(stdout, nullptr, _IOLBF, 0); // what a test said is not lost when it is killed
    testing::InitGoogleTest(&argc, argv);
    int rc = RUN_ALL_TESTS();
    const testing::UnitTest *all = testing::UnitTest::GetInstance();
    if (rc == 0 && all->skipped_test_count() == all->test_to_run_count())
        return SKIPPED;
    return rc;
}
