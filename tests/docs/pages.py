#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What pages say of the code is there: codes of errors, what is shown of an example, names of files. pages.py SOURCE"""
import pathlib
import re
import sys

FILE = re.compile(r'`((?:src|tests|tools|examples|include|bench|python|docs)/(?:[\w./-]*(?:/|\.\w+))?)`')  # a name without an ending is a program's


def codes(source):
    """The codes that the headers name."""
    headers = {path.name: path.read_text() for path in (source / 'include' / 'peerhop').iterdir()}
    found = {f'-{name}' for text in headers.values() for name in re.findall(r'(?<![\w])-(E[A-Z0-9]+)\b', text)}
    found |= {f'PH_E{name}' for name in re.findall(r'X\((\w+), -\d+,', headers['error.h'])}
    found |= set(re.findall(r'^ +(PH_DEVICE_\w+) = -?\d+,', headers['device_types.h'], re.M))
    if not {'-EINVAL', 'PH_ENOPATH', 'PH_DEVICE_OK'} <= found:
        sys.exit(f'the headers have other codes than expected: {sorted(found)}')
    return found


def errors(source):
    rows = {name for line in (source / 'docs' / 'errors.md').read_text().splitlines() if line.startswith('| `')
            for name in re.findall(r'`([\w-]+)`', line.split('|')[1])}
    for name in sorted(codes(source) - rows):
        yield f'docs/errors.md has no row for {name}'
    for name in sorted(rows - codes(source)):
        yield f'docs/errors.md has {name}, which no header names'


def values(source):
    """Codes of error.h have the values that the page says."""
    page = (source / 'docs' / 'errors.md').read_text()
    for name, value in re.findall(r'X\((\w+), (-\d+),', (source / 'include' / 'peerhop' / 'error.h').read_text()):
        if f'| `PH_E{name}` | {value} |' not in page:
            yield f'docs/errors.md does not say that PH_E{name} is {value}'


def snippet(source):
    readme, example = (source / 'README.md').read_text(), (source / 'examples' / 'move.c').read_text()
    start = readme.index('```c\n') + len('```c\n')
    if readme[start:readme.index('```', start)].strip('\n') not in example:
        yield 'README.md shows something that examples/move.c has not, to the letter'


def files(source):
    for path in [source / 'README.md', *sorted((source / 'docs').glob('*.md'))]:
        for name in FILE.findall(path.read_text()):
            if not (source / name).exists():
                yield f'{path.name}: there is no {name}'


def main():
    source = pathlib.Path(sys.argv[1])
    wrong = [line for check in (errors, values, snippet, files) for line in check(source)]
    if wrong:
        sys.exit('\n'.join(wrong))


if __name__ == '__main__':
    main()
