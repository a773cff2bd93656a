// SPDX-License-Identifier: BSD-3-Clause
// Memory and streams of the scenario's ranks. What is not a call of the library aborts where it
// fails.
#ifndef TESTS_FAULTS_MEMORY_H
#define TESTS_FAULTS_MEMORY_H

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

struct ph_context;

namespace faults
{

class Memory
{
  public:
    virtual ~Memory() = default;
    virtual const char *wish() const = 0;            // ph_context_params.device
    virtual const char *const *settings() const = 0; // likewise
    virtual void open(ph_context *context) = 0;
    virtual void close() = 0; // after the context's end

    // Results of the library, 0 where it takes no part.
    virtual int alloc(size_t size, void **memory) = 0;
    virtual int free(void *memory) = 0;
    virtual int stream(void **stream) = 0;
    virtual int synchronize(void *stream, int64_t ms) = 0; // -ETIMEDOUT: not yet

    virtual void write(void *to, const void *from, size_t size) = 0;
    virtual void read(void *to, const void *from, size_t size) = 0;

    // One graph at a time; false where there are none.
    virtual bool capture(void *stream, const std::function<void()> &body) = 0;
    virtual void launch(void *stream) = 0;
    virtual void drop_graph() = 0;
};

std::unique_ptr<Memory> make_memory(const std::string &device, int rank);
std::string prepare_memory(const std::string &device); // "" or why not

} // namespace faults

#endif
