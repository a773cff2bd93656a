#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Installs the build into an empty folder, and compiles and runs an example with what lies there and pkg-config says."""
import os
import pathlib
import subprocess
import sys
import tempfile

def run(*command, env=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f'{" ".join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}')
    return done.stdout


def install(build, root):
    run('meson', 'install', '-C', build, '--no-rebuild', '--quiet', '--destdir', root)


def only(root, name):
    found = list(root.rglob(name))
    if len(found) != 1:
        sys.exit(f'{name}: {len(found)} of them: {found}')
    return found[0]


def main():
    build, source, compiler = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, 'root')
        install(build, root)
        headers = {path.name for path in (source / 'include' / 'peerhop').glob('*.h*')} | {'device.cuh'}
        missing = headers - {path.name for path in only(root, 'peerhop.h').parent.iterdir()}
        if missing:
            sys.exit(f'not installed: {missing}')
        library = only(root, 'libpeerhop.so')
        for tool in ('peerhop-run', 'peerhop-info', 'peerhop-perf'):
            only(root, tool)
        package = only(root, 'peerhop.pc')
        found = {**os.environ, 'PKG_CONFIG_PATH': str(package.parent), 'PKG_CONFIG_SYSROOT_DIR': str(root),
                 'PKG_CONFIG_ALLOW_SYSTEM_CFLAGS': '1', 'PKG_CONFIG_ALLOW_SYSTEM_LIBS': '1'}
        flags = run('pkg-config', '--cflags', '--libs', 'peerhop', env=found).split()
        version = run('pkg-config', '--modversion', 'peerhop', env=found).strip()
        program = pathlib.Path(folder, 'move')
        run(*compiler, '-Wall', '-Werror', source / 'examples' / 'move.c', '-o', program, *flags)
        needed = run('readelf', '-d', program)
        if '[libpeerhop.so.0]' not in needed:
            sys.exit(f'the program needs another soname:\n{needed}')
        bare = {name: text for name, text in os.environ.items() if not name.startswith('PEERHOP_')}
        said = run(only(root, 'peerhop-run'), '-n', '2', program, env={**bare, 'LD_LIBRARY_PATH': str(library.parent)})
        if said != '1048576 numbers have come, on host\n':
            sys.exit(f'it said {said!r}')
        print(f'peerhop {version}: {" ".join(flags)}')


if __name__ == '__main__':
    main()
