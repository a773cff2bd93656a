#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures NIXL on what pages-put and pages-get of peerhop-perf do: bench/nixl.py

All pages of a buffer in random order, each to its place at the other end, between two GPUs. Each line is the time from the post of a
prepared list until the initiator sees it done, as `peerhop-perf -i host -c pages-put -c pages-get --pages N --page-size S` measures it,
and what the preparation took. Needs PyTorch and NIXL (the wheel nixl-cu13 or nixl-cu12).
"""
import argparse
import importlib
import multiprocessing
import random
import statistics
import time


def open_agent(rank, size):
    """Returns an agent, its memory on the GPU of that number, and what the peer is to be told."""
    import torch
    for name in ('nixl_cu13._api', 'nixl_cu12._api', 'nixl._api'):
        try:
            api = importlib.import_module(name)
            break
        except ModuleNotFoundError:
            continue
    else:
        raise SystemExit('NIXL is not installed: pip install nixl-cu13')
    torch.cuda.set_device(rank)
    agent = api.nixl_agent(str(rank), api.nixl_agent_config(backends=['UCX']))
    memory = torch.full((size,), rank + 1, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    agent.register_memory(memory)
    return agent, memory, (agent.get_agent_metadata(), memory.data_ptr())


def passive(pipe, size):
    agent, memory, told = open_agent(1, size)
    pipe.send(told)
    agent.add_remote_agent(pipe.recv()[0])
    pipe.send('ready')
    while (check := pipe.recv()) is not None:
        pipe.send(bool((memory[:check[0]] == check[1]).all()))


def transfer(agent, handle):
    begin = time.perf_counter()
    state = agent.transfer(handle)
    while state not in ('DONE', 'ERR'):
        state = agent.check_xfer_state(handle)
    if state == 'ERR':
        raise RuntimeError('the transfer failed')
    return time.perf_counter() - begin


def measure(agent, peer, kind, own, other, pages, size):
    order = random.Random(1).sample(range(pages), pages)

    def descriptors(base, device):
        return agent.get_xfer_descs([(base + page * size, size, device) for page in order], mem_type='VRAM')
    local, remote = descriptors(own, 0), descriptors(other, 1)
    begin = time.perf_counter()
    handle = agent.initialize_xfer(kind, local, remote, peer)
    prepared = time.perf_counter() - begin
    for _ in range(3):
        transfer(agent, handle)
    times, end = [], time.perf_counter() + 0.5
    while len(times) < 5 or time.perf_counter() < end:
        times.append(transfer(agent, handle))
    agent.release_xfer_handle(handle)
    return statistics.median(times), prepared


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--lists', nargs='+', default=['64x4096', '1024x4096', '4096x4096', '1024x16384', '40000x8192'], help='pages x bytes')
    lists = [[int(number) for number in text.split('x')] for text in parser.parse_args().lists]
    size = max(pages * bytes for pages, bytes in lists)
    context = multiprocessing.get_context('spawn')
    pipe, theirs = context.Pipe()
    process = context.Process(target=passive, args=(theirs, size), daemon=True)
    process.start()
    theirs.close()  # so that a child that ends is seen
    agent, memory, told = open_agent(0, size)
    metadata, other = pipe.recv()
    pipe.send(told)
    pipe.recv()
    peer = agent.add_remote_agent(metadata)
    print('| pages | bytes | | us until done | GB/s | us to prepare |\n|---|---|---|---|---|---|')
    value = 10
    for pages, bytes in lists:
        for kind in ('WRITE', 'READ'):
            value += 1
            if kind == 'WRITE':
                memory.fill_(value)
                memory[:1].cpu()  # it is there
            took, prepared = measure(agent, peer, kind, memory.data_ptr(), other, pages, bytes)
            print(f'| {pages} | {bytes} | {kind.lower()} | {took * 1e6:.1f} | {pages * bytes / took * 1e-9:.1f} | {prepared * 1e6:.0f} |', flush=True)
            if kind == 'WRITE':
                pipe.send((pages * bytes, value))
                if not pipe.recv():
                    raise SystemExit('wrong data')
    pipe.send(None)
    process.join(5)


if __name__ == '__main__':
    main()
