#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What tools/tidy.py looks at: what is not known to be clean, or has changed since. clang-tidy is played by a script that
notes what it is asked, and complains of a file with the word BAD."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(os.environ['TIDY'])
PLAYED = """#!/bin/sh
[ "$1" = --version ] && echo "version $(cat "$NOTES/version")" && exit
for file; do :; done
basename "$file" >>"$NOTES/asked"
! grep -q BAD "$file" || { echo "$file: warning: BAD"; exit 1; }
"""


class Tidy(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ('tools', 'src', 'tests', 'build', 'bin', 'notes'):
            (self.folder / name).mkdir()
        shutil.copy(TIDY, self.folder / 'tools')
        (self.folder / '.clang-tidy').write_text('Checks: all')
        (self.folder / 'notes' / 'version').write_text('1')
        played = self.folder / 'bin' / 'clang-tidy'
        played.write_text(PLAYED)
        played.chmod(0o755)
        (self.folder / 'src' / 'h.h').write_text('int h;')
        (self.folder / 'src' / 'a.c').write_text('#include "h.h"\n')
        for name in ('src/b.c', 'tests/c.c', 'src/d.cpp'):
            (self.folder / name).write_text('int b;')
        self.compile()

    def compile(self, *more):
        names = ('src/a.c', 'src/b.c', 'tests/c.c', 'src/d.cpp')
        (self.folder / 'build' / 'compile_commands.json').write_text(json.dumps([
            {'directory': str(self.folder / 'build'), 'file': f'../{name}',
             'command': ' '.join(['cc', *more, '-MD', '-MF', 'x.d', '-o', 'x.o', '-c', f'../{name}'])} for name in names]))

    def run_tidy(self, *options):
        """Returns (status, files that were looked at, what was said)."""
        asked = self.folder / 'notes' / 'asked'
        asked.unlink(missing_ok=True)
        environment = {**os.environ, 'NOTES': str(self.folder / 'notes'),
                       'PATH': f'{self.folder / "bin"}:{os.environ["PATH"]}'}
        done = subprocess.run([sys.executable, self.folder / 'tools' / 'tidy.py', self.folder / 'build', *options],
                              env=environment, capture_output=True, text=True, check=False)
        return done.returncode, sorted(asked.read_text().split()) if asked.exists() else [], done.stdout

    def test_what_is_clean_is_not_looked_at_again(self):
        self.assertEqual(self.run_tidy()[:2], (0, ['a.c', 'b.c']))
        self.assertEqual(self.run_tidy()[:2], (0, []))

    def test_whatever_may_change_the_verdict_is_a_change(self):
        self.run_tidy()
        (self.folder / 'src' / 'h.h').write_text('int g;')
        self.assertEqual(self.run_tidy()[:2], (0, ['a.c']))
        for text in ('int g; // NOLINT', 'int g; // NOLINT\n#define G 1\n'):
            (self.folder / 'src' / 'h.h').write_text(text)
            self.assertEqual(self.run_tidy()[:2], (0, ['a.c']))
        self.compile('-DX')
        self.assertEqual(self.run_tidy()[:2], (0, ['a.c', 'b.c']))
        (self.folder / '.clang-tidy').write_text('Checks: none')
        self.assertEqual(self.run_tidy()[:2], (0, ['a.c', 'b.c']))
        (self.folder / 'notes' / 'version').write_text('2')
        self.assertEqual(self.run_tidy()[:2], (0, ['a.c', 'b.c']))

    def test_what_is_not_clean_is_looked_at_until_it_is(self):
        (self.folder / 'src' / 'b.c').write_text('int BAD;')
        for options in ((), (), ('--known',)):
            status, asked, said = self.run_tidy(*options)
            self.assertEqual((status, 'b.c' in asked), (1, True))
            self.assertIn('warning: BAD', said)
        (self.folder / 'src' / 'b.c').write_text('int b;')
        self.assertEqual(self.run_tidy('--known')[:2], (0, ['b.c']))

    def test_a_file_that_does_not_compile_is_looked_at(self):
        (self.folder / 'src' / 'b.c').write_text('#include "none.h"\n')
        self.run_tidy()
        self.assertEqual(self.run_tidy()[1], ['b.c'])

    def test_known_are_those_that_were_looked_at(self):
        self.assertEqual(self.run_tidy('--known')[:2], (0, []))
        self.run_tidy()
        (self.folder / 'src' / 'b.c').write_text('int c;')
        self.assertEqual(self.run_tidy('--known')[:2], (0, ['b.c']))

    def test_no_files_at_all_are_a_failure(self):
        (self.folder / 'build' / 'compile_commands.json').write_text('[]')
        self.assertEqual(self.run_tidy()[0], 1)


if __name__ == '__main__':
    unittest.main()
