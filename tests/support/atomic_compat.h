// SPDX-License-Identifier: BSD-3-Clause
// Lets C++17 tests include headers of the library that use C11 atomics. Include it first.
//
// An _Atomic integer has the size and alignment of the plain one on every platform we build for, so
// tests see plain integers, and the generic functions of <stdatomic.h> become the compiler's
// builtins. The C++ headers that declare functions of the same names are included before the macros
// exist.
#ifndef TESTS_SUPPORT_ATOMIC_COMPAT_H
#define TESTS_SUPPORT_ATOMIC_COMPAT_H

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

// The include guards of clang's and of libstdc++'s <stdatomic.h>: what they would define is below.
#define __CLANG_STDATOMIC_H
#define _GLIBCXX_STDATOMIC_H

#define _Atomic

enum {
    memory_order_relaxed = __ATOMIC_RELAXED,
    memory_order_acquire = __ATOMIC_ACQUIRE,
    memory_order_release = __ATOMIC_RELEASE,
    memory_order_acq_rel = __ATOMIC_ACQ_REL,
    memory_order_seq_cst = __ATOMIC_SEQ_CST,
};

#define atomic_init(p, v)                      __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define atomic_load_explicit(p, order)         __atomic_load_n((p), (order))
#define atomic_store_explicit(p, v, order)     __atomic_store_n((p), (v), (order))
#define atomic_exchange_explicit(p, v, order)  __atomic_exchange_n((p), (v), (order))
#define atomic_fetch_add_explicit(p, v, order) __atomic_fetch_add((p), (v), (order))
#define atomic_fetch_sub_explicit(p, v, order) __atomic_fetch_sub((p), (v), (order))
#define atomic_fetch_or_explicit(p, v, order)  __atomic_fetch_or((p), (v), (order))
#define atomic_fetch_and_explicit(p, v, order) __atomic_fetch_and((p), (v), (order))
#define atomic_compare_exchange_strong_explicit(p, expected, v, good, bad)                         \
    __atomic_compare_exchange_n((p), (expected), (v), false, (good), (bad))
#define atomic_compare_exchange_weak_explicit(p, expected, v, good, bad)                           \
    __atomic_compare_exchange_n((p), (expected), (v), true, (good), (bad))
#define atomic_thread_fence(order) __atomic_thread_fence(order)

#define atomic_load(p)         atomic_load_explicit((p), memory_order_seq_cst)
#define atomic_store(p, v)     atomic_store_explicit((p), (v), memory_order_seq_cst)
#define atomic_exchange(p, v)  atomic_exchange_explicit((p), (v), memory_order_seq_cst)
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define atomic_fetch_sub(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst)
#define atomic_compare_exchange_strong(p, expected, v)                                             \
    atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_seq_cst,            \
                                            memory_order_seq_cst)

#endif
