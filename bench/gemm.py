#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a matrix product (8192^3, bf16, torch) loses beside messages of 256 MiB from rank 0 to rank 1, and these beside it.

    CUDA_DEVICE_MAX_CONNECTIONS=32 peerhop-run -n 2 -- python3 bench/gemm.py LIBPEERHOP.so

Messages go by NCCL (torch.distributed), by a bound channel with PH_ZERO_SM, by one without, and by an unbound one. Each way has its
turn in each of the rounds, on both ranks at once; the figures are medians over all products that ran wholly beside messages. Needs two
GPUs and torch.
"""
import statistics
import sys

import torch
import torch.distributed

from library import Peerhop, ZERO_SM, join

SIZE, BYTES, MESSAGES, PRODUCTS, ROUNDS = 8192, 256 << 20, 60, 12, 5


def events(count):
    """Timing events."""
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def products(a, b, out, stream):
    """Enqueues them; returns the events between."""
    marks = events(PRODUCTS + 1)
    with torch.cuda.stream(stream):
        marks[0].record()
        for mark in marks[1:]:
            torch.matmul(a, b, out=out)
            mark.record()
    return marks


def messages(send, stream):
    """Enqueues them; returns the events before and behind."""
    first, last = events(2)
    with torch.cuda.stream(stream):
        first.record(stream)
        for _ in range(MESSAGES):
            send()
        last.record(stream)
    return first, last


def measure(send, compute, moves, work):
    """Returns us of each product beside messages, and GB/s of the messages alone and beside products."""
    rates, times = [], []
    for beside in (False, True):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        first, last = messages(send, moves)
        marks = products(*work, compute) if beside else []
        torch.cuda.synchronize()
        rates.append(MESSAGES * BYTES / first.elapsed_time(last) * 1e-6)
        for begin, end in zip(marks, marks[1:]):
            if first.elapsed_time(begin) > 0 and end.elapsed_time(last) > 0:
                times.append(begin.elapsed_time(end) * 1e3)
    return times, rates[0], rates[1]


def main():
    rank = join()
    tensor = torch.zeros(BYTES, dtype=torch.uint8, device='cuda')
    a, b = (torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device='cuda') for _ in range(2))
    work = (a, b, torch.empty_like(a))
    compute, moves = torch.cuda.Stream(), torch.cuda.Stream()
    peerhop = Peerhop(sys.argv[1], rank)
    zero_sm, bound, unbound = peerhop.channel(1, tensor, ZERO_SM), peerhop.channel(2, tensor), peerhop.channel(3)
    ways = {
        'NCCL': lambda: torch.distributed.send(tensor, 1) if rank == 0 else torch.distributed.recv(tensor, 0),
        'bound, PH_ZERO_SM': lambda: peerhop.bound(zero_sm, BYTES, moves),
        'bound': lambda: peerhop.bound(bound, BYTES, moves),
        'unbound': lambda: peerhop.unbound(unbound, tensor, moves),
    }
    alone, found = [], {way: ([], [], []) for way in ways}
    for count in range(ROUNDS + 1):  # the first one warms up
        torch.cuda.synchronize()
        marks = products(*work, compute)
        torch.cuda.synchronize()
        if count > 0:
            alone += [begin.elapsed_time(end) * 1e3 for begin, end in zip(marks, marks[1:])]
        for way, send in ways.items():
            times, rate, beside = measure(send, compute, moves, work)
            if count > 0:
                for values, more in zip(found[way], (times, [rate], [beside])):
                    values += more
    idle = statistics.median(alone)
    lines = [f'rank {rank}, {torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {".".join(map(str, torch.cuda.nccl.version()))}, '
             f'product alone {idle:.0f} us',
             '| messages of 256 MiB by | product, us | loss | GB/s alone | GB/s beside |', '|---|---|---|---|---|']
    for way, (times, rates, beside) in found.items():
        if not times:
            lines.append(f'| {way} | no product ran wholly beside messages | - | {statistics.median(rates):.0f} | - |')
            continue
        median = statistics.median(times)
        lines.append(f'| {way} | {median:.0f} | {100 * (median / idle - 1):.1f} % | {statistics.median(rates):.0f} | {statistics.median(beside):.0f} |')
    for turn in range(2):
        torch.distributed.barrier()
        if turn == rank:
            print('\n'.join(lines), flush=True)
    torch.cuda.synchronize()
    peerhop.destroy()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
