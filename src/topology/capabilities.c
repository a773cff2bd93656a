// SPDX-License-Identifier: BSD-3-Clause
#include "topology/capabilities.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "cuda/device.h"

#define MEMBER_MAGIC   0x4d4f4850u // "PHOM"
#define MEMBER_VERSION 4

// The boot id is the same for all processes of one kernel, whatever their namespaces, and for no
// others. Where it cannot be read the node stays all zero, which equals no node.
static int read_node(uint8_t node[16])
{
    memset(node, 0, 16);
    int fd;
    do {
        fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return -errno;
    char text[40] = {0};
    ssize_t n;
    do {
        n = read(fd, text, sizeof text - 1);
    } while (n < 0 && errno == EINTR);
    const int rc = n < 0 ? -errno : 0;
    close(fd);
    size_t digit = 0;
    for (ssize_t i = 0; i < n && digit < 32; i++) {
        unsigned value;
        if (sscanf((char[2]){text[i], 0}, "%1x", &value) != 1)
            continue;
        node[digit / 2] |= (uint8_t)(value << (digit % 2 ? 0 : 4));
        digit++;
    }
    return rc ? rc : digit == 32 ? 0 : -EBADMSG;
}

// 0 where it is not known.
static uint64_t read_namespace(const char *path)
{
    int fd;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return 0;
    struct stat found;
    const bool known = fstat(fd, &found) == 0;
    close(fd);
    return known ? (uint64_t)found.st_ino : 0;
}

static uint64_t read_container(void)
{
    const uint64_t pid = read_namespace("/proc/self/ns/pid");
    const uint64_t ipc = read_namespace("/proc/self/ns/ipc");
    const uint64_t user = read_namespace("/proc/self/ns/user");
    return pid && ipc && user ? phi_hash(phi_hash(pid, ipc), user) : 0;
}

// Bytes that are not printable ASCII are written as numbers: peers refuse a record with others.
static void show(char *to, size_t size, const char *from)
{
    size_t used = 0;
    to[0] = 0;
    for (; *from != 0; from++) {
        const unsigned char byte = (unsigned char)*from;
        const bool plain = byte >= 0x20 && byte <= 0x7e;
        if (used + (plain ? 1 : 4) >= size)
            return;
        used += (size_t)snprintf(to + used, size - used, plain ? "%c" : "\\x%02x", byte);
    }
}

int phi_capabilities_fill(struct phi_capabilities *capabilities, struct phi_device *device,
                          uint32_t kinds)
{
    memset(capabilities, 0, sizeof *capabilities);
    const int rc = read_node(capabilities->node);
    char host[65] = "unknown";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "unknown");
    show(capabilities->host, sizeof capabilities->host, host);
    capabilities->pid = (uint32_t)getpid();
    capabilities->uid = (uint32_t)getuid();
    capabilities->network = read_namespace("/proc/self/ns/net");
    capabilities->container = read_container();
    capabilities->kinds = kinds;
    if (device == NULL)
        return rc;
    const struct phi_device_info *info = phi_device_info(device);
    capabilities->device = true;
    memcpy(capabilities->uuid, info->uuid, sizeof capabilities->uuid);
    show(capabilities->device_name, sizeof capabilities->device_name, info->name);
    capabilities->kernels = info->kernels;
    capabilities->others = (uint8_t)phi_device_others(device, capabilities->other_uuid,
                                                      capabilities->other_access, PHI_OTHERS_MAX);
    return rc;
}

void phi_capabilities_encode(const struct phi_capabilities *capabilities, struct phi_writer *writer)
{
    phi_put_u32(writer, MEMBER_MAGIC);
    phi_put_u32(writer, MEMBER_VERSION);
    phi_put_bytes(writer, capabilities->node, sizeof capabilities->node);
    phi_put_string(writer, capabilities->host);
    phi_put_string(writer, capabilities->socket);
    phi_put_u64(writer, capabilities->nonce);
    phi_put_u32(writer, capabilities->pid);
    phi_put_u32(writer, capabilities->uid);
    phi_put_u8(writer, capabilities->device);
    phi_put_bytes(writer, capabilities->uuid, sizeof capabilities->uuid);
    phi_put_string(writer, capabilities->device_name);
    phi_put_u32(writer, capabilities->kinds);
    phi_put_u8(writer, capabilities->kernels);
    phi_put_u8(writer, capabilities->path);
    phi_put_u8(writer, capabilities->net);
    phi_put_u64(writer, capabilities->network);
    phi_put_u64(writer, capabilities->container);
    phi_put_u8(writer, capabilities->others);
    for (int i = 0; i < capabilities->others; i++) {
        phi_put_bytes(writer, capabilities->other_uuid[i], sizeof capabilities->other_uuid[i]);
        phi_put_u8(writer, capabilities->other_access[i]);
    }
}

static void decode_others(struct phi_reader *reader, struct phi_capabilities *capabilities)
{
    capabilities->others = phi_get_u8(reader);
    if (capabilities->others > PHI_OTHERS_MAX)
        reader->error = -EBADMSG;
    for (int i = 0; i < capabilities->others && !reader->error; i++) {
        phi_get_bytes(reader, capabilities->other_uuid[i], sizeof capabilities->other_uuid[i]);
        capabilities->other_access[i] = phi_get_u8(reader);
        if (capabilities->other_access[i] & ~PHI_ACCESS_BITS)
            reader->error = -EBADMSG;
    }
}

// We show people what a peer says of itself.
static bool printable(const char *text)
{
    while (*text >= 0x20 && *text <= 0x7e)
        text++;
    return *text == 0;
}

int phi_capabilities_decode(struct phi_capabilities *capabilities, const void *bytes, size_t size)
{
    struct phi_capabilities got = {0};
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    if (phi_get_u32(&reader) != MEMBER_MAGIC || phi_get_u32(&reader) != MEMBER_VERSION)
        return -EBADMSG;
    phi_get_bytes(&reader, got.node, sizeof got.node);
    phi_get_string(&reader, got.host, sizeof got.host);
    phi_get_string(&reader, got.socket, sizeof got.socket);
    got.nonce = phi_get_u64(&reader);
    got.pid = phi_get_u32(&reader);
    got.uid = phi_get_u32(&reader);
    got.device = phi_get_u8(&reader) != 0;
    phi_get_bytes(&reader, got.uuid, sizeof got.uuid);
    phi_get_string(&reader, got.device_name, sizeof got.device_name);
    got.kinds = phi_get_u32(&reader);
    got.kernels = phi_get_u8(&reader) != 0;
    got.path = phi_get_u8(&reader);
    got.net = phi_get_u8(&reader) != 0;
    got.network = phi_get_u64(&reader);
    got.container = phi_get_u64(&reader);
    decode_others(&reader, &got);
    if (reader.error || reader.at != reader.size || got.socket[0] == 0 || !printable(got.host) ||
        !printable(got.socket) || !printable(got.device_name))
        return -EBADMSG;
    *capabilities = got;
    return 0;
}

bool phi_capabilities_node_known(const struct phi_capabilities *capabilities)
{
    static const uint8_t unknown[16];
    return memcmp(capabilities->node, unknown, sizeof unknown) != 0;
}

bool phi_capabilities_same_node(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    static const uint8_t none[16];
    return memcmp(a->node, b->node, sizeof none) == 0 && memcmp(a->node, none, sizeof none) != 0;
}

bool phi_capabilities_same_process(const struct phi_capabilities *a,
                                   const struct phi_capabilities *b)
{
    return phi_capabilities_same_node(a, b) && a->container != 0 && a->container == b->container &&
           a->network == b->network && strcmp(a->host, b->host) == 0 && a->pid == b->pid;
}

bool phi_capabilities_same_device(const struct phi_capabilities *a,
                                  const struct phi_capabilities *b)
{
    return a->device && b->device && phi_capabilities_same_node(a, b) &&
           memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

// The place of b's device among those that a sees, or -1.
static int find_other(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    for (int i = 0; i < a->others && b->device; i++)
        if (memcmp(a->other_uuid[i], b->uuid, sizeof b->uuid) == 0)
            return i;
    return -1;
}

bool phi_capabilities_sees(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    return find_other(a, b) >= 0;
}

bool phi_capabilities_denied(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    const int i = find_other(a, b);
    return i >= 0 && !(a->other_access[i] & PHI_ACCESS_MAP);
}

static bool sees_bus(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    const int i = find_other(a, b);
    return i >= 0 && !(a->other_access[i] & PHI_ACCESS_ATOMIC);
}

bool phi_capabilities_bus(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    return sees_bus(a, b) || sees_bus(b, a);
}

bool phi_capabilities_contained(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    return (a->container != 0 && b->container != 0 && a->container != b->container) ||
           (a->network != 0 && b->network != 0 && a->network != b->network);
}

bool phi_capabilities_out_of_reach(const struct phi_capabilities *a,
                                   const struct phi_capabilities *b)
{
    return b->socket[0] == '@' && a->network != 0 && b->network != 0 && a->network != b->network;
}

bool phi_capabilities_apart(const struct phi_capabilities *a, const struct phi_capabilities *b)
{
    return phi_capabilities_out_of_reach(a, b) || phi_capabilities_out_of_reach(b, a);
}
