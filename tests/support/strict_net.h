// SPDX-License-Identifier: BSD-3-Clause
// What a test may ask of the strict libfabric (tests/conformance/net_strict.h) and tell it, where
// that is the one which this process has loaded.
#ifndef TESTS_SUPPORT_STRICT_NET_H
#define TESTS_SUPPORT_STRICT_NET_H

#include <dlfcn.h>

#include <cstdlib>

#include <gtest/gtest.h>

// A function of it, or NULL where it is not loaded.
template <typename Function> Function *strict_function(const char *name)
{
    const char *library = getenv("PEERHOP_LIBFABRIC");
    void *handle = library ? dlopen(library, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    return handle ? reinterpret_cast<Function *>(dlsym(handle, name)) : nullptr;
}

// What it has counted under a name; 0 where it is not loaded.
inline int strict_count(const char *name)
{
    auto *function = strict_function<int()>(name);
    return function ? function() : 0;
}

// At a test's end: what the library asked of it was right, and what it mapped is mapped no more.
inline void expect_nothing_refused()
{
    EXPECT_EQ(strict_count("strict_refused"), 0)
        << "what the strict provider refused is in the output";
    EXPECT_EQ(strict_count("strict_mapped"), 0);
}

#endif
