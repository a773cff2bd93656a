#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The reference, made of the comments of the public headers and of what the tools say of themselves.

reference.py list FORM HEADER...                       the files that are made, one a line
reference.py aliases HEADER...                          NAME:FILE for each other name of a man page
reference.py make FORM FOLDER VERSION CHANGES HEADER... makes the files
reference.py tool FILE VERSION CHANGES PROGRAM          the man page of a tool

FORM is man or markdown. Man pages have the date of SOURCE_DATE_EPOCH, else that of the file CHANGES, which is NEWS.md.
"""
import datetime
import os
import pathlib
import sys

import headers
import man
import markdown
import tool_help


def date_of(changes):
    seconds = int(os.environ.get('SOURCE_DATE_EPOCH') or pathlib.Path(changes).stat().st_mtime)
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime('%Y-%m-%d')


def read(paths):
    return [headers.read(pathlib.Path(path)) for path in paths]


def files(form, paths, version, date):
    return man.Manual(read(paths), version, date).files() if form == 'man' else markdown.files(read(paths))


def main():
    verb, *rest = sys.argv[1:]
    if verb == 'list':
        print('\n'.join(files(rest[0], rest[1:], '', '')))
    elif verb == 'aliases':
        print('\n'.join(f'{name}:{file}' for name, file in man.Manual(read(rest), '', '').aliases().items()))
    elif verb == 'make':
        form, folder, version, changes, *paths = rest
        for name, text in files(form, paths, version, date_of(changes)).items():
            pathlib.Path(folder, name).write_text(text, encoding='utf-8')
    else:
        output, version, changes, tool = rest
        found = tool_help.read(tool, pathlib.Path(tool).name)
        pathlib.Path(output).write_text(man.of_tool(found, version, date_of(changes)), encoding='utf-8')


if __name__ == '__main__':
    main()
