# SPDX-License-Identifier: BSD-3-Clause
"""Writes the reference as Markdown, one file for each header."""
from headers import blocks, page_of
from man import synopsis


def said(parts):
    text = ''
    for form, words in parts:
        if form == 'code':
            text += '```cpp\n' + words + '\n```\n\n'
        else:
            text += ('- ' if form == 'item' else '') + words.replace('*', '\\*').replace('<', '&lt;') + '\n\n'
    return text


def of_entity(entity):
    page = page_of(entity)
    text = f'## {", ".join(entity.names)}\n\n```c\n' + '\n'.join(synopsis(entity)) + '\n```\n\n' + said(page.description)
    for member in entity.members:
        if member.comment:
            text += f'- `{member.code}`: ' + said(blocks(member.comment)).strip() + '\n'
    if page.errors:
        text += f'**Errors.** {said([("p", page.errors)])}'
    if page.since:
        text += f'Since {page.since}.\n\n'
    return text.rstrip() + '\n\n'


def files(headers):
    """{file name: text}"""
    pages = {}
    for header in headers:
        text = f'# peerhop/{header.name}\n\n' + said(blocks(header.comment))
        pages[header.name.replace('.', '_') + '.md'] = (text + ''.join(map(of_entity, header.entities))).rstrip() + '\n'
    return pages
