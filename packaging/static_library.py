#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the static library: static_library.py OUTPUT MAP OBJCOPY AR COMPILER... -- LAYER...

All layers become one object, in which only the functions of the symbol map are left global: a program that is linked with
it may have functions of any other name itself, those of Peerhop's layers included.
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def functions(map_text):
    """The names of the map's global part."""
    body = re.sub(r'/\*.*?\*/', '', map_text, flags=re.S)
    return re.findall(r'(\w+);', re.search(r'global:(.*?)local:', body, re.S).group(1))


def main():
    output, map_file, objcopy, ar, *rest = sys.argv[1:]
    compiler, layers = rest[:rest.index('--')], rest[rest.index('--') + 1:]
    with tempfile.TemporaryDirectory() as folder:
        whole, names = pathlib.Path(folder, 'peerhop.o'), pathlib.Path(folder, 'names')
        names.write_text('\n'.join(functions(pathlib.Path(map_file).read_text())) + '\n')
        subprocess.run([*compiler, '-r', '-nostdlib', '-o', whole, '-Wl,--whole-archive', *layers], check=True)
        subprocess.run([objcopy, f'--keep-global-symbols={names}', whole], check=True)
        pathlib.Path(output).unlink(missing_ok=True) # ar adds to what is there
        subprocess.run([ar, 'rcsD', output, whole], check=True)


main()
