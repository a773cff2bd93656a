// SPDX-License-Identifier: BSD-3-Clause
// Each round's seed and beginning follow from its number alone, so that a rank that comes again
// knows them.
#include "random/script.h"

Event event_of(const Config &config, uint64_t seed, uint64_t round)
{
    static const Event endings[] = {Event::NEXT_CONTEXT, Event::NEXT_PROCESS, Event::KILLED};
    Dice dice(mix(seed, round, 3));
    if (round == 0)
        return Event::FRESH;
    if (dice.below(1000) < config.mix.reborn)
        return endings[dice.below(3)];
    if (dice.chance(config.mix.fresh))
        return Event::FRESH;
    const size_t turn = dice.below(100);
    return turn < 1 ? Event::SAME_MEMORY : turn < 3 ? Event::CLOSED : Event::NONE;
}

int who_ends(const Config &config, uint64_t seed, uint64_t round)
{
    return (int)(mix(seed, round, 6) % (uint64_t)config.ranks);
}

// The same for all rounds in the same memory.
uint64_t layout_seed(const Config &config, uint64_t seed, uint64_t round)
{
    for (;; round--) {
        const Event event = event_of(config, seed, round);
        if (event != Event::NONE && event != Event::SAME_MEMORY && event != Event::CLOSED)
            return mix(seed, round, 4);
    }
}

uint64_t script_seed(uint64_t seed, uint64_t round)
{
    return mix(seed, round, 5);
}
