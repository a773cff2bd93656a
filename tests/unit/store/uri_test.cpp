// SPDX-License-Identifier: BSD-3-Clause
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern "C" {
#include "store/uri.h"
}

namespace
{

class Uri : public testing::Test
{
  protected:
    Uri()
    {
        phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
    }
    ~Uri() override
    {
        phi_store_uri_fini(&uri);
        phi_report_fini(&report);
    }
    int parse(const std::string &text)
    {
        phi_store_uri_fini(&uri);
        return phi_store_uri_parse(&uri, text.c_str(), &report);
    }
    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }

    phi_report report;
    phi_store_uri uri{};
};

TEST_F(Uri, HostAlone)
{
    ASSERT_EQ(parse("redis://example.org"), 0);
    EXPECT_STREQ(uri.host, "example.org");
    EXPECT_STREQ(uri.port, "6379");
    EXPECT_EQ(uri.path, nullptr);
    EXPECT_EQ(uri.user, nullptr);
    EXPECT_EQ(uri.password, nullptr);
    EXPECT_EQ(uri.db, 0);
    EXPECT_STREQ(uri.address, "redis://example.org:6379/0");
}

TEST_F(Uri, EveryPart)
{
    ASSERT_EQ(parse("redis://us%65r:p%40ss%3Aw%2ford@10.0.0.1:7000/12"), 0);
    EXPECT_STREQ(uri.user, "user");
    EXPECT_STREQ(uri.password, "p@ss:w/ord");
    EXPECT_STREQ(uri.host, "10.0.0.1");
    EXPECT_STREQ(uri.port, "7000");
    EXPECT_EQ(uri.db, 12);
    EXPECT_STREQ(uri.address, "redis://10.0.0.1:7000/12");
}

TEST_F(Uri, PartsThatMayBeLeftOut)
{
    ASSERT_EQ(parse("redis://:secret@host/"), 0);
    EXPECT_EQ(uri.user, nullptr);
    EXPECT_STREQ(uri.password, "secret");
    ASSERT_EQ(parse("redis://user@host:1"), 0);
    EXPECT_STREQ(uri.user, "user");
    EXPECT_EQ(uri.password, nullptr);
    ASSERT_EQ(parse("redis://@host:65535"), 0);
    EXPECT_EQ(uri.user, nullptr);
    ASSERT_EQ(parse("redis://user:p@ss@host"), 0); // the last @ ends the password
    EXPECT_STREQ(uri.password, "p@ss");
}

TEST_F(Uri, IPv6)
{
    ASSERT_EQ(parse("redis://[::1]:6380/1"), 0);
    EXPECT_STREQ(uri.host, "::1");
    EXPECT_STREQ(uri.port, "6380");
    EXPECT_STREQ(uri.address, "redis://[::1]:6380/1");
    ASSERT_EQ(parse("redis://[fe80::1]"), 0);
    EXPECT_STREQ(uri.host, "fe80::1");
    EXPECT_STREQ(uri.port, "6379");
}

TEST_F(Uri, Unix)
{
    ASSERT_EQ(parse("unix:///run/redis.sock"), 0);
    EXPECT_STREQ(uri.path, "/run/redis.sock");
    EXPECT_EQ(uri.host, nullptr);
    EXPECT_STREQ(uri.address, "unix:///run/redis.sock");
    ASSERT_EQ(parse("unix:///a%20b?db=5"), 0);
    EXPECT_STREQ(uri.path, "/a b");
    EXPECT_EQ(uri.db, 5);
    EXPECT_STREQ(uri.address, "unix:///a b?db=5");
    ASSERT_EQ(parse("unix://user:secret@/run/r"), 0);
    EXPECT_STREQ(uri.path, "/run/r");
    EXPECT_STREQ(uri.password, "secret");
}

TEST_F(Uri, File)
{
    ASSERT_EQ(parse("file:/dev/shm/job"), 0);
    EXPECT_STREQ(uri.directory, "/dev/shm/job");
    EXPECT_EQ(uri.path, nullptr);
    EXPECT_EQ(uri.host, nullptr);
    EXPECT_STREQ(uri.address, "file:/dev/shm/job");
    ASSERT_EQ(parse("file:///a%20b//c//"), 0); // of this host
    EXPECT_STREQ(uri.directory, "/a b//c");
    ASSERT_EQ(parse("file:/a@b:c%3f"), 0);
    EXPECT_STREQ(uri.directory, "/a@b:c?");
    ASSERT_EQ(parse("file:/" + std::string(1000, 'd')), 0);
    EXPECT_EQ(std::string(uri.directory).size(), 1001u);
    EXPECT_LT(std::string(uri.address).size(), sizeof(uri.address));
}

TEST_F(Uri, Wrong)
{
    const std::string wrong[] = {
        "",
        "host",
        "redis:",
        "redis:/host",
        "redis://",
        "redis:///1",
        "redis://:6379",
        "redis://host:",
        "redis://host:0",
        "redis://host:65536",
        "redis://host:9999999999",
        "redis://host:12a",
        "redis://host/x",
        "redis://host/-1",
        "redis://host/99999",
        "redis://host/1/2",
        "redis://host?db=1",
        "redis://host#1",
        "redis://[::1",
        "redis://[]:1",
        "redis://[::1]x",
        "redis://%zz",
        "redis://h%4",
        "redis://h%00st",
        "redis://user:%@host",
        "rediss://host",
        "unix://",
        "unix:///",
        "unix://relative",
        "unix:///p?db=",
        "unix:///p?db=x",
        "unix:///p?name=1",
        "unix:///p?db=1&x=2",
        "unix:///" + std::string(108, 'x'),
        "http://host",
        "file:",
        "file:relative",
        "file:/",
        "file:///",
        "file://host/path",
        "file://user:secret@host/path",
        "file:/a/.",
        "file:/a%2f",
        "file:/a/%2e",
        "file:/a/../",
        "file:/a?db=1",
        "file:/a#b",
        "file:/%zz",
        "file:/a%00b",
    };
    for (const std::string &text : wrong) {
        EXPECT_EQ(parse(text), -EINVAL) << text;
        EXPECT_EQ(uri.host, nullptr);
        EXPECT_EQ(uri.directory, nullptr);
        EXPECT_EQ(error().find("secret"), std::string::npos) << error();
        EXPECT_NE(error().find("redis://[user:password@]host[:port][/db]"), std::string::npos);
    }
}

TEST_F(Uri, NoMessageHasThePassword)
{
    for (const char *text :
         {"secret", "redis://secret", "redis://user:secret", "redis://user:sec/secret@host",
          "redis://user:secret@host:x", "redis://secret:secret/secret", "redis://u:secret@",
          "unix://secret@secret", "unix:///x?secret", "redis://[secret", "secret://x",
          "redis://user:%secret@host", "redis://h:1/secret"}) {
        int result = parse(text);
        EXPECT_EQ(error().find("secret"), std::string::npos) << error();
        if (result == 0 && uri.password) {
            EXPECT_EQ(std::string(uri.address).find("secret"), std::string::npos);
        }
    }
    ASSERT_EQ(parse("redis://user:secret@host"), 0);
    EXPECT_STREQ(uri.address, "redis://host:6379/0");
}

TEST_F(Uri, LongHostsAreCutInTheAddress)
{
    ASSERT_EQ(parse("redis://" + std::string(1000, 'h')), 0);
    EXPECT_EQ(std::string(uri.host).size(), 1000u);
    EXPECT_LT(std::string(uri.address).size(), sizeof(uri.address));
}

class PasswordFile : public Uri
{
  protected:
    int read(const std::string &text, mode_t mode = 0600)
    {
        char name[] = "/tmp/phpass.XXXXXX";
        int fd = mkstemp(name);
        ssize_t written = write(fd, text.data(), text.size());
        EXPECT_EQ(written, static_cast<ssize_t>(text.size()));
        EXPECT_EQ(fchmod(fd, mode), 0);
        close(fd);
        int result = phi_store_uri_password_file(&uri, name, &report);
        unlink(name);
        return result;
    }
};

TEST_F(PasswordFile, FirstLine)
{
    ASSERT_EQ(parse("redis://:old@host"), 0);
    EXPECT_EQ(read("pass word\r\nsecond\n"), 0);
    EXPECT_STREQ(uri.password, "pass word");
    EXPECT_EQ(read("no end of line"), 0);
    EXPECT_STREQ(uri.password, "no end of line");
    EXPECT_EQ(read(std::string(1024, 'x')), 0);
}

TEST_F(PasswordFile, Wrong)
{
    ASSERT_EQ(parse("redis://:old@host"), 0);
    EXPECT_EQ(read(""), -EINVAL);
    EXPECT_EQ(read("\nsecond\n"), -EINVAL);
    EXPECT_EQ(read(std::string(1025, 'x')), -EINVAL);
    EXPECT_EQ(error().find("xxx"), std::string::npos);
    EXPECT_EQ(phi_store_uri_password_file(&uri, "/nonexistent/file", &report), -ENOENT);
    EXPECT_NE(error().find("/nonexistent/file"), std::string::npos);
    EXPECT_STREQ(uri.password, "old");
}

TEST_F(PasswordFile, OthersMustNotReadOrWriteIt)
{
    ASSERT_EQ(parse("redis://host"), 0);
    for (mode_t mode : {0604, 0602, 0620, 0644, 0666, 0777}) {
        EXPECT_EQ(read("secret", mode), -EACCES) << mode;
        EXPECT_NE(error().find("others may read or write it (chmod 600)"), std::string::npos)
            << error();
        EXPECT_EQ(error().find("secret"), std::string::npos) << error();
    }
    EXPECT_EQ(uri.password, nullptr);
    EXPECT_EQ(read("secret", 0400), 0);
    // Root's group may read root's files: so secrets are mounted for a group.
    EXPECT_EQ(read("secret", 0640), geteuid() == 0 ? 0 : -EACCES);
    EXPECT_STREQ(uri.password, "secret");
}

TEST_F(PasswordFile, OfAnotherUserIsRefused)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "only root can give a file away";
    char name[] = "/tmp/phpass.XXXXXX";
    int fd = mkstemp(name);
    ASSERT_EQ(write(fd, "secret", 6), 6);
    ASSERT_EQ(fchown(fd, 65534, 65534), 0);
    close(fd);
    EXPECT_EQ(phi_store_uri_password_file(&uri, name, &report), -EACCES);
    EXPECT_NE(error().find("another user's"), std::string::npos) << error();
    unlink(name);
}

TEST_F(PasswordFile, WhatIsNoFileIsRefusedAtOnce)
{
    char folder[] = "/tmp/phpass.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    std::string pipe = std::string(folder) + "/pipe"; // nobody ever writes to it
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(phi_store_uri_password_file(&uri, pipe.c_str(), &report), -EACCES);
    EXPECT_EQ(phi_store_uri_password_file(&uri, folder, &report), -EACCES);
    EXPECT_NE(error().find("no regular file"), std::string::npos) << error();
    unlink(pipe.c_str());
    rmdir(folder);
}

} // namespace
