#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints what ninja must build for the tests of some suites: targets.py BUILD_FOLDER SUITE..."""
import json
import os
import pathlib
import sys


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    wanted = set(sys.argv[2:])
    info = build / 'meson-info'
    needed = set()
    for test in json.loads((info / 'intro-tests.json').read_text()):
        if wanted & {suite.split(':')[-1] for suite in test['suite']}:
            needed.update(test['depends'])
    for target in json.loads((info / 'intro-targets.json').read_text()):
        if target['id'] in needed:
            print(os.path.relpath(target['filename'][0], build))


if __name__ == '__main__':
    main()
