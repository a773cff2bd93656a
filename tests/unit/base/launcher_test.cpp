// SPDX-License-Identifier: BSD-3-Clause
// What each launcher sets, as it was read from processes that it has started or from its sources
// and manuals, and what is made of that (docs/launchers.md).
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/launcher.h"
}

extern char **environ;

namespace
{

using Environment = std::map<std::string, std::string>;

struct Place {
    int64_t rank, ranks, local_rank;
    std::string job;
    bool operator==(const Place &other) const
    {
        return rank == other.rank && ranks == other.ranks && local_rank == other.local_rank &&
               job == other.job;
    }
};

std::ostream &operator<<(std::ostream &out, const Place &place)
{
    return out << place.rank << " of " << place.ranks << ", local " << place.local_rank
               << ", job \"" << place.job << "\"";
}

const Place nowhere = {-1, -1, -1, ""};

void set_all(const Environment &environment)
{
    clearenv();
    for (const auto &[name, value] : environment)
        setenv(name.c_str(), value.c_str(), 1);
}

Environment get_all()
{
    Environment all;
    for (char **entry = environ; entry && *entry; entry++) {
        const std::string setting = *entry;
        all[setting.substr(0, setting.find('='))] = setting.substr(setting.find('=') + 1);
    }
    return all;
}

// outer: what the launcher stands in itself. What is set further inside stays.
Place read(Environment own, const Environment &outer = {})
{
    const Environment before = get_all();
    own.insert(outer.begin(), outer.end());
    set_all(own);
    phi_launcher launcher;
    phi_launcher_read(&launcher);
    set_all(before);
    return {launcher.rank, launcher.ranks, launcher.local_rank, launcher.job};
}

// The script of `sbatch -N2 -n4`.
const Environment batch = {
    {"SLURM_JOB_ID", "4711"},  {"SLURM_JOBID", "4711"},      {"SLURM_PROCID", "0"},
    {"SLURM_LOCALID", "0"},    {"SLURM_NODEID", "0"},        {"SLURM_NTASKS", "4"},
    {"SLURM_NPROCS", "4"},     {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NNODES", "2"},
    {"SLURM_TASK_PID", "163"}, {"SLURM_GTIDS", "0"},         {"SLURM_TASKS_PER_NODE", "2(x2)"}};

Environment srun(int rank, int ranks, const std::string &step = "2")
{
    Environment environment = batch;
    environment["SLURM_STEP_ID"] = environment["SLURM_STEPID"] = step;
    environment["SLURM_STEP_NUM_TASKS"] = environment["SLURM_NTASKS"] =
        environment["SLURM_NPROCS"] = std::to_string(ranks);
    environment["SLURM_STEP_NUM_NODES"] = "2";
    environment["SLURM_PROCID"] = std::to_string(rank);
    environment["SLURM_LOCALID"] = std::to_string(rank % 2);
    return environment;
}

Environment torchrun(int rank, const std::string &id, const std::string &restarts = "0")
{
    const std::string number = std::to_string(rank), local = std::to_string(rank % 2),
                      node = std::to_string(rank / 2);
    return {{"RANK", number},
            {"WORLD_SIZE", "4"},
            {"LOCAL_RANK", local},
            {"LOCAL_WORLD_SIZE", "2"},
            {"GROUP_RANK", node},
            {"GROUP_WORLD_SIZE", "2"},
            {"ROLE_RANK", number},
            {"ROLE_WORLD_SIZE", "4"},
            {"ROLE_NAME", "default"},
            {"MASTER_ADDR", "node0"},
            {"MASTER_PORT", "29500"},
            {"TORCHELASTIC_RUN_ID", id},
            {"TORCHELASTIC_RESTART_COUNT", restarts},
            {"TORCHELASTIC_MAX_RESTARTS", "3"},
            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

Environment open_mpi(int rank)
{
    const std::string number = std::to_string(rank), local = std::to_string(rank % 2);
    return {{"OMPI_COMM_WORLD_RANK", number},
            {"OMPI_COMM_WORLD_SIZE", "4"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", local},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
            {"OMPI_COMM_WORLD_NODE_RANK", local},
            {"OMPI_UNIVERSE_SIZE", "4"},
            {"PMIX_RANK", number},
            {"PMIX_HOSTNAME", "node0"}};
}

Environment open_mpi_4(int rank)
{
    Environment environment = open_mpi(rank);
    environment["PMIX_NAMESPACE"] = environment["OMPI_MCA_ess_base_jobid"] = "1184759809";
    environment["PMIX_ID"] = "1184759809." + std::to_string(rank);
    environment["OMPI_MCA_orte_precondition_transports"] = "9f4fa7739c56f39f-c26f8a36eff7ebf6";
    return environment;
}

Environment open_mpi_5(int rank)
{
    Environment environment = open_mpi(rank);
    environment["PMIX_NAMESPACE"] = "prterun-node0-10848@1";
    return environment;
}

Environment mpich(int rank)
{
    return {{"PMI_RANK", std::to_string(rank)},
            {"PMI_SIZE", "4"},
            {"PMI_FD", "9"},
            {"PMI_HOSTNAME", "node0"},
            {"HYDI_CONTROL_FD", "7"},
            {"MPI_LOCALRANKID", std::to_string(rank % 2)},
            {"MPI_LOCALNRANKS", "2"}};
}

TEST(Launcher, NoneSetsNothing)
{
    EXPECT_EQ(read({}), nowhere);
    EXPECT_EQ(read({{"RANK", "0"}, {"TORCHELASTIC_RUN_ID", "x"}}), nowhere) << "half of one";
    EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "-7"}}),
              (Place{0, 2, -1, ""}));
    EXPECT_EQ(read({{"RANK", "0x1"}, {"WORLD_SIZE", "2"}}), nowhere);
}

std::string lacks(const Environment &environment)
{
    const Environment before = get_all();
    set_all(environment);
    phi_launcher launcher;
    phi_launcher_read(&launcher);
    set_all(before);
    return launcher.lacks;
}

TEST(Launcher, WhatIsNotTakenIsNamed)
{
    EXPECT_EQ(lacks({}), "");
    EXPECT_EQ(lacks(batch), "") << "the script is no rank, and sets all that it should";
    for (const Environment &whole : {srun(3, 4), open_mpi_5(3), mpich(3), torchrun(3, "none")})
        EXPECT_EQ(lacks(whole), "");
    const std::pair<Environment, const char *> cases[] = {
        {{{"RANK", "1"}}, "RANK is \"1\", and WORLD_SIZE is not set"},
        {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is \"2\", and RANK is not set"},
        {{{"RANK", "1"}, {"WORLD_SIZE", "0x2"}},
         "WORLD_SIZE is \"0x2\", which is no number of ranks"},
        {{{"RANK", "1"}, {"WORLD_SIZE", ""}}, "WORLD_SIZE is \"\", which is no number of ranks"},
        {{{"RANK", "1"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE is \"0\", which is no number of ranks"},
        {{{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "2"}},
         "RANK is \"99999999999999999999\", which is no rank"},
        {{{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "0"}}, "RANK is \"0\", and WORLD_SIZE is not set"},
        {{{"OMPI_COMM_WORLD_RANK", "-1"}}, "OMPI_COMM_WORLD_RANK is \"-1\", which is no rank"},
        {{{"OMPI_COMM_WORLD_SIZE", "4"}},
         "OMPI_COMM_WORLD_SIZE is \"4\", and OMPI_COMM_WORLD_RANK is not set"},
        {{{"PMI_RANK", "1"}}, "PMI_RANK is \"1\", and PMI_SIZE is not set"},
        {{{"PMIX_RANK", "one"}}, "PMIX_RANK is \"one\", which is no rank"},
        {{{"SLURM_STEP_ID", "x"}}, "SLURM_STEP_ID is \"x\", which is no step"},
        {{{"SLURM_STEP_ID", "1"}, {"SLURM_PROCID", "1"}},
         "SLURM_PROCID is \"1\", and SLURM_STEP_NUM_TASKS is not set"},
        {{{"SLURM_STEP_ID", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "two"}},
         "SLURM_NTASKS is \"two\", which is no number of ranks"},
    };
    for (const auto &[environment, says] : cases)
        EXPECT_EQ(lacks(environment), says);
    const std::string all = lacks({{"RANK", std::string(5000, 'r')}});
    EXPECT_EQ(all, "RANK is \"" + std::string(40, 'r') + "\", which is no rank");
    EXPECT_EQ(lacks({{"PMI_RANK", "x"}, {"RANK", "y"}}), "PMI_RANK is \"x\", which is no rank")
        << "the nearest";
}

TEST(Launcher, Torchrun)
{
    for (const Environment &outer : {Environment(), batch, srun(1, 2), open_mpi_5(1), mpich(1)})
        EXPECT_EQ(read(torchrun(3, "run-7"), outer), (Place{3, 4, 1, "run-7"}));
    EXPECT_EQ(read(torchrun(3, "none")), (Place{3, 4, 1, ""}));
    EXPECT_EQ(read(torchrun(3, "none"), srun(1, 2)), (Place{3, 4, 1, ""}))
        << "srun has started the agents";
}

TEST(Launcher, Slurm)
{
    EXPECT_EQ(read(srun(3, 4)), (Place{3, 4, 1, "4711.2"}));
    EXPECT_EQ(read(srun(1, 2, "3")), (Place{1, 2, 1, "4711.3"}));
    EXPECT_EQ(read(batch), nowhere) << "the script is no rank";
    EXPECT_EQ(read(srun(0, 1, "4294967291")), nowhere) << "likewise";
    EXPECT_EQ(read(srun(0, 1, "4294967290")), nowhere) << "nor is the shell of salloc";
    Environment with_pmi2 = srun(3, 4);
    with_pmi2.insert(
        {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "15"}, {"PMI_JOBID", "4711.2"}});
    EXPECT_EQ(read(with_pmi2), (Place{3, 4, 1, "4711.2"}));
    Environment with_pmix = srun(3, 4);
    with_pmix.insert({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.4711.2"}});
    EXPECT_EQ(read(with_pmix), (Place{3, 4, 1, "4711.2"}));
    // Scripts that translate for PyTorch.
    EXPECT_EQ(read({{"RANK", "3"}, {"WORLD_SIZE", "4"}}, srun(3, 4)), (Place{3, 4, 1, "4711.2"}));
}

TEST(Launcher, OpenMpi)
{
    const Place four = {3, 4, 1, "1184759809.9f4fa7739c56f39f-c26f8a36eff7ebf6"};
    const Place five = {3, 4, 1, "prterun-node0-10848@1"};
    // Alone, in the script of a batch job, and below daemons that srun has started.
    for (const Environment &outer : {Environment(), batch, srun(1, 2)}) {
        EXPECT_EQ(read(open_mpi_4(3), outer), four);
        EXPECT_EQ(read(open_mpi_5(3), outer), five);
    }
}

TEST(Launcher, MpichAndOthersWithPmi)
{
    for (const Environment &outer : {Environment(), batch, srun(1, 2)})
        EXPECT_EQ(read(mpich(3), outer), (Place{3, 4, 1, ""})) << "it names no job";
    Environment intel = mpich(3);
    intel["I_MPI_HYDRA_UUID"] = "e1270000-2102-3e55-2161-0600c9c6756b";
    EXPECT_EQ(read(intel, batch), (Place{3, 4, 1, "e1270000-2102-3e55-2161-0600c9c6756b"}));
    EXPECT_EQ(
        read(
            {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_JOBID", "8a4e"}}),
        (Place{3, 4, 1, "8a4e"}))
        << "Cray";
}

TEST(Launcher, PmixAloneSaysNothingOfTheNumberOfRanks)
{
    EXPECT_EQ(read({{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-node0-9@1"}}, batch),
              (Place{1, -1, -1, "prterun-node0-9@1"}));
}

TEST(Launcher, OneRankIsNotTakenForTheSameOfAnother)
{
    EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, srun(0, 1)), (Place{0, 1, -1, ""}));
}

// As a pod has them, in which another launcher starts the ranks.
TEST(Launcher, RankAndWorldSizeAloneAreTheLastToCount)
{
    const Environment pod = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}};
    EXPECT_EQ(read(pod), (Place{0, 2, 0, ""}));
    for (const Environment &inner : {open_mpi_4(3), open_mpi_5(3), mpich(3), srun(3, 4)})
        EXPECT_EQ(read(pod, inner), read(inner));
    EXPECT_EQ(read(pod, batch), (Place{0, 2, 0, ""}));
    EXPECT_EQ(read(torchrun(3, "run-7"), pod), (Place{3, 4, 1, "run-7"}));
}

} // namespace
