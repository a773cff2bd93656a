// SPDX-License-Identifier: BSD-3-Clause
// What a rank runs on: memory, streams, and copies on them.
#ifndef TESTS_RANDOM_MACHINE_H
#define TESTS_RANDOM_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <peerhop/peerhop.h>

#include "random/config.h"

class Machine
{
  public:
    virtual ~Machine() = default;
    virtual bool host() const = 0;
    virtual std::string wish() const = 0; // for ph_context_params.device

    // The streams of a context's life.
    virtual void begin(struct ph_context *context, int streams) = 0;
    virtual void *stream(int i) = 0;
    virtual void end() = 0; // before the context ends

    virtual void *alloc(size_t size, Kind kind) = 0; // that peers can map
    virtual void free(void *memory, size_t size, Kind kind) = 0;
    virtual uint8_t *near_memory(size_t size) = 0; // for snapshots; lives as long as the process
    virtual uint8_t *far_memory(size_t size) = 0;  // for images and results: the processor's

    // In the order of a stream.
    virtual void copy(int stream, void *to, const void *from, size_t size) = 0;
    virtual void fill(int stream, void *to, uint8_t value, size_t size) = 0;
    // What comes next on `to` follows what `from` has so far.
    virtual void order(int from, int to) = 0;
    virtual bool done(int stream, int64_t ms) = 0; // false: not in time

    // Graphs, of devices alone.
    virtual void begin_capture(int stream) = 0;
    virtual void *end_capture(int stream) = 0;
    virtual void launch(void *graph, int stream) = 0;
    virtual void destroy(void *graph) = 0;
};

std::unique_ptr<Machine> make_host_machine();
std::unique_ptr<Machine> make_cuda_machine(int rank); // fails the rank where there is no device

// How many devices the driver library has; 0 and why where there is none.
int cuda_devices(std::string *why_not);

// Ends the rank, which has failed, with this sentence; defined by rank.cpp.
[[noreturn]] void fail(const std::string &what);

#endif
