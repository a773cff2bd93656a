// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/clock.h"
#include "store/gate.h"
}

namespace
{

class Gate : public testing::Test
{
  protected:
    Gate()
    {
        EXPECT_EQ(phi_gate_init(&gate), 0);
    }
    ~Gate() override
    {
        phi_gate_fini(&gate);
    }
    phi_gate gate;
};

TEST_F(Gate, LetsOneIn)
{
    EXPECT_EQ(phi_gate_enter(&gate, phi_deadline(1000)), 0);
    EXPECT_FALSE(phi_gate_try(&gate));
    int64_t start = phi_now();
    EXPECT_EQ(phi_gate_enter(&gate, phi_deadline(30)), -ETIMEDOUT);
    EXPECT_GE(phi_now() - start, 29 * PHI_MS);
    EXPECT_EQ(phi_gate_enter(&gate, 0), -ETIMEDOUT); // long gone
    phi_gate_leave(&gate);
    EXPECT_TRUE(phi_gate_try(&gate));
    phi_gate_leave(&gate);
    EXPECT_EQ(phi_gate_enter(&gate, 0), 0); // free: the deadline does not matter
    phi_gate_leave(&gate);
}

TEST_F(Gate, Excludes)
{
    int count = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int n = 0; n < 500; n++) {
                EXPECT_EQ(phi_gate_enter(&gate, PHI_FOREVER), 0);
                count++; // a race here is what the thread sanitizer would see
                phi_gate_leave(&gate);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(count, 2000);
}

} // namespace
