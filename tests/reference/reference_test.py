#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The man pages: every call and option has its place in one, mandoc and man find nothing wrong, and the readers of headers
and of --help see what there is."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, PAGES = pathlib.Path(os.environ['SOURCE']), pathlib.Path(os.environ['PAGES'])
TOOLS = [pathlib.Path(tool) for tool in os.environ['TOOLS'].split(':') if tool]
sys.path.insert(0, str(SOURCE / 'packaging' / 'reference'))
import headers # noqa: E402
import man # noqa: E402
import markdown # noqa: E402
import tool_help # noqa: E402

HEADERS = [path for path in sorted((SOURCE / 'include' / 'peerhop').iterdir()) if path.suffix in ('.h', '.cuh')]
MANUAL = man.Manual([headers.read(path) for path in HEADERS], '1.2.3', '2026-01-02')

SAMPLE = '''// SPDX-License-Identifier: BSD-3-Clause
// What this is. And more.
#ifndef A_H
#define A_MAP(X) \\
    X(ONE, -1, "the first") \\
    X(TWO, -2, "the second")

// Codes.
enum a_code {
#define A_ENUM(name, value, text) A_##name = (value),
    A_MAP(A_ENUM)
#undef A_ENUM
};

// A struct.
struct a_struct {
    int one; // of the
             // first
    // Before
    // two.
    const char *two;
    struct {
        int inner; // inside
    } list[4];
    int (*call)(void *opaque,
                int more); // called
};

// Without a comma at its end.
enum a_last {
    A_FIRST, // one
    A_LAST =
        2 // two
};

struct a_opaque;

// a_function and a_second do it (e.g. so. Or so). Never block. Errors: -EINVAL (why. Or not), -ENOMEM. Any thread.
// - One
//   thing.
//
//     code(1);
// Since 0.1.
PH_API int a_function(int one,
                      int two);
PH_API int a_second(void);

// Called.
typedef void (*a_call)(int one);
'''


def read(text):
    return headers.Reader('a.h', text).read()


class Headers(unittest.TestCase):
    def setUp(self):
        self.header = read(SAMPLE)
        self.entities = {entity.names[0]: entity for entity in self.header.entities}

    def test_what_is_declared(self):
        self.assertEqual(list(self.entities), ['a_code', 'a_struct', 'a_last', 'a_function', 'a_call'])
        self.assertEqual(self.entities['a_function'].names, ['a_function', 'a_second'])
        self.assertEqual(self.entities['a_function'].code, ['int a_function(int one, int two)', 'int a_second(void)'])
        self.assertEqual(self.header.comment, ['What this is. And more.'])

    def test_members(self):
        members = [(member.code, ' '.join(member.comment)) for member in self.entities['a_struct'].members]
        self.assertEqual(members, [('int one', 'of the first'), ('const char *two', 'Before two.'),
                                   ('int inner of each of list[4]', 'inside'),
                                   ('int (*call)(void *opaque, int more)', 'called')])
        last = [(member.code, member.comment) for member in self.entities['a_last'].members]
        self.assertEqual(last, [('A_FIRST', ['one']), ('A_LAST = 2', ['two'])])
        codes = [(member.code, member.comment) for member in self.entities['a_code'].members]
        self.assertEqual(codes, [('A_ONE = -1', ['the first']), ('A_TWO = -2', ['the second'])])

    def test_sections(self):
        page = headers.page_of(self.entities['a_function'])
        self.assertEqual(page.summary, 'do it (e.g. so. Or so)')
        self.assertEqual(page.errors, '-EINVAL (why. Or not), -ENOMEM.')
        self.assertEqual(page.since, '0.1')
        self.assertEqual(page.description, [('p', 'a_function and a_second do it (e.g. so. Or so). Never block. Any thread.'),
                                            ('item', 'One thing.'), ('code', 'code(1);')])

    def test_what_nobody_could_look_up_is_a_fault(self):
        for declaration in ('PH_API int a(void);', 'enum a {\n    A,\n};', 'typedef void (*a)(int);'):
            with self.assertRaises(headers.Fault):
                read(f'// A file.\n#ifndef A_H\n\n{declaration}\n')


class Tools(unittest.TestCase):
    def help(self, text):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, 'tool')
            tool.write_text(f'#!/bin/sh\ncat <<"END"\n{text}\nEND\n')
            tool.chmod(0o755)
            return tool_help.read(tool, 'tool')

    def test_what_it_says(self):
        found = self.help('usage: tool [options]\nDoes it. Well.\n\n  -a, --all X  all\n               of them\n      --long\n'
                          '\nOf --all:\n  -o json  lines\n\nThe end.')
        self.assertEqual(found.synopsis, ['[options]'])
        self.assertEqual(found.sections, [('', [['-a, --all X', 'all of them'], ['--long', '']], ['Does it. Well.']),
                                          ('Options of --all', [['-o json', 'lines']], []), ('', [], ['The end.'])])

    def test_another_usage(self):
        with self.assertRaises(ValueError):
            self.help('usage: other\nDoes it.')

    def test_each_option_has_its_place(self):
        for tool in TOOLS:
            text = subprocess.run([tool, '--help'], check=True, capture_output=True, text=True).stdout
            options = re.findall(r'^ +(?:-\w, )?(-[-\w]+)', text, re.M)
            self.assertGreater(len(options), 5, tool.name)
            page = (PAGES / f'{tool.name}.1').read_text().replace('\\-', '-')
            for option in options:
                self.assertRegex(page, rf'(?m)^\.B (?:-\w, )?{option}\b', tool.name)


class Pages(unittest.TestCase):
    def test_every_function_has_one(self):
        names = re.findall(r'\b(ph_\w+);', (SOURCE / 'src' / 'api' / 'libpeerhop.map').read_text())
        self.assertGreater(len(names), 40)
        aliases = MANUAL.aliases()
        said = ''.join(markdown.files(MANUAL.headers).values())
        for name in names:
            page = (PAGES / aliases.get(f'{name}.3', f'{name}.3')).read_text()
            self.assertIn(name, page.split('.SH LIBRARY')[0], name)
            self.assertRegex(page, rf'\b{name}\(', name)
            self.assertRegex(said, rf'(?m)^## .*\b{name}\b', name)

    def test_nothing_of_a_comment_is_lost(self):
        """Each word, as a page has them in another order."""
        for header in MANUAL.headers:
            for entity in header.entities:
                page = MANUAL.of_entity(header, entity)
                page = re.sub(r'\\f[BR]|\\%|\\&', '', page).replace('\\-', '-').replace('\\(aq', "'").replace('\\(dq', '"')
                have = set(re.findall(r'\w+', page))
                comments = entity.comment + [line for member in entity.members for line in member.comment]
                words = set(re.findall(r'\w+', ' '.join(comments))) - {'Errors', 'beside', 'those', 'of', 'all'}
                self.assertEqual(words - have, set(), entity.names[0])

    def test_every_member_is_shown(self):
        for header in MANUAL.headers:
            for entity in header.entities:
                shown = ' '.join(' '.join(man.synopsis(entity)).split())
                for member in entity.members:
                    self.assertIn(member.code.split(' of each of ')[0], shown, entity.names[0])
        self.assertIn('ll_wait_value(', (PAGES / 'ph_device_port.3').read_text()) # which has its comment with another one

    def pages(self):
        found = sorted(path for path in PAGES.iterdir() if re.fullmatch(r'[137]', path.suffix[1:]))
        self.assertGreater(len(found), 80)
        return found

    @unittest.skipUnless(shutil.which('mandoc'), 'no mandoc')
    def test_mandoc_finds_nothing(self):
        done = subprocess.run(['mandoc', '-Tlint', *self.pages()], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ''))

    @unittest.skipUnless(shutil.which('groff'), 'no groff')
    def test_groff_finds_nothing(self):
        done = subprocess.run(['groff', '-man', '-ww', '-Tutf8', '-z', *self.pages()], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ''))


if __name__ == '__main__':
    unittest.main()
