// SPDX-License-Identifier: BSD-3-Clause
#include "net/pci.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_ROOM = 1024 }; // one of PATH_MAX is half of a small stack

// Finds the folder of a device. Its path goes through all bridges above the device:
// .../devices/pci0000:00/0000:00:01.0/0000:01:00.0
static bool find(const char *sysfs, const char *device, char path[PATH_ROOM])
{
    char link[256], full[PATH_MAX];
    int n = snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", sysfs ? sysfs : "/sys", device);

    if (n < 0 || (size_t)n >= sizeof(link) || !realpath(link, full) || strlen(full) >= PATH_ROOM)
        return false;
    memcpy(path, full, strlen(full) + 1);
    return true;
}

static bool read_line(const char *folder, const char *name, char *line, size_t size)
{
    char path[PATH_ROOM + 32];
    FILE *file;
    bool read;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "re");
    if (!file)
        return false;
    read = fgets(line, (int)size, file) && strchr(line, '\n'); // whole
    fclose(file);
    return read;
}

static int count(const char *path)
{
    int n = 0;

    for (; *path; path++)
        n += *path == '/';
    return n;
}

// common returns how many characters both begin with, up to a whole name.
static size_t common(const char *a, const char *b)
{
    size_t same = 0, i = 0;

    for (; a[i] && a[i] == b[i]; i++)
        if (a[i] == '/')
            same = i;
    return (a[i] == 0 || a[i] == '/') && (b[i] == 0 || b[i] == '/') ? i : same;
}

static int node_of(const char *folder)
{
    char line[32];

    return read_line(folder, "numa_node", line, sizeof(line)) ? atoi(line) : -1;
}

static bool is_device(const char *name)
{
    unsigned at[4];

    return sscanf(name, "%x:%x:%x.%x", &at[0], &at[1], &at[2], &at[3]) == 4;
}

bool phi_pci_of(const char *sysfs, const char *adapter, char device[PHI_PCI_NAME])
{
    char link[256], path[PATH_MAX];
    int n = snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sysfs ? sysfs : "/sys",
                     adapter);
    const char *last;

    if (n < 0 || (size_t)n >= sizeof(link) || !realpath(link, path))
        return false;
    last = strrchr(path, '/') + 1;
    if (!is_device(last) || strlen(last) >= PHI_PCI_NAME)
        return false;
    memcpy(device, last, strlen(last) + 1);
    return true;
}

int phi_pci_distance(const char *sysfs, const char *a, const char *b)
{
    char of_a[PATH_ROOM], of_b[PATH_ROOM];
    const char *last;
    size_t same;
    int distance, node[2];

    if (!find(sysfs, a, of_a) || !find(sysfs, b, of_b))
        return PHI_PCI_UNKNOWN;
    if (strcmp(of_a, of_b) == 0)
        return 0;
    same = common(of_a, of_b);
    distance = count(of_a + same) + count(of_b + same);
    node[0] = node_of(of_a);
    node[1] = node_of(of_b);
    if (node[0] >= 0 && node[1] >= 0 && node[0] != node[1])
        return distance + PHI_PCI_NODE;
    of_a[same] = 0;
    last = strrchr(of_a, '/'); // what both are below: a bridge, a host bridge, or all of them
    if (last && strncmp(last, "/pci", 4) == 0)
        return distance + PHI_PCI_ROOT;
    return last && is_device(last + 1) ? distance : distance + PHI_PCI_HOST;
}

// "0-3,8,10-11"
static bool read_list(const char *text, cpu_set_t *cpus)
{
    CPU_ZERO(cpus);
    while (*text && *text != '\n') {
        char *end;
        long first = strtol(text, &end, 10), last = first;

        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text)
                return false;
        }
        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((int)cpu, cpus);
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',' && *end != '\n')
            return false;
    }
    return CPU_COUNT(cpus) > 0;
}

bool phi_pci_cpus(const char *sysfs, const char *device, cpu_set_t *cpus)
{
    char path[PATH_ROOM], line[4096];

    return find(sysfs, device, path) && read_line(path, "local_cpulist", line, sizeof(line)) &&
           read_list(line, cpus);
}

bool phi_pci_share(const cpu_set_t *near, const cpu_set_t *own, cpu_set_t *both)
{
    CPU_AND(both, near, own);
    return CPU_COUNT(both) > 1 && !CPU_EQUAL(both, own);
}
