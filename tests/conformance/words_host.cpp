// SPDX-License-Identifier: BSD-3-Clause
#include "conformance/words_ends.h"

#include <cstring>
#include <vector>

namespace
{

class HostEnds : public Ends
{
  public:
    HostEnds()
    {
        skips_posts = true;
    }
    ~HostEnds() override
    {
        for (phi_executor *each : executor)
            if (each)
                each->ops->close(each);
    }
    std::string open() override
    {
        for (int end = 0; end < 2; end++) {
            phi_executor_params params{&context[end].report, &context[end].counters,
                                       &context[end].config};
            if (phi_host_executor_open(&params, &executor[end]) ||
                phi_queue_create(executor[end], &queue[end]))
                return context[end].error();
            line[end] = &lines[end].line;
        }
        return "";
    }
    void *stream(int end) override
    {
        return queue[end];
    }
    int synchronize(int end, int64_t deadline) override
    {
        phi_progress progress;
        phi_queue_progress(queue[end], &progress);
        return phi_queue_wait(queue[end], progress.issued, deadline);
    }
    uint64_t device_address(int, const void *) override
    {
        return 0;
    }
    void *allocate(size_t size) override
    {
        memory.push_back(std::make_unique<char[]>(size));
        return memory.back().get();
    }
    void write(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
    void read(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }

  private:
    struct alignas(64) Aligned {
        Line line{};
    };
    Aligned lines[2];
    ph_queue *queue[2] = {nullptr, nullptr};
    std::vector<std::unique_ptr<char[]>> memory;
};

} // namespace

std::unique_ptr<Ends> make_host_ends()
{
    return std::make_unique<HostEnds>();
}
