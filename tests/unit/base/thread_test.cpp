// SPDX-License-Identifier: BSD-3-Clause
// Whether a process has another thread of the application's.
#include <string>

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern "C" {
#include "base/thread.h"
}

namespace
{

// A thread of that name, as long as this lives.
class Thread
{
  public:
    explicit Thread(const std::string &name)
    {
        sem_init(&end_, 0, 0);
        EXPECT_EQ(pthread_create(
                      &thread_, nullptr,
                      [](void *end) -> void * {
                          sem_wait(static_cast<sem_t *>(end));
                          return nullptr;
                      },
                      &end_),
                  0);
        EXPECT_TRUE(name.empty() || pthread_setname_np(thread_, name.c_str()) == 0);
    }
    ~Thread()
    {
        sem_post(&end_);
        pthread_join(thread_, nullptr);
        sem_destroy(&end_);
    }

  private:
    sem_t end_;
    pthread_t thread_;
};

class Alone : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!phi_thread_alone())
            GTEST_SKIP() << "a sanitizer has a thread of its own";
    }
};

TEST_F(Alone, ThreadsOfTheLibraryAndTheDriverDoNotCount)
{
    for (const char *name : {"peerhop-service", "peerhop-queues", "peerhop-try", "peerhop-open",
                             "cuda-EvtHandlr", "cuda00001400006"}) {
        Thread thread(name);
        EXPECT_TRUE(phi_thread_alone()) << name;
    }
}

TEST_F(Alone, OthersCountWhateverTheirNames)
{
    for (const char *name : {"", "worker", "peerhop-mine", "peerhop-", "cuda-worker", "cuda0-copy",
                             "cuda", "cuda-EvtHandle"}) {
        Thread thread(name);
        EXPECT_FALSE(phi_thread_alone()) << "\"" << name << '"';
    }
}

TEST_F(Alone, WithoutDescriptorsNobodyKnows)
{
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int free = dup(0);
    close(free);
    for (int left = 0; left < 3; left++) {
        const rlimit few = {static_cast<rlim_t>(free + left), before.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        const bool alone = phi_thread_alone();
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
        EXPECT_EQ(alone, left == 2) << left; // the folder and one name
    }
}

} // namespace
