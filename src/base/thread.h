// SPDX-License-Identifier: BSD-3-Clause
#ifndef PHI_BASE_THREAD_H
#define PHI_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

// phi_thread_start starts a thread of the library: 0 or -errno. Neither it nor the threads that it
// starts get signals, which are the application's affair. name: at most 15 characters.
int phi_thread_start(pthread_t *thread, const char *name, void *(*main)(void *), void *opaque);

// phi_thread_alone: whether the process has at most one thread beside those of the library and of
// the CUDA driver. false also where that is not known.
bool phi_thread_alone(void);

#endif
