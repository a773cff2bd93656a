// SPDX-License-Identifier: BSD-3-Clause
// How far devices are from each other, and which CPUs are near.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/sysfs.h"

extern "C" {
#include "net/pci.h"
}

namespace
{

class Pci : public testing::Test
{
  protected:
    // Two nodes; below the first one a switch with a GPU and a NIC, a NIC at another root port, and
    // one below another host bridge.
    void SetUp() override
    {
        const std::string root = "pci0000:00/0000:00:01.0/", upstream = root + "0000:01:00.0/";
        sysfs.add(upstream + "0000:02:00.0/0000:03:00.0", 0, "0-3,8"); // the GPU
        sysfs.add(upstream + "0000:02:01.0/0000:04:00.0", 0);
        sysfs.add(upstream + "0000:02:01.0/0000:04:00.1", 0);
        sysfs.add("pci0000:00/0000:00:02.0/0000:05:00.0", 0);
        sysfs.add("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
        sysfs.add("pci0000:80/0000:80:01.0/0000:81:00.0", 1, "4-7");
    }
    int from_gpu(const char *device)
    {
        return phi_pci_distance(sysfs.root(), "0000:03:00.0", device);
    }
    Sysfs sysfs;
};

TEST_F(Pci, TheNearerTheSmaller)
{
    EXPECT_EQ(from_gpu("0000:03:00.0"), 0);
    EXPECT_EQ(from_gpu("0000:04:00.0"), 4);
    EXPECT_EQ(from_gpu("0000:04:00.1"), 4);
    EXPECT_EQ(from_gpu("0000:05:00.0"), 6 + PHI_PCI_ROOT);
    EXPECT_EQ(from_gpu("0000:11:00.0"), 8 + PHI_PCI_HOST);
    EXPECT_EQ(from_gpu("0000:81:00.0"), 8 + PHI_PCI_NODE);
    EXPECT_EQ(from_gpu("0000:99:00.0"), PHI_PCI_UNKNOWN);
    EXPECT_EQ(phi_pci_distance(sysfs.root(), "0000:04:00.0", "0000:04:00.1"), 2);
    EXPECT_EQ(phi_pci_distance(sysfs.root(), "0000:81:00.0", "0000:03:00.0"), 8 + PHI_PCI_NODE);
    EXPECT_EQ(phi_pci_distance("/nonexistent", "0000:03:00.0", "0000:04:00.0"), PHI_PCI_UNKNOWN);
}

TEST_F(Pci, TheCpusNearADevice)
{
    cpu_set_t cpus;
    ASSERT_TRUE(phi_pci_cpus(sysfs.root(), "0000:03:00.0", &cpus));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        EXPECT_EQ(CPU_ISSET(cpu, &cpus) != 0, cpu <= 3 || cpu == 8) << cpu;
    EXPECT_FALSE(phi_pci_cpus(sysfs.root(), "0000:04:00.0", &cpus)) << "none are told";
    EXPECT_FALSE(phi_pci_cpus(sysfs.root(), "0000:99:00.0", &cpus));
}

TEST_F(Pci, UnknownNodesAreNoOtherNodes)
{
    sysfs.add("pci0000:00/0000:00:03.0/0000:06:00.0"); // of node -1
    EXPECT_EQ(from_gpu("0000:06:00.0"), 6 + PHI_PCI_ROOT);
    sysfs.add("ACPI0004:00/pci0000:30/0000:30:01.0");
    sysfs.add("ACPI0004:00/pci0000:31/0000:31:01.0");
    EXPECT_EQ(phi_pci_distance(sysfs.root(), "0000:30:01.0", "0000:31:01.0"), 4 + PHI_PCI_HOST);
}

TEST_F(Pci, AnAdapterOfVerbs)
{
    char device[PHI_PCI_NAME] = "";
    sysfs.add_adapter("mlx5_0", "pci0000:00/0000:00:02.0/0000:05:00.0");
    sysfs.add_adapter("siw0", "pci0000:00"); // of no device
    EXPECT_TRUE(phi_pci_of(sysfs.root(), "mlx5_0", device));
    EXPECT_STREQ(device, "0000:05:00.0");
    EXPECT_FALSE(phi_pci_of(sysfs.root(), "siw0", device));
    EXPECT_FALSE(phi_pci_of(sysfs.root(), "mlx5_1", device));
}

TEST_F(Pci, CpusAreSharedWhereItIsAGain)
{
    const auto set = [](std::initializer_list<int> cpus) {
        cpu_set_t all;
        CPU_ZERO(&all);
        for (int cpu : cpus)
            CPU_SET(cpu, &all);
        return all;
    };
    const cpu_set_t own = set({0, 1, 2, 3}), near = set({2, 3, 4, 5}), both = set({2, 3});
    cpu_set_t found;
    EXPECT_TRUE(phi_pci_share(&near, &own, &found));
    EXPECT_TRUE(CPU_EQUAL(&found, &both));
    for (const cpu_set_t &no : {set({0, 1, 2, 3, 4}), set({7}), set({}), set({3, 4})})
        EXPECT_FALSE(phi_pci_share(&no, &own, &found)) << CPU_COUNT(&no);
}

TEST_F(Pci, AListThatMakesNoSenseIsNone)
{
    int n = 0;
    for (const char *list : {"x", "1-", "-", "1 2", ",", "3-1", "1,x", "99999"}) {
        const std::string name = "0000:20:00." + std::to_string(n++);
        sysfs.add("pci0000:20/" + name, 0, list);
        cpu_set_t cpus;
        EXPECT_FALSE(phi_pci_cpus(sysfs.root(), name.c_str(), &cpus)) << list;
    }
}

} // namespace
