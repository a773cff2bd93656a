# SPDX-License-Identifier: BSD-3-Clause
"""What a user of the package meets first: its import, its demo, the programs of its README, its stubs; and what it costs."""
import ast
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import types
import unittest

import peerhop
from peerhop import _defaults, _streams
import ranks

SOURCE = pathlib.Path(os.environ.get('TEST_SOURCE', pathlib.Path(__file__).parents[2]))
IMPORT_MS = 30  # of a processor, beside what Python itself takes
DEMO_S = 5
CHANNELS = 10_000
KEPT_KIB = 768  # the memory that so many channels may have left
TIMES = float(os.environ.get('TEST_TIME_FACTOR', '1'))


def resident_kib():
    with open('/proc/self/status', encoding='ascii') as status:
        return int(re.search(r'VmRSS:\s+(\d+)', status.read()).group(1))


def rank_channels():
    with peerhop.Context() as context:
        peer = 1 - context.rank
        memory = context.alloc(4096)
        before = 0
        for i in range(CHANNELS):
            if i == CHANNELS // 10:  # tables have grown, and the cache is full
                before = resident_kib()
            with context.exchange(i, peer=peer, buffer=memory) as channel:
                channel.signal()
                channel.wait()
                context.synchronize()
            if i % 10 == 0:
                context.unbound(peer, op_id=CHANNELS + i % 7).close()
                memoryview(context.alloc(4096))[0] = 1
                context.queue()
        sys.stdout.write(f'kept {resident_kib() - before};\n')


class Cost(ranks.Ranks):
    def test_channels_leave_nothing(self):
        kept = [int(kib) for kib in re.findall(r'kept (-?\d+);', self.run_ranks('rank_channels', PEERHOP_CHANNELS=64))]
        self.assertEqual(2, len(kept))
        for kib in kept:
            self.assertLess(kib, KEPT_KIB)

    def test_import(self):
        def run(program):
            """The processor's time, which another process does not lengthen as it does the clock's."""
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, '-c', program], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        both = [(run('pass'), run('import peerhop')) for _ in range(5)]
        nothing, with_peerhop = (min(column) for column in zip(*both))
        self.assertLess((with_peerhop - nothing) * 1000, IMPORT_MS * TIMES)

    def test_import_takes_no_framework(self):
        program = 'import sys, peerhop; print({"numpy", "torch", "ctypes", "asyncio", "subprocess"} & set(sys.modules))'
        out = subprocess.run([sys.executable, '-c', program], check=True, capture_output=True, text=True).stdout
        self.assertEqual('set()', out.strip())


class FirstSteps(unittest.TestCase):
    def test_demo(self):
        begin = time.monotonic()
        done = subprocess.run([sys.executable, '-m', 'peerhop.demo'], env=ranks.environment(), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertRegex(done.stdout, r'8 bytes, one way: +[0-9.]+ us')
        self.assertRegex(done.stdout, r'64 MiB, one way: +[0-9.]+ ms')
        self.assertEqual('', done.stderr)
        self.assertLess(time.monotonic() - begin, DEMO_S * TIMES)

    def test_demo_that_fails_says_so(self):
        done = subprocess.run([sys.executable, '-m', 'peerhop.demo'], env=ranks.environment(PEERHOP_PATH='x'), capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertNotEqual(0, done.returncode)
        self.assertIn('PEERHOP_PATH', done.stderr)

    def test_programs_of_the_readme(self):
        text = (SOURCE / 'python' / 'README.md').read_text(encoding='utf-8')
        programs = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
        ran = 0
        for program in programs:
            if 'torch' in program or 'numpy' in program and not has('numpy'):
                ast.parse(program)
                continue
            ran += 1
            with tempfile.NamedTemporaryFile('w', suffix='.py') as file:
                file.write(program)
                file.flush()
                done = subprocess.run([ranks.RUN, '-n', '2', sys.executable, file.name], env=ranks.environment(),
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(0, done.returncode, f'{program}\n{done.stdout}\n{done.stderr}')
                for wanted in re.findall(r'print\(.*# prints: (.*)', program):
                    self.assertIn(wanted, done.stdout)
        self.assertGreaterEqual(ran, 2)

    def test_one_node_needs_no_store(self):
        """As torchrun starts ranks on one node, without a name for the run."""
        program = ('import peerhop\nwith peerhop.Context() as c:\n u = c.unbound(1 - c.rank)\n'
                   ' with c.group() as g:\n  u.send(b"x", group=g); u.recv(bytearray(1), group=g)\n c.synchronize()')
        port = str(os.getpid())
        folder = pathlib.Path(f'/dev/shm/peerhop-{os.geteuid()}-torchrun-{port}')
        processes = [subprocess.Popen([sys.executable, '-c', program], env={
            **ranks.environment(), 'RANK': str(rank), 'WORLD_SIZE': '2', 'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': '2',
            'TORCHELASTIC_RUN_ID': 'none', 'MASTER_PORT': port}) for rank in range(2)]
        self.assertEqual([0, 0], [process.wait(timeout=60) for process in processes])
        self.assertFalse(folder.exists())


def has(module):
    try:
        __import__(module)
        return True
    except ImportError:
        return False


class Defaults(unittest.TestCase):
    def test_store(self):
        uid = os.geteuid()
        torchrun = {'TORCHELASTIC_RUN_ID': 'a/b', 'WORLD_SIZE': '4', 'LOCAL_WORLD_SIZE': '4'}
        folder = f'/dev/shm/peerhop-{uid}-a-b'
        self.assertEqual((f'file:{folder}', 'a-b', folder), _defaults.store_and_job(None, None, torchrun))
        folder = f'/dev/shm/peerhop-{uid}-mine'
        self.assertEqual((f'file:{folder}', 'mine', folder), _defaults.store_and_job(None, 'mine', torchrun))
        for environment in ({**torchrun, 'LOCAL_WORLD_SIZE': '2'}, {**torchrun, 'PEERHOP_STORE': 'redis://x'}, {},
                            {'SLURM_STEP_ID': '0', 'SLURM_JOB_ID': '7', 'SLURM_STEP_NUM_NODES': '2'}):
            self.assertEqual((None, None, None), _defaults.store_and_job(None, None, environment))
        self.assertEqual(('redis://x', None, None), _defaults.store_and_job('redis://x', None, torchrun))
        slurm = {'SLURM_STEP_ID': '0', 'SLURM_JOB_ID': '7', 'SLURM_STEP_NUM_NODES': '1'}
        self.assertEqual('7.0', _defaults.store_and_job(None, None, slurm)[1])
        hydra = {'PMI_SIZE': '2', 'MPI_LOCALNRANKS': '2'}
        self.assertRegex(_defaults.store_and_job(None, None, hydra)[1], f'parent-{os.getppid()}-[0-9]+')

    def test_deadline(self):
        self.assertEqual(3, _defaults.deadline(3, None, {}))
        self.assertEqual(60, _defaults.deadline(None, None, {}))
        self.assertEqual(5, _defaults.deadline(None, None, {'PEERHOP_DEADLINE_MS': '5000'}))
        self.assertEqual(7, _defaults.deadline(None, {'PEERHOP_DEADLINE_MS': 7000}, {'PEERHOP_DEADLINE_MS': '5000'}))
        self.assertIsNone(_defaults.deadline(None, None, {'PEERHOP_DEADLINE_MS': 'soon'}))
        with tempfile.TemporaryDirectory() as folder:
            with peerhop.Context(0, 1, device='host', store=f'file:{folder}', job='x', settings={'PEERHOP_DEADLINE_MS': 7000}) as c:
                self.assertEqual(7, c.timeout)

    def test_streams(self):
        self.assertEqual(0, _streams.handle_of(0, None))
        self.assertEqual(5, _streams.handle_of(0, 5))
        self.assertEqual(6, _streams.handle_of(0, types.SimpleNamespace(cuda_stream=6)))
        self.assertEqual(7, _streams.handle_of(0, types.SimpleNamespace(ptr=7)))
        self.assertEqual(8, _streams.handle_of(0, types.SimpleNamespace(__cuda_stream__=lambda: (0, 8))))
        with self.assertRaises(TypeError):
            _streams.handle_of(0, 'main')


class Stubs(unittest.TestCase):
    """The stubs name what there is, and nothing else."""

    @staticmethod
    def members(node):
        names = set()
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                names.add(child.name)
            elif isinstance(child, ast.AnnAssign):
                names.add(child.target.id)
        return names

    def test_names(self):
        tree = ast.parse((pathlib.Path(peerhop.__file__).parent / '__init__.pyi').read_text(encoding='utf-8'))
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith('_')}
        self.assertEqual(set(peerhop.__all__), set(classes))
        for name, node in classes.items():
            there = {member for member in dir(getattr(peerhop, name)) if not member.startswith('_')} - set(dir(tuple)) - set(dir(OSError))
            there -= {'n_fields', 'n_sequence_fields', 'n_unnamed_fields'}
            said = {member for member in self.members(node) if not member.startswith('_')}
            if issubclass(getattr(peerhop, name), Exception):
                said -= {'code', 'name'}  # of instances
            self.assertEqual(there, said, name)


if __name__ == '__main__':
    ranks.main(globals())
