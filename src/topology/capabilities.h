// SPDX-License-Identifier: BSD-3-Clause
// The abilities of a rank are plain data: filled once, published in the member record, never asked
// for again.
#ifndef PHI_TOPOLOGY_CAPABILITIES_H
#define PHI_TOPOLOGY_CAPABILITIES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/wire.h"

struct phi_device;

#define PHI_OTHERS_MAX 32

struct phi_capabilities {
    uint8_t node[16]; // the kernel's boot id: equal on one running kernel
    char host[65];    // host name, for sentences only
    char socket[108]; // unix socket of the service thread: '@' for abstract ones
    uint64_t nonce;   // what the service thread answers with
    uint32_t pid;     // in the rank's own namespace
    uint32_t uid;
    bool device;      // a CUDA device, else host memory only
    uint8_t uuid[16]; // of the device
    char device_name[65];
    uint32_t kinds;     // memory kinds that it can import: bits 1 << enum phi_kind
    bool kernels;       // its kernels are loaded
    uint8_t path;       // PEERHOP_PATH: which way it asks for
    bool net;           // the net path is in its build
    uint64_t network;   // its network namespace, or 0: where abstract sockets have their names
    uint64_t container; // the same for processes of the same pid, ipc and user namespaces, or 0
    uint8_t others;     // other devices that it sees
    uint8_t other_uuid[PHI_OTHERS_MAX][16];
    uint8_t other_access[PHI_OTHERS_MAX]; // what reaches memory of theirs: enum phi_access
};

// phi_capabilities_fill fills what the machine and the device (NULL: host) say. The caller fills
// socket, nonce, path and net. Returns 0, or why the node is not known: -errno, -EBADMSG.
int phi_capabilities_fill(struct phi_capabilities *capabilities, struct phi_device *device,
                          uint32_t kinds);

// encode and decode of the member record. decode: -EBADMSG for anything malformed, or of another
// version.
void phi_capabilities_encode(const struct phi_capabilities *capabilities,
                             struct phi_writer *writer);
int phi_capabilities_decode(struct phi_capabilities *capabilities, const void *bytes, size_t size);

// phi_capabilities_node_known: whether a rank could tell its node. If not, it shares the node with
// no other rank.
// phi_capabilities_same_node, phi_capabilities_same_device: whether two ranks run on one kernel,
// and on one device.
bool phi_capabilities_node_known(const struct phi_capabilities *capabilities);
bool phi_capabilities_same_node(const struct phi_capabilities *a, const struct phi_capabilities *b);
// phi_capabilities_same_process: whether they are one process. The ids are those of a PID
// namespace, so the answer is no where that is unknown, and where host or network differ: cloned
// machines have one boot id, until a socket shows that they are two.
bool phi_capabilities_same_process(const struct phi_capabilities *a,
                                   const struct phi_capabilities *b);
bool phi_capabilities_same_device(const struct phi_capabilities *a,
                                  const struct phi_capabilities *b);

// phi_capabilities_sees: whether a's process sees b's device.
bool phi_capabilities_sees(const struct phi_capabilities *a, const struct phi_capabilities *b);

// phi_capabilities_denied: whether a's device is known not to reach memory of b's device, another
// one of the same node. Nothing is known of a device that a does not see.
bool phi_capabilities_denied(const struct phi_capabilities *a, const struct phi_capabilities *b);

// phi_capabilities_bus: whether one of the two is known to reach memory of the other's device by a
// bus, such as PCIe, and not by NVLink. No atomic operation goes over a bus.
bool phi_capabilities_bus(const struct phi_capabilities *a, const struct phi_capabilities *b);

// phi_capabilities_contained: whether the two are known to live in different containers. Handles of
// one may mean nothing in the other, or something else.
bool phi_capabilities_contained(const struct phi_capabilities *a, const struct phi_capabilities *b);

// phi_capabilities_apart: whether no socket connects the two, as one has a name in a network
// namespace that the other rank does not live in.
bool phi_capabilities_apart(const struct phi_capabilities *a, const struct phi_capabilities *b);

// phi_capabilities_out_of_reach is the same for one way, from a's process, which need have no
// socket, to b's.
bool phi_capabilities_out_of_reach(const struct phi_capabilities *a,
                                   const struct phi_capabilities *b);

#endif
