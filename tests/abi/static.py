#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether the static library has the functions of the symbol map, and no other name: static.py ARCHIVE LIBRARY BUILD SOURCE
COMPILER... A program that has functions of the names of its internal ones is linked as pkg-config says, and runs."""
import os
import pathlib
import re
import sys
import tempfile

from install import install, only, run
from symbols import mapped

PROGRAM = '''
#include <stdio.h>
#include <peerhop/peerhop.h>
{own}
int main(void)
{{
    struct ph_context *context;
    int rc = ph_context_create(&(struct ph_context_params){{.ranks = 1, .device = "host"}}, &context);
    printf("%s %s %d\\n", ph_version(), ph_strerror(rc), {calls}); /* there is no store */
    return 0;
}}
'''


def symbols(archive, kinds):
    return {line.split()[-1] for line in run('nm', archive).splitlines()
            if len(line.split()) >= 2 and line.split()[-2] in kinds}


def loaded(file):
    """Bytes of code and data, of which debug information is no part."""
    return sum(map(int, run('size', file).splitlines()[1].split()[:2]))


def link(root, source, compiler, own):
    """Builds a program with functions of these names, statically, and returns what it says and needs."""
    found = {**os.environ, 'PKG_CONFIG_PATH': str(only(root, 'peerhop.pc').parent), 'PKG_CONFIG_SYSROOT_DIR': str(root),
             'PKG_CONFIG_ALLOW_SYSTEM_CFLAGS': '1', 'PKG_CONFIG_ALLOW_SYSTEM_LIBS': '1'}
    flags = run('pkg-config', '--static', '--cflags', '--libs', 'peerhop', env=found).split()
    # Of the two libraries of this name the linker would take the shared one.
    flags = ['-l:libpeerhop.a' if flag == '-lpeerhop' else flag for flag in flags]
    source.write_text(PROGRAM.format(own='\n'.join(f'int {name}(void);\nint {name}(void) {{ return 1; }}' for name in own),
                                     calls=' + '.join(f'{name}()' for name in own)))
    program = source.with_suffix('')
    run(*compiler, '-Wall', '-Werror', source, '-o', program, *flags)
    bare = {name: text for name, text in os.environ.items() if not name.startswith('PEERHOP_')}
    return run(program, env=bare), run('readelf', '-d', program)


def main():
    archive, library, built, root = sys.argv[1:5]
    names = mapped(pathlib.Path(root, 'src', 'api', 'libpeerhop.map').read_text())
    leaked, missing = symbols(archive, 'ABCDGRSTVWuvw') - names, names - symbols(archive, 'T')
    if leaked or missing:
        sys.exit(f'leaked: {sorted(leaked)}, missing: {sorted(missing)}')
    unknown = {name for name in symbols(archive, 'U') if re.match(r'phi?_|PHI?_|cu[A-Z]|cuda[A-Z]', name)}
    if unknown:
        sys.exit(f'defined nowhere, or to be found at run time: {sorted(unknown)}')
    if loaded(archive) > 1.05 * loaded(library):
        sys.exit(f'{loaded(archive)} bytes of code and data, and the shared library has {loaded(library)}')
    own = sorted(name for name in symbols(archive, 't') if re.fullmatch(r'\w+', name))
    if len(own) < 100:
        sys.exit(f'only {len(own)} internal functions are seen')
    with tempfile.TemporaryDirectory() as folder:
        install(built, pathlib.Path(folder, 'root'))
        said, needed = link(pathlib.Path(folder, 'root'), pathlib.Path(folder, 'own.c'), sys.argv[5:], own)
    if not said.endswith(f' Invalid argument {len(own)}\n') or 'libpeerhop' in needed:
        sys.exit(f'it said {said!r}, and needs:\n{needed}')
    print(f'{len(names)} functions, {loaded(archive)} bytes; a program has {len(own)} functions of the names inside')


if __name__ == '__main__':
    main()
