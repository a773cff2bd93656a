// SPDX-License-Identifier: BSD-3-Clause
// The store in a directory, by its callbacks.
#include "support/atomic_compat.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/denied.h"
#include "support/folder.h"
#include "support/patience.h"

extern "C" {
#include "base/clock.h"
#include "base/wake.h"
#include "store/file.h"
}

namespace
{

const int64_t WELL_MS = patience(10000).count();

class File : public testing::Test
{
  protected:
    File()
    {
        phi_report_init(&report, log, this, PH_LOG_INFO);
    }
    ~File() override
    {
        phi_file_store_close(store);
        phi_report_fini(&report);
    }
    int open(const std::string &uri, bool make = true)
    {
        phi_file_store_close(store);
        store = nullptr;
        int result = phi_file_store_open(uri.c_str(), make, &report, &store);
        if (result == 0)
            calls = phi_file_store_callbacks(store);
        return result;
    }
    void open()
    {
        ASSERT_EQ(open(folder.store()), 0) << error();
    }
    int set(const std::string &key, const std::string &value)
    {
        return calls.set(calls.opaque, key.c_str(), value.data(), value.size(), WELL_MS);
    }
    int get(const std::string &key, std::string *text, int64_t ms = 0)
    {
        void *value = nullptr;
        size_t size = 0;
        int result = calls.get(calls.opaque, key.c_str(), &value, &size, ms);
        if (result == 0 && text)
            text->assign(static_cast<char *>(value), size);
        free(value);
        return result;
    }
    std::string got(const std::string &key, int64_t ms = 0)
    {
        std::string text;
        int result = get(key, &text, ms);
        return result ? "error " + std::to_string(result) : text;
    }
    int remove(const std::string &key)
    {
        return calls.remove(calls.opaque, key.c_str(), WELL_MS);
    }
    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }
    static void log(void *opaque, ph_log_level, const char *line)
    {
        static_cast<File *>(opaque)->logged += std::string(line) + "\n";
    }

    Folder folder;
    phi_report report;
    phi_file_store *store = nullptr;
    ph_store_callbacks calls{};
    std::string logged;
};

TEST_F(File, MakesItsDirectoryForThisUserAlone)
{
    const mode_t before = umask(0);
    open();
    umask(before);
    struct stat st;
    ASSERT_EQ(stat((folder.path() + "/store").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0700u);
    ASSERT_EQ(set("key", "value"), 0);
    EXPECT_EQ(got("key"), "value");
    EXPECT_EQ(open(folder.store() + "//"), 0) << error(); // and finds it again
    EXPECT_EQ(got("key"), "value");
    EXPECT_EQ(open(folder.store(), false), 0) << error();
}

TEST_F(File, MakesNoneForWhoOnlyReads)
{
    EXPECT_EQ(open(folder.store(), false), -ENOENT);
    EXPECT_NE(error().find(folder.path() + "/store"), std::string::npos) << error();
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/store"));
}

TEST_F(File, MakesOneDirectoryAndNotItsParents)
{
    EXPECT_EQ(open("file:" + folder.path() + "/a/b"), -ENOENT);
    EXPECT_NE(error().find("/a/b cannot be made"), std::string::npos) << error();
}

TEST_F(File, AnotherUsersDirectoryIsRefused)
{
    if (geteuid() == 0) {
        mkdir((folder.path() + "/store").c_str(), 0700);
        ASSERT_EQ(chown((folder.path() + "/store").c_str(), 1, 1), 0);
        EXPECT_EQ(open(folder.store()), -EACCES);
        EXPECT_NE(error().find("another user's"), std::string::npos) << error();
        return;
    }
    EXPECT_EQ(open("file:/tmp"), -EACCES); // root's
    EXPECT_NE(error().find("another user's"), std::string::npos) << error();
}

TEST_F(File, ADirectoryOfOthersTooIsRefused)
{
    const std::string path = folder.path() + "/store";
    for (mode_t mode : {0701u, 0704u, 0720u, 0770u, 0755u, 0777u}) {
        mkdir(path.c_str(), 0700);
        chmod(path.c_str(), mode);
        EXPECT_EQ(open(folder.store()), -EACCES) << mode;
        EXPECT_NE(error().find(path + ": others may enter or read it (chmod 700)"),
                  std::string::npos)
            << error();
    }
    chmod(path.c_str(), 0700);
    EXPECT_EQ(open(folder.store()), 0);
}

TEST_F(File, WhatIsNoDirectoryIsRefused)
{
    const std::string path = folder.path() + "/store";
    std::filesystem::create_directory(folder.path() + "/real");
    chmod((folder.path() + "/real").c_str(), 0700);
    for (const char *target : {"real", "real/", "nowhere"}) {
        ASSERT_EQ(symlink(target, path.c_str()), 0);
        for (const char *end : {"", "/", "//"}) {
            EXPECT_EQ(open(folder.store() + end), -EINVAL) << target << end;
            EXPECT_NE(error().find("symbolic link, or no directory"), std::string::npos) << error();
        }
        EXPECT_EQ(open(folder.store() + "/."), -EINVAL);
        unlink(path.c_str());
    }
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/nowhere"));
    std::ofstream(path) << "a file";
    EXPECT_EQ(open(folder.store()), -EINVAL);
    EXPECT_EQ(open("file:" + folder.path() + "/real"), 0) << error();
}

TEST_F(File, AKeyIsSetOnce)
{
    open();
    ASSERT_EQ(set("key", "first"), 0);
    EXPECT_EQ(set("key", "first"), 0);
    EXPECT_EQ(set("key", "other"), -EEXIST);
    EXPECT_EQ(set("key", "firstborn"), -EEXIST);
    EXPECT_EQ(got("key"), "first");
    EXPECT_EQ(remove("key"), 0);
    EXPECT_EQ(remove("key"), -ENOENT);
    EXPECT_EQ(get("key", nullptr), -ETIMEDOUT);
    EXPECT_EQ(set("key", "other"), 0);
    EXPECT_EQ(got("key"), "other");
    EXPECT_EQ(folder.list(), "=key\n"); // and nothing else is left
}

bool has_nameless_files(const std::string &path)
{
    int fd = ::open(path.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    close(fd);
    return fd >= 0;
}

TEST_F(File, WhoWaitsIsToldOnceOfEachKey)
{
    open();
    if (!has_nameless_files(folder.path() + "/store"))
        GTEST_SKIP() << "the file system has no files without a name";
    int notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (notify < 0)
        GTEST_SKIP() << "no inotify is to be had";
    ASSERT_GE(inotify_add_watch(notify, (folder.path() + "/store").c_str(), IN_CREATE), 0);
    ASSERT_EQ(set("key", "value"), 0);
    EXPECT_EQ(set("key", "other"), -EEXIST);
    alignas(inotify_event) char events[4096];
    auto *event = reinterpret_cast<inotify_event *>(events);
    ssize_t size = read(notify, events, sizeof events);
    EXPECT_EQ(size, static_cast<ssize_t>(sizeof *event + event->len)) << "more than one";
    EXPECT_STREQ(event->name, "=key");
    close(notify);
}

// No file without a name, or no /proc to link it by.
TEST_F(File, AFileWithANameServesWhereNoneWithoutIsToBeHad)
{
    open();
    const std::function<bool()> lacks[] = {
        [] { return deny_flag(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP); },
        [] { return deny_flag(SYS_linkat, 4, AT_SYMLINK_FOLLOW, ENOENT); },
    };
    for (const auto &lack : lacks) {
        pid_t child = fork();
        if (child == 0) {
            if (!lack())
                _exit(77);
            bool well = set("key", "value") == 0 && set("key", "value") == 0 &&
                        set("key", "other") == -EEXIST && got("key") == "value" &&
                        folder.list() == "=key\n" && remove("key") == 0;
            _exit(well ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            GTEST_SKIP() << "no system call can be denied here";
        EXPECT_EQ(status, 0);
        EXPECT_EQ(folder.list(), "");
    }
}

TEST_F(File, OneOfManySettersSetsAndIsSeenWhole)
{
    open();
    const int threads = 8, rounds = 40;
    const size_t size = 100000;
    std::atomic<int> arrived{0};
    std::vector<std::atomic<int>> winners(rounds), seen(rounds);
    auto body = [&](int thread) {
        const char letter = static_cast<char>('a' + thread);
        for (int round = 0; round < rounds; round++) {
            const std::string key = "round/" + std::to_string(round);
            arrived++;
            while (arrived < (round + 1) * threads)
                std::this_thread::yield();
            const int result = set(key, std::string(size, letter));
            EXPECT_TRUE(result == 0 || result == -EEXIST) << result;
            winners[round] += result == 0;
            const std::string text = got(key);
            EXPECT_EQ(text, std::string(size, text[0])); // whole, and of one
            if (result == 0) {
                EXPECT_EQ(text[0], letter);
            }
            seen[round] += text.size() == size;
        }
    };
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
        all.emplace_back(body, thread);
    for (std::thread &thread : all)
        thread.join();
    for (int round = 0; round < rounds; round++) {
        EXPECT_EQ(winners[round], 1);
        EXPECT_EQ(seen[round], threads);
    }
    EXPECT_EQ(folder.files(), static_cast<size_t>(rounds));
}

TEST_F(File, AGetWaitsUntilTheKeyIsThere)
{
    open();
    for (int round = 0; round < 20; round++) {
        const std::string key = "key " + std::to_string(round);
        const int64_t begin = phi_now();
        std::thread setter([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(round % 4 * 5));
            EXPECT_EQ(set("another", key), round == 0 ? 0 : -EEXIST);
            EXPECT_EQ(set(key, "value"), 0);
        });
        EXPECT_EQ(got(key, WELL_MS), "value");
        setter.join();
        EXPECT_LT(phi_now() - begin, WELL_MS * PHI_MS);
    }
}

// Of those that wait at the same time one is told by the kernel; the others look.
TEST_F(File, ManyThreadsWait)
{
    open();
    const int threads = 6;
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
        all.emplace_back([&, thread] {
            EXPECT_EQ(got("key " + std::to_string(thread), WELL_MS), std::to_string(thread));
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int thread = threads - 1; thread >= 0; thread--)
        EXPECT_EQ(set("key " + std::to_string(thread), std::to_string(thread)), 0);
    for (std::thread &thread : all)
        thread.join();
}

TEST_F(File, AnotherProcessSets)
{
    open();
    const pid_t child = fork();
    if (child == 0) {
        phi_file_store *own = nullptr;
        usleep(20000);
        if (phi_file_store_open(folder.store().c_str(), true, &report, &own) != 0)
            _exit(1);
        ph_store_callbacks mine = phi_file_store_callbacks(own);
        _exit(mine.set(mine.opaque, "key", "from afar", 9, 1000) == 0 ? 0 : 2);
    }
    EXPECT_EQ(got("key", WELL_MS), "from afar");
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST_F(File, AGetKeepsItsDeadline)
{
    open();
    std::string text = "untouched";
    int64_t begin = phi_now();
    EXPECT_EQ(get("key", &text, 60), -ETIMEDOUT);
    EXPECT_GE(phi_now() - begin, 59 * PHI_MS);
    EXPECT_LT(phi_now() - begin, WELL_MS * PHI_MS);
    EXPECT_EQ(get("key", &text), -ETIMEDOUT);
    EXPECT_EQ(text, "untouched");
}

// More comes than the kernel keeps for who reads it too late.
TEST_F(File, WhatWasToldAndNotReadDoesNoHarm)
{
    open();
    std::ifstream limit("/proc/sys/fs/inotify/max_queued_events");
    int most = 16384;
    limit >> most;
    if (most > 100000)
        GTEST_SKIP() << "the kernel keeps " << most << " events: more files than a test may make";
    EXPECT_EQ(get("key", nullptr, 1), -ETIMEDOUT);
    // Two names at least are made for each.
    for (int i = 0; i < most / 2 + 100; i++) {
        ASSERT_EQ(set("another", "x"), 0);
        ASSERT_EQ(remove("another"), 0);
    }
    std::thread setter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_EQ(set("key", "value"), 0);
    });
    EXPECT_EQ(got("key", WELL_MS), "value");
    setter.join();
}

TEST_F(File, ADirectoryThatIsRemovedIsNamed)
{
    open();
    ASSERT_EQ(set("key", "value"), 0);
    std::thread remover([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        std::filesystem::remove_all(folder.path() + "/store");
    });
    EXPECT_EQ(get("absent", nullptr, WELL_MS), -ESTALE); // also who waits already
    remover.join();
    EXPECT_EQ(get("key", nullptr), -ESTALE);
    EXPECT_EQ(set("key", "value"), -ESTALE);
    EXPECT_EQ(remove("key"), -ESTALE);
    EXPECT_EQ(std::string(phi_file_store_why(store, -ESTALE)),
              "its directory " + folder.path() + "/store was removed");
}

TEST_F(File, OddKeys)
{
    open();
    const std::string keys[] = {".",
                                "..",
                                "/",
                                "a/b",
                                "a%2Fb",
                                "../../etc",
                                ".hidden",
                                "=x",
                                "a b",
                                "x\\y",
                                "~",
                                "ph:{j/o/b}:0:1>2:3",
                                std::string(200, '/'),
                                std::string(200, '.'),
                                std::string(200, 'k')};
    for (const std::string &key : keys)
        ASSERT_EQ(set(key, "of " + key), 0) << key;
    for (const std::string &key : keys)
        EXPECT_EQ(got(key), "of " + key);
    EXPECT_EQ(folder.files(), std::size(keys));
    for (const std::string &key : keys)
        EXPECT_EQ(remove(key), 0) << key;
    EXPECT_EQ(folder.files(), 0u);
}

TEST_F(File, WhatIsNoKeyIsRefused)
{
    open();
    for (const std::string &key : {std::string(), std::string(201, 'k'), std::string("a\nb"),
                                   std::string("\x7f"), std::string("\xc3\xa4"),
                                   std::string("a\x1f"
                                               "b")}) {
        EXPECT_EQ(set(key, "x"), -EINVAL) << key;
        EXPECT_EQ(get(key, nullptr), -EINVAL) << key;
        EXPECT_EQ(remove(key), -EINVAL) << key;
    }
    EXPECT_EQ(folder.files(), 0u);
}

TEST_F(File, ValuesOfEverySize)
{
    open();
    for (size_t size : {size_t(0), size_t(1), size_t(4096), size_t(16) << 20, size_t(64) << 20}) {
        std::string value(size, '\0');
        for (size_t i = 0; i < size; i++)
            value[i] = static_cast<char>(i * 31 + i / 256);
        const std::string key = "size " + std::to_string(size);
        ASSERT_EQ(set(key, value), 0);
        EXPECT_TRUE(got(key) == value) << size;
        EXPECT_EQ(remove(key), 0);
    }
    EXPECT_EQ(set("key", std::string((64 << 20) + 1, 'x')), -EFBIG);
    EXPECT_EQ(folder.files(), 0u);
}

TEST_F(File, WhatIsNoFileIsAnError)
{
    open();
    const std::string path = folder.path() + "/store/=";
    const std::string target = folder.path() + "/target";
    std::ofstream(target) << "untouched";
    ASSERT_EQ(symlink(target.c_str(), (path + "link").c_str()), 0);
    ASSERT_EQ(mkfifo((path + "pipe").c_str(), 0600), 0);
    ASSERT_EQ(mkdir((path + "folder").c_str(), 0700), 0);
    EXPECT_EQ(get("link", nullptr), -ELOOP);
    EXPECT_EQ(get("pipe", nullptr, WELL_MS), -EBADMSG); // does not wait for a writer
    EXPECT_EQ(get("folder", nullptr), -EBADMSG);
    EXPECT_EQ(set("link", "x"), -ELOOP);
    EXPECT_EQ(std::filesystem::file_size(target), strlen("untouched"));
}

bool concerns_letters(void *opaque, const char *key)
{
    *static_cast<std::string *>(opaque) += key ? std::string(key) + " " : "? ";
    return key && std::string(key).find("letter") == 0;
}

TEST_F(File, WhoListensIsInterrupted)
{
    open();
    phi_wake wake;
    std::string heard;
    ASSERT_EQ(phi_wake_open(&wake), 0);
    phi_file_store_listen(store, wake.listen, concerns_letters, &heard);
    const int64_t begin = phi_now();
    auto later = [&](const std::function<void()> &what) {
        return std::thread([&, what] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            what();
        });
    };
    std::thread ringer = later([&] { phi_wake_ring(wake.ring); });
    EXPECT_EQ(get("key", nullptr, WELL_MS), -ETIMEDOUT);
    ringer.join();
    EXPECT_TRUE(phi_wake_take(&wake));
    std::thread setter = later([&] {
        EXPECT_EQ(set("noise", "x"), 0);
        EXPECT_EQ(set("letter", "x"), 0);
    });
    EXPECT_EQ(get("key", nullptr, WELL_MS), -ETIMEDOUT);
    setter.join();
    // What came while nobody waited ends the next wait.
    ASSERT_EQ(set("letter of before", "x"), 0);
    EXPECT_EQ(get("key", nullptr, WELL_MS), -ETIMEDOUT);
    EXPECT_EQ(heard.rfind("noise letter ", 0), 0u) << heard;
    EXPECT_LT(phi_now() - begin, WELL_MS * PHI_MS);
    phi_wake_close(&wake);
}

TEST_F(File, EachVisitsWhatBeginsWithThePrefix)
{
    open();
    for (const char *key : {"a/1", "a/2", "b/1", "a"})
        ASSERT_EQ(set(key, std::string("<") + key + ">"), 0);
    std::ofstream(folder.path() + "/store/no key") << "x";
    std::string all;
    auto visit = [](void *opaque, const void *value, size_t size) {
        static_cast<std::string *>(opaque)->append(static_cast<const char *>(value), size);
    };
    for (int times = 0; times < 2; times++) {
        all.clear();
        EXPECT_EQ(phi_file_store_each(store, "a/", visit, &all), 0);
        EXPECT_TRUE(all == "<a/1><a/2>" || all == "<a/2><a/1>") << all;
    }
}

} // namespace
