// SPDX-License-Identifier: BSD-3-Clause
// peerhop-info --job: what it shows of ranks that live, wait, are stopped, were killed and have
// left.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

#include "e2e/exchanging.h"

#include "support/atomic_compat.h"
#include "support/command.h"
#include "support/folder.h"

extern "C" {
#include "base/clock.h"
#include "job_prometheus.h"
#include "peer/node.h"
#include "store/members.h"
#include "topology/capabilities.h"
}

class Info : public EveryDevice
{
  protected:
    void SetUp() override
    {
        EveryDevice::SetUp();
        if (getenv("PEERHOP_INFO") == nullptr)
            GTEST_SKIP() << "PEERHOP_INFO does not name the tool";
    }

    // Runs the tool; both of its outputs are kept.
    int run(const Job &job, const std::string &options)
    {
        return run_command("PEERHOP_STORE='" + job.store() + "' \"$PEERHOP_INFO\" --job " +
                               job.name() + " " + options,
                           &out);
    }

    bool says(const std::string &text) const
    {
        return out.find(text) != std::string::npos;
    }

    // The object of a rank, or "".
    std::string object(int rank) const
    {
        size_t at = out.find("{\"rank\":" + std::to_string(rank) + ",");
        return at == std::string::npos ? "" : out.substr(at, out.find('\n', at) - at);
    }

    // Runs it until the object of rank 0 has a wait of at least that age; "" after 20 s.
    std::string of_rank_0(const Job &job, int64_t age)
    {
        const std::string key = "\"oldest_at_least_ms\":";
        Stopwatch watch;
        while (watch.ms() < 20000) {
            EXPECT_EQ(run(job, "-o json --timeout-ms 300"), 0) << out;
            std::string found = object(0);
            size_t at = found.find(key);
            if (at != std::string::npos && atoll(&found[at + key.size()]) >= age)
                return found;
        }
        return "";
    }

    std::string out;
};
INSTANTIATE_DEVICES(Info);

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

static const size_t size = 4096;

static ph_peer_state state_of(Rank &rank, int peer)
{
    ph_peer_report report = {};
    CHECK_OK(ph_context_peer(rank.context, peer, &report, sizeof report));
    return report.state;
}

// Rank 0 waits for a signal of rank 1, which the test stops; the test kills rank 2.
// value[0]: ranks that are ready; value[1]: rank 0 sees both; value[2]: rank 1 may signal.
RANK_FUNCTION(is_looked_at)
{
    rank.open({"PEERHOP_HEARTBEAT_MS=20", "PEERHOP_SUSPECT_MS=400"});
    ph_channel *with[3] = {};
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        int sender = std::max(peer, rank.rank);
        with[peer] = rank.channel(peer, 7, role_of(rank, sender), rank.device->alloc(size), size);
    }
    void *stream = rank.device->stream();
    if (rank.rank == 0)
        CHECK_OK(ph_wait(with[1], 0, stream));
    rank.shared->value[0]++;
    if (rank.rank == 2)
        pause();
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[3], 1)); // rank 1 is stopped
        sleep_ms(500);                            // its last beat is seen
        while (state_of(rank, 1) != PH_PEER_SUSPECT || state_of(rank, 2) != PH_PEER_GONE)
            sleep_ms(1);
        rank.shared->value[1] = 1;
    } else {
        CHECK(reaches(rank.shared->value[2], 1, 120000)); // stopped meanwhile
        CHECK_OK(ph_signal(with[0], stream));
    }
    rank.synchronize(stream, 120000);
}

// All that the store has: who looks changes nothing.
static std::string contents(Job &job)
{
    return over_files() ? job.keys()
                        : job.redis().cli("DBSIZE") +
                              job.redis().cli("XLEN ph:{" + job.name() + "}:0:members");
}

TEST_P(Info, ShowsWhoLivesWaitsIsStoppedAndWasKilled)
{
    Job job(GetParam(), 3);
    job.start("is_looked_at");
    ASSERT_TRUE(reaches(job.shared()->value[0], 3)) << job.wait(100);
    job.expect_failure(2);
    job.signal(2, SIGKILL);
    job.signal(1, SIGSTOP);
    job.shared()->value[3] = 1;
    // The kernel may take half a minute to end the one that is killed.
    ASSERT_TRUE(reaches(job.shared()->value[1], 1, 60000)) << job.wait(100);
    const std::string before = contents(job);

    const std::string waits = of_rank_0(job, 200);
    EXPECT_HAS(waits, "\"state\":\"lives\",\"expelled\":false,\"incarnation\":\"");
    EXPECT_HAS(waits, "\"process\":" + std::to_string(job.pid(0)) + ",");
    EXPECT_HAS(waits, "\"suspect\":1,\"broken\":0,\"expelled\":0,\"gone\":1}");
    EXPECT_HAS(waits, "\"peer_states\":[\"self\",\"suspect\",\"gone\"]");
    EXPECT_HAS(waits, "\"channels\":2,\"channels_with_handles\":2,");
    EXPECT_HAS(waits, "\"releases\":0,\"releases_of_peers\":0,\"device_bytes\":");
    EXPECT_HAS(waits, ",\"in_flight\":1,\"streams\":1,");
    const bool has = waits.find("\"device_bytes\":0,") == std::string::npos;
    EXPECT_EQ(has, GetParam().find("standin") == 0 || GetParam().find("gpu") == 0);
    EXPECT_HAS(waits, "\"waits_for_rank\":1,\"waits_in_operation\":\"7\","
                      "\"waits_in_call\":\"wait\",\"waits_for_word\":\"noted\"}");
    EXPECT_HAS(object(1), "\"state\":\"no answer\"");
    EXPECT_HAS(object(2), "\"state\":\"exited\"");

    Stopwatch watch;
    do // on a busy machine rank 0 may not answer in time
        EXPECT_EQ(run(job, "--timeout-ms 1000"), 0);
    while (!says(" 1 suspect (rank 1)") && watch.ms() < patience(20000).count());
    EXPECT_TRUE(says(" no answer in 1000 ms\n")) << out;
    EXPECT_TRUE(says(" exited: nobody listens at its socket\n")) << out;
    EXPECT_TRUE(says(" 1 suspect (rank 1), 1 gone (rank 2); channels: 2 kept, 2 with")) << out;
    EXPECT_TRUE(says(": wait of operation 7 waits for 'noted' of rank 1\n")) << out;
    EXPECT_EQ(contents(job), before);

    job.shared()->value[2] = 1;
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
    EXPECT_EQ(run(job, "-o json"), 0);
    EXPECT_EQ(object(0) + object(1), "") << "they have left";
    EXPECT_HAS(object(2), "\"state\":\"exited\"");
    EXPECT_EQ(run(job, "--epoch 5"), 1);
    EXPECT_TRUE(says("the store has no rank of job " + job.name() + " in epoch 5")) << out;
}

// ---- who may ask

RANK_FUNCTION(is_there)
{
    rank.open();
    rank.shared->value[0] = 1;
    CHECK(reaches(rank.shared->value[1], 1));
}

// value[0]: ranks whose message is over.
RANK_FUNCTION(has_counted)
{
    rank.open();
    void *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 7, role_of(rank, 0), rank.device->alloc(size), size);
    if (rank.rank == 0)
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
    else
        CHECK_OK(ph_wait(channel, size, stream));
    rank.synchronize(stream);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
}

// Its rank lives; who looks from another network namespace cannot ask it, and does not say that it
// has ended.
TEST(InfoAsks, FromAnotherNetworkNamespace)
{
    std::string text;
    if (!RedisServer::available() || run_command("unshare -n true", &text) != 0)
        GTEST_SKIP() << "no redis-server, or no namespace: " << text;
    Job job("host", 1);
    job.start("is_there");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    const std::string line = std::string("unshare -n ") + getenv("PEERHOP_INFO") + " --job " +
                             job.name() + " --store " + job.store();
    EXPECT_EQ(run_command(line, &text), 0);
    EXPECT_NE(text.find("cannot be asked from here: its socket has its name in another network"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("exited"), std::string::npos) << text;
    EXPECT_EQ(run_command(line + " -o json", &text), 0);
    EXPECT_NE(text.find("\"state\":\"out of reach\""), std::string::npos) << text;
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

// ---- without a name

static std::string info()
{
    return getenv("PEERHOP_INFO") ? getenv("PEERHOP_INFO") : "";
}

// The lines that have a word.
static std::string lines_with(const std::string &text, const std::string &word)
{
    std::string lines, line;
    std::istringstream in(text);
    while (std::getline(in, line))
        if (line.find(word) != std::string::npos)
            lines += line + "\n";
    return lines;
}

class InfoFinds : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (info().empty() || (!over_files() && !RedisServer::available()))
            GTEST_SKIP() << "PEERHOP_INFO does not name the tool, or no redis-server";
    }
    // Runs the tool with no store in its environment.
    int run(const std::string &options)
    {
        return run_command("env -u PEERHOP_STORE -u PEERHOP_JOB " + info() + " --job " + options,
                           &out);
    }
    std::string out;
};

// Other jobs of this user may run beside.
TEST_F(InfoFinds, TheJobsOfThisNodeAndWhoDoesNotAnswer)
{
    Job one("host", 3), two("host", 1);
    one.start_rank(0, "is_there");
    ASSERT_TRUE(reaches(one.shared()->value[0], 1)) << one.wait(100);
    one.shared()->value[0] = 0;
    one.start_rank(2, "is_there");
    two.start("is_there");
    ASSERT_TRUE(reaches(one.shared()->value[0], 1)) << one.wait(100);
    ASSERT_TRUE(reaches(two.shared()->value[0], 1)) << two.wait(100);
    EXPECT_EQ(run("-o json --timeout-ms 20000"), 0) << out;
    const std::string first = lines_with(out, "\"job\":\"" + one.name() + "\"");
    EXPECT_HAS(first, "{\"rank\":0,");
    EXPECT_HAS(first, "\"state\":\"lives\",\"expelled\":false,\"incarnation\":\"");
    EXPECT_HAS(first, "\"process\":" + std::to_string(one.pid(2)) + ",");
    EXPECT_HAS(lines_with(first, "{\"rank\":1,"), "\"state\":\"not on this node\"}");
    EXPECT_HAS(lines_with(out, two.name()), "\"device\":\"host\"");
    EXPECT_EQ(run("--timeout-ms 20000"), 0) << out;
    EXPECT_HAS(out, "job " + one.name() + ", epoch 0\n");
    EXPECT_HAS(out, "job " + two.name() + ", epoch 0\n");
    EXPECT_HAS(lines_with(out, "not found"), "  1     -");

    one.signal(2, SIGSTOP);
    EXPECT_EQ(run("-o json --timeout-ms 300"), 0) << out;
    EXPECT_HAS(out, "{\"rank\":null,\"process\":" + std::to_string(one.pid(2)) +
                        ",\"state\":\"no answer\"}\n");
    EXPECT_EQ(run("--timeout-ms 300"), 0) << out;
    EXPECT_HAS(out, "process " + std::to_string(one.pid(2)) +
                        " listens as a rank does, and has not answered in 300 ms\n");
    one.signal(2, SIGCONT);
    one.shared()->value[1] = two.shared()->value[1] = 1;
    EXPECT_EQ(one.wait() + two.wait(), "");
}

TEST_F(InfoFinds, SocketsThatHaveTheirNamesInADirectory)
{
    Folder folder;
    Job job("host", 1);
    job.environment(0, "PEERHOP_SOCKET_DIRECTORY", folder.path());
    job.start("is_there");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    EXPECT_NE(run("-o json --timeout-ms 20000"), 2) << "others may be there";
    EXPECT_EQ(out.find(job.name()), std::string::npos) << out;
    EXPECT_EQ(run_command("PEERHOP_SOCKET_DIRECTORY=" + folder.path() + " " + info() +
                              " --job -o json --timeout-ms 20000",
                          &out),
              0);
    EXPECT_HAS(lines_with(out, job.name()), "\"state\":\"lives\"");
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST_F(InfoFinds, NoneInANetworkNamespaceOfItsOwn)
{
    if (run_command("unshare -n true", &out) != 0)
        GTEST_SKIP() << "no namespace: " << out;
    Job job("host", 1);
    job.start("is_there");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    EXPECT_EQ(run_command("unshare -n " + info() + " --job", &out), 1);
    EXPECT_HAS(out, "no job of this user has a rank on this node that can be found from here");
    EXPECT_EQ(run_command("unshare -n " + info() + " --job -o prometheus >/dev/null", &out), 0)
        << "no rank is no error of who reads metrics";
    EXPECT_EQ(out, "");
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

// ---- for Prometheus

static int parse(const std::string &command, std::string *out)
{
    return run_command("(" + command + ") | python3 " TEST_EXPOSITION, out);
}

TEST_P(Info, MetricsOfEachRankAreWellFormed)
{
    Job job(GetParam(), 2);
    job.start("has_counted");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    const std::string command =
        "PEERHOP_STORE='" + job.store() + "' \"$PEERHOP_INFO\" -o prometheus --timeout-ms 20000 ";
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    for (const std::string &name : {"--job " + job.name(), std::string("--job")}) {
        ASSERT_EQ(parse(command + name, &out), 0) << out;
        const std::string labels =
            "\tepoch=0\thost=" + std::string(host) + "\tjob=" + job.name() + "\trank=";
        for (const char *rank : {"0", "1"}) {
            const std::string end = labels + rank;
            EXPECT_TRUE(says("peerhop_up" + end + "\t1\n")) << out;
            EXPECT_TRUE(says("peerhop_exchanges_total" + end + "\t1\n")) << out;
            EXPECT_TRUE(says("peerhop_channels_total" + end + "\t1\n")) << out;
            EXPECT_TRUE(
                says("peerhop_ipc_bytes_total" + end + (rank[0] == '0' ? "\t4096\n" : "\t0\n")))
                << out;
            EXPECT_TRUE(says("peerhop_kept_channels" + end + "\t1\n")) << out;
            EXPECT_TRUE(says("peerhop_in_flight_operations" + end + "\t0\n")) << out;
            EXPECT_TRUE(says("peerhop_device_bytes" + end + "\t")) << out;
            EXPECT_TRUE(says("peerhop_peers" + end + "\tstate=live\t1\n")) << out;
            EXPECT_FALSE(says("peerhop_oldest_operation_seconds" + end)) << out;
        }
    }
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST(InfoPrometheus, NamesHaveAnyCharacters)
{
    job one = {}, two = {};
    member members[3] = {};
    strcpy(one.name, "a\"b\\c,d=e");
    strcpy(two.name, "\xc3\xa4\\n");
    one.members = members;
    one.count = 2;
    two.members = members + 2;
    two.count = 1;
    two.epoch = UINT64_MAX;
    members[1].rank = 1;
    members[1].state = MEMBER_SILENT;
    members[0].status.oldest_ms = 1500;
    members[0].status.counters.ipc_bytes = 1ull << 53;
    members[2].status.locked = 1;
    members[2].status.oldest_ms = -1;
    strcpy(members[0].capabilities.host, "line\nend");
    strcpy(members[1].capabilities.host, "\xff\xed\xa0\x80\xf0\x9f\x98\x80\xc3");
    const job jobs[] = {one, two};
    testing::internal::CaptureStdout();
    jobs_print_prometheus(jobs, 2);
    fflush(stdout);
    const std::string text = testing::internal::GetCapturedStdout();
    Folder folder;
    const std::string file = folder.path() + "/metrics";
    std::ofstream(file) << text;
    std::string out;
    ASSERT_EQ(parse("cat " + file, &out), 0) << out << text;
    const std::string first = "\tepoch=0\thost=line\nend\tjob=a\"b\\c,d=e\trank=0";
    const std::string last = "\tepoch=18446744073709551615\thost=\tjob=\xc3\xa4\\n\trank=0";
    EXPECT_HAS(out, "peerhop_up" + first + "\t1\n");
    EXPECT_HAS(out,
               "peerhop_up\tepoch=0\thost=????\xf0\x9f\x98\x80?\tjob=a\"b\\c,d=e\trank=1\t0\n");
    EXPECT_HAS(out, "peerhop_up" + last + "\t1\n");
    EXPECT_HAS(out, "peerhop_oldest_operation_seconds" + first + "\t1.5\n");
    EXPECT_HAS(out, "peerhop_ipc_bytes_total" + first + "\t9007199254740992\n");
    EXPECT_HAS(out, "peerhop_launches_total" + last + "\t0\n");
    EXPECT_EQ(lines_with(out, "peerhop_kept_channels" + last), "") << "it could not look";
    EXPECT_EQ(lines_with(out, "rank=1"),
              "peerhop_up\tepoch=0\thost=????\xf0\x9f\x98\x80?\tjob=a\"b\\c,d=e\trank=1\t0\n")
        << "nothing else is known of who is silent";
}

struct Record {
    uint64_t incarnation = 0;
    phi_capabilities capabilities = {};
};

static Record record_of(const Job &job)
{
    Record record;
    phi_report report;
    phi_config config;
    phi_counters counters = {};
    const std::string store = "PEERHOP_STORE=" + job.store(), name = job.name();
    const char *settings[] = {store.c_str(), nullptr};
    phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
    EXPECT_EQ(phi_config_read(&config, settings, &report), 0);
    phi_mailbox_params params = {};
    params.report = &report;
    params.counters = &counters;
    params.config = &config;
    params.job = name.c_str();
    EXPECT_EQ(phi_members_read(
                  &params, phi_deadline(kWait),
                  [](void *opaque, const phi_message *message) {
                      auto *to = static_cast<Record *>(opaque);
                      to->incarnation = message->incarnation;
                      EXPECT_EQ(
                          phi_capabilities_decode(&to->capabilities, message->bytes, message->size),
                          0);
                  },
                  &record),
              0);
    phi_config_fini(&config);
    phi_report_fini(&report);
    return record;
}

// Asks over a fresh connection; returns the status of the answer.
static int asked(const Record &record, uint64_t nonce, uint64_t incarnation,
                 phi_node_type type = PHI_NODE_STATUS)
{
    phi_node_message request = {}, answer = {};
    int socket = -1, fd = -1;
    request.magic = PHI_NODE_MAGIC;
    request.version = PHI_NODE_VERSION;
    request.type = static_cast<uint16_t>(type);
    request.rank = type == PHI_NODE_STATUS ? -1 : 1;
    request.to = incarnation;
    request.a = nonce;
    EXPECT_EQ(phi_node_connect(record.capabilities.socket, &socket), 0);
    EXPECT_EQ(phi_node_call(socket, &request, &answer, &fd, phi_deadline(kWait)), 0);
    EXPECT_EQ(fd, -1) << "nobody is given a descriptor";
    EXPECT_EQ(answer.bytes_size > 0, answer.status == 0);
    close(socket);
    return answer.status;
}

TEST(InfoAsks, OnlyWhoKnowsTheNonceAndTheLifeIsTold)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 2);
    job.start_rank(0, "is_there");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    const Record record = record_of(job);
    const uint64_t nonce = record.capabilities.nonce;
    EXPECT_EQ(asked(record, nonce, record.incarnation), 0);
    EXPECT_EQ(asked(record, nonce + 1, record.incarnation), -ECONNREFUSED);
    EXPECT_EQ(asked(record, nonce, record.incarnation - 1), -ESTALE);
    EXPECT_EQ(asked(record, 0, 0), 0) << "whoever listens there";
    EXPECT_EQ(asked(record, 0, record.incarnation), -ECONNREFUSED);
    EXPECT_EQ(asked(record, nonce, 0), -ESTALE);
    EXPECT_EQ(asked(record, nonce, record.incarnation, PHI_NODE_PROCESS), -EPERM) << "no hello";
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}
