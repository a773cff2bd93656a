// SPDX-License-Identifier: BSD-3-Clause
// A launcher tells this process in the environment which rank it is. docs/launchers.md lists the
// variables of each.
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
// Another launcher fills in what it leaves open, if that has the same rank and number of ranks.
// rank is -1 where none names a rank.
//
// Nothing here tells the lives of a rank apart: each agent or node counts its restarts for itself.
// Incarnations tell them apart.
void phi_launcher_read(struct phi_launcher *launcher);

#endif
