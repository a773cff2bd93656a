#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Installs the build, moves it elsewhere, and builds and runs examples/cmake with what lies there: cmake_project.py BUILD
SOURCE PREFIX. Also with the static library, and what must not be found is not."""
import os
import pathlib
import sys
import tempfile

from install import install, only, run

STATIC = '''
cmake_minimum_required(VERSION 3.16)
project(static LANGUAGES C)
foreach(version 0.0.1 0.1 0.0...0.9)
    find_package(Peerhop ${{version}} REQUIRED)
endforeach()
find_package(Peerhop COMPONENTS static REQUIRED)
foreach(wrong 0.99 1.0 0.0...<0.1 1.0...2.0)
    find_package(Peerhop ${{wrong}} QUIET)
    if(Peerhop_FOUND)
        message(FATAL_ERROR "${{wrong}} was found")
    endif()
endforeach()
find_package(Peerhop COMPONENTS nonsense QUIET)
if(Peerhop_FOUND)
    message(FATAL_ERROR "nonsense was found")
endif()
add_executable(ring_static {source}/ring.c)
target_link_libraries(ring_static PRIVATE Peerhop::peerhop_static)
'''


def build(source, prefix):
    folder = source.with_name(source.name + '-build')
    run('cmake', '-S', source, '-B', folder, f'-DCMAKE_PREFIX_PATH={prefix}')
    run('cmake', '--build', folder)
    return folder


# Programs find the library by themselves.
BARE = {name: text for name, text in os.environ.items() if not name.startswith(('PEERHOP_', 'LD_LIBRARY_PATH'))}


def ring(tool, program):
    """Runs the program as three ranks, which each have the number of the one before."""
    said = run(tool, '-n', 3, '--deadline', 60, program, env=BARE)
    if sorted(said.splitlines()) != [f'rank {rank} has the number of rank {(rank + 2) % 3}' for rank in range(3)]:
        sys.exit(f'{program.name} said {said!r}')


def main():
    built, source, prefix, with_static = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4] == 'true'
    with tempfile.TemporaryDirectory() as folder:
        root, moved = pathlib.Path(folder, 'root'), pathlib.Path(folder, 'moved to here')
        install(built, root)
        pathlib.Path(str(root) + prefix).rename(moved)
        tool = only(moved, 'peerhop-run')
        project = pathlib.Path(folder, 'project')
        project.symlink_to(source / 'examples' / 'cmake')
        programs = build(project, moved)
        for name in ('ring_c', 'ring_cpp'):
            ring(tool, programs / name)
        if str(only(moved, 'libpeerhop.so.0').parent) not in run('ldd', programs / 'ring_c', env=BARE):
            sys.exit('ring_c takes the library from elsewhere')
        if with_static:
            project = pathlib.Path(folder, 'static')
            project.mkdir()
            (project / 'CMakeLists.txt').write_text(STATIC.format(source=source / 'examples' / 'cmake'))
            program = build(project, moved) / 'ring_static'
            ring(tool, program)
            if 'libpeerhop' in run('readelf', '-d', program):
                sys.exit('ring_static needs the shared library')
    print('built and run: ring_c, ring_cpp' + (', ring_static' if with_static else ''))


if __name__ == '__main__':
    main()
