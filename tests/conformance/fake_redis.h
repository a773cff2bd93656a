// SPDX-License-Identifier: BSD-3-Clause
// A server on a unix socket that answers as it is told.
#ifndef TESTS_CONFORMANCE_FAKE_REDIS_H
#define TESTS_CONFORMANCE_FAKE_REDIS_H

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

class FakeRedis
{
  public:
    // What to answer to a command, by its name and the number of commands answered so far on all
    // connections.
    using Answer = std::function<std::string(const std::string &command, int count)>;
    static constexpr const char *HANG_UP = "(hang up)"; // close instead
    static constexpr const char *ENDLESS = "(endless)"; // send bytes until the other side closes
    static constexpr const char *SLOWLY = "(slowly)";   // what follows, each byte by itself

    explicit FakeRedis(Answer answer);
    ~FakeRedis();
    std::string uri() const
    {
        return "unix://" + path_;
    }

  private:
    void run();
    void serve(int fd);

    Answer answer_;
    std::string folder_, path_;
    int listener_ = -1;
    std::atomic<int> count_{0};
    std::atomic<bool> ending_{false};
    std::vector<int> accepted_; // by the acceptor; closed at the end
    std::vector<std::thread> connections_;
    std::thread acceptor_;
};

#endif
