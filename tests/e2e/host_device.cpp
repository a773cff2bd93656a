// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include <endian.h>

#include "e2e/device.h"
#include "e2e/ranks.h"

static uint64_t pattern_word(uint64_t seed, size_t index)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return x;
}

// The words in which these bytes lie, the first at offset % 8. Byte by byte would take longer than
// what is tested.
static std::vector<uint64_t> pattern(uint64_t seed, size_t offset, size_t size)
{
    std::vector<uint64_t> words((offset % 8 + size + 7) / 8);
    for (size_t i = 0; i < words.size(); i++)
        words[i] = htole64(pattern_word(seed, offset / 8 + i));
    return words;
}

uint8_t pattern_byte(uint64_t seed, size_t offset)
{
    return static_cast<uint8_t>(pattern_word(seed, offset / 8) >> (offset % 8 * 8));
}

void Device::fill(void *to, size_t size, uint64_t seed)
{
    for (size_t done = 0; done < size; done += PIECE) {
        const size_t n = std::min(size - done, PIECE);
        write(static_cast<uint8_t *>(to) + done, pattern(seed, done, n).data(), n);
    }
}

std::string Device::verify(const void *from, size_t size, uint64_t seed, size_t skip)
{
    std::vector<uint8_t> bytes(std::min(size, PIECE));
    for (size_t done = 0; done < size; done += PIECE) {
        bytes.resize(std::min(size - done, PIECE));
        read(bytes.data(), static_cast<const uint8_t *>(from) + done, bytes.size());
        const std::vector<uint64_t> words = pattern(seed, skip + done, bytes.size());
        const auto *wanted = reinterpret_cast<const uint8_t *>(words.data()) + skip % 8;
        const auto i = static_cast<size_t>(std::mismatch(bytes.begin(), bytes.end(), wanted).first -
                                           bytes.begin());
        if (i < bytes.size())
            return "byte " + std::to_string(done + i) + " of " + std::to_string(size) + " is " +
                   std::to_string(bytes[i]) + ", not " + std::to_string(wanted[i]) + " of seed " +
                   std::to_string(seed);
    }
    return "";
}

namespace
{

class HostDevice : public Device
{
  public:
    explicit HostDevice(struct ph_context **context) : context_(context)
    {
    }

    bool host() const override
    {
        return true;
    }
    const char *wish() const override
    {
        return "host";
    }

    void *alloc(size_t size, const std::string &kind) override
    {
        void *memory = nullptr;
        if (!kind.empty() || ph_host_alloc(*context_, size, &memory))
            rank_failed(__FILE__, __LINE__, "no host memory of kind \"" + kind + "\"");
        return memory;
    }
    void release(void *memory) override
    {
        if (ph_host_free(*context_, memory, 0))
            rank_failed(__FILE__, __LINE__, "host memory could not be freed");
    }
    void write(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
    void read(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }

    void *stream(const std::string &kind) override
    {
        if (kind == "legacy")
            return nullptr;
        struct ph_queue *queue = nullptr;
        if (ph_queue_create(*context_, &queue))
            rank_failed(__FILE__, __LINE__, "no queue");
        default_ = default_ ? default_ : queue;
        return queue;
    }
    bool synchronize(void *stream, int64_t ms) override
    {
        // The default queue has no handle of its own to synchronise: a call on it tells.
        if (stream != nullptr) // 0 would mean the context's deadline
            return ph_queue_synchronize(static_cast<struct ph_queue *>(stream), ms ? ms : 1) == 0;
        rank_failed(__FILE__, __LINE__, "the default queue cannot be synchronised");
    }
    void copy(void *stream, void *to, const void *from, size_t size) override
    {
        call(stream, [=] { memcpy(to, from, size); });
    }
    void follow(void *, void *) override
    {
        rank_failed(__FILE__, __LINE__, "queues have no events");
    }
    void call(void *stream, std::function<void()> function) override
    {
        auto *copy = new std::function<void()>(std::move(function));
        auto run = [](void *opaque) {
            auto *f = static_cast<std::function<void()> *>(opaque);
            (*f)();
            delete f;
        };
        if (ph_queue_host(static_cast<struct ph_queue *>(stream), run, copy))
            rank_failed(__FILE__, __LINE__, "ph_queue_host failed");
    }
    void slow_fill(void *stream, void *memory, size_t size, uint8_t value, unsigned us) override
    {
        call(stream, [=] {
            std::this_thread::sleep_for(std::chrono::microseconds(us));
            memset(memory, value, size);
        });
    }
    void *capture(void *, std::function<void()>, bool) override
    {
        return nullptr;
    }
    void launch(void *, void *) override
    {
    }
    void destroy(void *) override
    {
    }

  private:
    struct ph_context **context_;
    struct ph_queue *default_ = nullptr;
};

} // namespace

std::unique_ptr<Device> make_host_device(struct ph_context **context)
{
    return std::make_unique<HostDevice>(context);
}
