// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

extern "C" {
#include "base/clock.h"
#include "base/report.h"
}

namespace
{

struct Line {
    ph_log_level level;
    std::string text;
};

void keep_line(void *opaque, enum ph_log_level level, const char *line)
{
    errno = EIO; // as an application's callback may
    static_cast<std::vector<Line> *>(opaque)->push_back({level, line});
}

class Report : public testing::Test
{
  protected:
    void start(ph_log_level level)
    {
        phi_report_init(&report, keep_line, &lines, level);
    }

    void TearDown() override
    {
        phi_report_fini(&report);
    }

    std::string last()
    {
        char text[sizeof(report.text)];
        size_t length = phi_report_copy(&report, text, sizeof(text));
        EXPECT_EQ(length, strlen(text));
        return text;
    }

    phi_report report;
    std::vector<Line> lines;
};

TEST_F(Report, FailKeepsTheSentenceAndReturnsTheCode)
{
    start(PH_LOG_ERROR);
    EXPECT_EQ(last(), "");
    EXPECT_EQ(phi_fail(&report, -ENODEV, "no device %d on %s", 3, "this node"), -ENODEV);
    EXPECT_EQ(last(), "no device 3 on this node");
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].level, PH_LOG_ERROR);
    EXPECT_EQ(lines[0].text, "no device 3 on this node");
    EXPECT_EQ(phi_fail(&report, PH_EPEER, "rank 1 left"), PH_EPEER);
    EXPECT_EQ(last(), "rank 1 left");
}

TEST_F(Report, ARefusalIsKeptAndNotLogged)
{
    start(PH_LOG_DEBUG);
    errno = EINTR;
    EXPECT_EQ(phi_refuse(&report, -EAGAIN, "%d operations wait", 8), -EAGAIN);
    EXPECT_EQ(last(), "8 operations wait");
    EXPECT_TRUE(lines.empty());
    EXPECT_EQ(errno, EINTR);
}

TEST_F(Report, SentenceIsKeptWithoutALog)
{
    start(PH_LOG_NONE);
    phi_fail(&report, -EINVAL, "silent");
    EXPECT_EQ(last(), "silent");
    EXPECT_TRUE(lines.empty());
}

TEST_F(Report, LinesAboveTheLevelAreNotFormatted)
{
    start(PH_LOG_WARN);
    int formatted = 0;
    phi_log(&report, PH_LOG_INFO, "%d", ++formatted);
    EXPECT_EQ(formatted, 0);
    phi_log_line(&report, PH_LOG_INFO, "not shown");
    EXPECT_TRUE(lines.empty());
    phi_log(&report, PH_LOG_WARN, "%d", ++formatted);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].text, "1");
    EXPECT_EQ(last(), "") << "a warning is not a failure";
}

TEST_F(Report, LongSentencesAreCut)
{
    start(PH_LOG_ERROR);
    std::string sentence(5000, 'x');
    phi_fail(&report, -EINVAL, "%s", sentence.c_str());
    EXPECT_EQ(last(), std::string(sizeof(report.text) - 1, 'x'));
    char small[8];
    EXPECT_EQ(phi_report_copy(&report, small, sizeof(small)), 7u);
    EXPECT_STREQ(small, "xxxxxxx");
    char one = 'y';
    EXPECT_EQ(phi_report_copy(&report, &one, 0), 0u);
    EXPECT_EQ(one, 'y');
}

TEST_F(Report, ErrnoSurvives)
{
    start(PH_LOG_DEBUG);
    errno = EAGAIN;
    phi_fail(&report, -EINVAL, "x");
    EXPECT_EQ(errno, EAGAIN);
    phi_log(&report, PH_LOG_DEBUG, "x");
    EXPECT_EQ(errno, EAGAIN);
}

// More threads than one tell it, and other lines come between.
TEST_F(Report, EqualLinesAreToldOnceASecond)
{
    start(PH_LOG_INFO);
    const int64_t began = phi_now();
    for (int i = 0; i < 5000; i++) {
        EXPECT_EQ(phi_fail(&report, PH_EPEER, "rank %d is gone", 1), PH_EPEER);
        phi_log(&report, PH_LOG_WARN, "rank %d is gone", 1);
        phi_log(&report, PH_LOG_INFO, "seen");
    }
    EXPECT_EQ(last(), "rank 1 is gone");
    std::map<std::pair<int, std::string>, int> count;
    for (const Line &line : lines)
        count[{line.level, line.text.substr(0, 14)}]++;
    const int seconds = (phi_now() - began) / (1000 * PHI_MS);
    EXPECT_LE((count[{PH_LOG_ERROR, "rank 1 is gone"}]), 1 + seconds);
    EXPECT_LE((count[{PH_LOG_WARN, "rank 1 is gone"}]), 1 + seconds);
    EXPECT_EQ((count[{PH_LOG_INFO, "seen"}]), 5000) << "those were asked for";

    lines.clear();
    phi_fail(&report, PH_EPEER, "rank 2 is gone");
    ASSERT_EQ(lines.size(), 1u) << "another event";
    phi_fail(&report, PH_EPEER, "rank 2 is gone");
    phi_fail(&report, PH_EPEER, "rank 2 is gone");
    std::this_thread::sleep_for(std::chrono::milliseconds(1010));
    lines.clear();
    phi_fail(&report, PH_EPEER, "rank 2 is gone");
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].text, "rank 2 is gone (and 2 times before)");
    EXPECT_EQ(last(), "rank 2 is gone");
}

// One line on the standard error that was captured: its level, a time of about now, this host, the
// rank and the sentence.
void expect_stderr(const std::string &level, const std::string &rank, const std::string &told)
{
    const std::string line = testing::internal::GetCapturedStderr();
    char host[65] = "";
    gethostname(host, sizeof(host) - 1);
    struct tm parts = {};
    int ms = -1, length = 0;
    const std::string before = "peerhop " + level + " ";
    ASSERT_EQ(line.substr(0, before.size()), before);
    ASSERT_EQ(sscanf(line.c_str() + before.size(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &parts.tm_year,
                     &parts.tm_mon, &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec,
                     &ms, &length),
              7)
        << line;
    EXPECT_EQ(length, 24) << line;
    parts.tm_year -= 1900;
    parts.tm_mon--;
    EXPECT_NEAR(static_cast<double>(timegm(&parts)), static_cast<double>(time(nullptr)), 60)
        << line;
    EXPECT_EQ(line.substr(before.size() + 24), " " + std::string(host) + rank + ": " + told + "\n");
}

TEST_F(Report, WithoutCallbackStderr)
{
    phi_report_init(&report, nullptr, nullptr, PH_LOG_ERROR);
    testing::internal::CaptureStderr();
    phi_fail(&report, -EINVAL, "told %d", 1);
    expect_stderr("error", "", "told 1");
    phi_report_fini(&report);

    // The level of a context is known only after its configuration has been read.
    phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
    testing::internal::CaptureStderr();
    phi_fail(&report, -EINVAL, "silent");
    report.level = PH_LOG_INFO;
    report.rank = 12;
    phi_log(&report, PH_LOG_INFO, "heard");
    expect_stderr("info", " rank 12", "heard");
}

TEST_F(Report, SentencesOfThreadsDoNotMix)
{
    start(PH_LOG_NONE);
    auto fail = [&](char letter) {
        for (int i = 0; i < 2000; i++)
            phi_fail(&report, -EINVAL, "%s", std::string(600, letter).c_str());
    };
    std::thread a(fail, 'a'), b(fail, 'b');
    for (int i = 0; i < 2000; i++) {
        std::string text = last();
        if (!text.empty()) {
            EXPECT_EQ(text, std::string(600, text[0]));
        }
    }
    a.join();
    b.join();
}

} // namespace
