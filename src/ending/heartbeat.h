// SPDX-License-Identifier: BSD-3-Clause
// Heartbeats: each rank's service thread counts up a word in every segment it has mapped, and looks
// at the peers' words. A silent peer is only SUSPECT: the device of a stopped process may still
// write, so nothing of it is released or reused. A beat is two stores and two loads for each peer
// and period; the data path knows nothing of it.
//
// The clock is CLOCK_MONOTONIC, as everywhere: it stands still while the machine is suspended, so
// that nobody grows silent by it (CLOCK_BOOTTIME would make everybody suspect everybody after it).
// It runs on where only processes stop (SIGSTOP, a frozen control group, a paused virtual machine).
// Then the watcher notices that it was away itself, and grants a fresh period.
#ifndef PHI_ENDING_HEARTBEAT_H
#define PHI_ENDING_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#include <peerhop/context.h>

struct phi_peer;
struct phi_self;

enum phi_pulse {
    PHI_PULSE_ALIVE,
    PHI_PULSE_UNKNOWN, // silent, but the watcher was away, or the peer does not beat for us yet
    PHI_PULSE_SUSPECT,
};

// phi_pulse_judge: times in ns; beat_at: when the peer was last seen to beat, 0: never yet;
// awake_since: since when the watcher has looked without a long gap; limit: silence that makes a
// SUSPECT.
enum phi_pulse phi_pulse_judge(int64_t now, int64_t beat_at, int64_t awake_since, int64_t limit);

// phi_pulse_awake returns the watcher's new awake_since: `now` where its last look (0: none) is
// more than half the limit ago, so that everybody has at least the other half to be seen.
int64_t phi_pulse_awake(int64_t now, int64_t ticked, int64_t awake_since, int64_t limit);

// phi_heartbeat_tick (takes the lock) beats, judges, and looks whether this rank was expelled, and
// whether a peer has left or aborted. Returns when to call again; PHI_FOREVER: nobody is connected.
int64_t phi_heartbeat_tick(struct phi_self *self);

// phi_heartbeat_missed (with the lock) returns whether the service thread missed a beat, that is,
// this process was perhaps stopped: then others may have expelled it meanwhile.
bool phi_heartbeat_missed(struct phi_self *self);

// phi_peer_report_state (with the lock) returns the state that the application is told.
enum ph_peer_state phi_peer_report_state(const struct phi_peer *peer);

// phi_peer_report (takes the lock) fills a report of another rank.
void phi_peer_report(struct phi_self *self, int rank, struct ph_peer_report *report);

#endif
