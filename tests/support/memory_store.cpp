// SPDX-License-Identifier: BSD-3-Clause
#include "support/memory_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

ph_store_callbacks MemoryStore::callbacks()
{
    return {set, get, remove, this};
}

size_t MemoryStore::size()
{
    std::lock_guard<std::mutex> hold(lock_);
    return values_.size();
}

std::string MemoryStore::keys()
{
    std::lock_guard<std::mutex> hold(lock_);
    std::string text;
    for (const auto &value : values_)
        text += value.first + "\n";
    return text;
}

void MemoryStore::put(const std::string &key, const std::string &value)
{
    std::lock_guard<std::mutex> hold(lock_);
    values_[key] = value;
    changed_.notify_all();
}

std::string MemoryStore::value(const std::string &key)
{
    std::lock_guard<std::mutex> hold(lock_);
    auto found = values_.find(key);
    return found == values_.end() ? "" : found->second;
}

void MemoryStore::erase(const std::string &key)
{
    std::lock_guard<std::mutex> hold(lock_);
    values_.erase(key);
}

void MemoryStore::clear()
{
    std::lock_guard<std::mutex> hold(lock_);
    values_.clear();
}

bool MemoryStore::overwritten()
{
    std::lock_guard<std::mutex> hold(lock_);
    return overwritten_;
}

void MemoryStore::fail_sets(int count, int result, bool after_storing)
{
    std::lock_guard<std::mutex> hold(lock_);
    failing_ = count;
    failure_ = result;
    after_storing_ = after_storing;
}

int MemoryStore::set(void *opaque, const char *key, const void *value, size_t size, int64_t)
{
    auto *self = static_cast<MemoryStore *>(opaque);
    std::lock_guard<std::mutex> hold(self->lock_);
    bool fails = self->failing_ > 0;
    self->failing_ -= fails;
    if (fails && !self->after_storing_)
        return self->failure_;
    std::string copy(static_cast<const char *>(value), size);
    auto made = self->values_.insert({key, copy});
    if (!made.second && self->refuses && made.first->second != copy)
        return -EEXIST;
    if (!made.second) {
        self->overwritten_ |= made.first->second != copy;
        made.first->second = copy;
    }
    self->changed_.notify_all();
    return fails ? self->failure_ : 0;
}

int MemoryStore::get(void *opaque, const char *key, void **value, size_t *size, int64_t ms)
{
    auto *self = static_cast<MemoryStore *>(opaque);
    if (self->get_result)
        return self->get_result;
    if (ms > self->longest_get)
        self->longest_get = ms;
    std::unique_lock<std::mutex> hold(self->lock_);
    auto there = [&] { return self->values_.count(key) > 0; };
    if (!there() &&
        (ms == 0 ||
         !self->changed_.wait_until(
             hold, std::chrono::system_clock::now() + std::chrono::milliseconds(ms), there)))
        return -ETIMEDOUT;
    const std::string &found = self->values_[key];
    void *copy = malloc(found.size() + 1);
    std::copy(found.begin(), found.end(), static_cast<char *>(copy));
    *value = copy;
    *size = found.size();
    return 0;
}

int MemoryStore::remove(void *opaque, const char *key, int64_t)
{
    auto *self = static_cast<MemoryStore *>(opaque);
    std::this_thread::sleep_for(std::chrono::milliseconds(self->remove_ms));
    std::lock_guard<std::mutex> hold(self->lock_);
    return self->values_.erase(key) ? 0 : -ENOENT;
}
