#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""tools/setup.sh with stand-ins for dpkg-query, apt-get, sudo and id: what it installs, and when it stops."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SETUP = os.environ['SETUP']
PACKAGES = pathlib.Path(SETUP).with_name('packages.txt')


def packages(command):
    lines = [line.split() for line in PACKAGES.read_text().splitlines() if not line.startswith('#')]
    return [line[0] for line in lines if command in line[1:]]


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bin = pathlib.Path(self.folder.name)
        self.calls = self.bin / 'calls'
        self.calls.write_text('')
        self.stand_in('id', 'echo 0')
        self.stand_in('apt-get', f'echo "apt-get $*" >>{self.calls}')
        self.installed(packages('check'))

    def tearDown(self):
        self.folder.cleanup()

    def stand_in(self, name, script):
        path = self.bin / name
        path.write_text(f'#!/bin/bash\n{script}\n')
        path.chmod(0o755)

    def installed(self, names):
        self.stand_in('dpkg-query', f'case " {" ".join(names)} " in *" ${{@: -1}} "*) printf installed;; '
                                    '*) echo "no packages found" >&2; exit 1;; esac')

    def run_setup(self, command):
        script = f'. {SETUP}; install_packages {command}; echo went on in $PWD'
        done = subprocess.run(['bash', '-eu', '-c', script], text=True, capture_output=True, check=False, cwd='/',
                              env={**os.environ, 'PATH': f'{self.bin}:{os.environ["PATH"]}'})
        return done.returncode, done.stdout, done.stderr, self.calls.read_text()

    def test_nothing_missing_asks_nobody(self):
        status, out, _, calls = self.run_setup('check')
        self.assertEqual((status, calls), (0, ''))
        self.assertEqual(out, f'went on in {PACKAGES.parent.parent}\n')

    def test_root_installs_only_what_is_missing(self):
        self.installed([name for name in packages('check') if name not in ('meson', 'cmake')])
        status, _, _, calls = self.run_setup('check')
        self.assertEqual(status, 0)
        self.assertEqual(calls, 'apt-get update -q\napt-get install -q -y --no-install-recommends meson cmake\n')

    def test_quickstart_needs_less(self):
        self.installed(packages('quickstart'))
        self.assertEqual(self.run_setup('quickstart')[3], '')
        self.assertIn('libgtest-dev', self.run_setup('check')[3])

    def test_a_package_that_was_removed_is_missing(self):
        self.stand_in('dpkg-query', 'printf config-files')
        self.assertIn('build-essential', self.run_setup('quickstart')[3])

    def test_sudo_that_asks_nothing_installs(self):
        self.installed([])
        self.stand_in('id', 'echo 1000')
        self.stand_in('sudo', f'[ "$1" = -n ] || exit 9; shift; echo "as root:" >>{self.calls}; exec "$@"')
        status, _, _, calls = self.run_setup('quickstart')
        self.assertEqual(status, 0)
        self.assertIn('as root:\napt-get install', calls)

    def test_without_rights_it_prints_the_command_and_stops(self):
        self.installed([name for name in packages('check') if name != 'cmake'])
        self.stand_in('id', 'echo 1000')
        self.stand_in('sudo', 'exit 1')
        status, out, err, calls = self.run_setup('check')
        self.assertEqual((status, calls), (1, ''))
        self.assertIn('sudo apt-get install cmake', err)
        self.assertNotIn('went on', out)

    def test_a_failed_installation_stops(self):
        self.installed([])
        self.stand_in('apt-get', 'exit 100')
        status, out, err, _ = self.run_setup('quickstart')
        self.assertEqual(status, 1)
        self.assertIn('apt-get install build-essential', err)
        self.assertNotIn('went on', out)


if __name__ == '__main__':
    unittest.main()
