#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Holds the documentation against the tree. Fails where

- a link of a page leads to no file, or to no heading of it; or no page leads to a page of docs/;
- code, a test or a page names a page under docs/ that is not there, or a "section" of it that is not there;
- a page names a function of src (`room/file.c: function`) that this file does not have;
- tests/README.md says to run a test that there is not;
- what a newcomer reads first (README.md and docs/architecture.md) is longer, or has longer sentences, than it may.

pages.py ROOT
pages.py --self-test
"""
import pathlib
import re
import statistics
import sys
import tempfile

FIRST = ('README.md', 'docs/architecture.md')
MOST_WORDS = 6000
MOST_MEDIAN = 15
LONGEST = 40

FENCE = re.compile(r'^```.*?^```$', re.M | re.S)
INDENTED = re.compile(r'(?:(?<=\n\n)|\A)(?: {4}[^\n]*(?:\n|\Z)|\n(?= {4}))+')
HEADING = re.compile(r'^#+ +(.*?)$', re.M)
LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)')
# docs/x.md, and the title of a section in quotes behind it, which may be broken over lines of a comment.
MENTION = re.compile(r'(?<![(/])\b(docs/[\w./-]+\.md)(?:,\s+(?://|#|\*)?\s*"([^"]{1,90})")?')
FUNCTION = re.compile(r'`(\w+/\w+\.(?:c|h|cu|cuh)):\s+(\w+)`')
SUFFIXES = {'.c', '.h', '.cpp', '.cu', '.cuh', '.py', '.sh', '.md', '.build', '.in', ''}
FOLDERS = ('src', 'include', 'bench', 'tests', 'tools', 'examples', 'python', 'docs')


def without_code(text):
    """A page without blocks of code."""
    return INDENTED.sub('\n', FENCE.sub('', text))


def anchors(text):
    """The names that headings have in links: as GitHub makes them."""
    found = {}
    for heading in HEADING.findall(without_code(text)):
        name = re.sub(r'[^\w\- ]', '', LINK.sub('', heading).lower()).strip().replace(' ', '-')
        found[name] = found.get(name, -1) + 1
        yield f'{name}-{found[name]}' if found[name] else name


def titles(text):
    """What a section may be called: its heading, and words in bold that begin a paragraph."""
    yield from HEADING.findall(text)
    yield from (re.sub(r'\s+', ' ', title).rstrip('.') for title in re.findall(r'^(?:- )?\*\*?([^*]+)\*\*?', text, re.M))


def pages(root):
    yield from sorted([*root.glob('*.md'), *(root / 'docs').rglob('*.md'), *(root / 'python').glob('*.md'),
                       *(root / 'tests').glob('*.md')])


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob('*')):
            if path.suffix in SUFFIXES and path.is_file() and path.name != 'pages.py':
                yield path
    yield from root.glob('*.md')


def wrong_links(root):
    for page in pages(root):
        for link in LINK.findall(without_code(page.read_text())):
            if re.match(r'\w+:', link):
                continue
            name, _, anchor = link.partition('#')
            target = page.parent / name if name else page
            if not target.exists():
                yield f'{page.relative_to(root)}: ({link}) leads to no file'
            elif anchor and anchor not in anchors(target.read_text()):
                yield f'{page.relative_to(root)}: ({link}) leads to no heading'


def lost_pages(root):
    """A page that no other one leads to is one that nobody finds."""
    found = set()
    for page in pages(root):
        for link in LINK.findall(without_code(page.read_text())):
            target = (page.parent / link.partition('#')[0]).resolve()
            if target != page:
                found.add(target)
    for page in (root / 'docs').rglob('*.md'):
        if page not in found:
            yield f'{page.relative_to(root)}: no page leads to it'


def wrong_mentions(root):
    for path in sources(root):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for name, section in MENTION.findall(text):
            if not (root / name).is_file():
                yield f'{path.relative_to(root)}: {name} is not there'
            elif section:
                section = re.sub(r'\s+(?://|#|\*)?\s*', ' ', section)
                if section not in titles((root / name).read_text()):
                    yield f'{path.relative_to(root)}: {name} has no section "{section}"'


def wrong_functions(root):
    for page in pages(root):
        for name, function in FUNCTION.findall(page.read_text()):
            path = root / 'src' / name
            if not path.is_file():
                yield f'{page.relative_to(root)}: src/{name} is not there'
            elif not re.search(rf'\b{function}\b', path.read_text()):
                yield f'{page.relative_to(root)}: src/{name} has no {function}'


def wrong_tests(root):
    """Of tests/README.md the table that says what to run: its tests, suites and fuzz targets stand in a meson.build."""
    page = root / 'tests' / 'README.md'
    rows = re.findall(r'^\| [^|]+\|([^|]*\|[^|]*)\|$', page.read_text().partition('| you changed |')[2].partition('\n\n')[0], re.M)
    named = {re.sub(r'--suite | on the stand-in|\W*$', '', name) for row in rows for name in re.findall('`([^`=*]+)`', row)}
    there = ' '.join(path.read_text() for path in (root / 'tests').rglob('meson.build'))
    for name in sorted(named):
        if f"'{name}'" not in there and f"'{name} " not in there: # the second is the beginning of a longer name
            yield f'tests/README.md: no meson.build of tests has {name}'


def plain(text):
    """Words as they are read: a piece of code is one, a link is its text."""
    text = re.sub(r'`[^`]+`', 'Code', text)
    text = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', text)
    return re.sub(r'[*|]', ' ', text)


def sentences(text):
    """(sentence, whether it stands in a table) for each sentence of a page."""
    for paragraph in re.split(r'\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |#|\|)', without_code(text)):
        if re.match(r'\s*#|\s*\|[-|]+\s*$', paragraph) or not paragraph.strip():
            continue
        in_table = paragraph.lstrip().startswith('|')
        for part in paragraph.split('|') if in_table else [re.sub(r'^\s*(?:[-*]|\d+\.) +', '', paragraph)]:
            for sentence in re.split(r'(?<=[.!?])[*)"]*\s+(?=[^a-z])', plain(part)):
                if re.search(r'\w', sentence):
                    yield ' '.join(sentence.split()), in_table


def too_long(root, first=FIRST):
    words, lengths = 0, []
    for name in first:
        text = (root / name).read_text()
        words += len(text.split())
        for sentence, in_table in sentences(text):
            length = len(re.findall(r"[\w'.-]*\w[\w'.-]*", sentence))
            if length > LONGEST:
                yield f'{name}: a sentence of {length} words, {LONGEST} are allowed: {sentence[:100]}...'
            if not in_table:
                lengths.append(length)
    if words >= MOST_WORDS:
        yield f'{" and ".join(first)}: {words} words, fewer than {MOST_WORDS} are allowed'
    if statistics.median(lengths or [0]) > MOST_MEDIAN:
        yield f'{" and ".join(first)}: the median of their sentences is {statistics.median(lengths)} words, {MOST_MEDIAN} are allowed'


def problems(root):
    return [*wrong_links(root), *lost_pages(root), *wrong_mentions(root), *wrong_functions(root), *wrong_tests(root), *too_long(root)]


def self_test(root):
    """The check must find what it is for, and nothing in the good tree."""
    good = {
        'README.md': '# A\n\n## To "do" it\n\nShort words. [b](docs/architecture.md#the-walk-1) [c](#to-do-it)\n\n    [x](not-there)\n',
        'docs/architecture.md': '# B\n\n## The walk\n\n## The walk\n\n**A rule.** Of `room/a.c: phi_a`.\n',
        'tests/README.md': '| you changed | run first | then |\n|---|---|---|\n| src | `base`, `a on the stand-in` | `--suite e2e` |\n\n| `x` |\n',
        'tests/meson.build': "test('base', suite: 'e2e')\ntest('a' + ' on the stand-in')\n",
        'NEWS.md': '[b](docs/architecture.md)\n',
        'src/room/a.c': '// docs/architecture.md, "A\n// rule"\nint phi_a(void);\n',
    }
    cases = [
        ('good', {}, 0),
        ('no file', {'README.md': '[b](docs/c.md)'}, 1),
        ('no heading', {'README.md': '[b](docs/architecture.md#the-walks)'}, 1),
        ('no heading here', {'README.md': '# A\n\n[b](#b)'}, 1),
        ('no heading, but code', {'README.md': '[b](#b)\n\n    # b\n'}, 1),
        ('a page that none leads to', {'docs/c.md': '# C\n\n[c](c.md)'}, 1),
        ('no page', {'src/room/a.c': '// docs/design.md\nphi_a'}, 1),
        ('no section', {'src/room/a.c': '// docs/architecture.md, "Another rule"\nphi_a'}, 1),
        ('no function', {'src/room/a.c': 'int phi_ab(void);\n'}, 1),
        ('no source', {'README.md': '`room/b.c: phi_a`'}, 1),
        ('no test, and no suite', {'tests/meson.build': "test('basic', suite: 'a')\n"}, 2),
        ('no test', {'tests/meson.build': "test('other', suite: 'e2e', 'a')\n"}, 1),
        ('many words', {'README.md': 'Two words. ' * (MOST_WORDS // 2)}, 1),
        ('a long sentence among short ones', {'README.md': 'A b.\n' * 10 + 'word ' * (LONGEST + 1) + '.'}, 1),
        ('a long sentence of a table', {'README.md': 'A b.\n\n| a | ' + 'word ' * (LONGEST + 1) + '|\n'}, 1),
        ('sentences that are long as a rule', {'README.md': ('Word ' + 'word ' * MOST_MEDIAN + '.\n\n') * 10}, 1),
        ('cells do not shorten them', {'README.md': ('Word ' + 'word ' * MOST_MEDIAN + '.\n\n') * 10 + '| a | b |\n' * 30}, 1),
    ]
    failed = 0
    for number, (what, files, expected) in enumerate(cases):
        tree = root / str(number)
        for name, text in {**good, **files}.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        found = problems(tree)
        if len(found) != expected:
            failed += 1
            print(f'{what}: expected {expected}, found {found}')
    return failed


def main():
    if sys.argv[1] == '--self-test':
        with tempfile.TemporaryDirectory() as folder:
            return 1 if self_test(pathlib.Path(folder).resolve()) else 0
    found = problems(pathlib.Path(sys.argv[1]).resolve())
    print('\n'.join(found) if found else 'every link, page, section and function that is named is there, and the first pages are short')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
