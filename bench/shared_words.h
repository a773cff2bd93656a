// SPDX-License-Identifier: BSD-3-Clause
// Words in host memory that the two ranks of a pair share: what one's CPU tells the other's, also
// while no kernel of the library begins on its GPU.
#ifndef BENCH_SHARED_WORDS_H
#define BENCH_SHARED_WORDS_H

#include <stdatomic.h>
#include <stdint.h>

#include "bench.h"

struct bench_shared_words {
    uint64_t name; // of this page: another process' page has another
    _Atomic uint64_t go;
    _Atomic uint64_t stop;
    _Atomic uint64_t total;
};

// bench_shared_words_open: all ranks call it alike. *words: NULL for an odd one out, or where the
// two are not on one node and do not see each other's processes (-ENOTSUP). The page is zero.
int bench_shared_words_open(struct bench *bench, struct bench_shared_words **words);
void bench_shared_words_close(struct bench_shared_words *words);

#endif
