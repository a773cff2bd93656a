// SPDX-License-Identifier: BSD-3-Clause
// A process of the kill rounds: does what its orders on the board say, in one thread or in two.
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kill/player.h"
#include "support/entries.h"

using namespace kill_rounds;

namespace
{

const size_t SECOND_MOST = 6; // steps of the second thread: its handles need room as well

struct Leaks {
    int descriptors = 0, threads = 0, mappings = 0;

    bool more_than(const Leaks &other) const
    {
        return descriptors > other.descriptors || threads > other.threads ||
               mappings > other.mappings;
    }
};

// Threads by name: a driver begins its own when it first needs them.
int count_threads(const char *prefix)
{
    int n = 0;
    DIR *directory = opendir("/proc/self/task");
    for (dirent *entry; directory && (entry = readdir(directory)) != nullptr;) {
        std::string path = std::string("/proc/self/task/") + entry->d_name + "/comm";
        char name[64] = "";
        FILE *file = entry->d_name[0] == '.' ? nullptr : fopen(path.c_str(), "r");
        n += file && fgets(name, sizeof name, file) && strncmp(name, prefix, strlen(prefix)) == 0;
        if (file)
            fclose(file);
    }
    if (directory)
        closedir(directory);
    return n;
}

Leaks count_leaks()
{
    Leaks leaks;
    leaks.descriptors = entries("/proc/self/fd");
    leaks.threads = count_threads("peerhop");
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    while (maps && fgets(line, sizeof line, maps))
        leaks.mappings += strstr(line, "memfd:peerhop") != nullptr;
    if (maps)
        fclose(maps);
    return leaks;
}

// What a process has under way when its life ends is no racer for the stand-in: its peers' waits
// are let go of.
void excuse(uint32_t pid, bool on)
{
    std::string path = std::string(getenv("TMPDIR")) + "/.standin-excused-" + std::to_string(pid);
    if (on)
        close(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    else
        unlink(path.c_str());
}

class Actor
{
  public:
    Actor(Rank &process, Board &board, Slot &slot)
        : life_{process, board, slot, *process.device, pulse_, {}, false}, first_(life_, 0),
          second_(life_, 1)
    {
    }
    void run();

  private:
    void allocate();
    void join();
    void act();
    bool destroy(int attempts = INT_MAX);
    bool leave();
    void abort();
    void expel();
    void check_leaks();
    const Order &order() const
    {
        return life_.order;
    }

    Pulse pulse_;
    Life life_;
    Player first_, second_;
    bool compared_ = false;
    Leaks before_;
};

void Actor::allocate()
{
    first_.allocate();
    second_.allocate();
}

void Actor::join()
{
    static const std::string wide = Rank::wide(); // before descriptors are counted
    Device &device = life_.device;
    destroy(); // of a life that was expelled
    // What a former life has left on the streams needs the excuse.
    first_.come_to_rest();
    second_.come_to_rest();
    excuse(static_cast<uint32_t>(getpid()), false);
    life_.board.pids[order().rank] = static_cast<uint32_t>(getpid());
    if (device.host() && !compared_) {
        before_ = count_leaks();
        compared_ = true;
    }
    // So few channels that they make way for others; a SUSPECT soon, for expulsions; slots so small
    // that all channels have them at once.
    std::vector<const char *> settings = {"PEERHOP_CHANNELS=64",
                                          "PEERHOP_HEARTBEAT_MS=20",
                                          "PEERHOP_SUSPECT_MS=200",
                                          "PEERHOP_NET_CHUNK=65536",
                                          nullptr,
                                          nullptr};
    if ((order().session + static_cast<uint32_t>(order().ranks)) % 2) // messages by wide lines
        settings[settings.size() - 2] = wide.c_str();
    char error[1024] = "";
    struct ph_context_params params = {};
    params.struct_size = sizeof params;
    params.rank = order().rank;
    params.ranks = order().ranks;
    params.device = device.wish();
    params.job = order().job;
    params.deadline_ms = CONTEXT_MS;
    params.settings = settings.data();
    params.error = error;
    params.error_size = sizeof error;
    int rc = 0;
    for (int64_t end = now_us() + PATIENCE_MS * 1000;;) {
        rc = first_.timed("create", CONTEXT_MS,
                          [&] { return ph_context_create(&params, &life_.process.context); });
        if (rc != -ETIMEDOUT || now_us() > end)
            break;
        life_.board.timeouts++;
    }
    if (rc)
        first_.fail("%s: %s", ph_strerror(rc), error);
    allocate();
}

void Actor::check_leaks()
{
    // A thread that was joined may still be seen for a moment.
    Leaks now = count_leaks();
    for (int i = 0; i < 1000 && compared_ && now.more_than(before_); i++) {
        usleep(1000);
        now = count_leaks();
    }
    if (!compared_) { // a driver keeps what it made for the first context
        before_ = now;
        compared_ = true;
    }
    if (now.more_than(before_))
        first_.fail("left: %d descriptors, %d threads, %d mappings; before: %d, %d, %d",
                    now.descriptors, now.threads, now.mappings, before_.descriptors,
                    before_.threads, before_.mappings);
    if (waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD)
        first_.fail("has a child");
}

bool Actor::destroy(int attempts)
{
    first_.forget();
    second_.forget();
    if (life_.process.context == nullptr)
        return true;
    life_.board.over_the_net += life_.process.counter("net_operations");
    int64_t end = now_us() + PATIENCE_MS * 1000;
    while (life_.process.context) {
        if (attempts-- == 0)
            return false;
        // The store is given two seconds more.
        int rc = first_.timed("destroy", 400 + 2000,
                              [&] { return ph_context_destroy(&life_.process.context, 400); });
        if (rc == 0)
            break;
        std::string why = life_.process.error();
        // A peer, or what still runs here.
        bool named = why.find("rank ") != std::string::npos ||
                     why.find("not done in time") != std::string::npos;
        if (rc != -ETIMEDOUT || !named)
            first_.fail("%s: %s", ph_strerror(rc), why.c_str());
        if (now_us() > end)
            first_.fail("cannot be destroyed: %s", why.c_str());
        life_.board.timeouts++;
    }
    check_leaks();
    return true;
}

// ---- the threads of a round

// Ends the membership of a rank that the referee has stopped.
void Actor::expel()
{
    const uint32_t bit = 1u << order().expels;
    ph_peer_report report = {};
    int64_t end = now_us() + PATIENCE_MS * 1000;
    auto again = [&] { return usleep(1000) == 0 && now_us() < end; };
    while (report.state != PH_PEER_SUSPECT && again())
        if (ph_context_peer(life_.process.context, order().expels, &report, sizeof report))
            first_.fail("there is no report of rank %d", order().expels);
    excuse(life_.board.pids[order().expels], true);
    life_.board.doomed.fetch_or(bit);
    life_.board.expelled.fetch_or(bit);
    int rc;
    do // it may have run once more before it was stopped; the store may be away
        rc = ph_context_expel(life_.process.context, order().expels);
    while ((rc == -EBUSY || rc == -ETIMEDOUT) && again());
    if (rc)
        first_.fail("expulsion of rank %d: %s: %s", order().expels, ph_strerror(rc),
                    life_.process.error().c_str());
    life_.board.expulsions++;
    life_.board.fenced.fetch_or(bit);
    change(life_.board.progress);
}

void Actor::abort()
{
    life_.board.aborts++;
    excuse(static_cast<uint32_t>(getpid()), true);
    int rc = first_.timed("abort", 0,
                          [this] { return ph_context_abort(life_.process.context, "at random"); });
    if (rc)
        first_.fail("%s: %s", ph_strerror(rc), life_.process.error().c_str());
}

// The rank's life ends. False: not yet. Peers that gave up waiting for it may never do their part
// of what it has in flight, and its copies into their memory are held until they are told of an
// abort.
bool Actor::leave()
{
    if (destroy(3))
        return true;
    abort();
    return destroy(3);
}

// An expelled rank waits for the order to begin a new life; one that leaves begins it at once, if
// it can, while the others go on.
void Actor::act()
{
    bool leaves = false;
    std::thread expeller, other;
    life_.several = mix(order().seed, 5) % 3 == 0;
    if (order().expels >= 0)
        expeller = std::thread([this] { expel(); });
    if (life_.several)
        other = std::thread([this] {
            life_.device.enter_thread();
            try {
                second_.play(SECOND_MOST);
            } catch (const Over &) {
            }
        });
    try {
        leaves = first_.play(SIZE_MAX);
        if (leaves) {
            life_.board.doomed.fetch_or(1u << order().rank);
            life_.board.leaves++;
        }
        // Of two threads one would go on without its peers: then it is an abort.
        if (leaves && (life_.several || mix(order().seed, 11) % 2 == 0))
            abort();
    } catch (const Over &) {
    }
    if (other.joinable())
        other.join();
    if (expeller.joinable())
        expeller.join();
    life_.board.pairs += life_.several;
    life_.several = false;
    if (leaves && leave())
        join();
    else if (leaves)
        life_.board.stuck.fetch_or(1u << order().rank);
}

void Actor::run()
{
    Slot &slot = life_.slot;
    if (!life_.device.host())
        allocate();
    slot.ready = 1;
    change(life_.board.progress);
    for (uint32_t seen = slot.done.load();;) {
        while (slot.given.load() == seen)
            wait_for_change(slot.given, seen, 100000);
        life_.order = slot.order;
        switch (order().task) {
        case Task::JOIN:
            join();
            break;
        case Task::ACT:
            act();
            break;
        case Task::MEET:
            first_.meet();
            break;
        case Task::CLOSE:
            destroy();
            break;
        case Task::EXIT:
            return;
        }
        snprintf(slot.where[0], sizeof slot.where[0], "done");
        slot.done = ++seen;
        change(life_.board.progress);
    }
}

} // namespace

RANK_FUNCTION(kill_actor)
{
    int fd = atoi(getenv(BOARD_VARIABLE));
    auto *board = static_cast<Board *>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    CHECK(board != MAP_FAILED);
    close(fd);
    Actor(rank, *board, board->slots[rank.rank]).run();
}
