// SPDX-License-Identifier: BSD-3-Clause
// A dictionary behind ph_store_callbacks, as a user would write one. It can be told to fail.
#ifndef TESTS_SUPPORT_MEMORY_STORE_H
#define TESTS_SUPPORT_MEMORY_STORE_H

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

extern "C" {
#include <peerhop/store.h>
}

class MemoryStore
{
  public:
    ph_store_callbacks callbacks();
    size_t size();
    std::string keys(); // one a line
    void put(const std::string &key, const std::string &value);
    std::string value(const std::string &key); // empty: it is not there
    void erase(const std::string &key);
    void clear();
    bool overwritten(); // was a key set twice, with another value?

    // The next calls of set return this; where after_storing, they store nevertheless, as a
    // time-out may.
    void fail_sets(int count, int result, bool after_storing);
    std::atomic<bool> refuses{false};    // -EEXIST where a key has another value
    std::atomic<int> remove_ms{0};       // that a remove takes
    std::atomic<int> get_result{0};      // not 0: every get returns it at once
    std::atomic<int64_t> longest_get{0}; // ms that a get was asked to wait at most

  private:
    static int set(void *opaque, const char *key, const void *value, size_t size, int64_t ms);
    static int get(void *opaque, const char *key, void **value, size_t *size, int64_t ms);
    static int remove(void *opaque, const char *key, int64_t ms);

    std::mutex lock_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
    bool overwritten_ = false;
    int failing_ = 0, failure_ = 0;
    bool after_storing_ = false;
};

#endif
