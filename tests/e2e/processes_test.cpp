// SPDX-License-Identifier: BSD-3-Clause
// What processes do besides running: they fork workers, execute another program, and live in PID
// namespaces of their own, under policies that deny them calls.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/exchanging.h"
#include "e2e/own_pids.h"
#include "support/denied.h"
#include "support/watched.h"

extern "C" {
#include "peer/node.h"
}

class Processes : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(Processes);

static const size_t size = 4096;

// ---- workers

// A worker of a killed rank lives until the test ends. By `clone` no handler of the library's runs
// in it, as in a child of another language's runtime.
static void start_worker(Rank &rank, bool clone)
{
    const pid_t pid = clone ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : fork();
    if (pid != 0)
        return;
    rank.shared->value[0] = 1;
    for (Stopwatch watch; rank.shared->value[1] == 0 && watch.ms() < 4 * kWait;)
        sleep_ms(10);
    _exit(0);
}

RANK_FUNCTION(leaves_a_worker)
{
    rank.open({}, 4 * kWait);
    char *memory = static_cast<char *>(rank.device->alloc(size));
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    void *stream = rank.device->stream();
    rank.barrier();
    if (rank.rank == 1) {
        start_worker(rank, rank.argument != "fork");
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK(reaches(rank.shared->value[2], 1));
        raise(SIGKILL);
    }
    CHECK_OK(ph_recv(channel, size, stream));
    CHECK_OK(ph_complete(channel, stream));
    rank.shared->value[2] = 1; // the other one may end
    rank.goes_on_without(1, stream);
    CHECK_RC(end_of(channel), PH_EPEER);
    rank.close();
}

static void leave_a_worker(Job &job, const char *how)
{
    job.expect_failure(1);
    EXPECT_EQ(job.status(1, kWait), 128 + SIGKILL);
    EXPECT_EQ(job.wait(), "") << how;
    job.shared()->value[1] = 1;
}

TEST_P(Processes, AWorkerHidesNoDeath)
{
    for (const char *how : {"fork", "clone"}) {
        Job job(GetParam(), 2);
        job.start("leaves_a_worker", how);
        leave_a_worker(job, how);
    }
}

// The first time that this rank gives its pidfd away it does not: by this status, or not at all.
static int first_status = 0;

extern "C" int __real_phi_node_send(int socket, const phi_node_message *message, int fd);
extern "C" int __wrap_phi_node_send(int socket, const phi_node_message *message, int fd);

int __wrap_phi_node_send(int socket, const phi_node_message *message, int fd)
{
    if (fd < 0 || message->type != PHI_NODE_PROCESS || first_status == 0)
        return __real_phi_node_send(socket, message, fd);
    phi_node_message late = *message;
    late.status = first_status;
    first_status = 0;
    return late.status == -ETIMEDOUT ? 0 : __real_phi_node_send(socket, &late, -1);
}

RANK_FUNCTION(leaves_a_worker_and_is_seen_late)
{
    first_status = rank.argument == "mute" ? -ETIMEDOUT : -ESTALE;
    leaves_a_worker(rank);
    CHECK(first_status == 0); // of rank 0: it was asked as well
}

TEST_P(Processes, AFailureThatPassesHidesNoProcess)
{
    for (const char *how : {"stale", "mute"}) {
        Job job(GetParam(), 2);
        job.start("leaves_a_worker_and_is_seen_late", how);
        leave_a_worker(job, how);
    }
}

RANK_FUNCTION(leaves_a_worker_unseen)
{
    if (!deny_call(SYS_pidfd_open, ENOSYS))
        _exit(77);
    leaves_a_worker(rank);
}

// As between nodes, and where the kernel gives no pidfds: by its sockets alone.
TEST_P(Processes, AWorkerHoldsNoSocketsOpen)
{
    Job job(GetParam(), 2);
    job.start("leaves_a_worker_unseen", "fork");
    if (job.status(0, 100) == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    leave_a_worker(job, "fork");
}

// Nothing but its silence tells that it is gone.
RANK_FUNCTION(is_silent)
{
    if (!deny_call(SYS_pidfd_open, ENOSYS))
        _exit(77);
    rank.open({"PEERHOP_HEARTBEAT_MS=20", "PEERHOP_SUSPECT_MS=400"}, 4 * kWait);
    char *memory = static_cast<char *>(rank.device->alloc(size));
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    void *stream = rank.device->stream();
    rank.barrier();
    if (rank.rank == 1) {
        start_worker(rank, true);
        CHECK(reaches(rank.shared->value[2], 1));
        raise(SIGKILL);
    }
    CHECK_OK(ph_recv(channel, size, stream));
    CHECK_OK(ph_complete(channel, stream));
    rank.shared->value[2] = 1;
    int rc = -EBUSY;
    for (Stopwatch watch; rc == -EBUSY && watch.ms() < kWait; sleep_ms(10))
        rc = ph_context_expel(rank.context, 1);
    CHECK_OK(rc);
    CHECK_RC(ph_channel_ended(channel), PH_EPEER);
    rank.synchronize(stream);
    Stopwatch watch;
    rc = ph_context_destroy(&rank.context, 1000);
    CHECK(watch.ms() < 1000 + kWait);
    CHECK(rc == 0 || rc == -ETIMEDOUT);
    if (rc)
        CHECK_SAYS(rank.error(), "expelled, and has neither acknowledged nor exited");
    _exit(0);
}

TEST_P(Processes, WhomNothingTellsOfIsExpelledAndHoldsNobody)
{
    Job job(GetParam(), 2);
    job.start("is_silent");
    job.expect_failure(1);
    if (job.status(1, kWait) == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(job.wait(), "");
    job.shared()->value[1] = 1;
}

TEST_P(Processes, AWorkerHidesNoDeathInANamespaceOfItsOwn)
{
    if (GetParam() == "standin")
        GTEST_SKIP() << "devices of other PID namespaces meet over the net";
    for (const char *how : {"fork", "clone"}) {
        auto job = std::make_unique<Job>(GetParam(), 2);
        pid_t first[2]; // each sees the other's processes no more than the other sees its own
        for (int rank = 0; rank < 2; rank++)
            if ((first[rank] = start_in_a_container(*job, rank, "leaves_a_worker", how)) < 0)
                GTEST_SKIP() << "this process may not make namespaces";
        leave_a_worker(*job, how);
        for (pid_t pid : first)
            kill(pid, SIGKILL); // and with it the worker
        job.reset();
        for (pid_t pid : first)
            waitpid(pid, nullptr, 0);
    }
}

// ---- another program

static uint64_t sleeps_of_service() // of this rank
{
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream comm(task.path() / "comm"), status(task.path() / "status");
        std::string name, word;
        uint64_t count = 0;
        comm >> name;
        while (name == "peerhop-service" && status >> word)
            if (word == "voluntary_ctxt_switches:" && status >> count)
                return count;
    }
    return 0;
}

// The program that rank 1 executes, this one: it starts again as the rank, without what the test
// shares, which an execution leaves behind.
__attribute__((constructor)) static void second_life()
{
    if (getenv("TEST_SECOND_LIFE") == nullptr)
        return;
    const std::string device = getenv("TEST_SECOND_LIFE");
    unsetenv("TEST_SECOND_LIFE");
    usleep(1500000); // while the other one waits
    ph_context *context = nullptr;
    ph_context_params params = {};
    char error[512] = "";
    params.struct_size = sizeof params;
    params.device = device.c_str();
    params.error = error;
    params.error_size = sizeof error;
    void *memory = nullptr;
    ph_channel *channel = nullptr;
    if (ph_context_create(&params, &context) || ph_host_alloc(context, size, &memory)) {
        fprintf(stderr, "the second life: %s\n", error);
        _exit(1);
    }
    ph_operation op = {};
    op.op_id = 2;
    op.role = PH_ROLE_BOTH;
    op.buffer = memory;
    op.size = size;
    const int rc = ph_exchange(context, &op, 1, &channel);
    _exit(rc || ph_context_destroy(&context, 0) ? 1 : 0);
}

RANK_FUNCTION(executes_itself)
{
    rank.open({}, 4 * kWait);
    char *memory = static_cast<char *>(rank.device->alloc(size));
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    void *stream = rank.device->stream();
    rank.barrier();
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[2], 1));
        const std::string name = ph_context_device(rank.context);
        setenv("TEST_SECOND_LIFE", name.substr(0, name.find(' ')).c_str(), 1);
        execl("/proc/self/exe", "ranks", nullptr);
        _exit(127);
    }
    CHECK_OK(ph_recv(channel, size, stream));
    CHECK_OK(ph_complete(channel, stream));
    rank.shared->value[2] = 1; // the other one may end
    CHECK_RC(end_of(channel), PH_EPEER);
    // It is waited for without haste.
    const uint64_t before = sleeps_of_service();
    sleep_ms(500);
    CHECK(sleeps_of_service() - before < 200);
    void *host = nullptr;
    CHECK_OK(ph_host_alloc(rank.context, size, &host));
    auto op = operation(2, 1, PH_ROLE_BOTH, host, size);
    ph_channel *again = nullptr;
    int rc = PH_EPEER;
    for (Stopwatch watch; rc == PH_EPEER && watch.ms() < kWait; sleep_ms(10))
        rc = ph_exchange(rank.context, &op, 1, &again);
    CHECK_OK(rc);
    rank.synchronize(stream);
    rank.close();
}

// The descriptors that a program would have which this process executed now.
static std::set<std::string> inherited()
{
    std::set<std::string> names;
    for (const auto &each : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int flags = fcntl(std::stoi(each.path().filename()), F_GETFD);
        std::error_code gone; // that of the folder itself
        if (flags >= 0 && !(flags & FD_CLOEXEC))
            names.insert(each.path().filename().string() + " " +
                         std::filesystem::read_symlink(each.path(), gone).string());
    }
    return names;
}

// After each rank has come to the other and has mapped its memory: connections, what rings, files
// of memory, and what was opened to watch them.
RANK_FUNCTION(leaves_nothing_to_a_program)
{
    const std::set<std::string> before = inherited();
    rank.open();
    char *memory = static_cast<char *>(rank.device->alloc(size));
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    void *stream = rank.device->stream();
    pass(rank, channel, role_of(rank, 0), memory, size, 3, stream);
    for (const std::string &name : inherited())
        if (before.count(name) == 0)
            rank_failed(__FILE__, __LINE__, "an executed program would have " + name);
    rank.barrier();
}

TEST_P(Processes, AnExecutedProgramInheritsNothing)
{
    if (GetParam() == "hostnet")
        GTEST_SKIP() << "what libfabric opens for itself is inherited";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves_nothing_to_a_program"), "");
}

TEST_P(Processes, ARankThatExecutesItselfIsMetAgain)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("executes_itself"), "");
}

// ---- policies

RANK_FUNCTION(has_no_random_numbers)
{
    std::string error;
    if (!deny_call(SYS_getrandom, EPERM))
        _exit(77);
    CHECK(rank.try_open({}, 20000, &error) == -EPERM);
    CHECK_SAYS(error, "getrandom: Operation not permitted");
}

RANK_FUNCTION(has_no_descriptor_of_itself)
{
    std::string error;
    if (!deny_call(SYS_pidfd_open, EMFILE))
        _exit(77);
    CHECK(rank.try_open({}, 20000, &error) == -EMFILE);
    CHECK_SAYS(error, "no descriptor of this process for its peers");
}

TEST_P(Processes, WithoutADescriptorOfItselfThereIsNoContext)
{
    Job job(GetParam(), 1);
    job.start("has_no_descriptor_of_itself");
    if (job.status(0, kWait) == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(job.wait(), "");
}

TEST_P(Processes, WithoutRandomNumbersThereIsNoContext)
{
    Job job(GetParam(), 1);
    job.start("has_no_random_numbers");
    if (job.status(0, kWait) == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(job.wait(), "");
}
