// SPDX-License-Identifier: BSD-3-Clause
// Which of the providers that libfabric offers is taken, and what is said against the others.
#include "support/atomic_compat.h"

#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/plain_context.h"
#include "support/sysfs.h"
#include "unit/net/offers.h"

namespace
{

const char BETTER[] = "a better one was taken";
const char ASKED[] = "only where PEERHOP_NET_PROVIDER names it";
const char UNKNOWN[] = "not known to serve: only where PEERHOP_NET_PROVIDER names it";

struct Said {
    std::string provider, domain, reason; // reason "": it was taken

    bool operator==(const Said &other) const
    {
        return provider == other.provider && domain == other.domain && reason == other.reason;
    }
};
std::ostream &operator<<(std::ostream &out, const Said &said)
{
    return out << said.provider << " (" << said.domain << "): " << said.reason;
}

offer of(const char *provider, const char *domain = "d0", const char *address = nullptr,
         int opens = 0)
{
    return {provider, domain, address, nullptr, nullptr, 0, opens, 8, 8, false, false};
}

// What is found among offers, with settings ("PEERHOP_NET_PROVIDER=tcp").
class Found
{
  public:
    explicit Found(const std::vector<offer> &offers, const char *setting = nullptr,
                   const phi_pci_place &near = {})
    {
        const char *settings[] = {setting, nullptr};
        PlainContext context(settings);
        phi_net_candidate candidates[64];
        size_t count = 0;
        rc = offers_find(offers.data(), offers.size(), &context.report, &context.config, &near,
                         candidates, 64, &count, &tried);
        for (size_t i = 0; i < count; i++) {
            EXPECT_EQ(candidates[i].taken, candidates[i].reason[0] == 0);
            said.push_back({candidates[i].provider, candidates[i].domain, candidates[i].reason});
            if (candidates[i].taken)
                taken += taken.empty() ? candidates[i].provider : " and another one";
        }
    }
    int rc;
    size_t tried = 0;
    std::string taken;
    std::vector<Said> said;
};

// Those of hardware before those of the kernel's network, and those that lose what is asked of them
// or know no dead peers only where somebody wants them.
const char *const BEST_FIRST[] = {"cxi",  "efa", "verbs;ofi_rxm", "opx",
                                  "psm3", "tcp", "net",           "tcp;ofi_rxm"};
const char *const ONLY_ASKED[] = {"shm", "sockets", "udp;ofi_rxd"};

TEST(Provider, TheBestIsTaken)
{
    std::vector<offer> offers = {of("brandnew")};
    for (const char *name : {"udp;ofi_rxd", "sockets", "shm"})
        offers.push_back(of(name));
    for (size_t i = std::size(BEST_FIRST); i-- > 0;) {
        offers.push_back(of(BEST_FIRST[i]));
        const Found found(offers);
        EXPECT_EQ(found.rc, 0);
        EXPECT_EQ(found.taken, BEST_FIRST[i]);
        EXPECT_EQ(found.tried, 1u);
    }
    std::vector<Said> wanted;
    for (const char *name : BEST_FIRST)
        wanted.push_back({name, "d0", wanted.empty() ? "" : BETTER});
    for (const char *name : ONLY_ASKED)
        wanted.push_back({name, "d0", ASKED});
    wanted.push_back({"brandnew", "d0", UNKNOWN});
    EXPECT_EQ(Found(offers).said, wanted);
}

TEST(Provider, SomeOnlyWhereTheyAreNamed)
{
    for (const char *name : {"shm", "sockets", "udp;ofi_rxd", "brandnew"}) {
        EXPECT_EQ(Found({of(name)}).rc, PH_ENOPATH) << name;
        EXPECT_EQ(Found({of(name)}).tried, 0u);
        const std::string setting = std::string("PEERHOP_NET_PROVIDER=") + name;
        EXPECT_EQ(Found({of("cxi"), of(name)}, setting.c_str()).taken, name);
    }
    EXPECT_EQ(Found({}).rc, PH_ENOPATH);
}

TEST(Provider, WhatIsNamedIsNotReplaced)
{
    const char reason[] = "PEERHOP_NET_PROVIDER=efa asks for another";
    const Found found({of("tcp"), of("cxi")}, "PEERHOP_NET_PROVIDER=efa");
    EXPECT_EQ(found.rc, PH_ENOPATH);
    EXPECT_EQ(found.said, (std::vector<Said>{{"cxi", "d0", reason}, {"tcp", "d0", reason}}));
    // One word for three names, of which each library has others.
    for (const char *name : {"tcp", "net", "tcp;ofi_rxm"})
        EXPECT_EQ(Found({of("sockets"), of(name)}, "PEERHOP_NET_PROVIDER=tcp").taken, name);
    EXPECT_EQ(Found({of("tcp")}, "PEERHOP_NET_PROVIDER=net").rc, PH_ENOPATH);
}

// Of one provider: what reaches far, before what reaches the same cable, or nobody; those that are
// alike as libfabric offers them.
TEST(Provider, TheAddressThatReachesFarthest)
{
    std::vector<offer> offers = {
        of("tcp", "lo", "192.168.0.1"),
        of("tcp", "e0", "127.0.0.2"),
        of("tcp", "e1", "::1"),
        of("tcp", "e2", "fe80::1"),
        of("tcp", "e3", "2001:db8::1"),
        of("tcp", "e4", "10.0.0.1"),
        of("tcp", "e5"),
        of("net", "e6", "10.0.0.2"),
    };
    const std::vector<Said> wanted = {
        {"tcp", "e4", ""},     {"tcp", "e5", BETTER}, {"tcp", "e3", BETTER}, {"tcp", "e2", BETTER},
        {"tcp", "lo", BETTER}, {"tcp", "e0", BETTER}, {"tcp", "e1", BETTER}, {"net", "e6", BETTER},
    };
    EXPECT_EQ(Found(offers).said, wanted);
}

TEST(Provider, AnInterfaceByItsNameOrItsDevices)
{
    const char reason[] = "PEERHOP_NET_INTERFACE=mlx5_1 asks for another";
    offer one = of("verbs;ofi_rxm", "mlx5_0-rdm"), other = of("verbs;ofi_rxm", "mlx5_1-rdm");
    one.nic = "mlx5_0";
    other.nic = "mlx5_1";
    EXPECT_EQ(Found({one, other}, "PEERHOP_NET_INTERFACE=mlx5_1").said,
              (std::vector<Said>{{"verbs;ofi_rxm", "mlx5_1-rdm", ""},
                                 {"verbs;ofi_rxm", "mlx5_0-rdm", reason}}));
    EXPECT_EQ(Found({of("tcp", "eth0"), of("tcp", "eth1")}, "PEERHOP_NET_INTERFACE=eth1").said,
              (std::vector<Said>{{"tcp", "eth1", ""},
                                 {"tcp", "eth0", "PEERHOP_NET_INTERFACE=eth1 asks for another"}}));
}

// In the order in which they are named; each of them once, and no more than a link has rails.
TEST(Provider, AllInterfacesThatAreNamed)
{
    const char setting[] = "PEERHOP_NET_INTERFACE=e1,e3,e0";
    const Found found({of("tcp", "e0", "10.0.0.1"), of("tcp", "e1", "10.0.1.1"),
                       of("tcp", "e1", "10.0.1.2"), of("tcp", "e2", "10.0.2.1"),
                       of("tcp", "e3", "10.0.3.1", -EIO), of("net", "e3", "10.0.3.1")},
                      setting);
    const std::string other = std::string(setting) + " asks for another";
    EXPECT_EQ(found.said, (std::vector<Said>{{"tcp", "e1", ""},
                                             {"tcp", "e3", "it does not open"},
                                             {"tcp", "e0", ""},
                                             {"tcp", "e2", other},
                                             {"net", "e3", BETTER}}));
    EXPECT_EQ(found.tried, 3u);
    std::vector<offer> many;
    const char *const names[] = {"e0", "e1", "e2", "e3", "e4"};
    for (const char *name : names)
        many.push_back(of("tcp", name));
    EXPECT_EQ(Found(many, "PEERHOP_NET_INTERFACE=e0,e1,e2,e3,e4").said.back(),
              (Said{"tcp", "e4", BETTER}));
    EXPECT_EQ(Found(many, "PEERHOP_NET_INTERFACE=e0,e1,e2,e3,e4").tried, 4u);
    // One that is slow says nothing of the others.
    many[1].opens = -ETIMEDOUT;
    EXPECT_EQ(Found(many, "PEERHOP_NET_INTERFACE=e0,e1,e2").taken, "tcp and another one");
    // A machine has more interfaces than there is room to speak of.
    std::vector<std::string> others(80);
    std::vector<offer> crowd;
    for (std::string &name : others) {
        name = "veth" + std::to_string(&name - others.data());
        crowd.push_back(of("tcp", name.c_str(), "2001:db8::1"));
    }
    crowd.push_back(of("tcp", "e7", "10.0.0.1"));
    EXPECT_EQ(Found(crowd, "PEERHOP_NET_INTERFACE=e7").taken, "tcp");
    // Names are whole ones.
    EXPECT_EQ(Found({of("tcp", "e1")}, "PEERHOP_NET_INTERFACE=e10,e,1").rc, PH_ENOPATH);
}

TEST(Provider, WhatOneMustHave)
{
    const struct {
        const char *reason;
        size_t data_size, key_size;
        bool raw, unordered;
    } table[] = {
        {"", 4, 8, false, false},
        {"", 8, 4, false, false},
        {"", 8, 16, true, false},
        {"its immediate data has 3 bytes, and 4 are needed", 3, 8, false, false},
        {"its keys have 16 bytes", 8, 16, false, false},
        {"its messages have no order", 8, 8, false, true},
    };
    for (const auto &row : table) {
        offer it = of("cxi");
        it.data_size = row.data_size;
        it.key_size = row.key_size;
        it.raw = row.raw;
        it.unordered = row.unordered;
        const Found found({it, of("tcp")});
        EXPECT_EQ(found.said[0], (Said{"cxi", "d0", row.reason}));
        EXPECT_EQ(found.taken, *row.reason ? "tcp" : "cxi");
    }
}

TEST(Provider, OneThatFailsTheProbeIsNotTaken)
{
    const char fails[] = "it does not open";
    const Found found({of("tcp"), of("cxi", "c0", nullptr, -EIO), of("cxi", "c1"), of("efa")});
    EXPECT_EQ(found.said, (std::vector<Said>{{"cxi", "c0", fails},
                                             {"cxi", "c1", ""},
                                             {"efa", "d0", BETTER},
                                             {"tcp", "d0", BETTER}}));
    EXPECT_EQ(found.tried, 2u);
    EXPECT_EQ(Found({of("cxi", "c0", nullptr, -EIO)}).rc, PH_ENOPATH);
}

// It would be as slow at its other addresses, and time is short.
TEST(Provider, OneThatIsSlowIsNotTriedElsewhere)
{
    const char fails[] = "it does not open", slow[] = "it was too slow at a better address";
    const Found found(
        {of("tcp", "e0", "10.0.0.1", -ETIMEDOUT), of("tcp", "e1", "10.0.0.2"), of("net", "e0")});
    EXPECT_EQ(found.said,
              (std::vector<Said>{{"tcp", "e0", fails}, {"tcp", "e1", slow}, {"net", "e0", ""}}));
}

// It is told apart from one that does not serve, also where nothing else is said of it.
TEST(Provider, OneThatIsSlowIsNotGivenUp)
{
    const offer slow = of("tcp", "e0", "2001:db8::1", -ETIMEDOUT);
    EXPECT_EQ(Found({slow}).rc, -ETIMEDOUT);
    EXPECT_EQ(Found({slow, of("net", "e0", nullptr, -EIO)}).rc, -ETIMEDOUT);
    EXPECT_EQ(Found({slow, of("net")}).rc, 0);
    const Found found({of("tcp", "e0", "10.0.0.1", -EIO), slow, of("tcp", "e1", "fe80::1")});
    EXPECT_EQ(found.rc, -ETIMEDOUT);
    EXPECT_EQ(found.tried, 2u);
}

TEST(Provider, TheSameIsSaidOnce)
{
    const Found found({of("tcp", "e0", "10.0.0.1"), of("tcp", "e0", "2001:db8::1"),
                       of("shm", "shm"), of("shm", "shm"), of("tcp", "e1", "fe80::1")});
    EXPECT_EQ(found.said,
              (std::vector<Said>{{"tcp", "e0", ""}, {"tcp", "e1", BETTER}, {"shm", "shm", ASKED}}));
}

// Of one provider's NICs, those near to the device of the rank; how far they reach comes first, and
// how fast they are.
TEST(Provider, OfEqualNicsTheNearest)
{
    Sysfs sysfs;
    sysfs.add("pci0000:00/0000:00:01.0/0000:01:00.0"); // the device
    sysfs.add("pci0000:00/0000:00:01.0/0000:01:00.1");
    sysfs.add("pci0000:00/0000:00:02.0/0000:02:00.0");
    sysfs.add("pci0000:80/0000:80:01.0/0000:81:00.0");
    const phi_pci_place near = {sysfs.root(), "0000:01:00.0"};
    std::vector<offer> offers;
    for (const char *pci : {"0000:81:00.0", "0000:02:00.0", "0000:01:00.1"}) {
        offers.push_back(of("verbs;ofi_rxm", pci));
        offers.back().pci = pci;
        EXPECT_EQ(Found(offers, nullptr, near).said[0], (Said{"verbs;ofi_rxm", pci, ""}));
        EXPECT_EQ(Found(offers).said[0].domain, "0000:81:00.0") << "libfabric's own order";
    }
    sysfs.add_adapter("mlx5_7", "pci0000:00/0000:00:01.0/0000:01:00.1");
    offers.back().pci = nullptr; // as libfabric was before it told
    offers.back().nic = "mlx5_7";
    EXPECT_EQ(Found(offers, nullptr, near).said[0].domain, "0000:01:00.1");
    offers.insert(offers.begin(), of("verbs;ofi_rxm", "nobody knows where"));
    EXPECT_EQ(Found(offers, nullptr, near).said[0].domain, "0000:01:00.1");
    EXPECT_EQ(Found(offers, nullptr, near).said[3].domain, "nobody knows where");
    offers[1].speed = 400;
    offers.back().speed = 25;
    EXPECT_EQ(Found(offers, nullptr, near).said[0].domain, "0000:81:00.0") << "it is faster";
    offers.push_back(of("efa", "far"));
    EXPECT_EQ(Found(offers, nullptr, near).taken, "efa") << "a better provider";
    offers = {of("tcp", "far", "10.0.0.1"), of("tcp", "lo", "127.0.0.1")};
    offers[1].pci = "0000:01:00.1";
    EXPECT_EQ(Found(offers, nullptr, near).said[0].domain, "far") << "reaches others";
}

// All that are as good as the first, where it is known what they are.
TEST(Provider, OfEqualNicsAllThatAreAsNear)
{
    Sysfs sysfs;
    sysfs.add("pci0000:00/0000:00:01.0/0000:01:00.0"); // the device
    sysfs.add("pci0000:00/0000:00:01.0/0000:01:00.1");
    sysfs.add("pci0000:00/0000:00:01.0/0000:01:00.2");
    sysfs.add("pci0000:00/0000:00:02.0/0000:02:00.0");
    const phi_pci_place near = {sysfs.root(), "0000:01:00.0"};
    const std::string both = "verbs;ofi_rxm and another one";
    std::vector<offer> offers;
    for (const char *pci : {"0000:01:00.1", "0000:01:00.2", "0000:02:00.0"}) {
        offers.push_back(of("verbs;ofi_rxm", pci));
        offers.back().pci = pci;
        offers.back().nic = pci;
        offers.back().speed = 400;
    }
    EXPECT_EQ(Found(offers, nullptr, near).taken, both);
    EXPECT_EQ(Found(offers, nullptr, near).said[2],
              (Said{"verbs;ofi_rxm", "0000:02:00.0", BETTER}));
    EXPECT_EQ(Found(offers).taken, "verbs;ofi_rxm") << "near to what?";
    offers[1].speed = 200;
    EXPECT_EQ(Found(offers, nullptr, near).taken, "verbs;ofi_rxm") << "it is slower";
    offers[0].speed = offers[1].speed = offers[2].speed = 0;
    EXPECT_EQ(Found(offers, nullptr, near).taken, "verbs;ofi_rxm") << "nobody knows how fast";
    for (offer &each : offers)
        each.speed = 400;
    offers[1].nic = offers[0].nic;
    EXPECT_EQ(Found(offers, nullptr, near).taken, "verbs;ofi_rxm") << "two ways to one adapter";
    offers[1].nic = "other";
    offers[1].provider = "efa";
    EXPECT_EQ(Found(offers, nullptr, near).taken, "efa") << "another provider";
}

} // namespace
