#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What src/ promises of its structs: none has more than 25 members, and a part of struct phi_self,
struct phi_peer or struct ph_channel that says "Private to A and B." is named in these files, or in
files of these folders, alone. Usage: members.py ROOT, or --self-test."""
import pathlib
import re
import sys
import tempfile

MOST = 25
WHOLES = ('phi_self', 'phi_peer', 'ph_channel')
STRUCT = re.compile(r'((?:^[ \t]*//[^\n]*\n)*)^struct (\w+) \{\n(.*?)\n\}', re.S | re.M)


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*', '', text, flags=re.S)


def declarations(body):
    """The declarations of a struct's own members; those of structs inside it are its members, too."""
    flat = re.sub(r'\b(?:struct|union)(?: \w+)? \{', '', without_comments(body))
    return [d.strip() for d in re.sub(r'\}', '', flat).split(';') if d.strip()]


def members(body):
    count = 0
    for declaration in declarations(body):
        outside = re.sub(r'\([^()]*\)', '', re.sub(r'\([^()]*\)', '', declaration))
        count += outside.count(',') + 1
    return count


def owners(comment):
    found = re.search(r'Private to ([\w/., ]+?)\.(?=\s|$)', re.sub(r'\s*\n\s*// ?', ' ', comment))
    return re.split(r', | and ', found[1]) if found else []


def find(root):
    sources = {p.relative_to(root / 'src').as_posix(): p.read_text()
               for p in sorted((root / 'src').rglob('*.[ch]'))}
    faults = []
    structs = {}
    for path, text in sources.items():
        for comment, name, body in STRUCT.findall(text):
            structs[name] = (path, comment, body)
            if members(body) > MOST:
                faults.append(f'src/{path}: struct {name} has {members(body)} members, and {MOST} is the most')
    private = {name: owners(comment) for name, (_, comment, _) in structs.items() if owners(comment)}
    for whole in WHOLES:
        for declaration in declarations(structs[whole][2]) if whole in structs else []:
            found = re.fullmatch(r'struct (\w+) (\w+)', declaration)
            if not found or found[1] not in private:
                continue
            part = private.pop(found[1])
            for path, text in sources.items():
                if path.startswith(tuple(part)):
                    continue
                for number, line in enumerate(without_comments_by_line(text), 1):
                    if re.search(rf'\b{variable(whole)}(?:->|\.){found[2]}\b', line):
                        faults.append(f'src/{path}:{number}: {found[2]} of struct {whole} is private to {", ".join(part)}')
    faults += [f'struct {name} says that it is private, and is no part of {", ".join(WHOLES)}' for name in private]
    return faults


def variable(whole):
    return {'phi_self': 'self', 'phi_peer': 'peer', 'ph_channel': 'channel'}[whole]


def without_comments_by_line(text):
    return [re.sub(r'//.*', '', line) for line in text.split('\n')]


def self_test():
    """Trees with one fault each, and one without."""
    wholes = ('struct phi_mine {\n    int a;\n};\n'
              '// Private to peer/x.c and\n// room.\nstruct phi_part {\n    int b, c; // of it; two\n};\n'
              'struct phi_peer {\n    int rank;\n    struct phi_part part;\n};\n')
    use = 'int f(struct phi_peer *peer) { return peer->part.b; }\n'
    large = 'struct phi_large {\n' + '    int (*call)(int, int);\n' * 24 + '    int a, b[2];\n};\n'
    for files, count in (({'peer/h.h': wholes, 'peer/x.c': use, 'room/y.c': use, 'other/z.c': '// peer->part.b'}, 0),
                         ({'peer/h.h': wholes, 'peer/y.c': use}, 1),
                         ({'peer/h.h': wholes.replace('struct phi_part part;', '')}, 1),
                         ({'peer/h.h': large}, 1),
                         ({'peer/h.h': large.replace('a, b', 'b')}, 0),
                         ({'peer/h.h': 'struct a {\n    union {\n' + '        int a;\n' * 26 + '    };\n};\n'}, 1)):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = pathlib.Path(root, 'src', path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = find(pathlib.Path(root))
            assert len(found) == count, (files, found)


if __name__ == '__main__':
    if sys.argv[1] == '--self-test':
        self_test()
        sys.exit()
    wrong = find(pathlib.Path(sys.argv[1]))
    print('\n'.join(wrong))
    sys.exit(bool(wrong))
