// SPDX-License-Identifier: BSD-3-Clause
// Runs peerhop-run and keeps what it says, and sees to it that nothing is left behind.
#ifndef TESTS_UNIT_TOOLS_PEERHOP_RUN_H
#define TESTS_UNIT_TOOLS_PEERHOP_RUN_H

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/patience.h"

using Words = std::vector<std::string>;

struct Result {
    int status = -1; // of exit, or 1000 + signal
    std::string out, err;
    double seconds = 0;
};

inline std::string slurp(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// What a run that is over after a second or two takes at most, on a busy machine.
inline double busy_seconds()
{
    return std::chrono::duration<double>(patience(20000)).count();
}

inline size_t occurrences(const std::string &text, const std::string &part)
{
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + part.size()))
        n++;
    return n;
}

// Processes, zombies aside, whose command line holds the text.
inline std::vector<pid_t> processes_with(const std::string &text)
{
    std::vector<pid_t> found;
    DIR *proc = opendir("/proc");
    while (dirent *entry = readdir(proc)) {
        std::string folder = std::string("/proc/") + entry->d_name;
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9' &&
            slurp(folder + "/cmdline").find(text) != std::string::npos)
            found.push_back(atoi(entry->d_name));
    }
    closedir(proc);
    return found;
}

class PeerhopRun : public testing::Test
{
  protected:
    void SetUp() override
    {
        program = getenv("PEERHOP_RUN");
        char name[] = "/tmp/run-test-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder = name;
        ASSERT_EQ(mkdir(stores().c_str(), 0700), 0);
        // The mark makes processes of this test known among all.
        mark = "98765." + std::to_string(getpid());
    }

    void TearDown() override
    {
        EXPECT_TRUE(entries(stores()).empty()) << "a private store was left behind";
        EXPECT_TRUE(processes_with(mark).empty()) << "a rank was left behind";
        rmdir(stores().c_str());
        for (const std::string &name : entries(folder))
            unlink((folder + "/" + name).c_str());
        rmdir(folder.c_str());
    }

    std::string stores() const
    {
        return folder + "/stores";
    }

    static std::set<std::string> entries(const std::string &path)
    {
        std::set<std::string> names;
        DIR *dir = opendir(path.c_str());
        while (dirent *entry = dir ? readdir(dir) : nullptr) {
            if (entry->d_name[0] != '.')
                names.insert(entry->d_name);
        }
        if (dir)
            closedir(dir);
        return names;
    }

    void become(const Words &words, const std::function<void()> &prepare)
    {
        int out = open((folder + "/out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open((folder + "/err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(out, 1);
        dup2(err, 2);
        setenv("TMPDIR", stores().c_str(), 1);
        setenv("TEST", folder.c_str(), 1);
        setenv("MARK", mark.c_str(), 1);
        for (const char *name : {"PEERHOP_STORE", "PEERHOP_JOB", "PEERHOP_EPOCH", "PEERHOP_DEVICE",
                                 "CUDA_DEVICE_MAX_CONNECTIONS"})
            unsetenv(name);
        if (prepare)
            prepare();
        std::vector<char *> argv{const_cast<char *>(program)};
        for (const std::string &word : words)
            argv.push_back(const_cast<char *>(word.c_str()));
        argv.push_back(nullptr);
        execv(program, argv.data());
        _exit(99);
    }

    pid_t start(const Words &words, const std::function<void()> &prepare = nullptr)
    {
        fflush(nullptr);
        started = std::chrono::steady_clock::now();
        pid_t pid = fork();
        if (pid == 0)
            become(words, prepare);
        return pid;
    }

    Result finish(pid_t pid)
    {
        Result result;
        int status = 0;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        result.out = slurp(folder + "/out");
        result.err = slurp(folder + "/err");
        result.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        return result;
    }

    Result run(const Words &words, const std::function<void()> &prepare = nullptr)
    {
        return finish(start(words, prepare));
    }

    // Runs a shell script as every rank.
    static Words script(int ranks, const std::string &text, Words options = {})
    {
        Words words{"-n", std::to_string(ranks)};
        words.insert(words.end(), options.begin(), options.end());
        words.insert(words.end(), {"--", "sh", "-c", text});
        return words;
    }

    // Waits until the ranks have made this many files named ready.*
    bool wait_ready(size_t n)
    {
        for (int i = 0; i < 9000; i++) {
            size_t ready = 0;
            for (const std::string &name : entries(folder))
                ready += name.rfind("ready.", 0) == 0;
            if (ready >= n)
                return true;
            usleep(5000);
        }
        return false;
    }

    const char *program = nullptr;
    std::string folder, mark;
    std::chrono::steady_clock::time_point started;
};

#endif
