// SPDX-License-Identifier: BSD-3-Clause
#include "scale/board.h"

#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <string>
#include <vector>
#include <sys/stat.h>
#include <unistd.h>

#include <peerhop/peerhop.h>

#include "support/patience.h"

namespace
{

const size_t piece = 4096; // half of it is sent, into the other half

struct Life {
    const ScaleJob &job;
    const int rank;
    ScaleBoard *const board;
    ScaleRank &mine;
    struct ph_context *context = nullptr;
    struct ph_queue *queue = nullptr;
    uint8_t *memory = nullptr;
    std::vector<struct ph_operation> operations;
    std::vector<struct ph_channel *> channels;

    bool fail(const char *what, int rc, const char *why)
    {
        snprintf(mine.trouble, sizeof mine.trouble, "%s: %s: %s", what, ph_strerror(rc), why);
        return false;
    }
    bool check(const char *what, int rc)
    {
        char why[400] = "";
        if (rc && context)
            ph_context_error(context, why, sizeof why);
        return rc == 0 || fail(what, rc, why);
    }
    // All ranks begin a step together, and the parent looks at the store between two.
    bool begin(ScaleStep step)
    {
        if (!board->arrive(static_cast<uint32_t>(job.ranks) + 1))
            return false;
        mine.begun[step] = scale_now();
        return true;
    }
    bool end(ScaleStep step)
    {
        mine.ended[step] = scale_now();
        return true;
    }
};

// ---- what this process has

const char segment_name[] = "/memfd:peerhop-segment";

// Mappings of segments, of memory that an application has allocated, and all the rest.
void look_at_memory(int64_t *own, uint64_t *mapped)
{
    std::ifstream maps("/proc/self/smaps");
    bool segment = false, file = false;
    *own = *mapped = 0;
    for (std::string line; std::getline(maps, line);) {
        uint64_t kib = 0;
        if (line.find('-') < line.find(' ') && line.find('-') < line.find(':')) {
            file = line.find("/memfd:") != line.npos || line.find("/dev/zero") != line.npos;
            segment = line.find(segment_name) != line.npos;
        } else if (segment && sscanf(line.c_str(), "Size: %lu", &kib) == 1) {
            *mapped = kib << 10; // they are all alike
        } else if (!file && sscanf(line.c_str(), "Private_Dirty: %lu", &kib) == 1) {
            *own += static_cast<int64_t>(kib << 10);
        }
    }
}

// Descriptors, and bytes that the segments' files have.
void look_at_files(int64_t *count, uint64_t *segments)
{
    DIR *list = opendir("/proc/self/fd");
    *count = *segments = 0;
    while (struct dirent *entry = list ? readdir(list) : nullptr) {
        const std::string path = std::string("/proc/self/fd/") + entry->d_name;
        char target[200] = "";
        struct stat file;
        if (entry->d_name[0] == '.' || readlink(path.c_str(), target, sizeof target - 1) < 0)
            continue;
        ++*count;
        if (strncmp(target, segment_name, strlen(segment_name)) == 0 &&
            stat(path.c_str(), &file) == 0)
            *segments += static_cast<uint64_t>(file.st_blocks) * 512;
    }
    if (list)
        closedir(list);
}

void look(ScaleRank *mine, int when)
{
    look_at_memory(&mine->bytes[when], &mine->mapped);
    look_at_files(&mine->descriptors[when], &mine->segments);
}

// ---- the steps

bool create(Life *life, const char *store)
{
    char error[400] = "";
    std::vector<const char *> settings;
    for (const std::string &setting : life->job.settings)
        settings.push_back(setting.c_str());
    settings.push_back(nullptr);
    struct ph_context_params params = {};
    params.struct_size = sizeof params;
    params.rank = life->rank;
    params.ranks = life->job.ranks;
    params.device = "host";
    params.store = store;
    params.job = "scale";
    params.deadline_ms = patience(60000).count();
    params.settings = settings.data();
    params.error = error;
    params.error_size = sizeof error;
    int rc = ph_context_create(&params, &life->context);
    return rc == 0 || life->fail("create", rc, error);
}

void name_operations(Life *life)
{
    const int ranks = life->job.ranks;
    for (int step = 1; step < ranks; step++) {
        const int peer = (life->rank + step) % ranks;
        if (!life->job.all && step != 1 && step != ranks - 1)
            continue;
        for (int i = 0; i < life->job.operations; i++)
            life->operations.push_back(
                {static_cast<uint64_t>(i), peer, PH_ROLE_BOTH, PH_PROTOCOL_PUT, nullptr, piece});
    }
}

bool meet(Life *life)
{
    void *memory = nullptr;
    if (!life->check("memory",
                     ph_host_alloc(life->context, piece * life->operations.size(), &memory)))
        return false;
    life->memory = static_cast<uint8_t *>(memory);
    for (size_t i = 0; i < life->operations.size(); i++)
        life->operations[i].buffer = life->memory + i * piece;
    life->channels.resize(life->operations.size());
    return life->check("exchange", ph_exchange(life->context, life->operations.data(),
                                               life->operations.size(), life->channels.data()));
}

uint8_t sent(int from, int to)
{
    return static_cast<uint8_t>(from * 7 + to * 13 + 1);
}

bool verify(Life *life)
{
    for (size_t i = 0; i < life->operations.size(); i++) {
        const uint8_t *came = life->memory + i * piece + piece / 2;
        for (size_t k = 0; k < piece / 2; k++)
            if (came[k] != sent(life->operations[i].peer, life->rank))
                return life->fail("a message", -EBADMSG, "other bytes");
    }
    return true;
}

bool talk(Life *life)
{
    std::vector<struct ph_group_op> group;
    for (size_t i = 0; i < life->channels.size(); i++) {
        memset(life->memory + i * piece, sent(life->rank, life->operations[i].peer), piece / 2);
        group.push_back({PH_GROUP_PUT_SIGNAL, life->channels[i], piece / 2, 0, piece / 2, nullptr});
        group.push_back({PH_GROUP_WAIT, life->channels[i], 0, 0, piece / 2, nullptr});
    }
    return life->check("queue", ph_queue_create(life->context, &life->queue)) &&
           life->check("group", ph_group(group.data(), group.size(), life->queue)) &&
           life->check("message", ph_queue_synchronize(life->queue, patience(60000).count())) &&
           verify(life);
}

bool destroy(Life *life)
{
    return life->check("destroy", ph_context_destroy(&life->context, patience(60000).count()));
}

void count(Life *life)
{
    struct ph_counters counters = {};
    ph_context_counters(life->context, &counters, sizeof counters);
    life->mine.counted = counters.store_commands;
}

} // namespace

int scale_rank(const ScaleJob &job, int rank, const char *store, ScaleBoard *board)
{
    Life life{job, rank, board, board->rank[rank]};
    name_operations(&life);
    look(&life.mine, 0);
    bool done = life.begin(SCALE_CREATE) && create(&life, store) && life.end(SCALE_CREATE);
    if (done)
        look(&life.mine, 1);
    done = done && life.begin(SCALE_CONTACT) && meet(&life) && life.end(SCALE_CONTACT) &&
           life.begin(SCALE_MESSAGE) && talk(&life) && life.end(SCALE_MESSAGE);
    if (done) {
        count(&life);
        look(&life.mine, 2);
    }
    done = done && life.begin(SCALE_DESTROY) && destroy(&life) && life.end(SCALE_DESTROY);
    return done ? 0 : 1;
}
