#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails on an #include that leaves the directions of docs/design.md, and where that page and this table differ."""
import pathlib
import re
import sys
import tempfile

ALLOWED = {
    'api': ['channel', 'semaphore', 'memory', 'topology', 'store', 'cuda', 'base'],
    'channel': ['transport', 'semaphore', 'memory', 'topology', 'store', 'net', 'base'],
    'transport': ['semaphore', 'memory', 'topology', 'net', 'cuda', 'base'],
    'semaphore': ['memory', 'net', 'cuda', 'base'],
    'memory': ['cuda', 'base'],
    'topology': ['cuda', 'base'],
    'store': ['base'],
    'net': ['base'],
    'cuda': ['base'],
    'base': [],
}
SUFFIXES = {'.c', '.h', '.cu', '.cuh', '.S', '.in'}
QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def wrong_includes(root):
    """Yields a sentence for each include of src/ that is not allowed."""
    for path in sorted((root / 'src').rglob('*')):
        where = path.relative_to(root / 'src')
        if path.suffix not in SUFFIXES or len(where.parts) < 2:
            continue
        layer = where.parts[0]
        if layer not in ALLOWED:
            yield f'{where}: {layer} is no layer of the table'
            continue
        for name in QUOTED.findall(path.read_text()):
            target = name.split('/')[0]
            if '/' not in name or '..' in name:
                yield f'{where}: "{name}" must be written from src/ ("{layer}/{name}")'
            elif target != layer and target not in ALLOWED[layer]:
                yield f'{where}: {layer} may not include {name}'


def public_includes(root):
    """Yields a sentence for each include of a public header that reaches into src/."""
    for path in sorted(path for path in (root / 'include').rglob('*') if path.suffix in SUFFIXES):
        for name in QUOTED.findall(path.read_text()):
            yield f'{path.name}: a public header may not include "{name}"'


def table_differences(root):
    rows = re.findall(r'^ +(\w+) +-> +([\w ]+)$', (root / 'docs' / 'design.md').read_text(), re.M)
    documented = {layer: targets.split() for layer, targets in rows}
    for layer, targets in ALLOWED.items():
        if documented.get(layer, []) != targets:
            yield f'docs/design.md: row "{layer}" differs from the table of this script'


def problems(root):
    return [*wrong_includes(root), *public_includes(root), *table_differences(root)]


def self_test(root):
    """The check must find what it is for: each bad file of a small tree, and nothing in the good one."""
    page = '\n'.join(f'    {layer} -> {" ".join(targets)}' for layer, targets in ALLOWED.items() if targets)
    cases = [
        ('src/store/a.c', '#include "base/clock.h"\n#include <peerhop/error.h>\n', 0),
        ('src/store/a.c', '#include "api/context.h"\n', 1),
        ('src/base/a.h', '  #  include "store/mailbox.h"\n', 1),
        ('src/channel/a.c', '#include "cuda/device.h"\n#include "transport/path.h"\n', 1),
        ('src/base/a.c', '#include "clock.h"\n#include "../store/mailbox.h"\n', 2),
        ('src/other/a.c', '', 1),
        ('src/cuda/a.cu', '#include "memory/memory.h"\n', 1),
        ('include/peerhop/a.h', '#include "base/clock.h"\n', 1),
        ('include/peerhop/a.cuh', '#include "cuda/hop.cuh"\n', 1),
        ('docs/design.md', page.replace('store ->', 'store -> cuda'), 1),
    ]
    failed = 0
    for number, (name, text, expected) in enumerate(cases):
        tree = root / str(number)
        for path, content in (('docs/design.md', page), (name, text)):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(content)
        found = problems(tree)
        if len(found) != expected:
            failed += 1
            print(f'case {number} ({name}): expected {expected}, found {found}')
    return failed


def main():
    if sys.argv[1] == '--self-test':
        with tempfile.TemporaryDirectory() as folder:
            return 1 if self_test(pathlib.Path(folder)) else 0
    found = problems(pathlib.Path(sys.argv[1]))
    print('\n'.join(found) if found else 'all includes go downward')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
