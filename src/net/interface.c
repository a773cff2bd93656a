// SPDX-License-Identifier: BSD-3-Clause
#include "net/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool is_same(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || !b || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)a)->sin_addr,
                      &((const struct sockaddr_in *)b)->sin_addr, sizeof(struct in_addr)) == 0;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

// name_of returns the interface that has the address, or "".
static const char *name_of(const struct ifaddrs *all, const struct sockaddr *address)
{
    for (const struct ifaddrs *at = all; at; at = at->ifa_next)
        if (is_same(at->ifa_addr, address))
            return at->ifa_name;
    return "";
}

// find_route finds the interface of the default route. We ask the kernel by a datagram socket that
// we connect to an address that nobody has (RFC 5737, RFC 3849): nothing is sent.
static void find_route(const struct ifaddrs *all, int family, char name[IF_NAMESIZE])
{
    struct sockaddr_storage to = {.ss_family = (sa_family_t)family}, own;
    socklen_t size = sizeof(own);
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    name[0] = 0;
    if (family == AF_INET) {
        inet_pton(family, "192.0.2.1", &((struct sockaddr_in *)&to)->sin_addr);
        ((struct sockaddr_in *)&to)->sin_port = htons(9);
    } else {
        inet_pton(family, "2001:db8::1", &((struct sockaddr_in6 *)&to)->sin6_addr);
        ((struct sockaddr_in6 *)&to)->sin6_port = htons(9);
    }
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0)
        strncpy(name, name_of(all, (struct sockaddr *)&own), IF_NAMESIZE - 1);
    if (fd >= 0)
        close(fd);
}

void phi_interfaces_look(struct phi_interfaces *interfaces, const struct sockaddr *home)
{
    *interfaces = (struct phi_interfaces){0};
    if (getifaddrs(&interfaces->all)) {
        interfaces->all = NULL;
        return;
    }
    strncpy(interfaces->store, name_of(interfaces->all, home), IF_NAMESIZE - 1);
    find_route(interfaces->all, AF_INET, interfaces->routes[0]);
    find_route(interfaces->all, AF_INET6, interfaces->routes[1]);
}

void phi_interfaces_fini(struct phi_interfaces *interfaces)
{
    if (interfaces->all)
        freeifaddrs(interfaces->all);
    interfaces->all = NULL;
}

// is_inside asks for the driver, as sysfs shows the interfaces of the namespace that it was mounted
// in.
static bool is_inside(const char *name)
{
    static const char *const drivers[] = {"bridge", "tun", "dummy"};
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (char *)&info};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool inside = false;

    strncpy(request.ifr_name, name, IF_NAMESIZE - 1);
    if (fd >= 0 && ioctl(fd, SIOCETHTOOL, &request) == 0)
        for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
            inside = inside || strcmp(info.driver, drivers[i]) == 0;
    if (fd >= 0)
        close(fd);
    return inside;
}

static bool is_known(const struct ifaddrs *all, const char *name)
{
    for (; all; all = all->ifa_next)
        if (strcmp(all->ifa_name, name) == 0)
            return true;
    return false;
}

enum phi_lead phi_interfaces_lead(const struct phi_interfaces *interfaces, const char *name,
                                  const struct sockaddr *address)
{
    if (!is_known(interfaces->all, name))
        name = name_of(interfaces->all, address);
    if (!name[0])
        return PHI_LEAD_OTHER;
    if (strcmp(name, interfaces->store) == 0)
        return PHI_LEAD_STORE;
    if (strcmp(name, interfaces->routes[0]) == 0 || strcmp(name, interfaces->routes[1]) == 0)
        return PHI_LEAD_ROUTE;
    return is_inside(name) ? PHI_LEAD_INSIDE : PHI_LEAD_OTHER;
}
