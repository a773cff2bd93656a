// SPDX-License-Identifier: BSD-3-Clause
// The judgement of heartbeats: pure functions of times.
#include "support/atomic_compat.h"

#include <gtest/gtest.h>

extern "C" {
#include "ending/heartbeat.h"
}

namespace
{

const int64_t LIMIT = 1000;

TEST(Heartbeat, Judgement)
{
    const struct {
        const char *what;
        int64_t now, beat_at, awake_since;
        phi_pulse pulse;
    } cases[] = {
        {"never seen to beat", 50000, 0, 1, PHI_PULSE_UNKNOWN},
        {"never seen, and the watcher was away", 50000, 0, 49999, PHI_PULSE_UNKNOWN},
        {"beats now", 50000, 50000, 1, PHI_PULSE_ALIVE},
        {"beat within the limit", 50000, 49500, 1, PHI_PULSE_ALIVE},
        {"beat at the limit", 50000, 49000, 1, PHI_PULSE_ALIVE},
        {"silent for a moment more", 50000, 48999, 1, PHI_PULSE_SUSPECT},
        {"silent since long", 50000, 1, 1, PHI_PULSE_SUSPECT},
        {"silent, but the watcher has just woken", 50000, 1, 50000, PHI_PULSE_UNKNOWN},
        {"silent, the watcher woke within the limit", 50000, 1, 49000, PHI_PULSE_UNKNOWN},
        {"silent, the watcher has looked for longer", 50000, 1, 48999, PHI_PULSE_SUSPECT},
        {"beat after the watcher woke", 50000, 49200, 49100, PHI_PULSE_ALIVE},
        {"beat after the watcher woke, and not since", 50000, 48900, 48800, PHI_PULSE_SUSPECT},
        {"beat before the watcher slept, a short while ago", 50000, 49100, 49900, PHI_PULSE_ALIVE},
    };
    for (const auto &c : cases)
        EXPECT_EQ(phi_pulse_judge(c.now, c.beat_at, c.awake_since, LIMIT), c.pulse) << c.what;
}

TEST(Heartbeat, AWatcherThatWasAwayBeginsAfresh)
{
    const struct {
        const char *what;
        int64_t now, ticked, awake_since, awake;
    } cases[] = {
        {"the first look", 50000, 0, 0, 50000},
        {"the first look after nobody was connected", 50000, 0, 700, 50000},
        {"in time", 50000, 49900, 700, 700},
        {"late by half the limit", 50000, 49500, 700, 700},
        {"later than that", 50000, 49499, 700, 50000},
        {"away since long", 50000, 800, 700, 50000},
    };
    for (const auto &c : cases)
        EXPECT_EQ(phi_pulse_awake(c.now, c.ticked, c.awake_since, LIMIT), c.awake) << c.what;
}

// A watcher that looks every `interval`, and a peer that beats every `interval`; both are frozen in
// the same stretch. Whoever wakes first must not suspect the other, as long as that one follows
// within half the limit.
TEST(Heartbeat, FrozenTogetherNobodyIsSuspect)
{
    const int64_t interval = 100;
    for (int64_t frozen : {200, 499, 501, 1000, 5000, 100000}) {
        for (int64_t later : {0, 100, 400, 499}) {
            int64_t ticked = 0, awake = 0, beat = 0;
            uint64_t seen = 0;
            for (int64_t now = interval; now < 200000; now += interval) {
                bool watcher_runs = now < 2000 || now >= 2000 + frozen;
                bool peer_runs = now < 2000 || now >= 2000 + frozen + later;
                if (!watcher_runs)
                    continue;
                awake = phi_pulse_awake(now, ticked, awake, LIMIT);
                ticked = now;
                if (peer_runs)
                    beat = now;
                EXPECT_NE(phi_pulse_judge(now, beat, awake, LIMIT), PHI_PULSE_SUSPECT)
                    << "frozen for " << frozen << ", the peer " << later << " longer, at " << now;
                seen++;
            }
            EXPECT_GT(seen, 0u);
        }
    }
}

} // namespace
