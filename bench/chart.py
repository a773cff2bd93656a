#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what peerhop-perf measured over sizes: bench/chart.py [--title TEXT] [FILE...] > chart.svg

Reads the lines of `peerhop-perf -o json` (of the standard input without files): half round trips in a logarithmic panel,
bandwidths in another. Each combination of case and settings is a curve, named by what sets it apart; a raw limit that
was measured beside it (--compare) is its dashed twin. Medians; the band goes from the fastest to the 90th percentile.
"""
import argparse
import fileinput
import html
import json
import math
import sys

PANELS = {'half_round_trip_us': 'half round trip, us', 'bandwidth_GBps': 'bandwidth, GB/s'}
SETTINGS = ('case', 'kind', 'path', 'method', 'issue', 'group', 'protocol', 'wait', 'channels', 'ranks', 'graphs')
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#999999')
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 64, 40, 16, 48


def size(value):
    for suffix in ('', 'K', 'M', 'G'):
        if value < 1024:
            return f'{value:.4g}{suffix}'
        value /= 1024
    return f'{value:.4g}T'


def curves_of(rows):
    """{settings: rows by size}, and the settings that are not the same in all."""
    curves = {}
    for row in rows:
        curves.setdefault(tuple(row.get(name) for name in SETTINGS), []).append(row)
    apart = [i for i in range(len(SETTINGS)) if len({key[i] for key in curves}) > 1]
    return {key: sorted(rows, key=lambda row: row['bytes']) for key, rows in curves.items()}, apart


def name_of(key, apart):
    words = []
    for i in apart or [0]: # SETTINGS[0] is the case
        value = key[i]
        if value in (None, False):
            continue
        # What a number or a yes is of is said with it.
        words.append(SETTINGS[i] if value is True else f'{value} {SETTINGS[i]}' if isinstance(value, int) else value)
    return ' '.join(words)


class Axis:
    """Maps logarithms of values in [low, high] to [start, end]."""

    def __init__(self, values, base, start, end):
        self.base = base
        self.low, self.high = math.log(min(values), base), math.log(max(values), base)
        if self.high - self.low < 1e-9:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.start, self.end = start, end

    def at(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self, most):
        """Powers of the base, and of ten also twice and five times of them where few."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        steps = (1, 2, 5) if self.base == 10 and len(powers) <= most / 2 else (1,)
        every = max(1, math.ceil(len(powers) / most))
        values = [step * self.base ** power for power in powers if power % every == 0 for step in steps]
        return [value for value in values if self.low - 1e-9 <= math.log(value, self.base) <= self.high + 1e-9]


def line(points, style):
    return f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" {style}/>'


def text(x, y, what, anchor='middle', more=''):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {more}>{html.escape(what)}</text>'


def panel(rows, unit, top):
    curves, apart = curves_of(rows)
    values = [row[name] for row in rows for name in ('median', 'limit') if row[name]]
    x = Axis([row['bytes'] for row in rows], 2, LEFT, WIDTH - RIGHT)
    y = Axis(values, 10, top + HEIGHT - BOTTOM, top + TOP)
    yield text(LEFT, top + TOP - 14, unit, 'start', 'font-weight="bold"')
    for value in x.ticks(14):
        yield line([(x.at(value), y.start), (x.at(value), y.end)], 'stroke="#ddd"')
        yield text(x.at(value), y.start + 18, size(value))
    for value in y.ticks(12):
        yield line([(x.start, y.at(value)), (x.end, y.at(value))], 'stroke="#ddd"')
        yield text(LEFT - 8, y.at(value) + 4, f'{value:g}', 'end')
    legend = top + TOP + 14 if unit == PANELS['half_round_trip_us'] else y.start - 14 - 16 * (len(curves) - 1)
    side, anchor = (LEFT + 12, 'start') if unit == PANELS['half_round_trip_us'] else (WIDTH - RIGHT - 12, 'end')
    for i, (key, points) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        # Of a bandwidth the 90th percentile is the lower end.
        edges = [[(x.at(row['bytes']), min(max(y.at(row[name] or row['median']), y.end), y.start)) for row in points]
                 for name in ('min', 'p90')]
        band = ' '.join(f'{a},{b}' for a, b in edges[0] + edges[1][::-1])
        if unit == PANELS['half_round_trip_us']:
            yield f'<polygon points="{band}" fill="{colour}" fill-opacity="0.12"/>'
        yield line([(x.at(row['bytes']), y.at(row['median'])) for row in points], f'stroke="{colour}" stroke-width="2"')
        limits = [(x.at(row['bytes']), y.at(row['limit'])) for row in points if row['limit']]
        if limits:
            yield line(limits, f'stroke="{colour}" stroke-dasharray="5 4"')
        yield text(side, legend + 16 * i, name_of(key, apart), anchor, f'fill="{colour}"')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--title', default='')
    parser.add_argument('files', nargs='*')
    options = parser.parse_args()
    rows = [json.loads(words) for words in fileinput.input(options.files) if words.strip()]
    rows = [row for row in rows if row['median'] and row['bytes']]  # zero has no place on a logarithmic axis
    panels = [(unit, [row for row in rows if row['metric'] == metric]) for metric, unit in PANELS.items()]
    panels = [(unit, rows) for unit, rows in panels if rows]
    if not panels:
        sys.exit('chart.py: no half round trips and no bandwidths')
    height = 24 + HEIGHT * len(panels)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    print(text(WIDTH / 2, 20, options.title, more='font-size="14" font-weight="bold"'))
    for i, (unit, rows) in enumerate(panels):
        print('\n'.join(panel(rows, unit, 24 + HEIGHT * i)))
    print('</svg>')


if __name__ == '__main__':
    main()
