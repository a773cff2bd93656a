// SPDX-License-Identifier: BSD-3-Clause
// The present trouble of a store, in words, for sentences about messages that did not come through
// it. Any thread.
#ifndef PHI_STORE_TROUBLE_H
#define PHI_STORE_TROUBLE_H

#include <pthread.h>
#include <stddef.h>

struct phi_trouble {
    pthread_mutex_t lock; // guards text
    char text[240];       // empty: nothing is known to be wrong
};

void phi_trouble_init(struct phi_trouble *trouble);
void phi_trouble_fini(struct phi_trouble *trouble);
void phi_trouble_set(struct phi_trouble *trouble, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void phi_trouble_clear(struct phi_trouble *trouble);
size_t phi_trouble_copy(struct phi_trouble *trouble, char *text, size_t size); // its length

#endif
