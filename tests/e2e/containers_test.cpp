// SPDX-License-Identifier: BSD-3-Clause
// Two ranks of one node in containers of their own: by which namespace, mount or filter they are
// parted, by which path they meet, and the sentence that says so. docs/containers.md shows the
// outcomes.
#include "e2e/cable.h"
#include "e2e/containers.h"
#include "e2e/ranks.h"

namespace
{

// What parts the two ranks, one word each, and what comes of it: the path, or "" where there is
// none; and why not ipc.
struct Case {
    std::string name, parts, path, why;
};

std::string word(const std::string &text, size_t index)
{
    std::istringstream all(text);
    std::string each;
    for (size_t i = 0; i <= index; i++)
        each = all >> each ? each : "";
    return each;
}

// argument: PARTS joined by commas, the path that is to be, "-" for none, PEERHOP_PATH, and the
// folder for sockets or "-".
RANK_FUNCTION(in_two_containers)
{
    const std::string parts = "," + word(rank.argument, 0) + ",";
    const std::string path = word(rank.argument, 1), wish = word(rank.argument, 2),
                      sockets = word(rank.argument, 3);
    const size_t size_of_each = 4096;
    enter_container(rank, parts, sockets == "-" ? "" : sockets);
    std::vector<std::string> settings = {"PEERHOP_PATH=" + wish};
    if (sockets != "-")
        settings.push_back("PEERHOP_SOCKET_DIRECTORY=" + sockets);
    rank.open(settings, 60000);
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size_of_each));
    const ph_operation operation = {1,      !rank.rank,      PH_ROLE_BOTH, PH_PROTOCOL_PUT,
                                    memory, 2 * size_of_each};
    ph_channel *channel = nullptr;
    const int rc = ph_exchange(rank.context, &operation, 1, &channel);
    std::string why = rank.error();
    if (path == "-") {
        CHECK_RC(rc, PH_ENOPATH);
    } else {
        CHECK_OK(rc);
        ph_path_report report;
        CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
        if (path != report.path)
            rank_failed(__FILE__, __LINE__, std::string(report.path) + ", and not " + path);
        why = reason_against(report, "ipc");
        void *stream = rank.device->stream();
        rank.device->fill(memory, size_of_each, rank.rank);
        ph_group_op ops[] = {{PH_GROUP_PUT_SIGNAL, channel, size_of_each, 0, size_of_each, nullptr},
                             {PH_GROUP_WAIT, channel, 0, 0, size_of_each, nullptr}};
        CHECK_OK(ph_group(ops, 2, stream));
        rank.synchronize(stream);
        rank.verify(memory + size_of_each, size_of_each, !rank.rank, "from the other container");
    }
    snprintf(rank.shared->text[32 + rank.rank], sizeof rank.shared->text[0], "%s", why.c_str());
    // The warning names the peer, the reason and what to set.
    const bool warned =
        rank.log.find("is reached over the net, and not by ipc") != std::string::npos;
    CHECK(warned == (path == "net" && wish == "auto"));
    rank.barrier();
}

class Containers : public testing::Test
{
  protected:
    // Both in containers of their own. Returns what the test is to see of it.
    static void run(const std::string &device, const Case &each, const std::string &wish,
                    bool sockets = false)
    {
        SCOPED_TRACE(device + ": " + each.name + ", PEERHOP_PATH=" + wish);
        Folder folder;
        const bool refused = each.path.empty() || (wish == "ipc" && each.path == "net");
        const std::string argument = each.parts + " " + (refused ? "-" : each.path) + " " + wish +
                                     " " + (sockets ? folder.path() : "-");
        std::vector<pid_t> first;
        auto job = std::make_unique<Job>(device, 2);
        job->environment("PEERHOP_NET_PROVIDER", "tcp");
        for (int rank = 0; rank < 2; rank++) {
            if (each.parts.find("pid") == each.parts.npos)
                job->start_rank(rank, "in_two_containers", argument);
            else
                first.push_back(start_in_a_container(*job, rank, "in_two_containers", argument));
        }
        EXPECT_EQ(job->wait(), "");
        for (int rank = 0; rank < 2; rank++)
            EXPECT_NE(std::string(job->shared()->text[32 + rank]).find(each.why), std::string::npos)
                << job->shared()->text[32 + rank];
        job.reset(); // a namespace ends when all in it are reaped
        for (pid_t pid : first)
            end_container(pid);
    }
    void SetUp() override
    {
        if (!store_available() || !net_available())
            GTEST_SKIP() << "needs a store and libfabric";
        if (!may_make_containers())
            GTEST_SKIP() << "no containers here: they need root, and the ip command";
    }
};

const char boxed[] = "pid,ipc,uts,cgroup,mount,seccomp"; // all that a pod has but its network

TEST_F(Containers, OfHostMemory)
{
    for (const Case &each : std::vector<Case>{
             {"own process ids", "pid", "ipc", ""},
             {"own System V and POSIX ipc", "ipc", "ipc", ""},
             {"own host names", "uts", "ipc", ""},
             {"own control groups", "cgroup", "ipc", ""},
             {"a root that is read-only, and no /dev/shm", "mount", "ipc", ""},
             {"a filter of system calls", "seccomp", "ipc", ""},
             {"own users, mapped", "user", "ipc", ""},
             {"all of these but users", boxed, "ipc", ""},
             {"own networks", "net", "net", "different network namespaces"},
             {"two pods", std::string(boxed) + ",net", "net", "different network namespaces"},
         }) {
        run("host", each, "auto");
        run("host", each, "ipc");
    }
}

TEST_F(Containers, OfHostMemoryWithADirectoryForSockets)
{
    run("host", {"two pods", std::string(boxed) + ",net", "ipc", ""}, "auto", true);
}

TEST_F(Containers, OfDevicesWithADirectoryForSockets)
{
    std::string why;
    if (!device_available("standin", &why))
        GTEST_SKIP() << why;
    const std::string pod = std::string(boxed) + ",net";
    // The stand-in has a socket of its own, which has its name in one network.
    run("standin", {"own networks", "net", "net", "system refused the handle"}, "auto", true);
    run("standin", {"two pods", pod, "net", "system refused the handle"}, "auto", true);
    run("standin", {"two pods", pod, "net", "system refused the handle"}, "ipc", true);
}

TEST_F(Containers, OfDevices)
{
    std::string why;
    if (!device_available("standin", &why))
        GTEST_SKIP() << why;
    for (const Case &each : std::vector<Case>{
             {"own process ids", "pid", "net", "system refused the handle"},
             {"own System V and POSIX ipc", "ipc", "ipc", ""},
             {"own host names", "uts", "ipc", ""},
             {"own control groups", "cgroup", "ipc", ""},
             {"a root that is read-only, and no /dev/shm", "mount", "ipc", ""},
             {"a filter of system calls", "seccomp", "ipc", ""},
             {"own users, mapped", "user", "net", "system refused the handle"},
             {"all of these but users", boxed, "net", "system refused the handle"},
             {"own networks", "net", "net", "different network namespaces"},
             {"two pods", std::string(boxed) + ",net", "net", "different network namespaces"},
         }) {
        run("standin", each, "auto");
        run("standin", each, "ipc");
    }
}

} // namespace
