// SPDX-License-Identifier: BSD-3-Clause
#include "base/launcher.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Steps of Slurm that are no parallel program (batch script, interactive shell, others) have
// numbers from here on.
#define SLURM_STEPS_END 0xffffff00

static const struct phi_launcher none = {
    .name = "no launcher", .rank = -1, .ranks = -1, .local_rank = -1};

// The value of a variable, or -1 where it is absent or no count.
static int64_t number(const char *name)
{
    const char *text = getenv(name);
    long long value;

    if (!text || !*text || strspn(text, "0123456789") != strlen(text))
        return -1;
    errno = 0;
    value = strtoll(text, NULL, 10);
    return errno == 0 ? value : -1;
}

static int64_t first_number(const char *name, const char *other)
{
    return number(name) >= 0 ? number(name) : number(other);
}

static const char *text(const char *name)
{
    const char *value = getenv(name);

    return value ? value : "";
}

static void lacks_number(struct phi_launcher *launcher, const char *name, const char *of)
{
    snprintf(launcher->lacks, sizeof(launcher->lacks), "%s is \"%.40s\", which is no %s", name,
             text(name), of);
}

static void lacks_other(struct phi_launcher *launcher, const char *name, const char *other)
{
    snprintf(launcher->lacks, sizeof(launcher->lacks), "%s is \"%.40s\", and %s is not set", name,
             text(name), other);
}

// Takes rank and ranks from the variables of these names, both or none.
static bool read_place(struct phi_launcher *launcher, const char *rank, const char *ranks)
{
    launcher->rank = number(rank);
    launcher->ranks = number(ranks);
    if (launcher->rank >= 0 && launcher->ranks > 0)
        return true;
    if (getenv(rank) && launcher->rank < 0)
        lacks_number(launcher, rank, "rank");
    else if (getenv(ranks) && launcher->ranks <= 0)
        lacks_number(launcher, ranks, "number of ranks");
    else if (getenv(rank))
        lacks_other(launcher, rank, ranks);
    else if (getenv(ranks))
        lacks_other(launcher, ranks, rank);
    return false;
}

// Anybody may have set these for a pod or a node, and may have started a program there by another
// launcher. So they are the last to be asked, unless torchrun's mark is there.
static bool read_bare(struct phi_launcher *launcher)
{
    launcher->name = "RANK and WORLD_SIZE";
    launcher->local_rank = number("LOCAL_RANK");
    return read_place(launcher, "RANK", "WORLD_SIZE");
}

// torchrun without a rendezvous calls every run "none", which names nothing. MASTER_ADDR and
// MASTER_PORT name no job either: runs on one node have 127.0.0.1, and the port is the same on
// every machine.
static bool read_torchrun(struct phi_launcher *launcher)
{
    const char *run = text("TORCHELASTIC_RUN_ID");

    if (!*run || !read_bare(launcher))
        return false;
    launcher->name = "torchrun";
    if (strcmp(run, "none") != 0)
        snprintf(launcher->job, sizeof(launcher->job), "%s", run);
    return true;
}

// Version 4 numbers jobs by 16 bits of a hash, so two jobs may have one number. It has a random key
// for each job, too.
static bool read_open_mpi(struct phi_launcher *launcher)
{
    const char *space = text("PMIX_NAMESPACE");
    const char *key = text("OMPI_MCA_orte_precondition_transports");

    launcher->name = "Open MPI";
    launcher->local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
    if (*space)
        snprintf(launcher->job, sizeof(launcher->job), "%s%s%s", space, *key ? "." : "", key);
    return read_place(launcher, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
}

static bool read_pmi(struct phi_launcher *launcher)
{
    const char *job = text("PMI_JOBID"); // Cray, Slurm

    launcher->name = "MPICH or another with PMI";
    launcher->local_rank = first_number("MPI_LOCALRANKID", "PMI_LOCAL_RANK");
    snprintf(launcher->job, sizeof(launcher->job), "%s", *job ? job : text("I_MPI_HYDRA_UUID"));
    return read_place(launcher, "PMI_RANK", "PMI_SIZE");
}

// Only a task of srun has a step. In a batch script, and in what mpirun starts there, SLURM_PROCID
// is the script's.
static bool read_slurm(struct phi_launcher *launcher)
{
    const int64_t step = number("SLURM_STEP_ID");

    launcher->name = "srun";
    if (step < 0 && getenv("SLURM_STEP_ID"))
        lacks_number(launcher, "SLURM_STEP_ID", "step");
    if (step < 0 || step >= SLURM_STEPS_END)
        return false;
    launcher->local_rank = number("SLURM_LOCALID");
    if (number("SLURM_JOB_ID") >= 0)
        snprintf(launcher->job, sizeof(launcher->job), "%lld.%lld",
                 (long long)number("SLURM_JOB_ID"), (long long)step);
    return read_place(launcher, "SLURM_PROCID",
                      number("SLURM_STEP_NUM_TASKS") < 0 && getenv("SLURM_NTASKS")
                          ? "SLURM_NTASKS"
                          : "SLURM_STEP_NUM_TASKS");
}

// PMIx has no variable for the number of ranks: its programs ask the server.
static bool read_pmix(struct phi_launcher *launcher)
{
    const char *space = text("PMIX_NAMESPACE");

    if (strncmp(space, "slurm.pmix.", strlen("slurm.pmix.")) == 0)
        return read_slurm(launcher); // which says more
    launcher->name = "PMIx";
    launcher->rank = number("PMIX_RANK");
    if (launcher->rank < 0 && getenv("PMIX_RANK"))
        lacks_number(launcher, "PMIX_RANK", "rank");
    snprintf(launcher->job, sizeof(launcher->job), "%s", space);
    return launcher->rank >= 0;
}

// One rank is the only one of many jobs at once.
static bool agree(const struct phi_launcher *a, const struct phi_launcher *b)
{
    return a->rank == b->rank && a->ranks == b->ranks && a->ranks > 1;
}

static void fill_in(struct phi_launcher *launcher, const struct phi_launcher *other)
{
    if (launcher->rank < 0)
        *launcher = *other;
    if (!agree(launcher, other))
        return;
    if (launcher->local_rank < 0)
        launcher->local_rank = other->local_rank;
    if (launcher->job[0] == 0)
        memcpy(launcher->job, other->job, sizeof(launcher->job));
}

void phi_launcher_read(struct phi_launcher *launcher)
{
    bool (*const readers[])(struct phi_launcher *) = {read_torchrun, read_open_mpi, read_pmi,
                                                      read_pmix,     read_slurm,    read_bare};

    char lacks[sizeof(launcher->lacks)] = "";

    // Each starts from nothing: half of one launcher and half of another is no job.
    *launcher = none;
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++) {
        struct phi_launcher other = none;

        if (readers[i](&other))
            fill_in(launcher, &other);
        else if (lacks[0] == 0)
            memcpy(lacks, other.lacks, sizeof(lacks));
    }
    memcpy(launcher->lacks, lacks, sizeof(lacks));
}
