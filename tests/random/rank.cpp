// SPDX-License-Identifier: BSD-3-Clause
// A rank's life: contexts, memory and channels.
#include "random/rank.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/strict_net.h"

static const Orders *current;

void fail(const std::string &what)
{
    auto &mine = current->board->ranks[current->rank];
    snprintf(mine.failed, sizeof mine.failed, "%s", what.c_str());
    _exit(1);
}

Rank::Rank(const Orders &orders)
    : orders_(orders), config_(*orders.config), mine_(orders.board->ranks[orders.rank]),
      dice_(mix(orders.seed, (uint64_t)orders.rank, (uint64_t)orders.life))
{
    const std::string &device = config_.devices[(size_t)orders.rank % config_.devices.size()];
    machine_ = device == "host" ? make_host_machine() : make_cuda_machine(orders.rank);
    near_ = machine_->near_memory(ROUND_BYTES);
    images_ = machine_->far_memory(ROUND_BYTES);
    results_ = machine_->far_memory(ROUND_BYTES);
    snapshots_ = machine_->far_memory(ROUND_BYTES);
}

std::string Rank::error()
{
    char text[700] = "";
    ph_context_error(context_, text, sizeof text);
    return text;
}

void Rank::must(int rc, const char *what)
{
    if (rc == 0)
        return;
    char text[1100];
    snprintf(text, sizeof text, "FAILED: rank %d, round %llu: %s: %s: %s", orders_.rank,
             (unsigned long long)mine_.round.load(), what, ph_strerror(rc), error().c_str());
    fail(text);
}

// Whether a call that waits may be made again: its time was over, or it had to tell first that the
// life of a peer has ended.
static bool is_to_repeat(int rc)
{
    return rc == -ETIMEDOUT || rc == PH_EPEER;
}

// What has to wait for a stream is done by a later call.
void Rank::reap()
{
    const int rc = ph_reap(context_, 1);
    if (!is_to_repeat(rc))
        must(rc, "ph_reap");
}

// All ranks, the next life of one that has ended, too. reaps: while it waits it unmaps what peers
// have given back.
void Rank::barrier(bool reaps)
{
    Board &board = *orders_.board;
    const uint32_t generation = board.generation;
    if (board.arrived.fetch_add(1) + 1 == (uint32_t)orders_.ranks) {
        board.arrived = 0;
        board.generation = generation + 1;
        syscall(SYS_futex, &board.generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
        return;
    }
    while (board.generation == generation) {
        const timespec pause = {reaps ? 0 : 1, reaps ? 500000 : 0};
        syscall(SYS_futex, &board.generation, FUTEX_WAIT, generation, &pause, nullptr, 0);
        if (reaps)
            reap();
    }
}

// ---- contexts, memory, channels

void Rank::open()
{
    doing(Doing::OPENING);
    char text[700] = "";
    const std::string wish = machine_->wish();
    struct ph_context_params params = {};
    params.struct_size = sizeof params;
    params.device = wish.c_str();
    params.deadline_ms = orders_.stall_ms;
    params.error = text;
    params.error_size = sizeof text;
    const int rc = ph_context_create(&params, &context_);
    if (rc)
        fail("FAILED: no context: " + std::string(ph_strerror(rc)) + ": " + text);
    machine_->begin(context_, STREAMS);
    mine_.lives++;
}

void Rank::close()
{
    machine_->end();
    must(ph_context_destroy(&context_, orders_.stall_ms), "ph_context_destroy");
}

void Rank::allocate()
{
    for (int i = 0; i < AREAS; i++) {
        const Kind kind = layout_.kinds[(size_t)orders_.rank][(size_t)i];
        const size_t size = layout_.sizes[(size_t)orders_.rank][(size_t)i];
        areas_.push_back({static_cast<uint8_t *>(machine_->alloc(size, kind)), size, kind});
    }
}

struct ph_operation Rank::operation_of(size_t i)
{
    const Link &link = layout_.links[i];
    const End &end = link.at(orders_.rank);
    struct ph_operation op = {};
    op.op_id = i;
    op.peer = link.peer(orders_.rank);
    op.role = link.use != Link::SEND || link.sender < 0 ? PH_ROLE_BOTH
              : link.sender == orders_.rank             ? PH_ROLE_SENDER
                                                        : PH_ROLE_RECEIVER;
    op.protocol = link.protocol;
    if (link.use != Link::UNBOUND) {
        op.buffer = areas_[(size_t)end.area].memory + end.low;
        op.size = end.size;
    }
    op.limits = &link.limits;
    return op;
}

// next_life: the peer of all these links has come again. That its former life is over may be known
// only now, and it is met by trying again: it waits for nobody else meanwhile.
void Rank::meet_for(const std::vector<size_t> &links, bool next_life)
{
    const time_t end = time(nullptr) + orders_.stall_ms / 1000;
    const bool halves = dice_.chance(50);
    std::vector<struct ph_operation> ops;
    std::vector<struct ph_channel *> channels(links.size());
    for (size_t link : links)
        ops.push_back(operation_of(link));
    for (int rc = -1; !ops.empty() && rc != 0;) {
        struct ph_exchange_request *request = nullptr;
        rc = halves ? ph_exchange_start(context_, ops.data(), ops.size(), &request)
                    : ph_exchange(context_, ops.data(), ops.size(), channels.data());
        if (rc == 0 && halves)
            rc = ph_exchange_finish(&request, channels.data(), 0);
        if (rc != PH_EPEER || !next_life || time(nullptr) > end)
            must(rc, "an exchange");
    }
    for (size_t i = 0; i < links.size(); i++)
        channels_[links[i]] = channels[i];
}

// All that this rank has with the peer, or with all but that one.
std::vector<size_t> Rank::links_of(int peer, bool with)
{
    std::vector<size_t> links;
    for (size_t i = 0; i < layout_.links.size(); i++) {
        const Link &link = layout_.links[i];
        if (link.has(orders_.rank) && (link.peer(orders_.rank) == peer) == with)
            links.push_back(i);
    }
    return links;
}

void Rank::exchange(uint64_t round)
{
    doing(Doing::EXCHANGING);
    channels_.assign(layout_.links.size(), nullptr);
    const Event event = event_of(config_, orders_.seed, round);
    const bool next_life =
        event == Event::NEXT_CONTEXT || event == Event::NEXT_PROCESS || event == Event::KILLED;
    const int reborn = next_life ? who_ends(config_, orders_.seed, round) : -1;
    if (reborn == orders_.rank) {
        for (int peer = 0; peer < orders_.ranks; peer++)
            meet_for(links_of(peer, true), false);
    } else {
        // In one call or two; all ranks name operations in the same order.
        meet_for(links_of(reborn, true), true);
        const std::vector<size_t> links = links_of(reborn, false);
        const auto middle = links.begin() + (long)dice_.below(links.size() + 1);
        meet_for({links.begin(), middle}, false);
        meet_for({middle, links.end()}, false);
    }
    struct ph_path_report report = {};
    const int peer = (orders_.rank + 1) % orders_.ranks;
    must(ph_channel_path(channels_[(size_t)layout_.control[(size_t)orders_.rank][(size_t)peer]], 1,
                         &report, sizeof report),
         "ph_channel_path");
    snprintf(mine_.path, sizeof mine_.path, "%s/%s/%s ll %llu", report.path, report.method,
             report.kind, (unsigned long long)report.ll_max);
}

void Rank::close_channels()
{
    for (struct ph_channel *&channel : channels_)
        if (channel != nullptr) {
            must(ph_channel_close(channel), "ph_channel_close");
            channel = nullptr;
        }
}

// All that the rank has: given back in the order of docs/lifetime.md. All ranks do that at once,
// and what peers have mapped of cudaMalloc and pools they unmap in ph_reap.
void Rank::give_back(bool frees)
{
    doing(Doing::GIVING_BACK);
    const ph_release_state state = frees ? PH_RELEASE_CLOSED : PH_RELEASE_DRAINED;
    for (const Area &area : areas_)
        must(ph_release_start(context_, area.memory, area.size), "ph_release_start");
    close_channels();
    const time_t end = time(nullptr) + orders_.stall_ms / 1000;
    for (const Area &area : areas_)
        for (int rc = -1; rc != 0;) {
            reap();
            rc = ph_release_wait(context_, area.memory, area.size, state, 1);
            if (time(nullptr) > end || (!is_to_repeat(rc) && rc != -EBUSY))
                must(rc, "ph_release_wait");
        }
    barrier(true); // peers may still wait until this rank has unmapped their memory
    if (!frees)
        return;
    for (const Area &area : areas_)
        machine_->free(area.memory, area.size, area.kind);
    areas_.clear();
}

// ---- what comes between rounds

// Fresh memory, and channels with it.
void Rank::connect(uint64_t round)
{
    layout_ = make_layout(config_, layout_seed(config_, orders_.seed, round));
    allocate();
    exchange(round);
    mine_.fresh_rounds++;
}

// One rank ends, and its next life is met.
void Rank::give_way(Event event, uint64_t round)
{
    const bool own = who_ends(config_, orders_.seed, round) == orders_.rank;
    if (event == Event::KILLED && own)
        _exit(EXIT_NEXT_LIFE);
    if (event == Event::NEXT_CONTEXT)
        give_back(true);
    if (own) {
        close_channels();
        close();
        if (event == Event::NEXT_PROCESS)
            _exit(EXIT_NEXT_LIFE);
        open();
        barrier();
    } else if (event == Event::NEXT_CONTEXT) {
        barrier(true);
    } else {
        give_back(true); // which ends when the next life has come
    }
}

void Rank::begin_round(uint64_t round)
{
    const Event event = event_of(config_, orders_.seed, round);
    switch (event) {
    case Event::NONE:
        return;
    case Event::SAME_MEMORY:
        farewell(round);
        give_back(false);
        exchange(round);
        return;
    case Event::CLOSED:
        close_channels();
        exchange(round);
        return;
    case Event::FRESH:
        farewell(round);
        give_back(true);
        break;
    default:
        give_way(event, round);
    }
    connect(round);
}

bool Rank::over(uint64_t round)
{
    Board &board = *orders_.board;
    if (orders_.rank == 0) {
        uint64_t operations = 0;
        for (const auto &rank : board.ranks)
            operations += rank.operations;
        if (operations >= board.operations_wanted || board.time_over)
            board.end = round;
    }
    doing(Doing::MEETING);
    barrier();
    return board.end <= round;
}

void Rank::run()
{
    uint64_t round = orders_.first_round;
    open();
    if (orders_.life > 0)
        barrier(); // the others give back what they have
    mine_.round = round;
    connect(round);
    for (;; round++) {
        mine_.round = round;
        if (round != orders_.first_round)
            begin_round(round);
        play(round, make_script(config_, layout_, script_seed(orders_.seed, round)));
        if (over(round))
            break;
    }
    close_channels();
    close();
    if (strict_count("strict_refused") > 0)
        fail("FAILED: the strict provider refused what the output says");
    doing(Doing::DONE);
}

int rank_main(const Orders &orders)
{
    current = &orders;
    Rank rank(orders);
    rank.run();
    return 0;
}
