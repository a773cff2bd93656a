// SPDX-License-Identifier: BSD-3-Clause
// What can be told about the driver and the kernels without a driver.
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <gtest/gtest.h>

#include "support/plain_context.h"

extern "C" {
#include "cuda/device.h"
#ifdef CUDA_STUB
#include "cuda/entries.h"
#endif
#include "cuda/kernels.h"
}

namespace
{

const bool built = std::string(phi_device_build()) != "left out";

struct Log {
    std::string text;
    static void line(void *opaque, enum ph_log_level, const char *text)
    {
        static_cast<Log *>(opaque)->text += std::string(text) + "\n";
    }
};

// What phi_device_count logs about a library, and that it is no failure.
std::string reason(const char *library)
{
    Log log;
    phi_report report;
    char text[64];
    phi_report_init(&report, Log::line, &log, PH_LOG_INFO);
    EXPECT_EQ(phi_device_count(&report, library), 0);
    EXPECT_EQ(phi_device_current(&report, library), -1);
    EXPECT_EQ(phi_report_copy(&report, text, sizeof text), 0u) << "no driver is no failure";
    phi_report_fini(&report);
    return log.text;
}

TEST(Driver, MissingLibraryIsNoDevice)
{
    EXPECT_NE(reason("/nonexistent/libcuda.so.1").find(built ? "nonexistent" : "left out"),
              std::string::npos);
}

TEST(Driver, OpenWithoutDriverSaysWhy)
{
    PlainContext context;
    phi_device *device = nullptr;
    EXPECT_EQ(phi_device_open(&context.report, "/nonexistent/libcuda.so.1", 0, 0, &device),
              built ? -ENODEV : -ENOTSUP);
    EXPECT_EQ(device, nullptr);
    EXPECT_NE(context.error().find("cuda:0"), std::string::npos) << context.error();
}

TEST(Driver, LibraryThatIsNoDriverNamesTheMissingEntry)
{
    if (!built)
        GTEST_SKIP() << "CUDA is left out of this build";
    EXPECT_NE(reason("libm.so.6").find("cuInit"), std::string::npos);
}

#ifdef CUDA_STUB
TEST(Driver, ToolkitStubIsNoDriver)
{
    EXPECT_NE(reason(CUDA_STUB).find("stub"), std::string::npos) << reason(CUDA_STUB);
}

// The stub exports every function of the toolkit: a pinned name that it lacks is a misspelt one.
TEST(Driver, EveryEntryIsInTheToolkitsStub)
{
    void *stub = dlopen(CUDA_STUB, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(stub, nullptr) << dlerror();
    size_t entries = 0;
#define LOOK_UP(symbol)                                                                            \
    EXPECT_NE(dlsym(stub, #symbol), nullptr) << #symbol;                                           \
    entries++;
    PHI_CUDA_REQUIRED(LOOK_UP)
    PHI_CUDA_OPTIONAL(LOOK_UP)
    PHI_CUDA_TESTS(LOOK_UP)
#undef LOOK_UP
    EXPECT_GT(entries, 90u);
    dlclose(stub);
}
#endif

TEST(Kernels, FatbinIsEmbeddedOrLeftOut)
{
    const std::string architectures = phi_device_architectures();
    if (architectures == "left out") {
        EXPECT_EQ(phi_kernels_size, 0u);
        return;
    }
    const uint32_t magic = 0xba55ed50; // of a fatbin
    uint32_t found;
    ASSERT_GT(phi_kernels_size, 4096u);
    memcpy(&found, phi_kernels, sizeof found);
    EXPECT_EQ(found, magic);
    EXPECT_NE(architectures.find("PTX"), std::string::npos) << architectures;
}

#ifdef GPU_ARCH
// One cubin for each architecture, each with both kernels.
TEST(Kernels, AllArchitecturesHaveAllKernels)
{
    const std::string bytes(reinterpret_cast<const char *>(phi_kernels), phi_kernels_size);
    size_t wanted = std::vector<int>{GPU_ARCH}.size();
    for (std::string kernel : {".text.phi_brace", ".text.phi_copy"}) {
        size_t count = 0;
        for (size_t at = 0; (at = bytes.find(kernel + '\0', at)) != std::string::npos; at++)
            count++;
        EXPECT_GE(count, wanted) << kernel;
    }
}
#endif

} // namespace
