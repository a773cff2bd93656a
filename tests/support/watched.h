// SPDX-License-Identifier: BSD-3-Clause
#ifndef TESTS_SUPPORT_WATCHED_H
#define TESTS_SUPPORT_WATCHED_H

#include <cstdlib>
#include <cstring>

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
}

// Whether this process runs under a sanitizer or valgrind, whose own memory, time and system calls
// would be measured. Asked at run time: the tests' C++ may be compiled without the sanitizer that
// the library has.
inline bool watched()
{
    const char *preloaded = getenv("LD_PRELOAD");
    return __asan_init != nullptr || __tsan_init != nullptr ||
           (preloaded != nullptr && strstr(preloaded, "vgpreload") != nullptr);
}

#endif
