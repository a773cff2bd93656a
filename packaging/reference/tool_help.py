# SPDX-License-Identifier: BSD-3-Clause
"""Reads what a tool prints for --help."""
import dataclasses
import re
import subprocess


@dataclasses.dataclass
class Help:
    name: str
    synopsis: list # lines behind the name
    sections: list # (title, [(option, text)], paragraphs): the first has what is said of the tool


def read(tool, name):
    text = subprocess.run([tool, '--help'], check=True, capture_output=True, text=True).stdout
    usage, _, rest = text.partition('\n')
    match = re.fullmatch(rf'usage: {re.escape(name)}\s+(.*)', usage)
    if not match:
        raise ValueError(f'{name} --help begins otherwise than with its usage: {usage!r}')
    found = Help(name, [match.group(1)], [('', [], [])])
    for part in re.split(r'\n\s*\n', rest.strip('\n')):
        add(found, part.split('\n'))
    return found


def add(found, lines):
    """A part of the text, between empty lines: options, of which others are the heading's, or a paragraph."""
    options = next((at for at, line in enumerate(lines) if re.match(r'\s+-', line)), len(lines))
    words = ' '.join(line.strip() for line in lines[:options])
    title = re.fullmatch(r'Of (--?\w[\w-]*):', words)
    if title:
        found.sections.append((f'Options of {title.group(1)}', [], []))
    elif words:
        if found.sections[-1][1]: # behind options
            found.sections.append(('', [], []))
        found.sections[-1][2].append(words)
    for line in lines[options:]:
        match = re.match(r' {1,6}(-.*?)(?:  +(.*)| ?$)', line) or re.match(r' {1,6}(-\S+(?: \S+)?) (.*)', line)
        if match:
            found.sections[-1][1].append([match.group(1), match.group(2) or ''])
        else:
            found.sections[-1][1][-1][1] += ' ' + line.strip()
