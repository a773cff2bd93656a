#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Adds up test logs of Meson (testlog.json) and steps (NAME=pass, NAME=fail, NAME=skip:WHY).

It says what failed and how, what was skipped and why.

The last line is "N passed, N failed, N skipped", counted in test cases. Exits 1 where something failed or nothing ran.
"""
import collections
import json
import pathlib
import re
import sys

CASE = re.compile(r'^\[ +(OK|FAILED|SKIPPED) +\] ([\w./]+)(?:, where .*)? \(\d+ ms\)$', re.M)
# What GoogleTest prints between the start of a skipped case and its end is the reason.
REASON = re.compile(r'^\[ RUN +\] ([\w./]+)\n(?:.*: Skipped\n)?((?:.*\n)*?)\[  SKIPPED \] \1 \(', re.M)
# Of one that failed, the first lines of it.
FAILURE = re.compile(r'^\[ RUN +\] ([\w./]+)\n((?:.*\n)*?)\[  FAILED  \] \1(?:, where .*)? \(', re.M)
FAILURE_LINES = 12
WORDS = {'OK': 'passed', 'FAILED': 'failed', 'SKIPPED': 'skipped'}


def cases(test):
    """Yields (case, verdict, reason) of one test program."""
    output = test.get('stdout') or ''
    found = CASE.findall(output)
    reasons = {name: ' '.join(text.split()) for name, text in REASON.findall(output)}
    reasons.update((name, '\n'.join(text.splitlines()[:FAILURE_LINES])) for name, text in FAILURE.findall(output))
    for verdict, name in found:
        yield name, WORDS[verdict], reasons.get(name, '')
    verdicts = {verdict for verdict, _ in found}
    if test['result'] == 'SKIP':
        if 'SKIPPED' not in verdicts:
            yield '', 'skipped', ' '.join(output.split())
    elif test['result'] not in ('OK', 'EXPECTEDFAIL'):
        # A program that crashed, hung or leaked failed, whatever its cases said before.
        if 'FAILED' not in verdicts:
            last = (output + (test.get('stderr') or '')).splitlines()[-FAILURE_LINES:]
            yield '', 'failed', '\n'.join([test['result'].lower(), *last])
    elif not found:
        yield '', 'passed', ''


def read(word):
    """Yields (program, case, verdict, reason) of a log or a step."""
    if '=' in word:
        name, _, verdict = word.partition('=')
        verdict, _, why = verdict.partition(':')
        yield name, '', {'pass': 'passed', 'fail': 'failed', 'skip': 'skipped'}[verdict], why
        return
    path = pathlib.Path(word)
    folder = path.parts[-3] if len(path.parts) > 2 else ''
    if not path.exists():
        yield f'{folder}: no test ran', '', 'failed', ''
        return
    for line in path.read_text().splitlines():
        test = json.loads(line)
        for name, verdict, reason in cases(test):
            yield f'{folder}: {test["name"].replace("peerhop:", "")}', name, verdict, reason


def print_skipped(skipped):
    """One line a program: many cases are skipped for one reason."""
    for reason in sorted(skipped):
        print(f'{reason or "no reason given"}:')
        for program, n in sorted(collections.Counter(program for program, _ in skipped[reason]).items()):
            print(f'    {program}{f", {n} cases" if n > 1 else ""}')


def print_failed(failed):
    for reason, places in sorted(failed.items()):
        for program, case in places:
            print(f'    {program} {case}'.rstrip())
            for line in reason.splitlines():
                print(f'        {line}')


def main():
    counts = collections.Counter()
    told = collections.defaultdict(lambda: collections.defaultdict(list))
    for word in sys.argv[1:]:
        for program, case, verdict, reason in read(word):
            counts[verdict] += 1
            told[verdict][reason].append((program, case))
    if told['skipped']:
        print('\n== skipped')
        print_skipped(told['skipped'])
    if told['failed']:
        print('\n== failed')
        print_failed(told['failed'])
    print(f'\n{counts["passed"]} passed, {counts["failed"]} failed, {counts["skipped"]} skipped')
    return 1 if counts['failed'] or not counts['passed'] else 0


if __name__ == '__main__':
    sys.exit(main())
