#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails on an #include that leaves the directions of docs/architecture.md ("Layers"), and where that page and this table differ.

include_directions.py ROOT [BUILD]: with a build folder it also fails on a circle of files of src, bench and tools. An arrow leads from
a file to each that it includes, and to each whose symbols its object needs; a .c and its .h are one file.
include_directions.py --self-test [COMPILER...]
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ALLOWED = {
    'api': ['service', 'exchange', 'meeting', 'notify', 'release', 'transfer', 'ending', 'lane', 'peer', 'transport', 'semaphore', 'memory',
            'cuda', 'base'],
    'service': ['exchange', 'meeting', 'notify', 'release', 'ending', 'peer', 'rules', 'transport', 'semaphore', 'memory', 'topology',
                'store', 'net', 'base'],
    'exchange': ['meeting', 'release', 'ending', 'lane', 'peer', 'rules', 'transport', 'semaphore', 'memory', 'topology',
                 'store', 'net', 'cuda', 'base'],
    'meeting': ['release', 'ending', 'lane', 'peer', 'rules', 'transport', 'semaphore', 'memory', 'topology', 'store', 'net',
                'base'],
    'notify': ['release', 'ending', 'lane', 'peer', 'semaphore', 'net', 'base'],
    'release': ['ending', 'lane', 'peer', 'rules', 'semaphore', 'memory', 'store', 'net', 'base'],
    'transfer': ['lane', 'peer', 'semaphore', 'net', 'base'],
    'ending': ['lane', 'peer', 'semaphore', 'topology', 'store', 'net', 'base'],
    'lane': ['peer', 'transport', 'semaphore', 'memory', 'topology', 'net', 'cuda', 'base'],
    'peer': ['rules', 'transport', 'semaphore', 'memory', 'topology', 'store', 'net', 'base'],
    'rules': ['transport'],
    'transport': ['memory', 'topology', 'net', 'cuda', 'base'],
    'semaphore': ['memory', 'net', 'cuda', 'base'],
    'memory': ['cuda', 'base'],
    'topology': ['cuda', 'base'],
    'store': ['base'],
    'net': ['base'],
    'cuda': ['base'],
    'base': [],
}
SUFFIXES = {'.c', '.h', '.cu', '.cuh', '.S', '.in'}
CIRCLED = ('src', 'bench', 'tools')
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)


def included(root, path):
    """The names that a file includes: those in quotes, and those in angle brackets that lie below src/."""
    for quoted, angled in INCLUDE.findall(path.read_text()):
        if quoted or (root / 'src' / angled).is_file():
            yield quoted or angled


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
        for name in included(root, path):
            target = name.split('/')[0]
            if '/' not in name or '..' in name:
                yield f'{where}: "{name}" must be written from src/ ("{layer}/{name}")'
            elif target != layer and target not in ALLOWED[layer]:
                yield f'{where}: {layer} may not include {name}'


def public_includes(root):
    """Yields a sentence for each include of a public header that reaches into src/."""
    for path in sorted(path for path in (root / 'include').rglob('*') if path.suffix in SUFFIXES):
        for name in included(root, path):
            yield f'{path.name}: a public header may not include "{name}"'


def table_differences(root):
    rows = re.findall(r'^ +(\w+) +-> +([\w ]+)$', (root / 'docs' / 'architecture.md').read_text(), re.M)
    documented = {layer: targets.split() for layer, targets in rows}
    for layer, targets in ALLOWED.items():
        if documented.get(layer, []) != targets:
            yield f'docs/architecture.md: row "{layer}" differs from the table of this script'


def file_of(root, path):
    """A .c and its .h are one file: both have the same name here."""
    return str(path.relative_to(root).with_suffix(''))


def add_arrow(arrows, start, end, label):
    """arrows: what leads from one file to another, by the pair of them."""
    labels = arrows.setdefault((start, end), [])
    if label not in labels:
        labels.append(label)


def add_includes(root, arrows):
    for path in sorted(path for folder in CIRCLED for path in (root / folder).rglob('*') if path.suffix in SUFFIXES):
        for name in included(root, path):
            for folder in (path.parent, root / 'src', *(root / folder for folder in CIRCLED)):
                if (folder / name).is_file():
                    add_arrow(arrows, file_of(root, path), file_of(root, folder / name), 'include')
                    break


def objects_of(root, build):
    """The C file of each object that the build has of these folders; the object may be missing."""
    found = {}
    commands = build / 'compile_commands.json'
    for command in json.loads(commands.read_text()) if commands.is_file() else []:
        path = (pathlib.Path(command['directory']) / command['file']).resolve()
        output = pathlib.Path(command['output'])
        is_source = path.suffix == '.c' and any(root / folder in path.parents for folder in CIRCLED)
        if is_source and output.parts[0] in CIRCLED:
            found[str(build / output)] = path
    return found


def symbols_of(objects):
    """What each object has, and what it needs of others: global symbols. Nothing of one that only a compiler can read."""
    has, needs = {name: set() for name in objects}, {name: set() for name in objects}
    if objects:
        # nm fails where it cannot read one of them, and reads the others.
        listing = subprocess.run(['nm', '-A', '-P', '-g', *objects], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in listing.stdout.splitlines():
            name, symbol = line.split(': ', 1)
            symbol, kind = symbol.split()[:2]
            (needs if kind in 'Uvw' else has)[name].add(symbol)
    for name in objects:
        if '__gnu_lto_slim' in has[name]: # a symbol of the compiler, and none of the file's
            has[name] = set()
    return has, needs


def add_symbols(root, build, arrows):
    """Adds who needs whom; yields a sentence where that is not known of all files: no circle would be seen there."""
    objects = objects_of(root, build)
    has, needs = symbols_of(objects)
    owners = {}
    for name, path in objects.items():
        for symbol in has[name]:
            owners.setdefault(symbol, set()).add(path)
    for name, path in objects.items():
        for symbol in sorted(needs[name] & owners.keys()):
            for owner in sorted(owners[symbol]):
                add_arrow(arrows, file_of(root, path), file_of(root, owner), symbol)
    known, built = {path for name, path in objects.items() if has[name]}, set(objects.values())
    stubs = {path.parent for path in built if path.stem.endswith('stub')} # what it stands for is not part of the build
    left_out = {path for path in (root / 'src').rglob('*.c')
                if path not in built and not path.stem.endswith('stub') and path.parent not in stubs}
    unknown = [str(path.relative_to(root)) for path in sorted(built - known | left_out)]
    if unknown or not known:
        yield (f'no symbols of {", ".join(unknown[:3]) or "any file"} ({len(unknown)} files) in the objects of {build}: circles'
               ' of calls are seen where everything is built, and neither as unity build nor with LTO')


def circles_of(arrows):
    """Each largest set of files of which every one reaches every other, sorted."""
    ways = {}
    for start, end in arrows:
        ways.setdefault(start, set()).add(end)

    def reached(start):
        found, left = set(), [start]
        while left:
            new = ways.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {file: reached(file) for file in ways}
    return sorted({tuple(sorted(other for other in reach[file] if file in reach.get(other, ()))) for file in reach} - {()})


def circles(root, build):
    """Yields a text for each circle of files: all arrows in it."""
    arrows = {}
    add_includes(root, arrows)
    yield from add_symbols(root, build, arrows)
    arrows = {(start, end): labels for (start, end), labels in arrows.items() if start != end}
    for (start, end), labels in sorted(arrows.items()):
        rooms = [file.split('/')[1] for file in (start, end) if file.startswith('src/')]
        if len(rooms) == 2 and rooms[0] != rooms[1] and rooms[1] not in ALLOWED.get(rooms[0], []) and labels != ['include']:
            yield f'{start}: {rooms[0]} may not need {", ".join(labels)} of {end}'
    for circle in circles_of(arrows):
        yield '\n'.join([f'a circle of {len(circle)} files; open it by moving what one of these arrows stands for:',
                         *(f'    {start} -> {end}: {", ".join(labels)}' for (start, end), labels in sorted(arrows.items())
                           if start in circle and end in circle)])


def problems(root, build=None):
    found = [*wrong_includes(root), *public_includes(root), *table_differences(root)]
    return found + list(circles(root, build)) if build else found


def build_tree(tree, files, compiler, unbuilt=(), removed=()):
    """Writes the files, and builds those of C as a build folder would have them. removed: of these there is no object."""
    commands = []
    (tree / 'build').mkdir(parents=True)
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for name in files:
        if name.endswith('.c') and name not in unbuilt:
            output = tree / 'build' / f'{name}.o'
            output.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([*compiler, '-I', tree / 'src', '-c', tree / name, '-o', output], check=True)
            commands.append({'directory': str(tree / 'build'), 'file': f'../{name}', 'output': f'{name}.o'})
    for name in removed:
        (tree / 'build' / f'{name}.o').unlink()
    (tree / 'build' / 'compile_commands.json').write_text(json.dumps(commands))


def circle_self_test(root, compiler):
    two = {'src/base/a.c': '#include "base/a.h"\n#include "base/b.h"\nvoid a(void) { b(); }\n', 'src/base/a.h': 'void a(void);\n',
           'src/base/b.c': '#include "base/b.h"\nvoid b(void) {}\n', 'src/base/b.h': 'void b(void);\n'}
    calls = {'src/base/a.c': 'void b(void);\nvoid a(void) { b(); }\n', 'src/base/b.c': 'void a(void);\nvoid b(void) { a(); }\n'}
    cases = [ # what, the files, words of each problem, more
        ('a .c and its .h', two, [], {}),
        ('includes, of two', {**two, 'src/base/b.h': '#include "base/a.h"\nvoid b(void);\n'},
         ['src/base/a -> src/base/b: include, b\n    src/base/b -> src/base/a: include'], {}),
        ('includes, of three', {**two, 'src/base/b.h': '#include "base/c.h"\nvoid b(void);\n', 'src/base/c.h': '#include "base/a.h"\n'},
         ['a circle of 3 files'], {}),
        ('includes, beside the file', {**two, 'tools/x.h': '#include "y.h"\n', 'tools/y.h': '#include "x.h"\n'}, ['tools/y -> tools/x'], {}),
        ('a kernel and its header', {**two, 'src/cuda/k.cu': '#include "cuda/k.cuh"\n', 'src/cuda/k.cuh': '\n'}, [], {}),
        ('calls alone', calls, ['src/base/a -> src/base/b: b\n    src/base/b -> src/base/a: a'], {}),
        ('a call, and an include back', {**two, 'src/base/b.c': 'void a(void);\nvoid b(void) { a(); }\n'},
         ['src/base/b -> src/base/a: a'], {}),
        ('two circles', {**calls, 'bench/x.h': '#include "y.h"\n', 'bench/y.h': '#include "x.h"\n'}, ['bench/x ->', 'src/base/a ->'], {}),
        ('a call to another room', {'src/base/a.c': 'void c(void);\nvoid a(void) { c(); }\n', 'src/store/c.c': 'void c(void) {}\n'},
         ['src/base/a: base may not need c of src/store/c'], {}),
        ('angle brackets', {**two, 'src/base/b.h': '#include <base/a.h>\nvoid b(void);\n'}, ['src/base/b -> src/base/a: include'], {}),
        ('an object of the bench is missing', {**two, 'bench/x.c': 'void x(void) {}\n'}, ['no symbols of bench/x.c'],
         {'removed': ['bench/x.c']}),
        ('a stub of something else', {**two, 'src/base/z_stub.c': 'void z(void) {}\n'}, ['no symbols of src/base/b.c'],
         {'removed': ['src/base/b.c']}),
        ('an object is missing', two, ['no symbols of src/base/b.c (1 files)'], {'unbuilt': ['src/base/b.c']}),
        ('all objects are missing', two, ['no symbols of src/base/a.c, src/base/b.c (2 files)'], {'unbuilt': [*two]}),
        ('an object without symbols', {**two, 'src/base/c.c': 'extern int c;\n'}, ['no symbols of src/base/c.c'], {}),
        ('a stub is built', {**two, 'src/base/b_stub.c': 'void b(void) {}\n'}, [], {'unbuilt': ['src/base/b.c']}),
        ('a stub is not built', {**two, 'src/base/b_stub.c': 'void b(void) {}\n'}, [], {'unbuilt': ['src/base/b_stub.c']}),
        ('LTO', calls, ['src/base/'], {'compiler': [*compiler, '-flto']}), # a circle, or that no symbols are seen
    ]
    failed = 0
    for number, (what, files, expected, more) in enumerate(cases):
        tree = root / f'circles{number}'
        build_tree(tree, files, **{'compiler': compiler, **more})
        found = list(circles(tree, tree / 'build'))
        if len(found) != len(expected) or not all(words in text for words, text in zip(expected, found)):
            failed += 1
            print(f'circles, {what}: expected {expected}, found {found}')
    return failed


def self_test(root):
    """The check must find what it is for: each bad file of a small tree, and nothing in the good one."""
    page = '\n'.join(f'    {layer} -> {" ".join(targets)}' for layer, targets in ALLOWED.items() if targets)
    cases = [
        ('src/store/a.c', '#include "base/clock.h"\n#include <peerhop/error.h>\n', 0),
        ('src/store/a.c', '#include "api/context.h"\n', 1),
        ('src/base/a.h', '  #  include "store/mailbox.h"\n', 1),
        ('src/transfer/a.c', '#include "exchange/request.h"\n#include "release/ask.h"\n#include "meeting/path.h"\n'
                             '#include "ending/end.h"\n#include "lane/flags.h"\n', 4),
        ('src/peer/a.c', '#include "lane/flags.h"\n#include "rules/agreement.h"\n', 1),
        ('src/rules/a.c', '#include "base/clock.h"\n', 1),
        ('src/base/a.c', '#include <base/a.c>\n#include <string.h>\n', 0),
        ('src/store/a.c', '#include <store/a.c>\n', 0),
        ('src/base/a.c', '#include "clock.h"\n#include "../store/mailbox.h"\n', 2),
        ('src/other/a.c', '', 1),
        ('src/cuda/a.cu', '#include "memory/memory.h"\n', 1),
        ('include/peerhop/a.h', '#include "base/clock.h"\n', 1),
        ('include/peerhop/a.cuh', '#include "cuda/hop.cuh"\n', 1),
        ('docs/architecture.md', page.replace('store ->', 'store -> cuda'), 1),
        ('docs/architecture.md', page.replace('transfer -> lane peer', 'transfer -> peer'), 1),
    ]
    failed = 0
    for number, (name, text, expected) in enumerate(cases):
        tree = root / str(number)
        for path, content in (('docs/architecture.md', page), (name, text)):
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
            root = pathlib.Path(folder).resolve()
            return 1 if self_test(root) + circle_self_test(root, sys.argv[2:] or ['cc']) else 0
    found = problems(*(pathlib.Path(folder).resolve() for folder in sys.argv[1:3]))
    everything = 'all includes go downward' + (', and no files go in a circle' if len(sys.argv) > 2 else '')
    print('\n'.join(found) if found else everything)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
