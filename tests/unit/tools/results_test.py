#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""tools/results.py on logs that are known: what it counts, what it says, how it ends."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

GTEST = '''[ RUN      ] A.one
[       OK ] A.one (1 ms)
[ RUN      ] A.two
../a_test.cpp:7: Skipped
no GPU here

[  SKIPPED ] A.two (0 ms)
[ RUN      ] P/A.three/0
{}[==========] 3 tests from 1 test suite ran. (5 ms total)
'''
GOOD = GTEST.format('[       OK ] P/A.three/0 (3 ms)\n')
BAD = GTEST.format('a_test.cpp:9: Failure\nbytes differ\n' + 'and more\n' * 20 + '[  FAILED  ] P/A.three/0, where GetParam() = 4 (3 ms)\n')
CRASH = GTEST.format('')


class Results(unittest.TestCase):
    def run_on(self, *tests, words=()):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / 'build' / 'meson-logs' / 'testlog.json'
            log.parent.mkdir(parents=True)
            log.write_text(''.join(json.dumps({'name': f'peerhop:suite / t{i}', 'result': result, 'stdout': out}) + '\n'
                                   for i, (result, out) in enumerate(tests)))
            logs = [str(log)] if tests else []
            done = subprocess.run([sys.executable, os.environ['RESULTS'], *logs, *words], text=True,
                                  capture_output=True, check=False)
        self.assertEqual(done.stderr, '')
        return done.stdout, done.stdout.splitlines()[-1], done.returncode

    def test_counts_cases_and_plain_tests(self):
        out, last, status = self.run_on(('OK', GOOD), ('OK', 'a script\n'))
        self.assertEqual((last, status), ('3 passed, 0 failed, 1 skipped', 0))
        self.assertIn('no GPU here:\n    build: suite / t0\n', out)

    def test_a_failed_case(self):
        out, last, status = self.run_on(('FAIL', BAD))
        self.assertEqual((last, status), ('1 passed, 1 failed, 1 skipped', 1))
        self.assertIn('    build: suite / t0 P/A.three/0\n        a_test.cpp:9: Failure\n        bytes differ\n', out)
        self.assertEqual(out.count('and more'), 10)

    def test_skipped_cases_are_counted_by_program(self):
        twice = GOOD + GOOD.replace('A.two', 'B.two')
        out, last, _ = self.run_on(('OK', twice))
        self.assertEqual(last, '4 passed, 0 failed, 2 skipped')
        self.assertIn('no GPU here:\n    build: suite / t0, 2 cases\n', out)

    def test_a_step_that_was_skipped_says_why(self):
        out, last, status = self.run_on(('OK', GOOD), words=('fuzz=skip:no clang', 'build=pass'))
        self.assertEqual((last, status), ('3 passed, 0 failed, 2 skipped', 0))
        self.assertIn('no clang:\n    fuzz\n', out)

    def test_a_crash_is_a_failure_beside_cases_that_passed(self):
        for result in ('FAIL', 'ERROR', 'TIMEOUT', 'INTERRUPT'):
            out, last, status = self.run_on((result, CRASH + 'out of memory\n'))
            self.assertEqual((last, status), ('1 passed, 1 failed, 1 skipped', 1))
            self.assertIn(f'    build: suite / t0\n        {result.lower()}\n', out)
            self.assertIn('        out of memory\n', out)

    def test_a_leak_after_all_passed_is_a_failure(self):
        self.assertEqual(self.run_on(('FAIL', GOOD))[1:], ('2 passed, 1 failed, 1 skipped', 1))

    def test_a_plain_test_that_skips_says_why(self):
        out, last, status = self.run_on(('SKIP', 'needs two GPUs\n'), ('OK', ''))
        self.assertEqual((last, status), ('1 passed, 0 failed, 1 skipped', 0))
        self.assertIn('needs two GPUs:\n    build: suite / t0\n', out)

    def test_steps(self):
        self.assertEqual(self.run_on(words=['a=pass', 'b=pass'])[1:], ('2 passed, 0 failed, 0 skipped', 0))
        self.assertEqual(self.run_on(words=['a=pass', 'b=fail'])[1:], ('1 passed, 1 failed, 0 skipped', 1))

    def test_nothing_ran(self):
        self.assertEqual(self.run_on(words=['no/such/log.json'])[1:], ('0 passed, 1 failed, 0 skipped', 1))
        self.assertEqual(self.run_on(('SKIP', ''))[2], 1)


if __name__ == '__main__':
    unittest.main()
