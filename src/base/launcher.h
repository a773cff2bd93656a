// SPDX-License-Identifier: BSD-3-Clause
// What the launcher of this process says of it in the environment. docs/launchers.md has which
// variables each sets.
#ifndef PHI_BASE_LAUNCHER_H
#define PHI_BASE_LAUNCHER_H

#include <stdint.h>

struct phi_launcher {
    const char *name;                // for sentences
    int64_t rank, ranks, local_rank; // -1: it does not say
    char job[128];                   // "": it names none that is this job's alone
    char lacks[192]; // why the nearest of which only a part is there was not taken, or ""
};

// phi_launcher_read takes the launcher that is nearest to the process: torchrun and others that set
// RANK and WORLD_SIZE, Open MPI, PMI (MPICH, Intel MPI, Cray, srun --mpi=pmi2), PMIx, and srun.
// What it leaves open another one fills in where that has this rank of as many. Without any rank is
// -1.
//
// Nothing tells lives apart here: restarts are counted by each agent or node for itself.
// Incarnations do.
void phi_launcher_read(struct phi_launcher *launcher);

#endif
