#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a fuzz target: run.py PROGRAM SEEDS. PEERHOP_FUZZ_RUNS executions (100000), the same ones for the same seeds.

New inputs go to a folder that is thrown away; what failed stays in the current one.
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    program, seeds = sys.argv[1:]
    runs = os.environ.get('PEERHOP_FUZZ_RUNS', '100000')
    found = sorted(str(path) for path in pathlib.Path(seeds).iterdir())
    if not found:
        sys.exit(f'{seeds}: no seeds')
    with tempfile.TemporaryDirectory() as folder:
        # Each seed by itself first: one that libFuzzer finds too long or too slow would only be left out.
        subprocess.run([program, *found], check=True, stderr=subprocess.DEVNULL)
        corpus = pathlib.Path(folder)
        name = pathlib.Path(program).name
        # Entropic schedules cost more than these short executions themselves.
        status = subprocess.run([program, f'-runs={runs}', '-seed=1', '-max_len=1280', '-entropic=0',
                                 '-timeout=20', '-rss_limit_mb=2048', '-print_final_stats=1', '-verbosity=0',
                                 f'-artifact_prefix={name}-', str(corpus), seeds]).returncode
    sys.exit(status)


if __name__ == '__main__':
    main()
