# SPDX-License-Identifier: BSD-3-Clause
"""What a context is made of where the program does not say it.

The library takes rank, device, job and deadline from parameters, PEERHOP_* and the launcher. It has no store of its own: on
one node this makes one, a directory of the user's that all ranks name alike.
"""
import os
import re

# Launchers: how many ranks there are, and how many of them on this node.
_COUNTS = (('WORLD_SIZE', 'LOCAL_WORLD_SIZE'), ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
           ('PMI_SIZE', 'MPI_LOCALNRANKS'))


def _parent():
    # Where the launcher gives the job no name: ranks of one node have one parent, and it is told from others by its start.
    with open(f'/proc/{os.getppid()}/stat', encoding='ascii', errors='replace') as stat:
        return f'parent-{os.getppid()}-{stat.read().rpartition(")")[2].split()[19]}'


def _job(environment):
    """_job names the job alike for all its ranks; what killed runs of the same name have left does not matter."""
    run = environment.get('TORCHELASTIC_RUN_ID')
    if run and run != 'none':
        return run
    if run:  # torchrun without a name: its port is no other run's at the same time
        return 'torchrun-' + environment.get('MASTER_PORT', '')
    if environment.get('SLURM_STEP_ID'):
        return f'{environment.get("SLURM_JOB_ID")}.{environment["SLURM_STEP_ID"]}'
    return environment.get('PMIX_NAMESPACE') or _parent()


def _is_one_node(environment):
    if environment.get('SLURM_STEP_ID') and 'TORCHELASTIC_RUN_ID' not in environment:
        return environment.get('SLURM_STEP_NUM_NODES', environment.get('SLURM_NNODES')) == '1'
    return any(environment.get(ranks) is not None and environment.get(ranks) == environment.get(local)
               for ranks, local in _COUNTS)


def store_and_job(store, job, environment=None):
    """store_and_job returns both, as they are to be given to the library (None: it finds them), and the folder it made up."""
    environment = os.environ if environment is None else environment
    if store is not None or environment.get('PEERHOP_STORE') or not _is_one_node(environment):
        return store, job, None
    known = job or environment.get('PEERHOP_JOB') or _job(environment)
    name = re.sub(r'[^A-Za-z0-9.-]', '-', known)
    folder = f'/dev/shm/peerhop-{os.geteuid()}-{name}'
    return f'file:{folder}', job or environment.get('PEERHOP_JOB') or name[:100], folder


def deadline(timeout, settings, environment=None):
    """deadline returns the seconds a call waits that is given no timeout; None: what is set is no number, which the library
    says."""
    if timeout is not None:
        return timeout
    environment = os.environ if environment is None else environment
    text = dict(settings or {}).get('PEERHOP_DEADLINE_MS') or environment.get('PEERHOP_DEADLINE_MS') or '60000'
    return int(text) / 1000 if re.fullmatch('[0-9]+', str(text)) and int(text) > 0 else None
