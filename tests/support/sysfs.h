// SPDX-License-Identifier: BSD-3-Clause
// A sysfs of a test's own, with the PCI devices that it names.
#ifndef TESTS_SUPPORT_SYSFS_H
#define TESTS_SUPPORT_SYSFS_H

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

class Sysfs
{
  public:
    Sysfs()
    {
        char name[] = "/tmp/phsysfs.XXXXXX";
        if (!mkdtemp(name))
            abort();
        root_ = name;
        std::filesystem::create_directories(root_ / "bus/pci/devices");
    }
    ~Sysfs()
    {
        std::filesystem::remove_all(root_);
    }
    Sysfs(const Sysfs &) = delete;
    Sysfs &operator=(const Sysfs &) = delete;

    // path: below devices/, the device's own name last: "pci0000:00/0000:00:01.0/0000:01:00.0".
    void add(const std::filesystem::path &path, int node = -1, const std::string &cpus = "")
    {
        const auto folder = root_ / "devices" / path;
        std::filesystem::create_directories(folder);
        std::filesystem::create_symlink("../../../devices" / path,
                                        root_ / "bus/pci/devices" / path.filename());
        std::ofstream(folder / "numa_node") << node << "\n";
        if (!cpus.empty())
            std::ofstream(folder / "local_cpulist") << cpus << "\n";
    }
    // An adapter of verbs, by the path of its device.
    void add_adapter(const std::string &name, const std::filesystem::path &path)
    {
        std::filesystem::create_directories(root_ / "class/infiniband" / name);
        std::filesystem::create_symlink("../../../devices" / path,
                                        root_ / "class/infiniband" / name / "device");
    }
    const char *root() const
    {
        return root_.c_str();
    }

  private:
    std::filesystem::path root_;
};

#endif
