// SPDX-License-Identifier: BSD-3-Clause
// peerhop-perf as its users run it, for the tests of it: what it says, and how it ends. The
// environment names the programs: PEERHOP_PERF and PEERHOP_RUN, and the stand-ins.
#ifndef TESTS_E2E_PERF_PERF_H
#define TESTS_E2E_PERF_PERF_H

#include <gtest/gtest.h>

#include "support/patience.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using Words = std::vector<std::string>;

struct Ended {
    int status; // of exit, or 128 + signal
    std::string out, err;
};

inline std::string read_file(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

inline void write_file(const std::string &path, const std::string &text)
{
    std::ofstream(path) << text;
}

// A folder that the program uses as TMPDIR, and for its private store; what is left there at the
// end is a leak.
class Perf : public testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/perf-test.XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder = name;
        ASSERT_EQ(mkdir((folder + "/tmp").c_str(), 0700), 0);
        const char *program = getenv("PEERHOP_PERF");
        ASSERT_NE(program, nullptr);
        perf = program;
    }

    void TearDown() override
    {
        unlink((folder + "/out").c_str());
        unlink((folder + "/err").c_str());
        EXPECT_EQ(rmdir((folder + "/tmp").c_str()), 0) << "something was left in TMPDIR";
        rmdir(folder.c_str());
    }

    pid_t start(const Words &words, const Words &environment = {})
    {
        fflush(nullptr);
        pid_t pid = fork();
        if (pid != 0)
            return pid;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open((folder + "/out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
        dup2(open((folder + "/err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
        if (ignores_ends) {
            signal(SIGCHLD, SIG_IGN);
            alarm(static_cast<unsigned>(kWait / 1000)); // for a run that nothing ends
        }
        unsetenv("PEERHOP_STORE");
        setenv("TMPDIR", (folder + "/tmp").c_str(), 1);
        for (const std::string &one : environment)
            putenv(const_cast<char *>(one.c_str()));
        std::vector<char *> argv;
        for (const std::string &word : words)
            argv.push_back(const_cast<char *>(word.c_str()));
        argv.push_back(nullptr);
        execv(argv[0], argv.data());
        _exit(127);
    }

    Ended wait_for(pid_t pid)
    {
        int status = 0;
        waitpid(pid, &status, 0);
        return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
                read_file(folder + "/out"), read_file(folder + "/err")};
    }

    Ended run(Words words, const Words &environment = {})
    {
        words.insert(words.begin(), perf);
        return wait_for(start(words, environment));
    }

    std::string folder, perf;
    bool ignores_ends = false; // who starts it
};

// One flat JSON object: names and raw values. Empty where the line is none.
inline std::map<std::string, std::string> parse_json(const std::string &line)
{
    std::map<std::string, std::string> members;
    size_t at = 0;
    auto quoted = [&](std::string *text) {
        if (line[at] != '"')
            return false;
        for (at++; at < line.size() && line[at] != '"'; at++)
            at += line[at] == '\\', text->push_back(line[at]);
        return at++ < line.size();
    };
    if (line.empty() || line[at++] != '{')
        return {};
    while (at < line.size()) {
        std::string name, value;
        if (!quoted(&name) || line[at++] != ':')
            return {};
        if (line[at] == '"') {
            if (!quoted(&value))
                return {};
        } else {
            size_t end = line.find_first_of(",}", at);
            if (end == std::string::npos)
                return {};
            value = line.substr(at, end - at);
            at = end;
        }
        members[name] = value;
        if (line[at] == '}')
            return at + 1 == line.size() ? members : std::map<std::string, std::string>{};
        if (line[at++] != ',')
            return {};
    }
    return {};
}

inline Words lines_of(const std::string &text)
{
    Words lines;
    std::stringstream stream(text);
    for (std::string line; std::getline(stream, line);)
        lines.push_back(line);
    return lines;
}

inline bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

// Fast and small: what is measured does not matter here.
inline Words quick(Words more)
{
    Words words = {"-k", "host", "-n", "5", "--ops", "16", "-o", "json", "--deadline", "60"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

#endif
