# SPDX-License-Identifier: BSD-3-Clause
"""python -m peerhop.demo: two processes of this machine pass host memory to and fro. It needs no GPU and no server."""
import os
import subprocess
import sys
import tempfile
import time

import peerhop

SMALL, ROUNDS = 8, 2000
LARGE, COPIES = 64 << 20, 8
LIMIT_S = 30  # of a machine that does something else


def pass_small(context):
    """pass_small returns the seconds that a message takes one way: messages of memory that was never exchanged."""
    channel = context.unbound(1 - context.rank, op_id=1)
    out, back = bytearray(SMALL), bytearray(SMALL)
    begin = 0.0
    for i in range(-ROUNDS // 10, ROUNDS):  # those below 0 warm up
        if i == 0:
            begin = time.perf_counter()
        out[0] = i % 251
        if context.rank == 0:
            channel.send(out)
            channel.recv(back)
        else:
            channel.recv(back)
            channel.send(back)
        context.synchronize()
        assert context.rank == 1 or back == out, 'other bytes came back'
    return (time.perf_counter() - begin) / ROUNDS / 2


def pass_large(context):
    """pass_large returns the seconds that a buffer takes which both ranks have exchanged, from memory to memory."""
    buffer = context.alloc(LARGE)
    channel = context.exchange(2, peer=1 - context.rank, buffer=buffer, role='sender' if context.rank == 0 else 'receiver')
    data = memoryview(buffer)
    if context.rank == 0:
        data[:] = bytes(range(256)) * (LARGE // 256)
    begin = 0.0
    for i in range(COPIES + 1):  # the first one touches the pages
        if i == 1:
            begin = time.perf_counter()
        if context.rank == 0:
            channel.send()
        else:
            channel.recv()
        context.synchronize()
    seconds = (time.perf_counter() - begin) / COPIES
    assert data[-256:] == bytes(range(256)), 'other bytes came'
    return seconds


def rank():
    with peerhop.Context(device='host') as context:
        small, large = pass_small(context), pass_large(context)
        if context.rank == 0:
            print(f'peerhop {peerhop.__version__}: two processes on {context.device} memory, every message as it was sent\n'
                  f'{SMALL} bytes, one way:  {small * 1e6:8.2f} us  ({ROUNDS} round trips, halved)\n'
                  f'{LARGE >> 20} MiB, one way:   {large * 1e3:8.2f} ms  ({LARGE / large / 1e9:.1f} GB/s)')


def main():
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='peerhop-', dir='/dev/shm' if os.access('/dev/shm', os.W_OK) else None) as folder:
        environment = {**os.environ, 'PEERHOP_STORE': f'file:{folder}', 'PEERHOP_JOB': 'demo', 'PEERHOP_RANKS': '2'}
        ranks = [subprocess.Popen([sys.executable, '-m', 'peerhop.demo', '--rank'],
                                  env={**environment, 'PEERHOP_RANK': str(number)}) for number in range(2)]
        try:
            failed = [process.wait(timeout=LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()  # nothing, where it has ended
    if any(failed):
        return 'a rank has failed: see above'
    print(f'in {time.monotonic() - begin:.1f} s')
    return 0


if __name__ == '__main__':
    if sys.argv[1:] == ['--rank']:
        rank()
    else:
        sys.exit(main())
