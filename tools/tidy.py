#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs clang-tidy on the C files, those of tests left out, that have changed since they were found clean.

tidy.py BUILD_FOLDER [--known]: a file is known where an earlier run has looked at it; with --known only those are looked
at, as on a new machine nothing is known, and all of it would take minutes. A file has changed where what the compiler reads of it has, or
how it is compiled, or what clang-tidy is asked. The digests of what is clean lie in BUILD_FOLDER/tidy.json.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ('src', 'tools', 'bench', 'python', 'examples')


def commands(build):
    """Yields (file, command) of each C file that is to be clean."""
    for entry in json.loads((build / 'compile_commands.json').read_text()):
        path = pathlib.Path(os.path.normpath(pathlib.Path(entry['directory']) / entry['file']))
        if path.suffix == '.c' and path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS:
            yield str(path.relative_to(ROOT)), shlex.split(entry['command'])


def preprocessed(build, command):
    """What the compiler reads, with comments (NOLINT) and macros, or None where it does not."""
    words, skip = [], False
    for word in command:
        if skip or word in ('-o', '-MF', '-MQ', '-MT'):
            skip = not skip
        elif word not in ('-c', '-MD', '-MMD'):
            words.append(word)
    done = subprocess.run([*words, '-E', '-P', '-C', '-dD'], cwd=build, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def digest(build, command, asked):
    text = preprocessed(build, command)
    if text is None:
        return None
    return hashlib.sha256(b'\0'.join([asked, ' '.join(command).encode(), text])).hexdigest()


def look(build, path):
    """Returns what clang-tidy says of a file, '' where it is clean."""
    done = subprocess.run(['clang-tidy', '-quiet', '-p', str(build), str(ROOT / path)], capture_output=True, text=True,
                          check=False)
    return done.stdout if done.stdout.strip() or done.returncode == 0 else done.stderr or 'clang-tidy failed'


def main():
    build, known = pathlib.Path(sys.argv[1]).resolve(), '--known' in sys.argv[2:]
    record = build / 'tidy.json'
    clean = json.loads(record.read_text()) if record.exists() else {}
    version = subprocess.run(['clang-tidy', '--version'], capture_output=True, check=True).stdout
    asked = version + (ROOT / '.clang-tidy').read_bytes()
    wanted = {path: command for path, command in commands(build) if not known or path in clean}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(wanted, pool.map(lambda command: digest(build, command, asked), wanted.values())))
        changed = [path for path in wanted if digests[path] is None or clean.get(path) != digests[path]]
        said = dict(zip(changed, pool.map(lambda path: look(build, path), changed)))
    for path, text in said.items():
        if text:
            print(text)
        clean[path] = '' if text else digests[path] or ''
    record.write_text(json.dumps(clean))
    print(f'{len(wanted)} files, of which {len(changed)} have changed; {sum(map(bool, said.values()))} are not clean')
    return 1 if any(said.values()) or not (wanted or known) else 0


if __name__ == '__main__':
    sys.exit(main())
