// SPDX-License-Identifier: BSD-3-Clause
// Which interface leads to the others, by what this machine has: loopback.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <gtest/gtest.h>

extern "C" {
#include "net/interface.h"
}

namespace
{

sockaddr_in address(const char *text)
{
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, text, &address.sin_addr);
    return address;
}

phi_lead lead_of(const char *name, const char *own, const char *home)
{
    const sockaddr_in at = address(own), from = address(home ? home : "0.0.0.0");
    phi_interfaces interfaces;
    phi_interfaces_look(&interfaces, home ? reinterpret_cast<const sockaddr *>(&from) : nullptr);
    const phi_lead lead =
        phi_interfaces_lead(&interfaces, name, reinterpret_cast<const sockaddr *>(&at));
    phi_interfaces_fini(&interfaces);
    return lead;
}

TEST(Interfaces, TheOneThatTheStoreIsReachedThroughLeads)
{
    EXPECT_EQ(lead_of("lo", "127.0.0.1", "127.0.0.1"), PHI_LEAD_STORE);
    EXPECT_EQ(lead_of("mlx5_0", "127.0.0.1", "127.0.0.1"), PHI_LEAD_STORE) << "by its address";
    EXPECT_EQ(lead_of("lo", "127.0.0.1", "192.0.2.7"), PHI_LEAD_OTHER);
    EXPECT_EQ(lead_of("lo", "127.0.0.1", nullptr), PHI_LEAD_OTHER);
}

TEST(Interfaces, OfWhatIsNoneOfIpNothingIsKnown)
{
    EXPECT_EQ(lead_of("mlx5_0", "192.0.2.7", "127.0.0.1"), PHI_LEAD_OTHER);
    phi_interfaces interfaces;
    phi_interfaces_look(&interfaces, nullptr);
    EXPECT_EQ(phi_interfaces_lead(&interfaces, "hsn0", nullptr), PHI_LEAD_OTHER);
    phi_interfaces_fini(&interfaces);
}

} // namespace
