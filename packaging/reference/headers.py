# SPDX-License-Identifier: BSD-3-Clause
"""Reads the public headers: what they declare, and the comment of each. All forms of the reference are made of this."""
import dataclasses
import re


@dataclasses.dataclass
class Member:
    """Of a struct or enum, or a method: its declaration, and what is said of it."""
    code: str
    comment: list


@dataclasses.dataclass
class Entity:
    """What has one comment: a type, or functions that are declared one after the other."""
    kind: str # function, struct, enum, type, class
    names: list
    code: list # declarations without comments, one each
    comment: list # lines, without the slashes
    members: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Header:
    """A file, and what is said at its beginning."""
    name: str
    comment: list
    entities: list


class Fault(Exception):
    """What a header has that nobody could look up."""


def uncommented(line):
    """The text of a comment line, or None where it is none."""
    match = re.match(r'\s*//(?: (.*)|)$', line)
    return None if match is None else (match.group(1) or '').rstrip()


def one_line(code):
    """A declaration without line breaks."""
    text = re.sub(r'\s+', ' ', code).strip()
    return re.sub(r'\( ', '(', text).replace('PHI_DEVICE', '__device__').removeprefix('PH_API ')


def expand(macro, template):
    """The entries of an X macro, each as (declaration, what is said of it): the last argument is a sentence."""
    for arguments in re.findall(r'X\((.*?"[^"]*")\)', macro, re.S):
        *values, text = re.findall(r'"[^"]*"|[^,\s][^,]*', arguments)
        code = template[1]
        for name, value in zip(template[0], values):
            code = re.sub(rf'##{name}\b|\b{name}\b', value.strip(), code)
        yield code.rstrip(',; ').replace('(-', '-').replace(')', ''), text.strip('"')


class Body:
    """The members of a struct or enum, from its lines."""

    def __init__(self, macros):
        self.macros, self.members, self.template = macros, [], None
        self.said, self.behind, self.code = [], [], '' # of the next member: what is said before and behind it, and itself
        self.inside = 0 # in an unnamed struct: the number of its first member, from 1

    def add(self, line):
        if line.lstrip().startswith('#'):
            match = re.match(r'\s*#define \w+\((.*?)\) (.*)', line)
            if match:
                self.template = (re.split(r', *', match.group(1)), match.group(2))
            return
        call = re.match(r'\s*(\w+_MAP)\(', line)
        if call:
            self.members += [Member(*made) for made in self.expanded(call.group(1))]
            return
        comment = uncommented(line)
        if comment is not None:
            self.comment_line(line, comment)
        elif line.strip():
            self.code_line(line)

    def expanded(self, name):
        return [(code, [text]) for code, text in expand(self.macros[name], self.template)]

    def comment_line(self, line, comment):
        # Behind a member, and further to the right than members are: what is said there goes on.
        if self.members and not self.said and len(line) - len(line.lstrip()) > 8:
            self.members[-1].comment.append(comment)
        else:
            self.said.append(comment)

    def code_line(self, line):
        code, _, said = line.partition('//')
        self.code += ' ' + code.strip()
        if self.code.strip() == 'struct {':
            self.inside, self.code, self.said = len(self.members) + 1, '', []
            return
        if said:
            self.behind.append(said.strip())
        if re.search(r'[,;]\s*$', self.code) and self.code.count('(') == self.code.count(')'):
            self.member()

    def member(self):
        text = one_line(self.code).rstrip(',;')
        if text.startswith('}'):
            for member in self.members[self.inside - 1:]:
                member.code += f' of each of {text[1:].strip()}'
            self.inside = 0
        else:
            self.members.append(Member(text, self.said + self.behind))
        self.said, self.behind, self.code = [], [], ''

    def end(self):
        if self.code: # the last value of an enum may have no comma
            self.member()
        return self.members


def methods(lines):
    """The constructor of a class of device code, and its public members that have a comment."""
    said, members, fresh = [], [], False
    text = '\n'.join(lines)
    for line in text[:text.index('  private:')].split('\n'):
        comment = uncommented(line) if line.startswith('    //') else None # and not those inside of a method
        made = re.match(r'    PHI_DEVICE explicit (.*?\)) :', line)
        match = re.match(r'    PHI_DEVICE (.*\))$', line)
        if comment is not None:
            said, fresh = said + [comment], True
        elif made: # the class's comment says how
            members.append(Member(made.group(1), []))
        elif match and fresh: # the first of those that share a comment has it
            members.append(Member(match.group(1), said))
            said = []
        elif not line.strip():
            said, fresh = [], False
    return members


class Reader:
    """One header, line by line."""

    def __init__(self, name, text):
        self.header = Header(name, [], [])
        self.lines, self.at, self.macros = text.split('\n'), 0, {}
        self.said, self.adjacent = [], False

    def read(self):
        while self.at < len(self.lines) and not self.lines[self.at].startswith('#'):
            comment = uncommented(self.lines[self.at])
            if comment is not None and not comment.startswith('SPDX'):
                self.header.comment.append(comment)
            self.at += 1
        while self.at < len(self.lines):
            self.line(self.lines[self.at])
        return self.header

    def until(self, end):
        """The lines up to one that matches, with it."""
        first = self.at
        while not re.search(end, self.lines[self.at]):
            self.at += 1
        self.at += 1
        return self.lines[first:self.at]

    def line(self, line):
        comment = uncommented(line)
        for pattern, action in ACTIONS:
            if comment is None and re.match(pattern, line):
                action(self)
                self.said = []
                return
        self.at += 1
        if comment is not None:
            self.said.append(comment)
        else:
            self.said = []
        self.adjacent = False

    def found(self, kind, name, code, members=()):
        if not self.said:
            raise Fault(f'{self.header.name}: nothing is said of {name}')
        self.header.entities.append(Entity(kind, [name], [code], self.said, list(members)))
        self.adjacent = kind == 'function'

    def function(self):
        code = one_line('\n'.join(self.until(r'[;{]\s*$|^{'))).rstrip(';{ ')
        if code.startswith('template'):
            self.until(r'^}')
        name = re.search(r'(\w+)\s*\(', code).group(1)
        if self.adjacent and not self.said:
            self.header.entities[-1].names.append(name)
            self.header.entities[-1].code.append(code)
        else:
            self.found('function', name, code)

    def body(self):
        first, *lines = self.until(r'^};')
        kind, name = first.split()[:2]
        body = Body(self.macros)
        for line in lines[:-1]:
            body.add(line)
        self.found(kind, name, f'{kind} {name}', body.end())

    def a_class(self):
        first, *lines = self.until(r'^};')
        name = first.split()[-1]
        self.found('class', name, f'template <class Group> class {name}', methods(lines))

    def type(self):
        code = one_line('\n'.join(self.until(r';')))
        self.found('type', re.search(r'\(\*(\w+)\)', code).group(1), code)

    def macro(self):
        lines = self.until(r'[^\\]$')
        self.macros[re.match(r'#define (\w+)', lines[0]).group(1)] = '\n'.join(lines[1:]).replace('\\\n', '\n')

    def internal(self):
        self.until(r'^} // namespace')

    def helper(self):
        self.until(r'^};')


ACTIONS = [
    (r'PH_API ', Reader.function),
    (r'template <class Group> class ph_', Reader.a_class),
    (r'template <class Group>$', Reader.function),
    (r'(struct|enum) ph_(thread|warp|block) {', Reader.helper), # the groups, of which the file's comment says all
    (r'(struct|enum) \w+ {$', Reader.body),
    (r'typedef ', Reader.type),
    (r'#define \w+_MAP\(X\)', Reader.macro),
    (r'namespace phi_', Reader.internal),
]


def read(path):
    return Reader(path.name, path.read_text(encoding='utf-8')).read()


# ---- what comments say

def blocks(lines):
    """[(form, text)]: a paragraph (p), an item of a list (item), or lines of a program (code)."""
    found = []
    for line in lines + ['']:
        if not line:
            found.append(('', ''))
        elif line.startswith('    ') and found and found[-1][0] != 'item':
            if found[-1][0] == 'code':
                found[-1] = ('code', found[-1][1] + '\n' + line[4:])
            else:
                found.append(('code', line[4:]))
        elif line.startswith('- '):
            found.append(('item', line[2:]))
        elif line.startswith('  ') and found and found[-1][0] == 'item':
            found[-1] = ('item', found[-1][1] + ' ' + line.strip())
        elif found and found[-1][0] == 'p':
            found[-1] = ('p', found[-1][1] + ' ' + line.strip())
        else:
            found.append(('p', line.strip()))
    return [block for block in found if block[1]]


def end_of_sentence(text):
    """Where the first sentence of a text ends, of which none in parentheses is one."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if letter == '.' and depth <= 0 and text[at + 1:at + 2] in ('', ' ') and not re.search(r'(e\.g|\.\.)$', text[:at]):
            return at + 1
    return len(text)


def before(mark, text):
    """The text up to a mark, of which none in parentheses is one."""
    for match in re.finditer(re.escape(mark), text):
        if text[:match.start()].count('(') == text[:match.start()].count(')'):
            return text[:match.start()]
    return text


@dataclasses.dataclass
class Page:
    """The comment of an entity, in sections."""
    summary: str
    description: list
    errors: str
    since: str


def summary_of(entity, first):
    """What stands behind the names in a list: the first sentence, without the names that it begins with."""
    text = first[:end_of_sentence(first)].rstrip('.')
    names = r'(?:' + '|'.join(map(re.escape, entity.names)) + r')'
    text = re.sub(rf'^{names}(?:(?:, | and ){names})*(?: (?:is|are) (?=an? |ph_))?[:,]? ?', '', text)
    for mark in (': ', '; '):
        text = before(mark, text) if len(text) > 70 else text
    return text[0].lower() + text[1:] if not re.match(r'[A-Z]{2}|ph_', text) else text


def page_of(entity):
    """Parts the comment of an entity."""
    errors = since = ''
    description = []
    for form, text in blocks(entity.comment):
        if form == 'p':
            match = re.search(r'\s*\bSince (\d+\.\d+)\.', text)
            if match:
                since, text = match.group(1), text[:match.start()] + text[match.end():]
            match = re.search(r'\bErrors(?:, beside those of all)?: ', text)
            if match:
                end = match.end() + end_of_sentence(text[match.end():])
                errors = text[match.end():end]
                text = (text[:match.start()] + text[end:].strip()).strip()
        if text:
            description.append((form, text))
    first = blocks(entity.comment)[0][1]
    return Page(summary_of(entity, first), description, errors, since)
