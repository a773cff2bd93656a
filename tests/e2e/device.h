// SPDX-License-Identifier: BSD-3-Clause
// What an end-to-end test needs of the memory that it runs on, the same for host memory, the
// stand-in and GPUs. A test takes it from its Rank and is written once.
#ifndef TESTS_E2E_DEVICE_H
#define TESTS_E2E_DEVICE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <peerhop/peerhop.h>

// Large buffers are read and written so much at a time: fresh memory for all of one, each time,
// would take longer than what is tested.
static const size_t PIECE = 64 << 10;

class Device
{
  public:
    virtual ~Device() = default;

    virtual bool host() const = 0;
    virtual const char *wish() const = 0; // for ph_context_params.device

    // Memory that peers can map; freed by release or at the end. kind: "" (host memory,
    // cudaMalloc), "vmm", "pool". And of what they cannot map: "default-pool" (no exportable
    // handle), "pinned" (host memory of the driver's).
    virtual void *alloc(size_t size, const std::string &kind = "") = 0;
    virtual void release(void *memory) = 0;

    // Has the driver load the library's kernels and let them go, so many times: what is left behind
    // is the driver's.
    virtual void load_kernels(int)
    {
    }

    // Synchronous copies between the test's memory and the device's; they wait for nothing else.
    virtual void write(void *to, const void *from, size_t size) = 0;
    virtual void read(void *to, const void *from, size_t size) = 0;

    // Streams. kind: "" (non-blocking stream, a queue), "blocking", "legacy", "per-thread".
    virtual void *stream(const std::string &kind = "") = 0;
    virtual bool synchronize(void *stream, int64_t ms) = 0; // false: not done in time

    // Makes the device usable on another thread of the test.
    virtual void enter_thread()
    {
    }

    // Copies in the order of the stream, between memory of this rank.
    virtual void copy(void *stream, void *to, const void *from, size_t size) = 0;

    // What comes next on the stream follows what the other one has so far (devices only).
    virtual void follow(void *stream, void *other) = 0;

    // A function that runs when the stream reaches it.
    virtual void call(void *stream, std::function<void()> function) = 0;

    // Work of about that many microseconds on the stream, which then writes `value` into every
    // byte.
    virtual void slow_fill(void *stream, void *memory, size_t size, uint8_t value, unsigned us) = 0;

    // Graphs: what body() enqueues on the stream. nullptr: none on this device. global: captures in
    // global mode, so that unsafe calls of any thread would end it.
    virtual void *capture(void *stream, std::function<void()> body, bool global = false) = 0;
    virtual void launch(void *graph, void *stream) = 0;
    virtual void destroy(void *graph) = 0;

    void fill(void *to, size_t size, uint64_t seed); // with the pattern of the seed
    // "" or what is wrong; skip: pattern offset
    std::string verify(const void *from, size_t size, uint64_t seed, size_t skip = 0);
};

// The byte at an offset of a seed's pattern.
uint8_t pattern_byte(uint64_t seed, size_t offset);

// open: the context is needed by host memory only. name: "host", "standin", "gpu".
std::unique_ptr<Device> make_host_device(struct ph_context **context);
std::unique_ptr<Device> make_cuda_device(int rank); // null where there is no driver

// The devices that tests can run on here; `why_not` explains a name that is missing.
bool device_available(const std::string &name, std::string *why_not);

// Whether there are two GPUs, of which each maps the other's memory.
bool gpus_linked(std::string *why_not);

#endif
