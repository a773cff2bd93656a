// SPDX-License-Identifier: BSD-3-Clause
// scale_table PATTERN STORE RANKS [OPERATIONS [PEERHOP_NAME=value...]] prints a row of figures of
// such a job: PATTERN is ring or all, STORE redis or files. Without arguments: the head of the
// rows.
#include "scale/measure.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace
{

// Columns: seconds of each step, and of the first three together; commands of a rank, as it counts
// them itself up to the message, and as Redis does, with the bytes of both ways; keys left;
// descriptors of a rank, and of each peer; KiB of private memory of a rank, and of each peer; KiB
// of a pair's segment, and of its mapping; load of the machine.
void print_head()
{
    puts("                       | create contact message  until destroy | store   redis   redis  "
         "left |  fds   fds |   own    own segment mapped | load\n"
         "     store ranks   ops |      s       s       s message     s   | a rank a rank kB/rank  "
         "keys | rank  peer |  rank   peer    pair   pair |");
}

void print_row(const ScaleJob &job, const ScaleFigures &figures)
{
    const auto a_rank = [&](auto all) { return static_cast<double>(all) / job.ranks; };
    const auto a_peer = [&](auto all) {
        return static_cast<double>(all) / static_cast<double>(figures.peers);
    };
    uint64_t commands = 0, bytes = 0;
    double load = 0;
    for (int step = 0; step < SCALE_STEPS; step++) {
        commands += figures.commands[step];
        bytes += figures.bytes[step];
    }
    getloadavg(&load, 1);
    printf(
        "%-4s %-5s %5d %5d | %6.2f %7.2f %7.2f %6.2f %7.2f | %6.1f %6.1f %7.1f %5lu | %4.1f %5.1f "
        "| %5.0f %6.0f %7.0f %6.0f | %.1f\n",
        job.all ? "all" : "ring", job.files ? "files" : "redis", job.ranks, job.operations,
        figures.seconds[SCALE_CREATE], figures.seconds[SCALE_CONTACT],
        figures.seconds[SCALE_MESSAGE], figures.until_message, figures.seconds[SCALE_DESTROY],
        a_rank(figures.counted), a_rank(commands), a_rank(bytes) / 1000, figures.keys_left,
        a_rank(figures.descriptors[0]), a_peer(figures.descriptors[1]),
        a_rank(figures.created) / 1024, a_peer(figures.used) / 1024,
        2 * a_peer(figures.segments) / 1024, static_cast<double>(figures.mapped) / 1024, load);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 1) {
        print_head();
        return 0;
    }
    ScaleJob job;
    if (argc < 4) {
        fprintf(stderr,
                "usage: scale_table [ring|all redis|files RANKS [OPERATIONS [SETTING...]]]\n");
        return 2;
    }
    job.all = strcmp(argv[1], "all") == 0;
    job.files = strcmp(argv[2], "files") == 0;
    job.ranks = atoi(argv[3]);
    job.operations = argc > 4 ? atoi(argv[4]) : 1;
    for (int i = 5; i < argc; i++)
        job.settings.push_back(argv[i]);
    const ScaleFigures figures = scale_measure(job);
    if (!figures.trouble.empty()) {
        fprintf(stderr, "scale_table: %s\n", figures.trouble.c_str());
        return 1;
    }
    print_row(job, figures);
    return 0;
}
