// SPDX-License-Identifier: BSD-3-Clause
// Results. Functions that can fail return int: 0, a negative errno value, or one of the codes
// below. A code says what kind of failure it was; ph_context_error() has the sentence that names
// the peer, the operation and the cause.
#ifndef PEERHOP_ERROR_H
#define PEERHOP_ERROR_H

#include <peerhop/version.h>

#ifdef __cplusplus
extern "C" {
#endif

// X(name, value, text). The values lie outside the range of errno.
#define PH_ERROR_MAP(X)                                                                            \
    X(NOPATH, -5001, "no path connects the two buffers")                                           \
    X(CROSSED, -5002, "crossed exchange order: the ranks wait for each other in a cycle")          \
    X(FENCED, -5003, "a newer incarnation has taken this rank's place, or it was expelled")        \
    X(PEER, -5004, "the peer exited, left the job or was expelled")                                \
    X(BROKEN, -5005, "the channel is broken; data of its last operations is undefined")            \
    X(STORE, -5006, "the store refused a command or answered nonsense")                            \
    X(DRIVER, -5007, "the CUDA driver returned an error")                                          \
    X(MISMATCH, -5008, "the two ranks describe the operation differently")                         \
    X(KIND, -5009, "memory of this kind cannot be exported")                                       \
    X(FORKED, -5010, "this process was forked from the one that created the context")              \
    X(ABORTED, -5011, "the context or the channel was aborted")

// The codes that are not those of errno.
enum ph_error {
#define PH_ERROR_ENUM(name, value, text) PH_E##name = (value),
    PH_ERROR_MAP(PH_ERROR_ENUM)
#undef PH_ERROR_ENUM
};

// ph_strerror describes a result of this library: errno values as strerror does, own codes from the
// table above, anything else as "unknown error". Never NULL, never freed; never blocks; any thread.
// Since 0.1.
PH_API const char *ph_strerror(int result);

#ifdef __cplusplus
}
#endif
#endif
