#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""ctest knows the tests that Meson knows, each once: ctest_test.py BUILD_FOLDER"""
import collections
import json
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77


def of_meson(build):
    for test in json.loads((build / 'meson-info' / 'intro-tests.json').read_text()):
        yield '/'.join([suite.split(':')[-1] for suite in test['suite']] + [test['name']])


def of_ctest(build):
    shown = subprocess.run(['ctest', '--test-dir', build, '--show-only=json-v1'], stdout=subprocess.PIPE, check=True)
    for test in json.loads(shown.stdout)['tests']:
        yield test['name']


def main():
    build = pathlib.Path(sys.argv[1])
    if not shutil.which('ctest'):
        print('ctest is not installed')
        return SKIPPED
    meson, ctest = collections.Counter(of_meson(build)), collections.Counter(of_ctest(build))
    for name in meson.keys() | ctest.keys():
        if (meson[name], ctest[name]) != (1, 1):
            print(f'{name}: {meson[name]} of Meson, {ctest[name]} of ctest')
    print(f'{sum(meson.values())} tests of Meson, {sum(ctest.values())} of ctest')
    return 0 if meson == ctest and set(meson.values()) == {1} else 1


if __name__ == '__main__':
    sys.exit(main())
