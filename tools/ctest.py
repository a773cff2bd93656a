#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes CTestTestfile.cmake into the build folder, so that ctest runs the tests that Meson knows."""
import json
import os
import pathlib


def quoted(text):
    # Bracket arguments need no escapes; no argument of a test contains "]==]".
    return f'[==[{text}]==]'


def entry(test):
    suites = [suite.split(':')[-1] for suite in test['suite']]
    # Suites may use a name twice; CTest must not.
    name = quoted('/'.join([*suites, test['name']]))
    yield f'add_test({name} {" ".join(quoted(word) for word in test["cmd"])})'
    labels = ';'.join(suites)
    environment = ';'.join(f'{key}={value}' for key, value in test['env'].items())
    properties = {'LABELS': labels, 'ENVIRONMENT': environment, 'TIMEOUT': test['timeout'] or 0,
                  'SKIP_RETURN_CODE': 77, 'RUN_SERIAL': 'OFF' if test['is_parallel'] else 'ON',
                  'WORKING_DIRECTORY': test['workdir'] or ''}
    pairs = ' '.join(f'{key} {quoted(value)}' for key, value in properties.items() if value != '')
    yield f'set_tests_properties({name} PROPERTIES {pairs})'


def main():
    build = pathlib.Path(os.environ['MESON_BUILD_ROOT'])
    tests = json.loads((build / 'meson-info' / 'intro-tests.json').read_text())
    lines = ['# Written by tools/ctest.py; do not edit.']
    for test in tests:
        lines += entry(test)
    (build / 'CTestTestfile.cmake').write_text('\n'.join(lines) + '\n')


if __name__ == '__main__':
    main()
