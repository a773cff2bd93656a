# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of torch.distributed for the tests: forked from the test, which has imported torch once for all of them."""
import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest

LIMIT_S = 120  # for a rank of a machine that does much else


def interpreter():
    """interpreter ends the test where no torch is to be had: neither here nor at TEST_TORCH_PYTHON."""
    try:
        import torch  # pylint: disable=import-outside-toplevel, unused-import
    except ImportError:
        other = os.environ.get('TEST_TORCH_PYTHON')
        if not other or os.path.abspath(other) == os.path.abspath(sys.executable):
            print('no torch: TEST_TORCH_PYTHON names a Python that has it')
            sys.exit(77)
        os.execv(other, [other] + sys.argv)


def _enter(program, rank, ranks, folder, errors):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), TEST_FOLDER=folder)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S - 10, exit=True)
    try:
        program(rank)
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class Ranks(unittest.TestCase):
    def run_ranks(self, program, ranks=2, ended=None):
        """run_ranks calls program(rank) in that many processes. ended: exit status by rank, of those that are not to end by 0.
        Returns what they wrote to standard error."""
        fork = multiprocessing.get_context('fork')
        with tempfile.TemporaryDirectory(prefix='peerhop-test-') as folder:
            files = [f'{folder}/errors-{rank}' for rank in range(ranks)]
            processes = [fork.Process(target=_enter, args=(program, rank, ranks, folder, files[rank])) for rank in range(ranks)]
            for process in processes:
                process.start()
            end = time.monotonic() + LIMIT_S
            for process in processes:
                process.join(max(0.0, end - time.monotonic()))
            for process in processes:
                if process.exitcode is None:
                    process.kill()
                    process.join()
            said = ''
            for rank, name in enumerate(files):
                with open(name, encoding='utf-8', errors='replace') as file:
                    said += ''.join(f'{rank}: {line}' for line in file)
        wanted = [(ended or {}).get(rank, 0) for rank in range(ranks)]
        self.assertEqual(wanted, [process.exitcode for process in processes], said)
        return said
