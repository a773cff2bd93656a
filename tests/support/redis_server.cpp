// SPDX-License-Identifier: BSD-3-Clause
#include "support/redis_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

// A port that the system gives nobody else as long as *fd is open. The server may have it: both ask
// to use it again, and only the server listens.
static int own_port(int *fd)
{
    *fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    const int on = 1;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    if (setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(*fd, reinterpret_cast<sockaddr *>(&address), size) == 0 &&
        getsockname(*fd, reinterpret_cast<sockaddr *>(&address), &size) == 0)
        port = ntohs(address.sin_port);
    return port;
}

RedisServer::RedisServer(std::vector<std::string> arguments, bool tcp)
    : arguments_(std::move(arguments))
{
    char folder[] = "/tmp/phredis.XXXXXX";
    folder_ = mkdtemp(folder) ? folder : "/nonexistent";
    if (tcp)
        port_ = own_port(&port_fd_);
    for (size_t i = 0; i + 1 < arguments_.size(); i++)
        if (arguments_[i] == "--requirepass")
            password_ = arguments_[i + 1];
    keeper_ = std::thread([this] { keep(); });
}

RedisServer::~RedisServer()
{
    stop();
    {
        std::lock_guard<std::mutex> hold(lock_);
        ending_ = true;
        changed_.notify_all();
    }
    keeper_.join();
    unlink(socket().c_str());
    rmdir(folder_.c_str());
    if (port_fd_ >= 0)
        close(port_fd_);
}

bool RedisServer::available()
{
    static const bool found = system("command -v redis-server >/dev/null 2>&1") == 0;
    return found;
}

void RedisServer::keep()
{
    std::unique_lock<std::mutex> hold(lock_);
    while (!ending_) {
        changed_.wait(hold, [this] { return wanted_ || ending_; });
        if (wanted_)
            fork_server();
        wanted_ = false;
        changed_.notify_all();
    }
}

bool RedisServer::launch()
{
    std::unique_lock<std::mutex> hold(lock_);
    wanted_ = true;
    changed_.notify_all();
    changed_.wait(hold, [this] { return !wanted_; });
    return pid_ > 0;
}

void RedisServer::fork_server()
{
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--unixsocket",
                                      socket(),
                                      "--dir",
                                      folder_,
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--repl-diskless-load",
                                      "swapdb"};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<char *> argv;
    for (std::string &word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    unlink(socket().c_str());
    fflush(nullptr);
    pid_t parent = getpid();
    pid_ = fork();
    if (pid_ != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    execvp(argv[0], argv.data());
    _exit(127);
}

bool RedisServer::start()
{
    if (!launch())
        return false;
    for (int i = 0; i < 20000; i++) {
        if (cli("PING") == "PONG")
            return true;
        if (waitpid(pid_, nullptr, WNOHANG) != 0) {
            pid_ = -1;
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

void RedisServer::stop()
{
    if (pid_ <= 0)
        return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

bool RedisServer::restart()
{
    stop();
    return start();
}

void RedisServer::pause()
{
    if (pid_ > 0)
        kill(pid_, SIGSTOP);
}

void RedisServer::resume()
{
    if (pid_ > 0)
        kill(pid_, SIGCONT);
}

std::string RedisServer::uri() const
{
    return "unix://" + socket();
}

std::string RedisServer::tcp_uri() const
{
    return "redis://127.0.0.1:" + std::to_string(port_);
}

static std::string text_of(const redisReply *reply)
{
    if (!reply)
        return "(no connection)";
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        return std::to_string(reply->integer);
    case REDIS_REPLY_NIL:
        return "(nil)";
    case REDIS_REPLY_ERROR:
        return "-" + std::string(reply->str, reply->len);
    case REDIS_REPLY_ARRAY: {
        std::string text;
        for (size_t i = 0; i < reply->elements; i++)
            text += (i ? " " : "") + text_of(reply->element[i]);
        return text;
    }
    default:
        return std::string(reply->str, reply->len);
    }
}

std::string RedisServer::command(const std::vector<std::string> &words) const
{
    redisContext *context = redisConnectUnixWithTimeout(socket().c_str(), {2, 0});
    if (!context || context->err) {
        if (context)
            redisFree(context);
        return "(no connection)";
    }
    redisSetTimeout(context, {5, 0});
    if (!password_.empty())
        freeReplyObject(redisCommand(context, "AUTH %s", password_.c_str()));
    std::vector<const char *> argv;
    std::vector<size_t> sizes;
    for (const std::string &word : words) {
        argv.push_back(word.data());
        sizes.push_back(word.size());
    }
    auto *reply = static_cast<redisReply *>(
        redisCommandArgv(context, static_cast<int>(argv.size()), argv.data(), sizes.data()));
    std::string text = text_of(reply);
    if (reply)
        freeReplyObject(reply);
    redisFree(context);
    return text;
}

std::string RedisServer::cli(const std::string &line) const
{
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;)
        words.push_back(word);
    return command(words);
}
