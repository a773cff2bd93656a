// SPDX-License-Identifier: BSD-3-Clause
// How a device ends, with the test in the driver's place.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

extern "C" {
#include "base/closer.h"
#include "cuda/device_state.h"
}

namespace
{

void sleep_ms(int ms)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// An application whose log takes long. Relaxed, so that nothing but the library orders what two of
// its threads do.
struct SlowLog {
    std::atomic<int> begun{0}, over{0};

    static void line(void *opaque, enum ph_log_level, const char *)
    {
        auto *log = static_cast<SlowLog *>(opaque);
        log->begun.fetch_add(1, std::memory_order_relaxed);
        sleep_ms(100);
        log->over.fetch_add(1, std::memory_order_relaxed);
    }
};

CUresult name_error(CUresult, const char **name)
{
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
}

CUresult pop(CUcontext *)
{
    return CUDA_SUCCESS;
}

std::atomic<int> ended{0};

CUresult release(CUdevice)
{
    ended++;
    return CUDA_SUCCESS;
}

// What the closer ends, and the driver refuses to.
struct Refused {
    phi_closing closing; // first
    phi_device *device;

    static void close(phi_closing *closing)
    {
        phi_device_tell(reinterpret_cast<Refused *>(closing)->device, CUDA_ERROR_UNKNOWN,
                        "cuMemFree");
    }
};

// Once it is closed, at once though the closer is not done, the report may end, and with it all
// that the application's log needs: no line is being told any more, and none will be.
TEST(DeviceLife, NothingIsToldOnceItIsClosed)
{
    phi_report report;
    SlowLog log;
    phi_driver driver = {};
    driver.cuGetErrorName = name_error;
    driver.cuCtxPopCurrent_v2 = pop;
    driver.cuDevicePrimaryCtxRelease_v2 = release;
    phi_report_init(&report, SlowLog::line, &log, PH_LOG_WARN);
    auto *device = static_cast<phi_device *>(calloc(1, sizeof(phi_device)));
    device->report = &report;
    device->driver = &driver;
    for (auto *lock : {&device->lock, &device->telling, &device->ends})
        pthread_mutex_init(lock, nullptr);
    ASSERT_EQ(phi_closer_open(&device->closer), 0);
    Refused refused[2];
    for (Refused &each : refused) {
        each = {{}, device};
        each.closing.close = Refused::close;
        phi_closer_hand(device->closer, &each.closing);
    }
    while (log.begun.load(std::memory_order_relaxed) == 0)
        sleep_ms(1);
    phi_device_close(device, 0);
    const int begun = log.begun.load(std::memory_order_relaxed);
    EXPECT_EQ(log.over.load(std::memory_order_relaxed), begun);
    while (ended == 0)
        sleep_ms(1);
    EXPECT_EQ(log.begun.load(std::memory_order_relaxed), begun);
    phi_report_fini(&report);
}

} // namespace
