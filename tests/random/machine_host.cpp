// SPDX-License-Identifier: BSD-3-Clause
// Host memory and queues.
#include "random/machine.h"

#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include <sched.h>
#include <sys/mman.h>

namespace
{

struct Work { // of a queue
    void *to;
    const void *from; // NULL: the value
    size_t size;
    uint8_t value;
};

void run(void *opaque)
{
    const Work &work = *static_cast<Work *>(opaque);
    if (work.from != nullptr)
        memcpy(work.to, work.from, work.size);
    else
        memset(work.to, work.value, work.size);
}

class HostMachine : public Machine
{
  public:
    bool host() const override
    {
        return true;
    }
    std::string wish() const override
    {
        return "host";
    }
    void begin(struct ph_context *context, int streams) override
    {
        context_ = context;
        queues_.assign((size_t)streams, nullptr);
        for (struct ph_queue *&queue : queues_)
            if (ph_queue_create(context, &queue))
                fail("no queue");
    }
    void *stream(int i) override
    {
        return queues_[(size_t)i];
    }
    void end() override
    {
        for (struct ph_queue *&queue : queues_)
            if (ph_queue_destroy(&queue))
                fail("a queue that is idle cannot be destroyed");
        queues_.clear();
    }
    void *alloc(size_t size, Kind) override
    {
        void *memory = nullptr;
        if (ph_host_alloc(context_, size, &memory))
            fail("no host memory");
        return memory;
    }
    void free(void *memory, size_t, Kind) override
    {
        if (ph_host_free(context_, memory, 0))
            fail("host memory that was released cannot be freed");
    }
    uint8_t *near_memory(size_t size) override
    {
        void *memory =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            fail("no memory");
        return static_cast<uint8_t *>(memory);
    }
    uint8_t *far_memory(size_t size) override
    {
        return near_memory(size);
    }
    void copy(int stream, void *to, const void *from, size_t size) override
    {
        enqueue(stream, {to, from, size, 0});
    }
    void fill(int stream, void *to, uint8_t value, size_t size) override
    {
        enqueue(stream, {to, nullptr, size, value});
    }
    // Queues have no events: this thread waits.
    void order(int from, int) override
    {
        if (ph_queue_synchronize(queues_[(size_t)from], 0))
            fail("a queue is not done at the deadline");
    }
    bool done(int stream, int64_t ms) override
    {
        const bool is = ph_queue_synchronize(queues_[(size_t)stream], ms) == 0;
        if (is && ++idle_ == queues_.size())
            works_.clear(), idle_ = 0;
        return is;
    }
    void begin_capture(int) override
    {
    }
    void *end_capture(int) override
    {
        return nullptr;
    }
    void launch(void *, int) override
    {
    }
    void destroy(void *) override
    {
    }

  private:
    void enqueue(int stream, Work work)
    {
        works_.push_back(work); // stays where it is
        int rc;
        while ((rc = ph_queue_host(queues_[(size_t)stream], run, &works_.back())) == -EAGAIN)
            sched_yield();
        if (rc)
            fail("ph_queue_host failed");
        idle_ = 0;
    }
    struct ph_context *context_ = nullptr;
    std::vector<struct ph_queue *> queues_;
    std::deque<Work> works_;
    size_t idle_ = 0;
};

} // namespace

std::unique_ptr<Machine> make_host_machine()
{
    return std::make_unique<HostMachine>();
}
