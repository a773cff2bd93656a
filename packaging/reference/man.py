# SPDX-License-Identifier: BSD-3-Clause
"""Writes man pages, with the macros of man(7)."""
import re
import textwrap

from headers import blocks, end_of_sentence, page_of

LIBRARY = 'Peerhop (libpeerhop, \\-lpeerhop)'


def escaped(text):
    """Text that is shown as it is."""
    return text.replace('\\', '\\e').replace('-', '\\-').replace("'", '\\(aq').replace('`', '\\(ga').replace(
        '^', '\\(ha').replace('~', '\\(ti').replace('"', '\\(dq')


def marked(text):
    """Text of a comment: names, codes and what is between backquotes stand out."""
    def bold(match):
        return f'\\fB\\%{escaped(match.group(0).strip("`"))}\\fR' # in one piece
    pieces = re.split(r'(`[^`]+`|(?<!\w)-E[A-Z0-9]+\b|(?<!\w)--?[a-z][\w-]*|\b(?:ph_\w+|PH_\w+|PEERHOP_\w+|peerhop-\w+))', text)
    return ''.join(bold(re.match(r'.*', piece)) if at % 2 else
                   piece.replace('\\', '\\e').replace('^', '\\(ha').replace('~', '\\(ti')
                   for at, piece in enumerate(pieces))


def filled(text, mark=marked):
    """Lines of less than 80 characters, none of which a formatter takes for a macro."""
    lines = textwrap.wrap(mark(text), 76, break_long_words=False, break_on_hyphens=False)
    return '\n'.join('\\&' + line if line[0] in ".'" else line for line in lines)


def verbatim(lines):
    return '.nf\n' + '\n'.join(f'\\fB{escaped(line)}\\fR' for line in lines) + '\n.fi\n'


def wrapped(code):
    """A declaration in lines that fit on a terminal."""
    lines = ['']
    for part in re.split(r'(?<=,) ', code):
        if len(lines[-1]) + len(part) > 68 and lines[-1]:
            lines.append(' ' * 7)
        lines[-1] += (' ' if lines[-1] else '') + part
    return lines


def described(parts):
    text, apart = '', ''
    for form, words in parts:
        if form == 'p':
            text += f'{apart}{filled(words)}\n'
        elif form == 'item':
            text += f'.IP \\(bu 2\n{filled(words)}\n'
        else:
            text += f'.PP\n.RS 4\n.nf\n{escaped(words)}\n.fi\n.RE\n'
        apart = '.PP\n'
    return text


class Manual:
    """All pages of the headers: what they are called, and their text."""

    def __init__(self, headers, version, date):
        self.headers, self.version, self.date = headers, version, date
        self.page_of_name = {name: entity.names[0] for header in headers for entity in header.entities for name in entity.names}

    def heading(self, name, section):
        return (f'.\\" SPDX-License-Identifier: BSD-3-Clause\n.\\" Generated from the sources of Peerhop.\n'
                f'.TH {name.upper().replace("-", chr(92) + "-")} {section} {self.date} "Peerhop {self.version}" "Peerhop Manual"\n')

    def aliases(self):
        """{file name: the file that it is another name of}"""
        return {f'{name}.3': f'{entity.names[0]}.3' for header in self.headers for entity in header.entities
                for name in entity.names[1:]}

    def files(self):
        """{file name: text}"""
        pages = {'peerhop.7': self.overview()}
        for header in self.headers:
            if header.name == 'peerhop.h':
                continue
            pages[f'{self.about(header)}.7'] = self.of_header(header)
            for entity in header.entities:
                pages[f'{entity.names[0]}.3'] = self.of_entity(header, entity)
        return pages

    @staticmethod
    def about(header):
        """The page on a header: device.cuh and its types are told apart."""
        return 'peerhop-' + header.name.split('.')[0].replace('_', '-')

    def of_entity(self, header, entity):
        page = page_of(entity)
        text = self.heading(entity.names[0], 3)
        text += named(', '.join(entity.names), page.summary)
        text += '' if header.name.endswith('.cuh') else f'.SH LIBRARY\n{LIBRARY}\n'
        text += '.SH SYNOPSIS\n'
        text += verbatim([f'#include <peerhop/{header.name}>']) + '.PP\n' + verbatim(synopsis(entity))
        text += f'.SH DESCRIPTION\n{described(page.description)}'
        text += self.members(entity)
        text += self.returns(entity, page)
        if page.errors:
            text += f'.SH ERRORS\n{filled(page.errors)}\n'
        if page.since:
            text += f'.SH HISTORY\nSince Peerhop {page.since}.\n'
        return text + self.see_also(header, entity)

    @staticmethod
    def members(entity):
        titles = {'enum': 'Values', 'struct': 'Members', 'class': 'Methods'}
        said = [member for member in entity.members if member.comment]
        text = f'.SS {titles[entity.kind]}\n' if said else ''
        for member in said:
            text += f'.TP\n.B {escaped(member.code)}\n{described(blocks(member.comment))}'
        return text

    @staticmethod
    def returns(entity, page):
        getter = re.search(r'\(const struct ph_(context|channel) \*', entity.code[0])
        if entity.kind != 'function' or getter or not entity.code[0].startswith('int ') and not page.errors:
            return ''
        return ('.SH RETURN VALUE\n0, or a negative errno value or a code of \\fBph_error\\fR(3);\n'
                '\\fBph_strerror\\fR(3) says what a code means, and \\fBph_context_error\\fR(3) what happened.\n')

    def see_also(self, header, entity):
        text = ' '.join(entity.code + entity.comment + [line for member in entity.members for line in [member.code, *member.comment]])
        pages = {self.page_of_name[name] for name in re.findall(r'\bph_\w+', text) if name in self.page_of_name}
        pages -= set(entity.names)
        listed = [f'.BR {name} (3)' for name in sorted(pages)] + [f'.BR {escaped(self.about(header))} (7)', '.BR peerhop (7)']
        return '.SH SEE ALSO\n' + ' ,\n'.join(listed) + '\n'

    def of_header(self, header):
        first, *rest = blocks(header.comment)
        end = end_of_sentence(first[1])
        if first[1][end:].strip():
            rest.insert(0, ('p', first[1][end:].strip()))
        summary = first[1][:end].rstrip('.')
        text = self.heading(self.about(header), 7)
        text += named(self.about(header), summary[0].lower() + summary[1:])
        text += '.SH SYNOPSIS\n' + verbatim([f'#include <peerhop/{header.name}>'])
        text += '.SH DESCRIPTION\n' + (described(rest) if rest else '') + self.contents(header)
        return text + '.SH SEE ALSO\n.BR peerhop (7)\n'

    def contents(self, header):
        text = ''
        for entity in header.entities:
            text += f'.TP\n.BR {entity.names[0]} (3)\n{filled(listed(entity))}\n'
        return text

    def overview(self):
        header = next(header for header in self.headers if header.name == 'peerhop.h')
        first = blocks(header.comment)[0][1]
        summary, rest = first[:end_of_sentence(first)], first[end_of_sentence(first):]
        text = self.heading('peerhop', 7)
        text += named('peerhop', summary.removeprefix('Peerhop: ').rstrip('.')) + '.SH SYNOPSIS\n'
        text += verbatim(['#include <peerhop/peerhop.h>', '', 'cc program.c $(pkg-config --cflags --libs peerhop)'])
        text += ('.SH DESCRIPTION\nPeerhop moves data between GPUs, and host memory, of different processes, from\n'
                 f'and to memory of the caller, ordered on its CUDA streams.\n{filled(rest.strip())}\n')
        for header in sorted(self.headers, key=lambda header: header.name):
            if header.entities:
                text += f'.SS peerhop/{escaped(header.name)}\nSee\n.BR {escaped(self.about(header))} (7).\n{self.contents(header)}'
        text += ('.SH ENVIRONMENT\n\\fBpeerhop\\-info \\-\\-config\\fR prints every variable with its default, range and meaning.\n'
                 '.SH SEE ALSO\n.BR peerhop\\-info (1),\n.BR peerhop\\-perf (1),\n.BR peerhop\\-run (1)\n')
        return text


def named(names, summary):
    """The section that lists of pages are made of: no font changes."""
    def plain(text):
        return text.replace('`', '').replace('\\', '\\e').replace('-', '\\-')
    return f'.SH NAME\n{filled(names + " - " + summary, plain)}\n'


def listed(entity):
    others = ', '.join(entity.names[1:])
    return (f'and {others}: ' if others else '') + page_of(entity).summary


def synopsis(entity):
    if entity.kind in ('function', 'type'):
        return [line for code in entity.code for line in wrapped(code.rstrip(';') + ';')]
    end = ',' if entity.kind == 'enum' else ';'
    lines = [line for member in entity.members for line in wrapped('    ' + member.code.split(' of each of ')[0] + end)]
    return [entity.code[0] + ' {', *lines, '};']


def of_tool(found, version, date):
    """The page of a tool."""
    text = Manual([], version, date).heading(found.name, 1)
    first = found.sections[0][2][0]
    summary, rest = first[:end_of_sentence(first)], first[end_of_sentence(first):].strip()
    text += named(found.name, summary[0].lower() + summary[1:].rstrip('.'))
    text += f'.SH SYNOPSIS\n\\fB{escaped(found.name)}\\fR {escaped(found.synopsis[0])}\n'
    text += f'.SH DESCRIPTION\n{filled(summary)}\n' + (filled(rest) + '\n' if rest else '')
    for words in found.sections[0][2][1:]:
        text += f'.PP\n{filled(words)}\n'
    for at, (title, options, paragraphs) in enumerate(found.sections):
        if title:
            text += f'.SS {escaped(title)}\n'
        elif options:
            text += '.SH OPTIONS\n'
        text += '' if at == 0 or not paragraphs else '.SH NOTES\n' + '\n.PP\n'.join(map(filled, paragraphs)) + '\n'
        for option, words in options:
            text += f'.TP\n.B {escaped(option)}\n{filled(words)}\n'
    others = [name for name in ('peerhop-info', 'peerhop-perf', 'peerhop-run') if name != found.name]
    return text + '.SH SEE ALSO\n' + ',\n'.join(f'.BR {escaped(name)} (1)' for name in others) + ',\n.BR peerhop (7)\n'
