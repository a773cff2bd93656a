// SPDX-License-Identifier: BSD-3-Clause
// Runs programs (support/device_program.h) at this rank's end of a channel, beside what the test
// itself enqueues: by a kernel, or on the stand-in by threads.
#ifndef TESTS_E2E_DEVICE_RUNNER_H
#define TESTS_E2E_DEVICE_RUNNER_H

#include <memory>

#include <peerhop/device_types.h>

#include "e2e/ranks.h"
#include "support/device_program.h"

class DeviceRunner
{
  public:
    virtual ~DeviceRunner() = default;

    // One program at a time. finish: what became of it; fails the rank where it does not end.
    virtual void start(const device_program &program) = 0;
    virtual device_outcome finish(int64_t ms) = 0;

    // Starts the program so many times by a graph of one launch. false: there are none here.
    virtual bool replay(const device_program &program, int times) = 0;
};

std::unique_ptr<DeviceRunner> make_thread_runner();
std::unique_ptr<DeviceRunner> make_kernel_runner(Rank &rank); // null: no kernels in this build

#endif
