// SPDX-License-Identifier: BSD-3-Clause
// The places of devices on the PCI buses of this machine, from sysfs (Documentation/ABI/testing/
// sysfs-bus-pci of Linux). A device has its name there: "0000:17:00.0".
#ifndef PHI_NET_PCI_H
#define PHI_NET_PCI_H

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/socket.h>

#define PHI_PCI_NAME 24 // room for a name

// The cost of a way that leaves a host bridge for another root port, a host bridge, or a NUMA node.
// Each is more than any number of bridges below it.
enum { PHI_PCI_ROOT = 100, PHI_PCI_HOST = 1000, PHI_PCI_NODE = 10000, PHI_PCI_UNKNOWN = INT_MAX };

// NICs are to be near to this place.
struct phi_pci_place {
    const char *sysfs;           // NULL: "/sys"
    const char *device;          // NULL: there is none
    const struct sockaddr *home; // this node's address on its way to the store, or NULL
};

// phi_pci_distance counts the bridges between two devices, and adds the costs above.
// PHI_PCI_UNKNOWN: one of them is not there. sysfs: as in a place.
int phi_pci_distance(const char *sysfs, const char *a, const char *b);

// phi_pci_cpus finds the CPUs near a device. false: not known.
bool phi_pci_cpus(const char *sysfs, const char *device, cpu_set_t *cpus);

// phi_pci_share finds those of a process's own CPUs that are near. false: to stay on them is no
// gain. They are all, or none, or one, on which an application's thread may be busy.
bool phi_pci_share(const cpu_set_t *near, const cpu_set_t *own, cpu_set_t *both);

// phi_pci_of finds the place of an adapter of verbs ("mlx5_0"), which libfabric does not tell
// before 2.4. false: there is none of that name.
bool phi_pci_of(const char *sysfs, const char *adapter, char device[PHI_PCI_NAME]);

#endif
