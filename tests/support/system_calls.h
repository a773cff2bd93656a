// SPDX-License-Identifier: BSD-3-Clause
// Counts the system calls of a piece of code: in a thread of its own, under a seccomp filter that
// turns each into a signal. (The vDSO's clock makes none.)
#ifndef TESTS_SUPPORT_SYSTEM_CALLS_H
#define TESTS_SUPPORT_SYSTEM_CALLS_H

#include <functional>

// The number of system calls that run() made, or -1 where they cannot be counted (no seccomp, a
// sanitizer or valgrind, which make their own).
long system_calls_of(const std::function<void()> &run);

#endif
