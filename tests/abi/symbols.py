#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails where the library, its symbol map and the public headers name different functions, or where it needs CUDA."""
import pathlib
import re
import subprocess
import sys

VERSION = 'PEERHOP_0.1'


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared(headers):
    """Functions that the headers declare with PH_API, over several lines or one."""
    names = set()
    for text in headers:
        code = re.sub(r'//[^\n]*', '', text)
        names |= set(re.findall(r'^PH_API\b[^;(]*?\b(\w+)\s*\(', code, re.M))
    return names


def prototypes(headers):
    """Functions that the headers declare at all: one without PH_API would be hidden and found missing by users."""
    names = set()
    for text in headers:
        code = re.sub(r'//[^\n]*|^\s*#.*(?:\\\n.*)*', '', text, flags=re.M)
        names |= set(re.findall(r'^[\w ]+[ *](ph_\w+)\s*\([^;{]*\)\s*;', code, re.M))
    return names


def mapped(text):
    """Names of the map's global part, and whether all others are local."""
    body = re.sub(r'/\*.*?\*/', '', text, flags=re.S)
    match = re.search(rf'{re.escape(VERSION)}\s*{{\s*global:(.*?)local:\s*\*;\s*}};', body, re.S)
    return set(re.findall(r'(\w+);', match.group(1))) if match else set()


def exported(nm):
    """(name, version) of each defined dynamic symbol; the version node itself is an absolute symbol."""
    symbols = set()
    for line in nm.splitlines():
        kind, name = line.split()[-2:]
        if kind not in 'UwvA':
            base, _, version = name.partition('@@')
            symbols.add((base, version))
    return symbols


def undefined(nm):
    return {line.split()[-1].split('@')[0] for line in nm.splitlines() if line.split()[-2] == 'U'}


def problems(headers, map_text, nm, dynamic):
    api, names, symbols = declared(headers), mapped(map_text), exported(nm)
    for name in sorted(prototypes(headers) - api):
        yield f'{name} is declared without PH_API'
    for name in sorted(api - names):
        yield f'{name} is in a header and not in the map'
    for name in sorted(names - api):
        yield f'{name} is in the map and in no header'
    for name in sorted(names - {name for name, _ in symbols}):
        yield f'{name} is in the map and not exported'
    for name, version in sorted(symbols):
        if name not in names or version != VERSION:
            yield f'{name}@{version} is exported and not in the map'
    for name in sorted(undefined(nm)):
        if re.match(r'cu[A-Z]|cuda[A-Z]', name):
            yield f'{name} must be found at run time, not linked'
    for library in re.findall(r'NEEDED.*\[(.*)\]', dynamic):
        if library.startswith(('libcuda', 'libcudart', 'libnvidia')):
            yield f'the library must not need {library}'


def self_test():
    header = 'PH_API int ph_a(int\n    b);\nPH_API const char *ph_b(void);\n// PH_API int ph_no(void);\n'
    symbol_map = f'{VERSION} {{\nglobal:\n ph_a;\n ph_b;\nlocal:\n *;\n}};'
    nm = f'0 T ph_a@@{VERSION}\n0 T ph_b@@{VERSION}\n0 A {VERSION}\n U malloc@GLIBC_2\n'
    cases = [
        (header, symbol_map, nm, '', 0),
        (header + 'PH_API int ph_c(void);\n', symbol_map, nm, '', 1),
        (header + 'int ph_c(void);\n', symbol_map, nm, '', 1),
        (header, symbol_map.replace(' ph_b;\n', ''), nm, '', 2),
        (header, symbol_map.replace('ph_b;', 'ph_b;\n ph_c;'), nm, '', 2),
        (header, symbol_map.replace('*;', 'ph_x;'), nm, '', 4),
        (header, symbol_map, nm + '0 T phi_secret\n', '', 1),
        (header, symbol_map, nm.replace(f'ph_b@@{VERSION}', 'ph_b'), '', 1),
        (header, symbol_map, nm.replace('0 T ph_b', ' U ph_b'), '', 1),
        (header, symbol_map, nm + ' U cuMemAlloc_v2\n', '', 1),
        (header, symbol_map, nm, ' 0x1 (NEEDED) Shared library: [libcuda.so.1]\n', 1),
        (header, symbol_map, nm, ' 0x1 (NEEDED) Shared library: [libc.so.6]\n', 0),
    ]
    failed = 0
    for number, (text, names, symbols, dynamic, expected) in enumerate(cases):
        found = list(problems([text], names, symbols, dynamic))
        if len(found) != expected:
            failed += 1
            print(f'case {number}: expected {expected}, found {found}')
    return failed


def main():
    if sys.argv[1] == '--self-test':
        return 1 if self_test() else 0
    library, root = sys.argv[1], pathlib.Path(sys.argv[2])
    headers = [path.read_text() for path in sorted((root / 'include' / 'peerhop').glob('*.h'))]
    map_text = (root / 'src' / 'api' / 'libpeerhop.map').read_text()
    found = list(problems(headers, map_text, run('nm', '-D', library), run('readelf', '-d', library)))
    print('\n'.join(found) if found else f'{len(mapped(map_text))} functions exported, as the map and headers say')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
