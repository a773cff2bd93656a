// SPDX-License-Identifier: BSD-3-Clause
// Configuration is one table, read once into a struct when a context is created. No other code
// reads the environment.
#ifndef PHI_BASE_CONFIG_H
#define PHI_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/report.h"

// STRING(member, environment name, default, help)
// NUMBER(member, environment name, default, minimum, maximum, help)
// CHOICE(member, environment name, default, "a|b|c", help): the member is the index of the word
#define PHI_CONFIG_MAP(STRING, NUMBER, CHOICE)                                                     \
    STRING(job, "JOB", "", "name of the job in the store; the launcher's job id where unset")      \
    STRING(device, "DEVICE", "", "host, cuda or cuda:N; chosen where unset")                       \
    STRING(store, "STORE", "",                                                                     \
           "redis://[user:password@]host[:port][/db], unix:///path[?db=N], or, for ranks of one "  \
           "node, file:/directory")                                                                \
    STRING(store_password, "STORE_PASSWORD", "", "the store's password, instead of the URI's")     \
    STRING(store_password_file, "STORE_PASSWORD_FILE", "",                                         \
           "file of this user's, for nobody else, whose first line is the store's password; wins") \
    STRING(socket_directory, "SOCKET_DIRECTORY", "",                                               \
           "directory for path sockets; empty: abstract sockets of the network namespace")         \
    STRING(libcuda, "LIBCUDA", "libcuda.so.1", "the CUDA driver library to load")                  \
    STRING(libfabric, "LIBFABRIC", "libfabric.so.1", "the libfabric library to load")              \
    STRING(net_provider, "NET_PROVIDER", "",                                                       \
           "provider of libfabric for the net path; empty: the best one")                          \
    STRING(net_interface, "NET_INTERFACE", "",                                                     \
           "its domains or NICs, with commas between: data goes over all of them; empty: the "     \
           "fastest, of these the nearest to the device, and all that are both")                   \
    NUMBER(rank, "RANK", -1, -1, 1048575, "this rank; -1: from the launcher")                      \
    NUMBER(ranks, "RANKS", 0, 0, 1048576, "number of ranks; 0: from the launcher")                 \
    NUMBER(local_rank, "LOCAL_RANK", -1, -1, 1048575,                                              \
           "place among the ranks of this node; -1: from the launcher")                            \
    NUMBER(epoch, "EPOCH", 0, 0, INT64_MAX,                                                        \
           "parts runs of one job that are not to meet; alike for all its ranks")                  \
    NUMBER(deadline_ms, "DEADLINE_MS", 60000, 1, 86400000, "deadline of calls that take none")     \
    NUMBER(expiry_s, "EXPIRY_S", 3600, 10, 604800, "life of store keys; refreshed while in use")   \
    NUMBER(heartbeat_ms, "HEARTBEAT_MS", 500, 5, 60000,                                            \
           "how often a rank tells its peers that it runs")                                        \
    NUMBER(suspect_ms, "SUSPECT_MS", 5000, 20, 86400000,                                           \
           "silence after which a peer is SUSPECT; at least 3 heartbeats")                         \
    NUMBER(channels, "CHANNELS", 16384, 16, 1048576,                                               \
           "most channels and most operation keys a pair of ranks may have")                       \
    NUMBER(spin_us, "SPIN_US", 50, 0, 1000000, "how long a blocking call spins before it sleeps")  \
    NUMBER(worker_park_us, "WORKER_PARK_US", 1000, 50, 1000000,                                    \
           "how long an idle queue worker sleeps")                                                 \
    NUMBER(memory_operation_streams, "MEMORY_OPERATION_STREAMS", 0, 0, 256,                        \
           "where ranks share a GPU, so many streams may wait by memory operation: quick there, "  \
           "but a process with more streams than CUDA_DEVICE_MAX_CONNECTIONS may hang")            \
    NUMBER(kernel_waits, "KERNEL_WAITS", 64, 1, 1024,                                              \
           "most streams and branches of running graphs in which kernels of ours wait at once; "   \
           "half as many as the device has multiprocessors at most")                               \
    NUMBER(graph_branches, "GRAPH_BRANCHES", 16, 0, 1024,                                          \
           "so many of them are left to branches of graphs: no more may run at once; 0: no graph " \
           "has calls that wait")                                                                  \
    NUMBER(device_bytes, "DEVICE_BYTES", 268435456, 0, INT64_MAX,                                  \
           "bytes of device memory for slots, beyond 4 MiB for each peer: 2 MiB for each channel " \
           "without a buffer, up to 42 MiB for each peer with more channels than one; channels "   \
           "beyond are slower, and say so")                                                        \
    CHOICE(protocol, "PROTOCOL", "put", "put|get",                                                 \
           "protocol of send/recv where the operation names none")                                 \
    CHOICE(wait, "WAIT", "auto", "auto|kernel|memory_operation",                                   \
           "how streams wait; a forced choice passes the limits")                                  \
    STRING(table, "TABLE", "", "file of the two below for pairs of GPUs")                          \
    NUMBER(ll_max, "LL_MAX", -1, -1, 1 << 20,                                                      \
           "bytes up to which a message of this rank goes by ll; -1: as PEERHOP_TABLE says, else " \
           "as is right for the pair. Signals, all channels but those on a pair's first 16 "       \
           "lines, and pairs for which no table says `wide`: 8192 at most")                        \
    NUMBER(sm_max, "SM_MAX", -1, -1, INT64_MAX,                                                    \
           "... and by sm, a larger one by ce; -1: as PEERHOP_TABLE says, else all")               \
    CHOICE(method, "METHOD", "auto", "auto|ce|copy_kernel|sm|ll",                                  \
           "how the ipc path copies; a forced ce passes the limits")                               \
    NUMBER(copy_blocks, "COPY_BLOCKS", 64, 1, 128,                                                 \
           "most thread blocks of a copy by kernel; fewer leave more to the caller's kernels")     \
    NUMBER(page_blocks, "PAGE_BLOCKS", 16, 1, 1024,                                                \
           "most thread blocks of a list of pages that says nothing else")                         \
    NUMBER(net_part, "NET_PART", 2097152, 64, 1073741824,                                          \
           "most bytes of one RMA operation of the net path")                                      \
    NUMBER(net_rails, "NET_RAILS", 1, 1, 4,                                                        \
           "endpoints that the data of one peer goes over, at least one for each NIC; of two "     \
           "ranks the fewer count")                                                                \
    NUMBER(net_staging, "NET_STAGING", 268435456, 1048576, 17179869184,                            \
           "bytes of pinned memory for each peer whose device memory, or ours, goes over the "     \
           "net; half of it receives")                                                             \
    NUMBER(net_chunk, "NET_CHUNK", 524288, 4096, 67108864,                                         \
           "most bytes of device memory that go over the net at once")                             \
    NUMBER(                                                                                        \
        net_backoff_us, "NET_BACKOFF_US", 500, 1, 100000,                                          \
        "how long the net's thread pauses at most while streams or graphs may have work for it")   \
    CHOICE(net_memory, "NET_MEMORY", "auto", "auto|dmabuf|hmem|staged",                            \
           "how memory of this rank's device meets the net: registered as a DMA-BUF or through "   \
           "FI_HMEM, where all that is needed for it is there, or through pinned slots")           \
    CHOICE(net_flush, "NET_FLUSH", "auto", "auto|none|driver|read",                                \
           "what makes visible what the net has written into registered memory of a device: "      \
           "nothing, the driver's flush, a read through the same endpoint; auto: by the device's " \
           "attributes")                                                                           \
    CHOICE(path, "PATH", "auto", "auto|ipc|net",                                                   \
           "how peers are reached: auto: net where ipc cannot; net: also others of this node; if " \
           "one of two ranks says net and none ipc, both do; ipc: by nothing else")                \
    CHOICE(reap, "REAP", "manual", "manual|idle",                                                  \
           "who unmaps released cudaMalloc and pool memory of peers: ph_reap, or the library "     \
           "when its own operations are done")                                                     \
    CHOICE(check, "CHECK", "0", "0|1", "1: report calls on one direction that are not ordered")    \
    CHOICE(log, "LOG", "warn", "none|error|warn|info|debug",                                       \
           "log level, where the context is given none; without a callback lines go to stderr")

struct phi_config {
#define PHI_CONFIG_STRING(member, name, value, help)            char *member;
#define PHI_CONFIG_NUMBER(member, name, value, low, high, help) int64_t member;
#define PHI_CONFIG_CHOICE(member, name, value, words, help)     int member;
    PHI_CONFIG_MAP(PHI_CONFIG_STRING, PHI_CONFIG_NUMBER, PHI_CONFIG_CHOICE)
#undef PHI_CONFIG_STRING
#undef PHI_CONFIG_NUMBER
#undef PHI_CONFIG_CHOICE
};

enum { PHI_WAIT_AUTO, PHI_WAIT_KERNEL, PHI_WAIT_MEMORY_OPERATION };
enum { PHI_MEMORY_AUTO, PHI_MEMORY_DMABUF, PHI_MEMORY_HMEM, PHI_MEMORY_STAGED };
enum { PHI_NET_FLUSH_AUTO, PHI_NET_FLUSH_NONE, PHI_NET_FLUSH_DRIVER, PHI_NET_FLUSH_READ };
enum { PHI_PATH_AUTO, PHI_PATH_IPC, PHI_PATH_NET };
enum { PHI_REAP_MANUAL, PHI_REAP_IDLE };
enum { PHI_METHOD_AUTO, PHI_METHOD_CE, PHI_METHOD_COPY_KERNEL, PHI_METHOD_SM, PHI_METHOD_LL };

// phi_config_read fills config from settings ("PEERHOP_NAME=value", may be NULL; they win), the
// environment and the defaults. -EINVAL names the variable, its value and its range, also for an
// unknown name in settings; an unknown PEERHOP_* variable of the environment is logged as a
// warning; both name the one that is most likely meant. -ENOMEM. On failure nothing is owned.
// Reads getenv: must not run beside setenv.
int phi_config_read(struct phi_config *config, const char *const *settings,
                    struct phi_report *report);

// phi_config_level is the level that PEERHOP_LOG asks for: for the report of a context that is
// given none.
enum ph_log_level phi_config_level(const char *const *settings);

void phi_config_fini(
    struct phi_config *config); // and overwrites its strings: one may be a password

// phi_config_print writes the table with current values, ranges and help. Passwords are ***, also
// in a store's URI, and what may be one in a URI that is mistyped.
void phi_config_print(FILE *out, const struct phi_config *config);

// phi_config_password returns where the password of a store's URI begins, at its ':', and in *end
// where it ends; NULL: it has none. A text that is no URI may be a mistyped one: what stands where
// a password might is one, then perhaps without a ':' before it.
const char *phi_config_password(const char *uri, const char **end);

#endif
