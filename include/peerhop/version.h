// SPDX-License-Identifier: BSD-3-Clause
// The version of the headers that a program was compiled with, and of the library that it runs
// with.
#ifndef PEERHOP_VERSION_H
#define PEERHOP_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#define PH_VERSION_MAJOR 0
#define PH_VERSION_MINOR 1
#define PH_VERSION_PATCH 0

// Every function of the API carries this: all other symbols of the library are hidden.
#define PH_API __attribute__((visibility("default")))

// ph_version returns the version of the running library, e.g. "0.1.0". Never blocks; any thread.
// Since 0.1.
PH_API const char *ph_version(void);

#ifdef __cplusplus
}
#endif
#endif
