// SPDX-License-Identifier: BSD-3-Clause
#include "faults/scenario.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <peerhop/peerhop.h>

#include "faults/memory.h"
#include "support/entries.h"
#include "support/patience.h"

namespace faults
{

namespace
{

constexpr size_t SIZE = 4096;

using Clock = std::chrono::steady_clock;

int64_t ms_since(Clock::time_point begin)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
}

void copy_text(char *to, size_t size, const std::string &text)
{
    snprintf(to, size, "%s", text.c_str());
}

uint8_t pattern(uint64_t seed, size_t i)
{
    return static_cast<uint8_t>((seed * 131 + i * 7 + i / 256) & 0xff);
}

// One rank at work. A step that fails leaves all further steps with that peer out.
class Player
{
  public:
    Player(Board *shared, int number)
        : board_(*shared), rank_(number), mine_(shared->ranks[number]),
          memory_(make_memory(shared->device, number))
    {
    }

    void play()
    {
        fault_heap_begin();
        if (rank_ == 0)
            fault_arm(&board_.plan);
        if (create()) {
            if (rank_ < 2)
                with_each_other(1 - rank_);
            third();
        }
        // Nobody leaves before all are done: what a broken channel says is its status, and a rank
        // that left breaks it.
        board_.arrived[STAGES + 8][rank_] = 1;
        for (auto begin = Clock::now(); ms_since(begin) < 8 * deadline_ms() && !all_are_done();)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        memory_->drop_graph(); // one that was not finished pins what it uses
        destroy();
        fault_arm(nullptr);
        memory_->close();
        settle();
    }

  private:
    // ---- results

    bool good(int result, const char *call)
    {
        if (result == 0)
            return true;
        if (mine_.failed_at >= 0)
            return false;
        mine_.result = result;
        copy_text(mine_.call, sizeof mine_.call, call);
        if (context_)
            ph_context_error(context_, mine_.sentence, sizeof mine_.sentence);
        mine_.failed_at = mine_.stage.load();
        return false;
    }

    bool wrong(const std::string &what)
    {
        if (!mine_.wrong[0])
            copy_text(mine_.wrong, sizeof mine_.wrong,
                      std::string(stage_name(mine_.stage)) + ": " + what);
        mine_.failed_at = mine_.stage.load();
        return false;
    }

    void fill(void *at, uint64_t seed)
    {
        uint8_t bytes[SIZE];
        for (size_t i = 0; i < SIZE; i++)
            bytes[i] = pattern(seed, i);
        memory_->write(at, bytes, SIZE);
    }

    bool holds(const void *at, uint64_t seed, const char *what, size_t begin = 0, size_t end = SIZE)
    {
        uint8_t bytes[SIZE];
        memory_->read(bytes, at, SIZE);
        for (size_t i = begin; i < end; i++)
            if (bytes[i] != pattern(seed, i))
                return wrong(std::string(what) + ": byte " + std::to_string(i) + " is " +
                             std::to_string(bytes[i]));
        return true;
    }

    // ---- the ranks among themselves, without the library

    bool failed(int rank) const
    {
        return board_.ranks[rank].failed_at >= 0;
    }

    // Whether the peer came to the same point, or false where one of both has failed before it.
    bool meet(int point, int peer)
    {
        board_.arrived[point][rank_] = 1;
        auto begin = Clock::now();
        while (!board_.arrived[point][peer]) {
            if (failed(peer) || ms_since(begin) > 6 * deadline_ms())
                return false;
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        return true;
    }

    bool all_are_done() const
    {
        const auto &arrived = board_.arrived[STAGES + 8];
        return arrived[0] && arrived[1] && arrived[2];
    }

    bool enter(Stage stage, int peer)
    {
        if (mine_.failed_at >= 0 || failed(peer))
            return false;
        mine_.stage = stage;
        return meet(stage, peer);
    }

    // ---- stages

    static void note(void *opaque, enum ph_log_level, const char *line)
    {
        static std::mutex lock;
        std::lock_guard<std::mutex> hold(lock);
        Outcome &mine = *static_cast<Outcome *>(opaque);
        size_t at = strlen(mine.log);
        snprintf(mine.log + at, sizeof mine.log - at, "%s\n", line);
    }

    bool create()
    {
        struct ph_context_params params = {};
        params.struct_size = sizeof params;
        params.rank = rank_;
        params.ranks = RANKS;
        params.device = memory_->wish();
        params.settings = memory_->settings();
        params.store = board_.store;
        params.job = board_.job;
        params.deadline_ms = deadline_ms();
        params.log = note;
        params.log_opaque = &mine_;
        // What has ended a link is said there.
        params.log_level = params.settings ? PH_LOG_INFO : PH_LOG_WARN;
        params.error = mine_.sentence;
        params.error_size = sizeof mine_.sentence;
        mine_.stage = CREATE;
        if (!good(ph_context_create(&params, &context_), "ph_context_create"))
            return false;
        mine_.sentence[0] = 0;
        memory_->open(context_);
        return true;
    }

    void *buffer(size_t index)
    {
        while (buffers_.size() <= index) {
            void *memory = nullptr;
            if (!good(memory_->alloc(SIZE, &memory), "ph_host_alloc"))
                return nullptr;
            buffers_.push_back(memory);
        }
        return buffers_[index];
    }

    bool exchange(std::vector<ph_operation> ops, std::vector<ph_channel *> *channels)
    {
        for (const ph_operation &op : ops)
            if (!op.buffer)
                return false;
        channels->assign(ops.size(), nullptr);
        return good(ph_exchange(context_, ops.data(), ops.size(), channels->data()), "ph_exchange");
    }

    // Until the stream is done, the peer has given up, or it takes too long.
    bool synchronize(int peer)
    {
        auto begin = Clock::now();
        for (;;) {
            int result = memory_->synchronize(stream_, 20);
            bool late = ms_since(begin) > (failed(peer) ? 200 : 2 * deadline_ms());
            // What a broken channel moved is undefined.
            if (result == 0 && out_)
                return good(ph_channel_status(out_), "ph_channel_status") &&
                       good(ph_channel_status(in_), "ph_channel_status");
            if (result != -ETIMEDOUT || late)
                return good(result, "synchronize");
        }
    }

    // Op 1 goes from rank 0 to rank 1 by put, op 2 back by get.
    bool connect(int peer, size_t out, size_t in)
    {
        std::vector<ph_channel *> channels;
        uint64_t to = rank_ == 0 ? 1 : 2;
        if (!exchange({{to, peer, PH_ROLE_SENDER, to == 1 ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET,
                        buffer(out), SIZE},
                       {3 - to, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, buffer(in), SIZE}},
                      &channels))
            return false;
        out_ = channels[0];
        in_ = channels[1];
        return true;
    }

    bool both_ways()
    {
        ph_group_op ops[] = {{PH_GROUP_SEND, out_, 0, 0, SIZE}, {PH_GROUP_RECV, in_, 0, 0, SIZE}};
        return good(ph_group(ops, 2, stream_), "ph_group");
    }

    bool send_and_recv(int peer)
    {
        fill(buffer(0), 10);
        bool issued = rank_ == 0 ? good(ph_send(out_, SIZE, stream_), "ph_send") &&
                                       good(ph_complete(out_, stream_), "ph_complete")
                                 : good(ph_recv(in_, SIZE, stream_), "ph_recv") &&
                                       good(ph_complete(in_, stream_), "ph_complete");
        return issued && synchronize(peer) && (rank_ == 0 || holds(buffer(1), 10, "ph_recv"));
    }

    // Rank 0 writes into and reads from rank 1, copies half a buffer there, and signals.
    bool one_sided(int peer)
    {
        fill(buffer(0), 20 + static_cast<uint64_t>(rank_));
        if (!meet(STAGES + 0, peer))
            return false;
        if (rank_ == 0) {
            if (!good(ph_get(in_, 0, 0, SIZE, stream_), "ph_get") ||
                !good(ph_put(out_, 0, 0, SIZE, stream_), "ph_put") ||
                !good(ph_copy(out_, SIZE / 2, in_, SIZE / 2, SIZE / 2, stream_), "ph_copy") ||
                !good(ph_put_signal(out_, 0, 0, SIZE / 2, stream_), "ph_put_signal"))
                return false;
            return synchronize(peer) && holds(buffer(1), 21, "ph_get");
        }
        return good(ph_wait(in_, SIZE / 2, stream_), "ph_wait") && synchronize(peer) &&
               holds(buffer(1), 20, "ph_put_signal", 0, SIZE / 2) &&
               holds(buffer(1), 21, "ph_copy", SIZE / 2, SIZE);
    }

    bool group(int peer)
    {
        fill(buffer(0), 30 + static_cast<uint64_t>(rank_));
        return both_ways() && synchronize(peer) &&
               holds(buffer(1), 30 + static_cast<uint64_t>(peer), "ph_group");
    }

    bool graph(int peer)
    {
        if (!memory_->capture(stream_, [this] { both_ways(); }) || mine_.failed_at >= 0)
            return mine_.failed_at < 0;
        for (uint64_t round = 0; round < 2; round++) {
            fill(buffer(0), 40 + round * 2 + static_cast<uint64_t>(rank_));
            if (!meet(STAGES + 1 + static_cast<int>(round), peer))
                return false;
            memory_->launch(stream_);
            if (!synchronize(peer) ||
                !holds(buffer(1), 40 + round * 2 + static_cast<uint64_t>(peer), "a replay"))
                return false;
        }
        memory_->drop_graph();
        return true;
    }

    bool again(int peer)
    {
        if (!connect(peer, 0, 1) || !connect(peer, 2, 3))
            return false;
        fill(buffer(2), 50 + static_cast<uint64_t>(rank_));
        return both_ways() && synchronize(peer) &&
               holds(buffer(3), 50 + static_cast<uint64_t>(peer), "the second buffers");
    }

    bool all_closed() const
    {
        for (const void *memory : buffers_)
            if (ph_release_test(context_, memory, SIZE, PH_RELEASE_CLOSED) != 0)
                return false;
        return true;
    }

    bool release(int peer)
    {
        memory_->drop_graph();
        for (size_t i = 0; i < 4; i++)
            if (!good(ph_release_start(context_, buffer(i), SIZE), "ph_release_start"))
                return false;
        for (size_t i = 0; i < 4; i++)
            if (!good(ph_release_wait(context_, buffer(i), SIZE, PH_RELEASE_DRAINED, 0),
                      "ph_release_wait"))
                return false;
        out_ = in_ = nullptr;
        // What is drained here may be closed there a moment later, by that rank's next ph_reap.
        auto begin = Clock::now();
        do {
            if (!good(ph_reap(context_, 0), "ph_reap"))
                return false;
            board_.arrived[STAGES + 9][rank_] = all_closed();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        } while ((!board_.arrived[STAGES + 9][rank_] || !board_.arrived[STAGES + 9][peer]) &&
                 !failed(peer) && ms_since(begin) < deadline_ms());
        for (void *&memory : buffers_) {
            if (!good(ph_release_wait(context_, memory, SIZE, PH_RELEASE_CLOSED, 100),
                      "ph_release_wait") ||
                !good(memory_->free(memory), "ph_host_free"))
                return false;
            memory = nullptr;
        }
        buffers_.clear();
        if (!connect(peer, 0, 1))
            return false;
        fill(buffer(0), 70 + static_cast<uint64_t>(rank_));
        return both_ways() && synchronize(peer) &&
               holds(buffer(1), 70 + static_cast<uint64_t>(peer),
                     "buffers in the place of released ones");
    }

    void with_each_other(int peer)
    {
        const std::pair<Stage, std::function<bool()>> steps[] = {
            {EXCHANGE,
             [=] {
                 return good(memory_->stream(&stream_), "ph_queue_create") && connect(peer, 0, 1);
             }},
            {TRANSFER, [=] { return send_and_recv(peer) && one_sided(peer); }},
            {GROUP, [=] { return group(peer); }},
            {GRAPH, [=] { return graph(peer); }},
            {AGAIN, [=] { return again(peer); }},
            {RELEASE, [=] { return release(peer); }},
        };
        for (const auto &[stage, step] : steps)
            if (!enter(stage, peer) || !step())
                return;
    }

    // ---- rank 2, with 0 first and then with 1. Their results do not count as the first failure.

    void keep_third(int result, const char *call)
    {
        if (mine_.third_result || !result)
            return;
        mine_.third_result = result;
        char text[900] = "";
        ph_context_error(context_, text, sizeof text);
        copy_text(mine_.third_sentence, sizeof mine_.third_sentence,
                  std::string(call) + ": " + ph_strerror(result) + ": " + text);
    }

    int pass(int peer)
    {
        void *memory = nullptr, *stream = nullptr;
        ph_channel *channel = nullptr;
        int result = memory_->alloc(SIZE, &memory);
        result = result ? result : memory_->stream(&stream);
        if (result)
            return result;
        if (rank_ != 2)
            fill(memory, 60 + static_cast<uint64_t>(rank_));
        ph_operation op = {
            7,      peer, rank_ == 2 ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT,
            memory, SIZE};
        result = ph_exchange(context_, &op, 1, &channel);
        if (result)
            return result;
        result = rank_ == 2 ? ph_wait(channel, SIZE, stream)
                            : ph_put_signal(channel, 0, 0, SIZE, stream);
        auto begin = Clock::now();
        for (int late = -ETIMEDOUT; !result && late == -ETIMEDOUT;) {
            late = memory_->synchronize(stream, 20);
            result = late == -ETIMEDOUT && ms_since(begin) < deadline_ms() ? 0 : late;
        }
        result = result ? result : ph_channel_status(channel);
        if (!result && rank_ == 2)
            holds(memory, 60 + static_cast<uint64_t>(peer), "what a third rank sent");
        return result;
    }

    // The third rank's outcome with rank 0 is the business of rank 0: the fault is there.
    void third()
    {
        mine_.stage = THIRD;
        if (rank_ < 2) {
            board_.arrived[STAGES + 4 + rank_][rank_] = 1;
            if (meet(STAGES + 6 + rank_, 2)) // it may have to wait for another one first
                keep_third(pass(2), "with rank 2");
            return;
        }
        for (int peer = 0; peer < 2; peer++) {
            auto begin = Clock::now();
            bool gone = false; // it has failed to become a rank
            while (!board_.arrived[STAGES + 4 + peer][peer] && !gone) {
                gone =
                    board_.ranks[peer].failed_at == CREATE || ms_since(begin) > 8 * deadline_ms();
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
            board_.arrived[STAGES + 6 + peer][2] = 1;
            int result = gone ? 0 : pass(peer);
            if (peer == 1)
                keep_third(result, "with rank 1");
        }
    }

    void destroy()
    {
        mine_.stage = DESTROY;
        for (int i = 1; context_ && i <= 3; i++) {
            int result = ph_context_destroy(&context_, 2 * deadline_ms());
            if (result == 0) {
                mine_.destroys = i;
            } else if (!mine_.destroy_sentence[0]) {
                char text[900] = "";
                ph_context_error(context_, text, sizeof text);
                copy_text(mine_.destroy_sentence, sizeof mine_.destroy_sentence,
                          std::string(ph_strerror(result)) + ": " + text);
            }
        }
    }

    // ---- what is left

    static uint32_t memfd_mappings()
    {
        uint32_t count = 0;
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);)
            count += line.find("/memfd:peerhop") != std::string::npos;
        return count;
    }

    void settle()
    {
        Holdings &after = mine_.after;
        after.threads = static_cast<uint32_t>(thread_entries());
        after.descriptors = static_cast<uint32_t>(entries("/proc/self/fd"));
        after.mappings = memfd_mappings();
        uintptr_t from[8] = {};
        after.allocations = static_cast<uint32_t>(fault_heap_live(from, 8));
        for (int i = 0; i < 8; i++)
            after.from[i] = from[i];
        mine_.stage = STAGES;
    }

    Board &board_;
    int rank_;
    Outcome &mine_;
    std::unique_ptr<Memory> memory_;
    ph_context *context_ = nullptr;
    void *stream_ = nullptr;
    std::vector<void *> buffers_;
    ph_channel *out_ = nullptr, *in_ = nullptr;
};

} // namespace

static int64_t deadline = 2500;

int64_t deadline_ms()
{
    return patience(deadline).count();
}

// Over the net ranks meet by more steps, each of which waits for a core.
void use_deadline_of(const std::string &place)
{
    deadline = place == "hostnet" ? 8000 : 2500;
}

const char *stage_name(int stage)
{
    static const char *const names[] = {"create", "exchange", "transfer", "group",   "graph",
                                        "again",  "release",  "third",    "destroy", "the end"};
    return names[stage];
}

void play(Board *board, int rank)
{
    board->ranks[rank].failed_at = -1;
    Player(board, rank).play();
}

std::string prepare(const std::string &device)
{
    return prepare_memory(device);
}

} // namespace faults
