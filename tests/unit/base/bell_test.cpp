// SPDX-License-Identifier: BSD-3-Clause
#include "support/atomic_compat.h"

#include <cerrno>
#include <csignal>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern "C" {
#include "base/bell.h"
#include "base/clock.h"
}

namespace
{

// As the header says that a waiter does it. Returns whether `flag` reached `target` before the
// deadline.
bool wait_until(phi_bell *bell, uint32_t *flag, uint32_t target, int64_t deadline)
{
    int rc = 0;
    phi_bell_register(bell);
    while (rc == 0) {
        uint32_t seen = phi_bell_read(bell);
        if (atomic_load_explicit(flag, memory_order_acquire) >= target)
            break;
        rc = phi_bell_sleep(bell, seen, deadline);
    }
    phi_bell_unregister(bell);
    return rc == 0;
}

TEST(Bell, TimesOut)
{
    phi_bell bell{};
    int64_t before = phi_now();
    EXPECT_EQ(phi_bell_sleep(&bell, 0, before + 20 * PHI_MS), -ETIMEDOUT);
    EXPECT_GE(phi_now() - before, 20 * PHI_MS);
    EXPECT_EQ(phi_bell_sleep(&bell, 0, before), -ETIMEDOUT);
    EXPECT_EQ(phi_bell_sleep(&bell, 0, -5), -ETIMEDOUT);
}

TEST(Bell, DoesNotSleepOnAnOldCount)
{
    phi_bell bell{};
    EXPECT_EQ(phi_bell_sleep(&bell, 1, PHI_FOREVER), 0);
}

TEST(Bell, RingsOnlyForSleepers)
{
    phi_bell bell{};
    phi_bell_ring(&bell);
    EXPECT_EQ(phi_bell_read(&bell), 0u);
    phi_bell_register(&bell);
    phi_bell_ring(&bell);
    EXPECT_EQ(phi_bell_read(&bell), 1u);
    phi_bell_unregister(&bell);
    phi_bell_ring(&bell);
    EXPECT_EQ(phi_bell_read(&bell), 1u);
}

TEST(Bell, NoRingIsLostBetweenThreads)
{
    phi_bell go{}, back{};
    uint32_t here = 0, there = 0;
    const uint32_t rounds = 20000;
    int64_t deadline = phi_deadline(50000);

    std::thread partner([&] {
        for (uint32_t i = 1; i <= rounds && wait_until(&go, &here, i, deadline); i++) {
            atomic_store_explicit(&there, i, memory_order_release);
            phi_bell_ring(&back);
        }
    });
    for (uint32_t i = 1; i <= rounds; i++) {
        atomic_store_explicit(&here, i, memory_order_release);
        phi_bell_ring(&go);
        if (!wait_until(&back, &there, i, deadline)) {
            ADD_FAILURE() << "round " << i << " hung";
            break;
        }
    }
    partner.join();
    EXPECT_EQ(there, rounds);
    EXPECT_EQ(go.sleepers, 0u);
}

TEST(Bell, WakesAllSleepers)
{
    phi_bell bell{};
    uint32_t flag = 0;
    std::atomic<int> woken{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&] { woken += wait_until(&bell, &flag, 1, phi_deadline(20000)); });
    while (atomic_load(&bell.sleepers) < 8)
        usleep(1000);
    usleep(5000);
    atomic_store_explicit(&flag, 1u, memory_order_release);
    phi_bell_ring(&bell);
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(woken, 8);
}

TEST(Bell, WakesAnotherProcess)
{
    struct shared {
        phi_bell bell;
        uint32_t flag;
    };
    void *memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared *both = static_cast<shared *>(memory);

    fflush(nullptr);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0)
        _exit(wait_until(&both->bell, &both->flag, 1, phi_deadline(20000)) ? 0 : 1);
    while (atomic_load(&both->bell.sleepers) == 0)
        usleep(1000);
    usleep(5000);
    atomic_store_explicit(&both->flag, 1u, memory_order_release);
    phi_bell_ring(&both->bell);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    munmap(memory, 4096);
}

void nothing(int)
{
}

TEST(Bell, ASignalIsNoTimeout)
{
    phi_bell bell{};
    struct sigaction action = {}, old;
    action.sa_handler = nothing;
    ASSERT_EQ(sigaction(SIGUSR1, &action, &old), 0);
    std::atomic<bool> done{false};
    std::atomic<int> rc{1};
    std::thread sleeper([&] {
        rc = phi_bell_sleep(&bell, 0, phi_deadline(20000));
        done = true;
    });
    while (!done) {
        pthread_kill(sleeper.native_handle(), SIGUSR1);
        usleep(1000);
    }
    sleeper.join();
    EXPECT_EQ(rc, 0);
    sigaction(SIGUSR1, &old, nullptr);
}

} // namespace
