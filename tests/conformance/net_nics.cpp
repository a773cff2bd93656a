// SPDX-License-Identifier: BSD-3-Clause
// TEST_NET_NICS=2: all tests of this program go over two NICs, in a network of their own.
#include "conformance/net_ends.h"

#include <sched.h>

#include <cstdlib>

namespace
{

class TwoNics : public testing::Environment
{
    void SetUp() override
    {
        if (getenv("TEST_NET_NICS") == nullptr)
            return;
        if (unshare(CLONE_NEWNET) != 0 ||
            system("ip link set lo up && ip link add nic1 type veth peer name nic2 && "
                   "for i in 1 2; do ip addr add 10.79.$i.1/24 dev nic$i && ip link set nic$i up; "
                   "done && "
                   "for i in $(seq 1000); do [ $(ip link show | grep -c 'nic.*state UP') = 2 ] && "
                   "exit 0; "
                   "sleep 0.01; done; exit 1") != 0)
            GTEST_SKIP() << "no networks of one's own here: they need root and the ip command";
        setenv("PEERHOP_NET_INTERFACE", "nic1,nic2", 1);
    }
};
const auto *const nics = testing::AddGlobalTestEnvironment(new TwoNics);

TEST(NetNics, AllThatAreNamedAreTakenAndTheirRegionsHaveKeysOfTheirOwn)
{
    if (getenv("TEST_NET_NICS") == nullptr)
        GTEST_SKIP() << "one NIC";
    End end;
    uint64_t memory[64];
    struct phi_net_target target;
    ASSERT_EQ(end.open({"PEERHOP_NET_PROVIDER=tcp"}), 0) << end.context->error();
    EXPECT_NE(std::string(phi_net_name(end.net)).find("nic1, nic2"), std::string::npos)
        << phi_net_name(end.net);
    ASSERT_EQ(phi_link_register(end.link, 1, memory, sizeof memory), 0);
    ASSERT_TRUE(phi_link_target(end.link, 1, &target));
    EXPECT_EQ(target.rails, 2);
    EXPECT_NE(target.keys[0], target.keys[1]);
}

} // namespace
