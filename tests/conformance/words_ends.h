// SPDX-License-Identifier: BSD-3-Clause
// What the suite of the words needs of an executor: two ends, each with an executor of its own as
// two ranks have, and memory that both reach. An executor is added by a class and a line in
// words_test.cpp.
#ifndef TESTS_CONFORMANCE_WORDS_ENDS_H
#define TESTS_CONFORMANCE_WORDS_ENDS_H

#include "support/atomic_compat.h"

#include <memory>
#include <string>

#include "support/plain_context.h"

extern "C" {
#include "semaphore/executor.h"
}

// A line as a test sees it: the same 64 bytes as struct phi_line.
struct Line {
    uint32_t word[PHI_WORD_COUNT];
    uint32_t broken;
    uint32_t reserved[7];
    uint32_t undone;
    uint32_t reserved_too[5];
};
static_assert(offsetof(Line, undone) - offsetof(Line, broken) == PHI_UNDONE_BEHIND &&
                  sizeof(Line) == 64,
              "as in struct phi_line");

class Ends
{
  public:
    PlainContext context[2];
    phi_executor *executor[2] = {nullptr, nullptr}; // opened by open()
    Line *line[2] = {nullptr, nullptr};             // at their start values
    bool skips_posts = false; // behind a broken wait: all but memory operations do

    virtual ~Ends() = default;

    // Returns why the executor cannot be tested on this machine, or "".
    virtual std::string open() = 0;

    // The end's stream; the same one each time.
    virtual void *stream(int end) = 0;
    // Waits until the end's stream is done: 0 or -ETIMEDOUT.
    virtual int synchronize(int end, int64_t deadline) = 0;

    // Something of a line as end `end` names it to its device; 0 on the host.
    virtual uint64_t device_address(int end, const void *inside) = 0;

    // Memory that both ends reach at this address.
    virtual void *allocate(size_t size) = 0;
    virtual void write(void *to, const void *from, size_t size) = 0;
    virtual void read(void *to, const void *from, size_t size) = 0;
};

struct EndsEntry {
    const char *name;
    std::unique_ptr<Ends> (*make)();
};

std::unique_ptr<Ends> make_host_ends();
std::unique_ptr<Ends> make_cuda_kernel_ends();
std::unique_ptr<Ends> make_cuda_memory_operation_ends();
std::unique_ptr<Ends> make_cuda_peer_ends(); // on two devices

#endif
