#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a message costs from Python that is another tensor each time, as a caching allocator gives: from the call until the stream is done.

    peerhop-run -n 2 -- python3 bench/dynamic.py LIBPEERHOP.so

By an unbound channel; by a bound channel of an exchange of its own; by a bound channel of one tensor for all; by NCCL (torch.distributed).
The ways have their turns in each of the rounds, on both ranks at once; figures are medians and 90th percentiles. Needs two GPUs and torch.
"""
import statistics
import sys
import time

import torch
import torch.distributed

from library import Peerhop, join

SIZES, MESSAGES, ROUNDS, PLACE = (8, 64 << 10, 1 << 20), 200, 5, 1 << 20


def main():
    rank = join()
    pool = torch.zeros(PLACE * (MESSAGES + 1), dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    peerhop = Peerhop(sys.argv[1], rank)
    unbound, bound = peerhop.channel(1), peerhop.channel(2, pool[:PLACE])

    def exchanged(tensor):
        channel = peerhop.channel(3, tensor)
        peerhop.bound(channel, tensor.nbytes, stream)
        stream.synchronize()
        peerhop.close(channel)

    ways = {
        'unbound': lambda tensor: peerhop.unbound(unbound, tensor, stream),
        'bound, exchanged each time': exchanged,
        'bound, one tensor for all': lambda tensor: peerhop.bound(bound, tensor.nbytes, stream),
        'NCCL': lambda tensor: torch.distributed.send(tensor, 1) if rank == 0 else torch.distributed.recv(tensor, 0),
    }
    found = {(way, size): [] for way in ways for size in SIZES}
    with torch.cuda.stream(stream):
        for count in range(ROUNDS + 1):  # the first one warms up
            for (way, size), times in found.items():
                torch.distributed.barrier()
                torch.cuda.synchronize()
                for i in range(1, MESSAGES + 1):
                    tensor = pool[i * PLACE:i * PLACE + size]
                    begin = time.perf_counter()
                    ways[way](tensor)
                    stream.synchronize()
                    if count > 0:
                        times.append((time.perf_counter() - begin) * 1e6)
    if rank == 0:
        print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {".".join(map(str, torch.cuda.nccl.version()))}; us, median (90th percentile)')
        print('| | ' + ' | '.join(f'{size} B' for size in SIZES) + ' |')
        print('|---' * (len(SIZES) + 1) + '|')
        for way in ways:
            cells = [found[way, size] for size in SIZES]
            print(f'| {way} | ' + ' | '.join(f'{statistics.median(t):.1f} ({statistics.quantiles(t, n=10)[8]:.1f})' for t in cells) + ' |')
    torch.distributed.barrier()
    torch.cuda.synchronize()
    peerhop.destroy()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
