// SPDX-License-Identifier: BSD-3-Clause
// A script in words, for whoever looks for what went wrong in a round.
#include "random/board.h"
#include "random/script.h"

#include <cstdio>

static const char *name_of(Call call)
{
    static const char *const names[] = {
        "put",      "get",       "put_signal", "signal",    "wait",      "send",
        "recv",     "complete",  "copy",       "send_from", "recv_into", "group",
        "snapshot", "overwrite", "order",      "fork",      "join"};
    return names[(int)call];
}

static const char *name_of(enum ph_group_kind kind)
{
    static const char *const names[] = {"",    "send",       "recv",   "put",
                                        "get", "put_signal", "signal", "wait"};
    return names[kind];
}

static void show_step(const Layout &layout, int rank, const Part &part, size_t i)
{
    const Step &step = part.steps[i];
    const auto peer = [&](int link) { return layout.links[(size_t)link].peer(rank); };
    printf("  %4zu stream %d: %s", i, step.stream, name_of(step.call));
    if (step.call == Call::GROUP) {
        for (size_t k = step.first; k < step.first + step.count; k++) {
            const Member &m = part.members[k];
            printf("%s %s %zu on channel %d with %d", k == step.first ? "" : ",", name_of(m.kind),
                   m.size, m.link, peer(m.link));
        }
    } else if (step.call == Call::ORDER) {
        printf(" behind stream %d", step.other);
    } else if (step.link >= 0) {
        printf(" %zu on channel %d with %d", step.size, step.link, peer(step.link));
    } else if (step.call == Call::FILL) {
        printf(" %zu at %zu of area %d", step.size, step.local_offset, step.area);
    }
    printf("\n");
}

void show(const Config &config, uint64_t seed, uint64_t round)
{
    const Layout layout = make_layout(config, layout_seed(config, seed, round));
    const Script script = make_script(config, layout, script_seed(seed, round));
    for (int rank = 0; rank < config.ranks; rank++) {
        const Part &part = script.parts[(size_t)rank];
        printf("rank %d, %d repetitions\n", rank, script.repetitions);
        for (const Segment &segment : part.segments) {
            printf(" segment%s, %d streams\n", segment.captured ? ", captured" : "",
                   segment.streams);
            for (size_t i = segment.first; i < segment.first + segment.count; i++)
                show_step(layout, rank, part, i);
        }
    }
}
