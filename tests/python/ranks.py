# SPDX-License-Identifier: BSD-3-Clause
"""Rank programs of the tests: functions of a test's file that begin with rank_, each run in processes of its own."""
import os
import subprocess
import sys
import tempfile
import unittest

RUN = os.environ.get('PEERHOP_RUN', 'peerhop-run')
LIMIT_S = 60  # for a rank of a machine that does much else


def environment(**more):
    known = {name: value for name, value in os.environ.items() if not name.startswith('PEERHOP_')}
    return {**known, 'PEERHOP_DEVICE': 'host', 'PYTHONFAULTHANDLER': '1', **{key: str(value) for key, value in more.items()}}


class Ranks(unittest.TestCase):
    def run_ranks(self, program, ranks=2, **more):
        """run_ranks runs the function of this test's file in that many processes and returns what they print."""
        command = [RUN, '-n', str(ranks), sys.executable, sys.modules[type(self).__module__].__file__, '--rank', program]
        done = subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(0, done.returncode, f'{program}:\n{done.stdout}\n{done.stderr}')
        return done.stdout

    def folder(self):
        folder = tempfile.TemporaryDirectory(prefix='peerhop-test-')
        self.addCleanup(folder.cleanup)
        return folder.name

    def start_rank(self, program, rank, folder, ranks=2, **more):
        """start_rank starts one rank alone, of those that name the folder."""
        process = subprocess.Popen(
            [sys.executable, sys.modules[type(self).__module__].__file__, '--rank', program], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(PEERHOP_RANK=rank, PEERHOP_RANKS=ranks, PEERHOP_STORE=f'file:{folder}', PEERHOP_JOB='test', **more))
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def finish(self, process, status=0):
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(status, process.returncode, f'{out}\n{err}')
        return out, err


def main(names):
    """main runs the tests of a file, or, in a process that they have started, a rank program."""
    if sys.argv[1:2] == ['--rank']:
        names[sys.argv[2]]()
    else:
        unittest.main()
