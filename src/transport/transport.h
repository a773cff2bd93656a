// SPDX-License-Identifier: BSD-3-Clause
// Paths: how bytes can get from here to a peer's buffer. The order of the table is the order of
// preference; whether a path can serve is a pure function of both capability records and the memory
// kind, so a table test covers it. What no record can know (a handle that the system refuses, P2P
// that is advertised but broken) the try finds out.
#ifndef PHI_TRANSPORT_TRANSPORT_H
#define PHI_TRANSPORT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "memory/memory.h"
#include "topology/capabilities.h"

// Values travel in confirms: never renumber. X(name, value, text)
#define PHI_REASON_MAP(X)                                                                          \
    X(NONE, 0, "it serves")                                                                        \
    X(NODE, 1, "the peer runs on another node")                                                    \
    X(KIND, 2, "this rank cannot import memory of that kind")                                      \
    X(DEVICE, 3, "one rank has a device, the other has not")                                       \
    X(PEER_ACCESS, 4, "this device has no peer access to the other device")                        \
    X(IMPORT, 5, "the system refused the handle")                                                  \
    X(PROBE_BYTES, 6, "the probe found other bytes than were written")                             \
    X(PROBE_DEADLINE, 7, "the probe did not end in time")                                          \
    X(DESCRIPTOR, 8, "the descriptor did not come through the peer's socket")                      \
    X(RECORD, 9, "the export record is malformed")                                                 \
    X(NOT_BUILT, 10, "not in this build")                                                          \
    X(PREFERRED, 11, "a better one was taken")                                                     \
    X(NO_ROLE, 12, "the operation has no such direction")                                          \
    X(USER, 13, "the configuration asks for another")                                              \
    X(HOST, 14, "host memory is copied by the processor")                                          \
    X(SPACE, 15, "the pair has no channel left (PEERHOP_CHANNELS; ph_channel_close)")              \
    X(MEMORY, 16, "out of memory")                                                                 \
    X(NODE_UNKNOWN, 17, "a rank could not read its boot id, which names its node")                 \
    X(RELEASED, 18, "a buffer was released during the exchange")                                   \
    X(STALE, 19,                                                                                   \
      "memory that the peer has freed is still mapped in its place: the peer's ph_release_start "  \
      "belongs before it frees memory, and this rank's ph_reap after it")                          \
    X(NET_HERE, 20,                                                                                \
      "this rank has no provider of libfabric that serves (peerhop-info --net says why)")          \
    X(NET_THERE, 21,                                                                               \
      "the peer has no provider of libfabric that serves (peerhop-info --net says why there)")     \
    X(NET_WIRE, 22,                                                                                \
      "the two ranks' providers, formats of addresses or versions of the net path are not alike")  \
    X(NET_DEVICE, 23, "device memory goes over the net by kernels, which a rank runs without")     \
    X(NET_REGION, 24, "the memory could not be registered with the provider")                      \
    X(FLAGS, 25,                                                                                   \
      "the channel has no flags in device memory: no kernels, one device for both ranks, "         \
      "PEERHOP_WAIT or PEERHOP_METHOD, or PEERHOP_CHANNELS below 1024")                            \
    X(NET_SLOTS, 26,                                                                               \
      "the pinned memory for what goes over the net is used up (PEERHOP_NET_STAGING; "             \
      "ph_channel_close)")                                                                         \
    X(NET_FABRIC, 27, "this libfabric registers no DMA-BUF (1.20 and later do)")                   \
    X(NET_PROVIDER, 28, "the provider takes no memory of devices (FI_HMEM)")                       \
    X(NET_NO_DMABUF, 29, "the device does not export its memory as DMA-BUF")                       \
    X(NET_PEER, 30, "the peer's memory is not registered")                                         \
    X(NET_ASKED, 31,                                                                               \
      "on one node only where ipc is known not to serve, or PEERHOP_PATH=net asks for it")         \
    X(ACCESS_THERE, 32, "the other device has no peer access to this device")                      \
    X(SOCKET, 33,                                                                                  \
      "the two ranks are in different network namespaces, and a socket has its name in one of "    \
      "them (PEERHOP_SOCKET_DIRECTORY)")                                                           \
    X(IMPORT_THERE, 34, "the peer's system refused the handle")                                    \
    X(NET_TRY, 35, "the provider did not move bytes into memory of this device and out of it")     \
    X(WIDE_BUS, 36,                                                                                \
      "a bus connects the devices, no NVLink; a table may say `wide` all the same "                \
      "(PEERHOP_TABLE)")                                                                           \
    X(WIDE_TABLE, 37,                                                                              \
      "no table says that lines of 128 bytes come whole between these devices (PEERHOP_TABLE)")    \
    X(WIDE_SLOTS, 38, "only the first channels of a pair have slots for it")                       \
    X(DESCRIPTORS, 39, "the rank that maps has no descriptor left (RLIMIT_NOFILE, ulimit -n)")     \
    X(ELSEWHERE, 40,                                                                               \
      "the peer lives, and nobody listens at its socket here: its machine has the boot id of "     \
      "this one, as clones have, or its socket has its name elsewhere (PEERHOP_SOCKET_DIRECTORY)") \
    X(BUDGET, 41,                                                                                  \
      "a rank's device memory for slots is used up, and the channel got few or none "              \
      "(PEERHOP_DEVICE_BYTES)")                                                                    \
    X(ZERO_SM, 42, "the operation asks for no kernels, here or at the peer (PH_ZERO_SM)")          \
    X(RANGES, 44, "an end of the channel has several ranges")                                      \
    X(LINES, 43,                                                                                   \
      "only the first 128 channels of a pair have flags in device memory: this one goes by words " \
      "in host memory, 14 us for 8 bytes (ph_channel_close)")

enum phi_reason {
#define PHI_REASON_ENUM(name, value, text) PHI_REASON_##name = (value),
    PHI_REASON_MAP(PHI_REASON_ENUM)
#undef PHI_REASON_ENUM
};
#define PHI_REASON_COUNT 45
const char *phi_reason_text(unsigned reason);

// phi_reason_passes: what says nothing of the path, and may not hold for the next attempt.
static inline bool phi_reason_passes(unsigned reason)
{
    return reason == PHI_REASON_STALE || reason == PHI_REASON_MEMORY ||
           reason == PHI_REASON_DESCRIPTORS;
}

struct phi_transport {
    const char *name;
    // Why the path cannot serve `mine` in reaching memory of `kind` at `theirs`; PHI_REASON_NONE:
    // it may.
    enum phi_reason (*viable)(const struct phi_capabilities *mine,
                              const struct phi_capabilities *theirs, enum phi_kind kind);
};

// phi_node_reason: PHI_REASON_NONE where both run on one node.
enum phi_reason phi_node_reason(const struct phi_capabilities *mine,
                                const struct phi_capabilities *theirs);

extern const struct phi_transport phi_transport_ipc;
extern const struct phi_transport phi_transport_net;

// phi_path_net: whether two ranks are to reach each other over the net (else by ipc, or not at
// all): on different nodes, where one asks for it (phi_path_asked), and on one node where ipc is
// known not to serve. phi_path_only_net: where ipc is no way if the net does not serve: all of
// these but for devices that do not reach each other, which may be so in one direction. Both ranks
// compute the same.
bool phi_path_asked(const struct phi_capabilities *mine, const struct phi_capabilities *theirs);
bool phi_path_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs);
bool phi_path_only_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs);

// phi_path_doubt: whether no record says if ipc serves two devices of one node, and the net could:
// where no process sees both devices, or the two live in different containers. Then both try
// (meeting/attempt.h). Both ranks compute the same.
bool phi_path_doubt(const struct phi_capabilities *mine, const struct phi_capabilities *theirs);

// phi_net_pair: what they know against the net, whether it is to serve or not.
enum phi_reason phi_net_pair(const struct phi_capabilities *mine,
                             const struct phi_capabilities *theirs);

// All transports, best first, ended by NULL.
extern const struct phi_transport *const phi_transports[];

// phi_ipc_pair: what the records of two ranks of one node know against ipc between them, in either
// direction; PHI_REASON_NONE: nothing. phi_ipc_reach: the same of this rank's way to memory of
// `kind` alone, for a pair that is joined already.
enum phi_reason phi_ipc_pair(const struct phi_capabilities *mine,
                             const struct phi_capabilities *theirs);
enum phi_reason phi_ipc_reach(const struct phi_capabilities *mine,
                              const struct phi_capabilities *theirs, enum phi_kind kind);

// The probe of the ipc path. `open` makes the allocation that peers write to (PHI_PROBE_SLOTS
// patterns of PHI_PROBE_SIZE bytes, and behind them one for this rank itself) and exports it;
// `close` ends both. device NULL: host memory. `write` puts a pattern that `seed` determines at the
// peer's probe allocation, as mapped here; `verify` looks whether it is there, in the owner's
// process. At most the deadline.
#define PHI_PROBE_SIZE  256
#define PHI_PROBE_SLOTS 1024
struct phi_probe {
    void *address; // NULL: not open
    struct phi_export export_;
};
int phi_probe_open(struct phi_memory *memory, struct phi_device *device, struct phi_probe *probe);
// thread makes the calling thread, one of the library's own, fit for verify. NULL device: nothing
// to do.
void phi_probe_thread(struct phi_device *device);
void phi_probe_close(struct phi_memory *memory, struct phi_device *device, struct phi_probe *probe);
int phi_probe_write(struct phi_device *device, void *mapped, uint64_t seed, int64_t deadline);
int phi_probe_verify(struct phi_device *device, const void *owned, uint64_t seed, int64_t deadline);

#endif
