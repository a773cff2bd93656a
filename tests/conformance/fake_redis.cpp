// SPDX-License-Identifier: BSD-3-Clause
#include "conformance/fake_redis.h"

#include <cstdio>
#include <cstdlib>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

FakeRedis::FakeRedis(Answer answer) : answer_(std::move(answer))
{
    char folder[] = "/tmp/phfake.XXXXXX";
    folder_ = mkdtemp(folder) ? folder : "/nonexistent";
    path_ = folder_ + "/s";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path_.c_str());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener_, reinterpret_cast<sockaddr *>(&address), sizeof(address)) == 0)
        listen(listener_, 64);
    acceptor_ = std::thread([this] { run(); });
}

FakeRedis::~FakeRedis()
{
    ending_ = true;
    acceptor_.join();
    for (int fd : accepted_)
        shutdown(fd, SHUT_RDWR); // a send to a client that does not read would not end
    for (std::thread &connection : connections_)
        connection.join();
    for (int fd : accepted_)
        close(fd);
    close(listener_);
    unlink(path_.c_str());
    rmdir(folder_.c_str());
}

static bool readable(int fd)
{
    pollfd wait = {fd, POLLIN, 0};
    return poll(&wait, 1, 10) > 0;
}

void FakeRedis::run()
{
    while (!ending_) {
        if (!readable(listener_))
            continue;
        int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        accepted_.push_back(fd);
        connections_.emplace_back([this, fd] { serve(fd); });
    }
}

static bool send_all(int fd, const std::string &text)
{
    return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

static bool send_slowly(int fd, const std::string &text)
{
    bool open = true;
    for (size_t i = 0; open && i < text.size(); i++) {
        open = send_all(fd, text.substr(i, 1));
        usleep(200);
    }
    return open;
}

// Takes one whole command off the front of text and returns its name, or "".
static std::string take_command(std::string &text)
{
    size_t at = text.find("\r\n");
    if (at == std::string::npos || text[0] != '*')
        return "";
    int words = atoi(text.c_str() + 1);
    std::string name;
    at += 2;
    for (int i = 0; i < words; i++) {
        size_t end = text.find("\r\n", at);
        if (end == std::string::npos)
            return "";
        size_t size = static_cast<size_t>(atol(text.c_str() + at + 1));
        if (text.size() < end + 2 + size + 2)
            return "";
        if (i == 0)
            name = text.substr(end + 2, size);
        at = end + 2 + size + 2;
    }
    text.erase(0, at);
    return name;
}

void FakeRedis::serve(int fd)
{
    std::string text;
    bool open = true;
    while (open && !ending_) {
        if (!readable(fd))
            continue;
        char chunk[4096];
        ssize_t got = recv(fd, chunk, sizeof(chunk), 0);
        if (got <= 0)
            break;
        text.append(chunk, static_cast<size_t>(got));
        for (std::string name = take_command(text); open && !name.empty();
             name = take_command(text)) {
            std::string answer = answer_(name, count_++);
            if (answer == HANG_UP)
                open = false;
            else if (answer == ENDLESS)
                while (!ending_ && send_all(fd, "$99999999\r\n" + std::string(60000, 'x')))
                    ;
            else if (answer.rfind(SLOWLY, 0) == 0)
                open = send_slowly(fd, answer.substr(std::string(SLOWLY).size()));
            else
                open = send_all(fd, answer);
        }
    }
    shutdown(fd, SHUT_RDWR);
}
