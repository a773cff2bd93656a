// SPDX-License-Identifier: BSD-3-Clause
// Endpoints over TCP, before they are closed. Somebody may be just connecting to one: the peer, or
// anybody who finds the port. A connection that the provider has accepted points to the endpoint
// until its first message has come. The provider looks at it when any endpoint of the domain is
// polled: a use after free in libfabric before its pull request 12709. So we shut the sockets that
// listen for an endpoint, and those that were accepted and have had no answer. Then we let the
// provider see that: it frees what it holds of them. Where /proc cannot be read we find no socket,
// and the hazard stays.
//
// Endpoints over TCP, while they serve: their sockets must end with this program, so that peers see
// its end.
#include "net/ears.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/forked.h"
#include "net/provider.h"

// The names of the endpoints, and their listening sockets: -1 until they are found.
struct ears {
    struct ear {
        struct sockaddr_storage name;
        int fd;
    } all[1 + PHI_NET_RAILS_MAX];
    size_t n;
};

static void add_ear(struct ears *ears, const struct phi_rail *rail)
{
    struct ear *ear = &ears->all[ears->n];
    size_t size = sizeof(ear->name);

    if (rail->ep && fi_getname(&rail->ep->fid, &ear->name, &size) == 0) {
        ear->fd = -1;
        ears->n++;
    }
}

static bool is_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a->ss_family == AF_INET6 && a6->sin6_port == b6->sin6_port &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

static struct ear *ear_of(struct ears *ears, int fd)
{
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof(name);

    if (getsockname(fd, (struct sockaddr *)&name, &size))
        return NULL;
    for (size_t i = 0; i < ears->n; i++)
        if (is_same(&name, &ears->all[i].name))
            return &ears->all[i];
    return NULL;
}

static bool listens(int fd)
{
    socklen_t size = sizeof(int);
    int yes = 0;

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes;
}

// A provider's first word is the answer to the first message.
static bool unanswered(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           size >= offsetof(struct tcp_info, tcpi_data_segs_out) + sizeof(uint32_t) &&
           info.tcpi_data_segs_out == 0;
}

// Returns whether the provider has yet to see the end of this socket. The descriptor stays this
// socket's meanwhile: the provider alone closes it, and makes progress only within our calls
// (FI_PROGRESS_MANUAL).
static bool shut_socket(struct ears *ears, int fd)
{
    struct ear *ear = ear_of(ears, fd);

    if (!ear || fd == ear->fd)
        return false;
    if (listens(fd)) {
        if (ear->fd < 0) { // a connection that is not yet accepted goes now, too
            ear->fd = fd;
            shutdown(fd, SHUT_RDWR);
        }
        return false;
    }
    if (!unanswered(fd))
        return false;
    shutdown(fd, SHUT_RD); // an answer to what came before may still go, and the peer awaits it
    return true;
}

static bool shut_sockets(struct ears *ears)
{
    DIR *all = opendir("/proc/self/fd");
    const struct dirent *one;
    bool any = false;

    while (all && (one = readdir(all)))
        if (one->d_name[0] != '.')
            any = shut_socket(ears, atoi(one->d_name)) || any;
    if (all)
        closedir(all);
    return any;
}

// is_of: whether a socket is one of the link's: at an endpoint of ours, or connected to one of the
// peer's.
static bool is_of(struct ears *ears, const struct phi_link *link, int fd)
{
    struct sockaddr_storage name = {0}, theirs;
    socklen_t size = sizeof(name);

    if (ear_of(ears, fd))
        return true;
    if (getpeername(fd, (struct sockaddr *)&name, &size))
        return false;
    for (size_t i = 0; i < link->names.peers_names && link->names.peers_name_size <= sizeof(theirs);
         i++) {
        memset(&theirs, 0, sizeof(theirs));
        memcpy(&theirs, link->names.peers_address + i * link->names.peers_name_size,
               link->names.peers_name_size);
        if (is_same(&name, &theirs))
            return true;
    }
    return false;
}

// Called with the net's lock: as in shut_socket, the descriptors stay these sockets'.
static void guard_sockets(struct phi_link *link)
{
    DIR *all = opendir("/proc/self/fd");
    struct ears ears = {.n = 0};
    const struct dirent *one;

    add_ear(&ears, &link->rails.control);
    for (int i = 0; i < PHI_NET_RAILS_MAX; i++)
        add_ear(&ears, &link->rails.list[i]);
    while (all && (one = readdir(all))) {
        const int fd = atoi(one->d_name);

        if (one->d_name[0] == '.' || !is_of(&ears, link, fd))
            continue;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        phi_forked_close(fd);
    }
    if (all)
        closedir(all);
}

void phi_link_guard(struct phi_link *link)
{
    if (!phi_provider_is_tcp(link->net->nics[0].info))
        return;
    phi_net_lock(link->net);
    if (link->open)
        guard_sockets(link);
    pthread_mutex_unlock(&link->net->lock);
}

// Mostly the provider has seen it after the first round. rxm answers every 10 ms only, and on a
// busy machine this thread may not have a core for longer.
#define SEEN_ROUNDS 4
#define SEEN_MS     200

void phi_link_deafen(struct phi_link *link)
{
    const int64_t deadline = phi_deadline(SEEN_MS);
    const struct phi_net *net = link->net;
    struct ears ears = {.n = 0};
    int rounds = 0;

    // An endpoint that failed to open has accepted nothing: nobody has polled since.
    if (link->names.address_size == 0 || !phi_provider_is_tcp(net->nics[0].info))
        return;
    if (!link->open)
        add_ear(&ears, &link->rails.control);
    for (int i = 0; i < PHI_NET_RAILS_MAX; i++)
        add_ear(&ears, &link->rails.list[i]);
    while (ears.n > 0 && shut_sockets(&ears)) {
        if (rounds++ >= SEEN_ROUNDS && phi_now() >= deadline) {
            phi_log(net->report, PH_LOG_WARN,
                    "the link with rank %d ends while somebody is still connecting to it",
                    link->rank);
            break;
        }
        for (uint32_t i = 0; i < net->nic_count; i++) {
            errno = 0; // where a read is at the end the provider looks here; EAGAIN would keep it
            fi_cq_read(link->ports[i].cq, NULL, 0); // takes nothing
        }
        if (rounds >= SEEN_ROUNDS)
            nanosleep(&(struct timespec){.tv_nsec = PHI_MS / 2}, NULL);
    }
}
