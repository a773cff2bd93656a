// SPDX-License-Identifier: BSD-3-Clause
// What a rank does otherwise where two try whether ipc serves them, wrapped at link time: nothing,
// until it is told to. And what it maps.
#ifndef TESTS_E2E_TRIAL_LIES_H
#define TESTS_E2E_TRIAL_LIES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// hold_imports: each mapping of a peer's memory waits until may_go() says so.
void hold_imports(bool (*may_go)(void));

// How many mappings were made so far, and are there now.
int imports_made(void);
int imports_open(void);

// Whether a peer has asked this rank about its try, and was answered.
bool was_asked(void);

// lie_in_trials: what this rank says of its try, in questions and answers, from now on. All 0: as
// it is.
struct trial_lie {
    int32_t status; // of answers
    uint64_t a, b;
    bool no_record;
};
void lie_in_trials(struct trial_lie lie);

// have_other_addresses: those of this rank's net are of a format of their own.
void have_other_addresses(void);

// have_another_version: this rank speaks version 999 of the net path, and finds that of its peers
// to be another one, as it is: version_of_others.
void have_another_version(void);
int version_of_others(void);

// be_slow: the next so many probes of providers are too slow, and take so long.
void be_slow(int probes, int ms);

#ifdef __cplusplus
}
#endif

#endif
