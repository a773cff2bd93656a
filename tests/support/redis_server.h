// SPDX-License-Identifier: BSD-3-Clause
// A Redis server of the test's own: on a unix socket in a fresh folder of /tmp, and on a TCP port
// of 127.0.0.1 if asked for. It ends with the object, or with the process.
#ifndef TESTS_SUPPORT_REDIS_SERVER_H
#define TESTS_SUPPORT_REDIS_SERVER_H

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

class RedisServer
{
  public:
    // arguments: further ones of redis-server, e.g. {"--requirepass", "secret"}.
    explicit RedisServer(std::vector<std::string> arguments = {}, bool tcp = false);
    ~RedisServer();
    RedisServer(const RedisServer &) = delete;
    RedisServer &operator=(const RedisServer &) = delete;

    static bool available(); // is there a redis-server?

    bool start();   // waits until it answers; also after stop(): empty, on the same socket and port
    bool launch();  // does not wait
    void stop();    // SIGKILL: nothing is saved
    bool restart(); // both
    void pause();   // SIGSTOP
    void resume();

    std::string uri() const;     // unix://
    std::string tcp_uri() const; // redis://
    std::string socket() const
    {
        return folder_ + "/s";
    }
    int port() const
    {
        return port_;
    }

    // Runs one command and returns its answer as text: strings and numbers as they are, arrays with
    // spaces between the elements, errors beginning with "-", "(nil)", "(no connection)".
    std::string command(const std::vector<std::string> &words) const;
    // The same, split at blanks.
    std::string cli(const std::string &line) const;

    void set_password(std::string password)
    {
        password_ = std::move(password);
    } // of command()

  private:
    void keep();
    void fork_server();

    std::vector<std::string> arguments_;
    std::string folder_, password_;
    int port_ = 0, port_fd_ = -1;
    pid_t pid_ = -1;

    // The kernel ends the server with the thread that forked it, so that is one which lives as long
    // as the object.
    std::mutex lock_;
    std::condition_variable changed_;
    bool wanted_ = false, ending_ = false;
    std::thread keeper_;
};

#endif
