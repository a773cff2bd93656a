// SPDX-License-Identifier: BSD-3-Clause
// Progress of a net: a thread that waits for it polls it. Where none does, its own thread, the
// proxy, does.
#include "net/progress.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "net/link.h"
#include "net/provider.h"
#include "net/records.h"

static bool poll_links(struct phi_net *net)
{
    struct phi_link *next;
    bool any = false;

    phi_staging_take(net);
    for (struct phi_link *link = net->links; link; link = next) {
        next = link->next;
        if (link->open)
            any = phi_link_poll(link) || any;
    }
    return any;
}

bool phi_net_poll(struct phi_net *net)
{
    bool any;

    if (!phi_net_trylock(net))
        return false;
    atomic_fetch_add_explicit(&net->proxy.polls, 1, memory_order_relaxed);
    any = poll_links(net);
    pthread_mutex_unlock(&net->lock);
    return any;
}

bool phi_route_poll(const struct phi_route *route)
{
    struct phi_net *net = route->link->net;
    bool any = false;

    if (!phi_net_trylock(net))
        return false;
    atomic_fetch_add_explicit(&net->proxy.polls, 1, memory_order_relaxed);
    phi_staging_take(net);
    if (route->link->open)
        any = phi_link_poll(route->link);
    pthread_mutex_unlock(&net->lock);
    return any;
}

#define CALM_NS (5 * INT64_C(1000000)) // so long nothing has come

// Adds the link's descriptors to `fds`. False: a port has no descriptor, or none to trust: where an
// endpoint was closed before its queue, rxm of libfabric 1.17 still asks it. *ready: there is
// something already, or may be.
static bool sleep_fds(const struct phi_link *link, struct pollfd *fds, int *n, bool *ready)
{
    const struct phi_net *net = link->net;
    const int begin = *n;

    for (uint32_t i = 0; i < net->nic_count; i++) {
        struct fid *fid = &link->ports[i].cq->fid;

        if (link->ports[i].fd < 0 || !link->carries) {
            *n = begin;
            return false;
        }
        *ready = *ready || fi_trywait(net->nics[i].fabric, &fid, 1) != FI_SUCCESS;
        fds[(*n)++] = (struct pollfd){.fd = link->ports[i].fd, .events = POLLIN};
    }
    return true;
}

bool phi_route_nap(const struct phi_route *route, int64_t ns)
{
    struct phi_link *link = route->link;
    const struct timespec most = {.tv_nsec = ns};
    struct pollfd fds[PHI_NET_RAILS_MAX];
    bool ready = false, sleeps;
    int n = 0;

    if (!phi_net_trylock(link->net))
        return false;
    // The descriptor may be ready for ever, as it may be for the proxy.
    if (phi_now() - link->came > CALM_NS)
        phi_link_calm(link);
    sleeps = link->carries && sleep_fds(link, fds, &n, &ready);
    pthread_mutex_unlock(&link->net->lock);
    return sleeps && (ready || ppoll(fds, (nfds_t)n, &most, NULL) >= 0);
}

static bool settled(struct phi_net *net, int *rank)
{
    bool idle = true;

    phi_net_lock(net);
    poll_links(net);
    for (const struct phi_link *link = net->links; link; link = link->next) {
        if (!link->carries ||
            (link->ops.posting == 0 && !link->hold.any && !phi_staging_busy(link)))
            continue;
        idle = false;
        *rank = link->rank;
    }
    pthread_mutex_unlock(&net->lock);
    return idle;
}

int phi_net_settle(struct phi_net *net, int64_t deadline, int *rank)
{
    while (!settled(net, rank)) {
        if (phi_now() >= deadline)
            return -ETIMEDOUT;
        sched_yield();
    }
    return 0;
}

// ---- the proxy

enum {
    SLEEP_FDS = 64,     // so many ports of links can be slept on
    SLEEP_MS = 20,      // a safety net under the descriptors
    SLEEP_BLIND_MS = 1, // where a link has none
};

// fds: the descriptors to sleep on. Returns how many, or -1 where something is there already, or
// may be.
static int prepare_sleep(struct phi_net *net, struct pollfd *fds, int *timeout)
{
    int n = 0;

    if (net->proxy.lanes > 0)
        return -1; // since the poll before: a kick that another thread took rang nobody
    *timeout = SLEEP_MS;
    for (struct phi_link *link = net->links; link; link = link->next) {
        bool ready = false;

        if (!link->open)
            continue;
        if (link->moves.due || link->hold.any || link->flush.covered > 0 ||
            (link->carries && link->rails.ungreeted > 0) ||
            (link->connected && link->out.at < link->out.size))
            *timeout = SLEEP_BLIND_MS; // what could not be sent is tried again
        if (n + (int)net->nic_count > SLEEP_FDS || !sleep_fds(link, fds, &n, &ready))
            *timeout = SLEEP_BLIND_MS;
        if (ready)
            return -1;
    }
    return n;
}

// Sleeps for SLEEP_BLIND_MS where `blind`, else until the provider says that there may be
// something. Returns whether it says so.
static bool sleep_on(struct phi_net *net, bool blind)
{
    struct pollfd fds[SLEEP_FDS + 1];
    int timeout = SLEEP_BLIND_MS, n = 0, ready;

    // A thread that kicks reads `asleep` after it has added its lane. One of the two sees the
    // other. We look at the kicked before the lanes: when the lock is free, lanes that another
    // thread has taken from the kicked are among the active ones.
    atomic_store(&net->proxy.asleep, 1);
    if (atomic_load(&net->proxy.kicked)) {
        atomic_store(&net->proxy.asleep, 0);
        return false;
    }
    if (!blind) {
        phi_net_lock(net);
        n = prepare_sleep(net, fds, &timeout);
        pthread_mutex_unlock(&net->lock);
    }
    if (n < 0) {
        atomic_store(&net->proxy.asleep, 0);
        return true;
    }
    fds[n] = (struct pollfd){.fd = net->proxy.wake.listen, .events = POLLIN};
    ready = poll(fds, (nfds_t)n + 1, timeout);
    atomic_store(&net->proxy.asleep, 0);
    phi_wake_take(&net->proxy.wake);
    return ready > (fds[n].revents != 0);
}

// A descriptor may stay ready with nothing to take. This looks at one link at a time, since it
// holds the lock.
static bool calm(struct phi_net *net)
{
    bool calmed = false;

    phi_net_lock(net);
    for (struct phi_link *link = net->links; link && !calmed; link = link->next)
        calmed = phi_link_calm(link);
    pthread_mutex_unlock(&net->lock);
    return calmed;
}

// While another thread polls, the proxy only looks in every millisecond. Else it polls as long as a
// blocking call would spin after something came, and then sleeps on the provider's descriptors.
// Descriptors of a connection that is gone may be ready for ever, with nothing to take. Then, too,
// it only looks in.
static void *proxy_main(void *opaque)
{
    struct phi_net *net = opaque;
    int64_t spin = net->config->spin_us * 1000, active = phi_now();
    uint64_t seen = 0;
    bool ready = false;

    // Else the kernel makes each pause of phi_staging_rest longer by 50 us, while a peer's record
    // waits in its socket.
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!atomic_load(&net->proxy.stop)) {
        uint64_t polls = atomic_load_explicit(&net->proxy.polls, memory_order_relaxed);
        bool driven = polls != seen;
        bool any = false, lanes = false;

        seen = polls;
        if (phi_net_trylock(net)) {
            any = poll_links(net);
            lanes = net->proxy.lanes > 0;
            pthread_mutex_unlock(&net->lock);
        }
        if (any)
            active = phi_now();
        if (lanes || atomic_load_explicit(&net->proxy.kicked, memory_order_relaxed))
            phi_staging_rest(net, phi_now() - active);
        else if (ready && !any && !driven && phi_now() - active > CALM_NS && calm(net))
            ready = false;
        else if (driven || phi_now() - active > spin)
            ready = sleep_on(net, driven || (ready && !any));
        else
            sched_yield();
    }
    return NULL;
}

// The proxy goes to those of this process's CPUs that are near the NIC: what the NIC writes for it
// comes into their caches. Where there are none it runs where other threads do.
static void pin_proxy(struct phi_net *net)
{
    char device[PHI_PCI_NAME];
    cpu_set_t near, may, both;

    if (!phi_provider_pci(net->nics[0].info, net->provider.near.sysfs, device) ||
        !phi_pci_cpus(net->provider.near.sysfs, device, &near) ||
        sched_getaffinity(0, sizeof(may), &may))
        return;
    if (phi_pci_share(&near, &may, &both) &&
        pthread_setaffinity_np(net->proxy.thread, sizeof(both), &both) == 0)
        phi_log(net->report, PH_LOG_INFO, "the proxy of the net stays on %d CPUs near %s",
                CPU_COUNT(&both), device);
}

int phi_proxy_start(struct phi_net *net)
{
    int rc = phi_thread_start(&net->proxy.thread, "peerhop-net", proxy_main, net);

    if (rc)
        return phi_fail(net->report, rc, "the proxy of the net cannot start: %s", ph_strerror(rc));
    pin_proxy(net);
    net->proxy.started = true;
    return 0;
}
