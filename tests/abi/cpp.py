#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles cpp.cpp with all warnings by one compiler, and runs it as two ranks: cpp.py RUN LIBRARY SOURCE COMPILER..."""
import os
import pathlib
import sys
import tempfile

from install import run

FLAGS = ['-std=c++17', '-O1', '-pedantic', '-Wall', '-Wextra', '-Wshadow', '-Wconversion', '-Werror']


def main():
    tool, library, source, compiler = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, 'cpp')
        run(*compiler, *FLAGS, '-I', source / 'include', source / 'tests' / 'abi' / 'cpp.cpp', '-o', program, library)
        bare = {name: text for name, text in os.environ.items() if not name.startswith('PEERHOP_')}
        said = run(tool, '-n', 2, '--deadline', 60, program,
                   env={**bare, 'PEERHOP_LOG': 'none', 'LD_LIBRARY_PATH': str(library.parent)})
    if said != 'done\n' * 2:
        sys.exit(f'it said {said!r}')


if __name__ == '__main__':
    main()
