#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what the project promises, and says which promise holds here: bench/bars.py [--perf PROGRAM] [host] [net] [gpu].

Without names: host memory, the net between ranks on host memory, and GPUs where there are two or more. Writes Markdown for a page of docs/measurements/ to the
standard output. Exits 1 where a bar is missed.
"""
import argparse
import json
import os
import platform
import subprocess
import sys

HALF, GB, US = 'us, half round trip', 'GB/s', 'us'
UNITS = {'half_round_trip_us': HALF, 'bandwidth_GBps': GB, 'rate_Mops': 'M ops/s', 'exchange_us': US, 'import_us': US,
         'one_way_us': 'us, one way', 'three_messages_us': 'us, 3 messages', 'fresh_us': 'us a message'}


def at_least(ratio):
    return f'ratio >= {ratio}', lambda row: row['ratio'] >= ratio


def at_most(ratio):
    return f'ratio <= {ratio}', lambda row: row['ratio'] <= ratio


def within(limit):
    return f'<= {limit} us', lambda row: row['median'] <= limit


def late(limit):
    return f'<= {limit} us more', lambda row: row['median'] - row['limit'] <= limit


def cold(imports, offers, limit):
    text = f'{imports} imports, {offers} offers'
    if limit:
        text += f', < {limit} us'
    return text, lambda row: (row['imports'], row['offers']) == (imports, offers) and \
        (not limit or row['median'] < limit)


def hit(row):
    """The figure is for an unloaded machine with a core for each rank; that the store is not asked holds everywhere."""
    return row['store_commands'] < 0.01 and row['median'] <= 1 + 0.1 * row['ops'] + 0.5 * row['segments']


HIT = ('no store command, <= 1 us + 0.1 an operation + 0.5 an allocation', hit)
NONE = ('', None)

# (arguments, bar). Every line of output of the arguments is held against the bar. Words with a = before the arguments
# are settings. Where the bar has a third part, its limit is what the same arguments with those behind them give.
HOST = [
    ('-c put-bandwidth -b 64M --compare --verify', at_least(0.9)),
    ('-c get-bandwidth -b 64M --compare --verify', NONE),
    ('-c put-bidirectional -b 64M --compare --verify', NONE),
    ('-c send-bandwidth -b 64M --compare --verify', NONE),
    ('-c put-latency -b 8 --compare --verify', at_most(2)),
    ('-c send-latency -b 8 --compare --verify', NONE),
    ('-c get-latency -b 8 --compare --verify', NONE),
    ('-c put-rate -c get-rate -c send-rate -b 8', NONE),
    ('-c exchange-cold --ops 1024', cold(1, 1, 5000)),
    ('-c exchange-cold --ops 64 -r 8', cold(7, 7, None)),
    ('-c exchange-hit --ops 1', HIT),
    ('-c exchange-hit --ops 64', HIT),
    ('-c exchange-hit --ops 1024 --segments 4', HIT),
    ('-c import', NONE),
]

# The limit is a program that is written on libfabric directly.
NET = [
    ('-p net -c put-latency -b 8 --compare --verify', at_most(1.25)),
    ('-p net -c send-latency -c get-latency -b 8 --compare --verify', NONE),
    ('-p net -c put-bandwidth -b 4M:64M:x4 --compare --verify', at_least(0.95)),
    ('-p net -c get-bandwidth -b 4M:64M:x4 --compare --verify', NONE),
    ('-p net -c send-bandwidth -b 4M:64M:x4 --compare --verify', NONE),
    ('-p net -c put-rate -c get-rate -c send-rate -b 8', NONE),
]

GPU = [
    ('-c put-bandwidth -c get-bandwidth -b 512M --compare', at_least(0.99)),
    ('-c put-bandwidth -b 1G --compare', at_least(0.995)),
    ('-c put-bidirectional -c get-bidirectional -b 512M --compare', at_least(0.98)),
    # Checking every byte of that takes longer than all the rest: fewer blocks.
    ('-c put-bandwidth -c get-bandwidth -c send-bandwidth -b 512M --verify -n 4', NONE),
    ('-c put-bandwidth -c get-bandwidth -b 64K:64M:x8 --compare', NONE),
    ('-c send-bandwidth -b 1M:512M:x8 --compare', NONE),
    ('-c send-latency -b 8', within(4.7)),
    ('-c send-latency -b 8 -i graph', within(2.5)),
    ('-c send-latency -b 8 --group', within(3.7)),
    ('-c send-latency -b 8 --group -i graph', within(2.1)),
    ('-c send-latency -b 8K', within(4.6)),
    ('-c send-latency -b 8K -i graph', within(2.9)),
    ('-c send-latency -b 16K -b 64K', NONE),
    ('-c send-latency -b 16K -b 64K -i graph', NONE),
    ('-c send-latency -b 64K -b 1M -b 8M --late 1000', late(2)),
    ('-c send-latency -b 64K -b 1M -b 8M --late 1000 -i graph', late(2)),
    ('-c send-latency -b 128K', within(4.8)),
    ('-c send-latency -b 128K -i graph', within(3.7)),
    ('-c send-latency -b 1M', within(7.0)),
    ('-c send-latency -b 1M -i graph', within(6.1)),
    ('-c send-latency -b 2M', within(9.8)),
    ('-c send-latency -b 2M -i graph', within(9.2)),
    ('-c send-latency -b 8M', within(26.8)),
    ('-c send-latency -b 8M -i graph', within(26.1)),
    ('-c put-batch -b 8K --channels 64', within(12)),
    ('-c put-batch -b 8K --channels 64 -i graph', within(12)),
    ('-c pages-put -c pages-get --pages 4096 --compare', at_least(0.85)),
    ('-c pages-put -c pages-get --pages 1024 --page-size 16384 --compare', at_least(0.85)),
    ('-c pages-put -c pages-get --pages 500 --page-size 8192 --parts 80 --compare', at_least(0.85)),
    ('PEERHOP_PAGE_BLOCKS=64 -c pages-put -c pages-get --pages 4096 --compare', NONE),
    ('-c pages-put --pages 64', NONE),
    ('-c pages-put --pages 65536 --page-size 256', NONE),
    ('-i device -c signal-latency -b 8', within(0.8)),
    ('-i device -c send-latency -b 8 -b 1K -b 8K', NONE),
    ('-i device -c put-latency -b 8 -b 8K', NONE),
    ('-i device -c put-bandwidth -b 256M --compare', at_least(0.92)),
    ('-i device -c get-bandwidth -b 256M --compare', NONE),
    ('PEERHOP_COPY_BLOCKS=16 -c send-bandwidth -b 256M -m sm --compare', at_least(0.86)),
    ('-c send-bandwidth -b 256M -m sm --compare', at_least(0.92)),
    ('PEERHOP_COPY_BLOCKS=16 -c put-bandwidth -c get-bandwidth -b 256M -m copy_kernel --compare', at_least(0.86)),
    ('-c put-bandwidth -c get-bandwidth -b 256M -m copy_kernel --compare', NONE),
    ('-c send-latency -b 8 -m ce --wait memory_operation --compare', within(15.5)),
    ('-c send-latency -b 8 -m ce --wait memory_operation -i graph', within(15.5)),
    ('-c send-latency -b 8 -m ce --wait memory_operation --group', within(13)),
    ('-c send-latency -b 8 -m ce --wait memory_operation --group -i graph', within(13)),
    ('-c send-latency -b 8 --protocol get -m ce --wait memory_operation', NONE),
    ('-c put-latency -c get-latency -b 8', NONE),
    ('-c put-latency -c get-latency -b 8 -i graph', NONE),
    ('-c send-latency -b 8 -m ce', NONE),
    ('-c put-latency -c get-latency -b 8 --wait memory_operation -i host', NONE),
    ('-c send-latency -b 8K:8M:x32 --wait memory_operation', NONE),
    ('-c put-rate -c get-rate -c send-rate -b 8', NONE),
    ('-c exchange-cold --ops 1024', cold(1, 1, None)),
    ('-c exchange-hit --ops 1', HIT),
    ('-c exchange-hit --ops 64', HIT),
    ('-c exchange-hit --ops 1024 --segments 4', HIT),
    ('-c import', NONE),
    # Staged, beside host memory over the same provider.
    ('-p net -c put-latency -c send-latency -b 8', within(18)),
    ('-p net -c put-latency -c send-latency -b 8 -i graph', within(18)),
    ('-p net -c put-bandwidth -c send-bandwidth -b 512K:32M:x8', (*at_least(0.85), '-k host')),
    # ... and as many bytes of that as a lane of slots has, 8 MiB: a smaller buffer stays in the processor's cache.
    ('-p net -c put-bandwidth -b 512K', (*at_least(0.85), '-k host --channels 16')),
    ('-p net -c put-bandwidth -b 4M', (*at_least(0.85), '-k host --channels 2')),
    ('-p net -c put-latency -b 64K -b 512K -b 4M', (*NONE, '-k host')),
    ('-p net -k host -c put-latency -c send-latency -b 8', NONE),
]


def figure(value):
    return '-' if value is None else f'{value:.4g}'


def size(value):
    for suffix in ('', 'K', 'M', 'G'):
        if value < 1024 or value % 1024:
            return f'{value}{suffix}'
        value //= 1024
    return f'{value}T'


def settings(row):
    """What a row's case name does not say."""
    parts = []
    if row['ops'] is None:
        parts += [row['issue']] if row['issue'] != 'stream' else []
        parts += ['group'] if row['group'] else []
        parts += [f"{row['late']} {row['late_us']} us late"] if row['late_us'] is not None else []
        parts += [f"{row['graphs']} graphs"] if row['graphs'] else []
        parts += ['fresh'] if row['fresh'] else []
        parts += [f"{row['protocol']} protocol"] if row['case'].startswith('send') else []
        parts += [f"wait: {row['wait']}"] if row['wait'] not in (None, 'host') else []
        parts += [f"{row['kind']}, net/{row['method']}"] if row['path'] == 'net' else []
    parts += [name.replace('PEERHOP_', '') for name in row['set']]
    parts += [f"beside {row['beside']}"] if 'beside' in row else []
    parts += ['verified'] if row['verified'] else []
    parts += [f"{row['ranks']} ranks"] if row['ranks'] != 2 else []
    parts += [f"{row['ops']} operations, {row['segments']} allocations"] if row['ops'] else []
    return ', '.join(parts)


def rows_of(perf, kind, words, more=''):
    words = words.split()
    given = [word for word in words if '=' in word]
    command = [perf, '-k', kind, '-o', 'json', *words[len(given):], *more.split()]
    environment = os.environ | dict(word.split('=') for word in given)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode == 0, [row | {'set': given} for row in rows]


def hold_beside(rows, limits, arguments):
    """The limit of each row is the median of the same case in the other run."""
    found = {(row['case'], row['bytes']): row['median'] for row in limits}
    for row in rows:
        row['beside'] = arguments
        row['limit'] = found.get((row['case'], row['bytes']))
        row['ratio'] = row['median'] / row['limit'] if row['limit'] else 0


def measure(perf, kind, table):
    missed = 0
    print('| case | bytes | how | unit | median | p90 | p99 | limit | ratio | bar | |')
    print('|---|---|---|---|---|---|---|---|---|---|---|')
    for words, (text, holds, *beside) in table:
        passed, rows = rows_of(perf, kind, words)
        if beside:
            passed_too, limits = rows_of(perf, kind, words, *beside)
            passed = passed and passed_too
            hold_beside(rows, limits, *beside)
        if not passed:
            missed += 1
            print(f'| `{words}` | | | | | | | | | {text} | **failed** |', flush=True)
        for row in rows:
            verdict = '' if holds is None or not passed else 'holds' if holds(row) else '**missed**'
            missed += verdict == '**missed**'
            cells = [row['case'], size(row['bytes']), settings(row), UNITS[row['metric']],
                     *(figure(row[name]) for name in ('median', 'p90', 'p99', 'limit', 'ratio')), text, verdict]
            print('| ' + ' | '.join(cells) + ' |', flush=True)
    return missed


def gpus(perf):
    """Names of the devices that ranks 0 and 1 would use, or none."""
    done = subprocess.run([perf, '-k', 'cuda', '-c', 'put-latency', '-b', '8', '-n', '1', '-o', 'json'],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [json.loads(line)['device'] for line in done.stdout.splitlines()] if done.returncode == 0 else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--perf', default='build/bench/peerhop-perf')
    parser.add_argument('kinds', nargs='*', choices=['host', 'net', 'gpu', []])
    options = parser.parse_args()
    devices = gpus(options.perf)
    kinds = options.kinds or ['host', 'net'] + (['gpu'] if devices else [])
    missed = 0
    if 'host' in kinds:
        load = os.getloadavg()[0]
        print(f'### Host memory: {os.cpu_count()} cores, {platform.machine()}, load {load:.1f} at the start\n')
        missed += measure(options.perf, 'host', HOST)
    if 'net' in kinds:
        print(f'\n### The net, host memory: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n')
        missed += measure(options.perf, 'host', NET)
    if 'gpu' in kinds:
        print(f"\n### GPUs: {devices[0] if devices else 'none'}\n")
        missed += measure(options.perf, 'cuda', GPU)
    print(f'\n{missed} bars missed.' if missed else '\nEvery bar holds.')
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
