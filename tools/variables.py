#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/variables.md, from what peerhop-info says: variables.py PEERHOP_INFO [--check]

With --check it writes nothing, and fails where the page is another.
"""
import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / 'docs' / 'variables.md'
HEAD = '''# Variables

This page is written by `tools/variables.py`, from what `peerhop-info --config` prints; that also shows the values that
are in force.

A context takes a parameter of `struct ph_context_params` first, then its `settings` ("PEERHOP_NAME=value"), then the
environment, then the default. A value outside of its range fails `ph_context_create` with -EINVAL, and the sentence says the
range. A `PEERHOP_*` variable that there is not is a warning, with the name that was most likely meant.

'''
TABLE = '''| variable | default | range | meaning |
|---|---|---|---|
'''
ENTRY = re.compile(r'PEERHOP_(?P<name>\w+)=.*\n    default (?P<default>.*?)'
                   r'(?:, one of (?P<words>.*)|, (?P<low>-?\d+) to (?P<high>-?\d+))?\n    (?P<help>.*)\n')


def cell(text):
    return text.replace('|', '\\|').replace('<', '&lt;')


def row(entry):
    if entry['words']:
        span = ', '.join(f'`{word}`' for word in entry['words'].split('|'))
    elif entry['low']:
        span = f'{entry["low"]} to {entry["high"]}'
    else:
        span = 'text'
    default = '' if entry['default'] == '(empty)' else f'`{entry["default"]}`'
    return f'| `PEERHOP_{entry["name"]}` | {default} | {span} | {cell(entry["help"])} |\n'


def table(program, said):
    entries = list(ENTRY.finditer(said))
    if not entries or ''.join(entry.group() for entry in entries) != said:
        sys.exit(f'{program} --config says something that this does not understand')
    return TABLE + ''.join(row(entry) for entry in entries)


def page(program):
    # Nothing of this environment: a password in it is hidden, but a value may be out of range.
    bare = {name: text for name, text in os.environ.items() if not name.startswith('PEERHOP_')}
    said = subprocess.run([program, '--config'], capture_output=True, text=True, check=True, env=bare).stdout
    parts = re.fullmatch(r'(.*\n)\nMeasuring aids: (.*)\n\n(.*)', said, re.S)
    if not parts:
        sys.exit(f'{program} --config does not say which variables are measuring aids')
    return f'{HEAD}{table(program, parts[1])}\n## Measuring aids\n\n{parts[2].capitalize()}\n\n{table(program, parts[3])}'


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ['--check']):
        sys.exit(__doc__)
    text = page(sys.argv[1])
    if len(sys.argv) == 2:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f'{PAGE} is not what peerhop-info --config says: tools/variables.py {sys.argv[1]} writes it')


if __name__ == '__main__':
    main()
