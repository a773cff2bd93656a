// SPDX-License-Identifier: BSD-3-Clause
// A random client: ranks that draw from a seed what they do with one another by the public API, and
// compare every byte that may have changed, and those around it, with what the API promises.
//
//     random_client --list
//     random_client --config NAME,...|all|processors|gpus [--seconds N | --operations N] [--seed S]
//     [--side-by-side K]
//
//     random_client --config NAME --seed S --show ROUND     the script of a round
//
// --seconds and --operations are of each configuration. What has failed is repeated by its seed;
// how calls of different ranks meet is chance all the same.
#include "random/run.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <sstream>

#include <sys/mman.h>
#include <unistd.h>

#include "support/patience.h"
#include "support/redis_server.h"

struct Options {
    std::string configs = "all";
    Limits limits = {0, 0, 60000};
    uint64_t seed = 0;
    size_t side_by_side = 1;
    bool list = false;
    const char *show = nullptr; // a round
};

static int usage()
{
    fprintf(stderr, "random_client --list | --config NAME,...|all|processors|gpus [--seconds N | "
                    "--operations N] "
                    "[--seed S] [--side-by-side K] [--stall SECONDS] [--show ROUND]\n");
    return 2;
}

static bool read_options(int argc, char **argv, Options &options)
{
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--list") {
            options.list = true;
            continue;
        }
        if (++i >= argc)
            return false;
        const char *value = argv[i];
        if (name == "--config")
            options.configs = value;
        else if (name == "--seconds")
            options.limits.seconds = atof(value);
        else if (name == "--operations")
            options.limits.operations = (uint64_t)atof(value);
        else if (name == "--seed")
            options.seed = strcmp(value, "today") == 0 ? (uint64_t)time(nullptr) / 86400
                                                       : strtoull(value, nullptr, 0);
        else if (name == "--side-by-side")
            options.side_by_side = (size_t)atoi(value);
        else if (name == "--show")
            options.show = value;
        else if (name == "--stall")
            options.limits.stall_ms = atoi(value) * 1000;
        else
            return false;
    }
    options.limits.stall_ms = patience(options.limits.stall_ms).count();
    if (options.limits.seconds <= 0 && options.limits.operations == 0)
        options.limits.seconds = 10;
    if (options.seed == 0)
        options.seed = (uint64_t)time(nullptr) * 1000 + (uint64_t)getpid() % 1000;
    return options.side_by_side > 0;
}

// False where a name is unknown.
static bool choose(const std::string &names, std::vector<const Config *> &chosen)
{
    std::stringstream words(names);
    for (std::string word; std::getline(words, word, ',');) {
        const size_t before = chosen.size();
        for (const Config &config : all_configs())
            if (word == "all" || word == config.name || (word == "gpus" && config.gpus) ||
                (word == "processors" && !config.gpus))
                chosen.push_back(&config);
        if (chosen.size() == before) {
            fprintf(stderr, "no configuration is called %s: see --list\n", word.c_str());
            return false;
        }
    }
    return true;
}

static int make_pool(uint64_t seed)
{
    const int fd = memfd_create("pool", 0);
    if (fd < 0 || ftruncate(fd, (off_t)POOL) != 0)
        abort();
    auto *words =
        static_cast<uint64_t *>(mmap(nullptr, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (words == MAP_FAILED)
        abort();
    for (size_t i = 0; i < POOL / 8; i++)
        words[i] = mix(seed, i);
    auto *bytes = reinterpret_cast<uint8_t *>(words);
    for (size_t i = 0; i < POOL; i++)
        if (bytes[i] == POISON_BYTE || bytes[i] == KILLED_BYTE || bytes[i] == SPENT_BYTE)
            bytes[i] = (uint8_t)(i % 101);
    munmap(words, POOL);
    return fd;
}

static int make_table()
{
    static const char text[] = "* * 1M all wide\n";
    const int fd = memfd_create("table", 0);
    if (fd < 0 || write(fd, text, sizeof text - 1) != (ssize_t)sizeof text - 1)
        abort();
    return fd;
}

static void list()
{
    for (const Config &config : all_configs())
        printf("%-26s %d ranks: %s\n", config.name.c_str(), config.ranks, config.what.c_str());
}

// Returns an exit status: 77, where none can run here, says to meson that the test was skipped.
static int play(const Options &options, const std::vector<const Config *> &chosen,
                const Files &files)
{
    std::vector<std::unique_ptr<Run>> runs;
    size_t next = 0;
    int failed = 0, played = 0;
    uint64_t operations = 0;
    while (next < chosen.size() || !runs.empty()) {
        while (next < chosen.size() && runs.size() < options.side_by_side) {
            const Config &config = *chosen[next++];
            const std::string why = Run::unavailable(config);
            if (why.empty())
                runs.push_back(std::make_unique<Run>(config, files, options.seed, options.limits));
            else
                printf("%-26s left out: %s\n", config.name.c_str(), why.c_str());
        }
        for (size_t i = 0; i < runs.size();) {
            if (runs[i]->poll()) {
                i++;
                continue;
            }
            printf("%s\n", runs[i]->report().c_str());
            fflush(stdout);
            operations += runs[i]->operations();
            failed += !runs[i]->good();
            played++;
            runs.erase(runs.begin() + (long)i);
        }
        usleep(5000);
    }
    printf("seed %llu: %llu operations, %d configurations failed\n",
           (unsigned long long)options.seed, (unsigned long long)operations, failed);
    return failed > 0 ? 1 : played > 0 ? 0 : 77;
}

int main(int argc, char **argv)
{
    Orders orders;
    if (read_orders(orders))
        return rank_main(orders);
    Options options;
    std::vector<const Config *> chosen;
    if (!read_options(argc, argv, options))
        return usage();
    if (options.list) {
        list();
        return 0;
    }
    if (!choose(options.configs, chosen))
        return 2;
    if (options.show != nullptr) {
        show(*chosen[0], options.seed, strtoull(options.show, nullptr, 0));
        return 0;
    }
    RedisServer redis;
    if (!redis.start()) {
        fprintf(stderr, "there is no redis-server, or it does not start\n");
        return 2;
    }
    const Files files = {make_pool(options.seed), make_table(), redis.uri()};
    return play(options, chosen, files);
}
