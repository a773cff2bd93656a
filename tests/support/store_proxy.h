// SPDX-License-Identifier: BSD-3-Clause
// Stands between ranks and a Redis server, on a unix socket of its own, and spoils what passes.
#ifndef TESTS_SUPPORT_STORE_PROXY_H
#define TESTS_SUPPORT_STORE_PROXY_H

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

class StoreProxy
{
  public:
    enum Mode {
        PASS,
        ABSENT,  // nobody listens, and no connection is left
        SILENT,  // connections are accepted, and nothing is answered; what was swallowed stays so
        HALF,    // half of an answer, and no more
        SLOW,    // answers take their time
        GARBAGE, // other answers than the server's
        CLOSING, // a connection ends with the first command
    };

    explicit StoreProxy(std::string server_socket);
    ~StoreProxy();
    StoreProxy(const StoreProxy &) = delete;

    std::string uri() const
    {
        return "unix://" + folder_ + "/s";
    }
    void set(Mode mode);
    void cut();   // ends every connection; new ones are fine
    void spoil(); // every connection that there is stays silent from now on; new ones are fine

    // Calls function once, before the next command of that name goes on to the server.
    void before(const std::string &command, std::function<void()> function);

  private:
    struct Pair {
        int client, server;
        bool dead;    // stays silent
        bool counted; // had its half of an answer
    };

    void run();
    void listen_again();
    void accept_one();
    bool from_client(Pair &pair);
    bool from_server(Pair &pair);
    void poke();
    void drop_all();
    static void end(Pair &pair);

    std::string server_, folder_;
    std::mutex lock_; // of all below
    Mode mode_ = PASS;
    bool cut_ = false, ending_ = false;
    std::string command_;
    std::function<void()> function_;
    std::vector<Pair> pairs_;
    int listener_ = -1, wake_ = -1;
    std::thread thread_;
};

#endif
