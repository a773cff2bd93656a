// SPDX-License-Identifier: BSD-3-Clause
#include "support/store_proxy.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static sockaddr_un address_of(const std::string &path)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    return address;
}

StoreProxy::StoreProxy(std::string server_socket) : server_(std::move(server_socket))
{
    char folder[] = "/tmp/phproxy.XXXXXX";
    folder_ = mkdtemp(folder) ? folder : "/nonexistent";
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    listen_again();
    thread_ = std::thread([this] { run(); });
}

StoreProxy::~StoreProxy()
{
    {
        std::lock_guard<std::mutex> hold(lock_);
        ending_ = true;
        poke();
    }
    thread_.join();
    drop_all();
    if (listener_ >= 0)
        close(listener_);
    close(wake_);
    unlink((folder_ + "/s").c_str());
    rmdir(folder_.c_str());
}

void StoreProxy::poke()
{
    uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0)
        abort();
}

void StoreProxy::listen_again()
{
    std::string path = folder_ + "/s";
    sockaddr_un address = address_of(path);
    unlink(path.c_str());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener_, reinterpret_cast<sockaddr *>(&address), sizeof address) ||
        listen(listener_, 64))
        abort();
}

void StoreProxy::set(Mode mode)
{
    std::lock_guard<std::mutex> hold(lock_);
    for (Pair &pair : pairs_) // what was swallowed is not answered later
        pair.dead = pair.dead || mode_ == HALF || mode_ == SILENT;
    mode_ = mode;
    if (mode == ABSENT)
        cut_ = true;
    if (mode == ABSENT && listener_ >= 0) {
        close(listener_);
        unlink((folder_ + "/s").c_str());
        listener_ = -1;
    } else if (mode != ABSENT && listener_ < 0) {
        listen_again();
    }
    poke();
}

void StoreProxy::cut()
{
    std::lock_guard<std::mutex> hold(lock_);
    cut_ = true;
    poke();
}

void StoreProxy::spoil()
{
    std::lock_guard<std::mutex> hold(lock_);
    for (Pair &pair : pairs_)
        pair.dead = true;
    poke();
}

void StoreProxy::before(const std::string &command, std::function<void()> function)
{
    std::lock_guard<std::mutex> hold(lock_);
    command_ = command;
    function_ = std::move(function);
}

void StoreProxy::end(Pair &pair)
{
    close(pair.client);
    close(pair.server);
    pair.client = pair.server = -1;
}

void StoreProxy::drop_all()
{
    for (Pair &pair : pairs_)
        if (pair.client >= 0)
            end(pair);
    pairs_.clear();
}

void StoreProxy::accept_one()
{
    int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0)
        return;
    sockaddr_un address = address_of(server_);
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(server, reinterpret_cast<sockaddr *>(&address), sizeof address)) {
        close(server); // the server is not there
        close(client);
        return;
    }
    pairs_.push_back({client, server, false, false});
}

static bool send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            pollfd wait = {fd, POLLOUT, 0};
            poll(&wait, 1, 100);
            continue;
        }
        if (sent < 0)
            return false;
        bytes += sent;
        size -= static_cast<size_t>(sent);
    }
    return true;
}

bool StoreProxy::from_client(Pair &pair)
{
    char chunk[65536];
    ssize_t got = recv(pair.client, chunk, sizeof chunk, 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    std::string text(chunk, static_cast<size_t>(got));
    if (function_ && text.find("\r\n" + command_ + "\r\n") != std::string::npos) {
        auto function = std::move(function_);
        function_ = nullptr;
        lock_.unlock(); // it may set another mode
        function();
        lock_.lock();
    }
    if (mode_ == CLOSING || mode_ == ABSENT)
        return false;
    if (mode_ == SILENT || pair.dead)
        return true;
    if (mode_ == GARBAGE) {
        const char *nonsense = "!what?\r\n";
        return send_all(pair.client, nonsense, 8);
    }
    return send_all(pair.server, text.data(), text.size());
}

bool StoreProxy::from_server(Pair &pair)
{
    char chunk[65536];
    ssize_t got = recv(pair.server, chunk, sizeof chunk, 0);
    if (got <= 0)
        return false;
    size_t size = static_cast<size_t>(got);
    if (mode_ == SILENT || pair.dead)
        return true;
    if (mode_ == HALF) {
        size = pair.counted ? 0 : (size + 1) / 2;
        pair.counted = true;
    }
    if (mode_ == SLOW) {
        lock_.unlock();
        usleep(8000);
        lock_.lock();
    }
    return send_all(pair.client, chunk, size);
}

void StoreProxy::run()
{
    std::unique_lock<std::mutex> hold(lock_);
    while (!ending_) {
        std::vector<pollfd> fds = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
        for (const Pair &pair : pairs_) {
            fds.push_back({pair.client, POLLIN, 0});
            fds.push_back({pair.server, POLLIN, 0});
        }
        hold.unlock();
        poll(fds.data(), fds.size(), 1000);
        hold.lock();
        uint64_t count;
        if (fds[0].revents && read(wake_, &count, sizeof count) < 0)
            abort();
        if (cut_)
            drop_all();
        if (fds[0].revents || cut_) { // things have changed: look again
            cut_ = false;
            continue;
        }
        for (size_t i = 0; 2 * i + 3 < fds.size() && i < pairs_.size(); i++) {
            bool open = true;
            if (fds[2 * i + 2].revents)
                open = from_client(pairs_[i]);
            if (open && fds[2 * i + 3].revents)
                open = from_server(pairs_[i]);
            if (!open)
                end(pairs_[i]);
        }
        pairs_.erase(std::remove_if(pairs_.begin(), pairs_.end(),
                                    [](const Pair &pair) { return pair.client < 0; }),
                     pairs_.end());
        if (fds[1].revents && listener_ >= 0 && mode_ != ABSENT)
            accept_one();
    }
}
