#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether what messages by flags run keeps its values in registers, and leaves room: kernel_registers.py NVCC SOURCES ARCH

A message of 1 MiB took a fifth longer when the compiler spilled, or called functions through memory, in the kernel that copies it.
And a block with as many threads as a kernel allows fits on a multiprocessor.
"""
import re
import subprocess
import sys
import tempfile

KEEP = ['phi_hop', 'phi_hop_spread', 'phi_hop_large', 'phi_hop_wide', 'phi_ring', 'phi_ring_long', 'phi_hop_staged', 'phi_copies', 'phi_copy', 'phi_transfer', 'phi_pages']

# Of a multiprocessor, and how they are given out (CUDA C++ Programming Guide, compute capabilities).
REGISTERS, PER_WARP = 65536, 256


def compile_kernels(nvcc, sources, arch):
    """Returns what the compiler says, and the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, '-cubin', '-O3', '-std=c++17', '-arch=sm_' + arch, '-I', sources, '-Xptxas', '-v', '--keep', '--keep-dir', folder,
                   '-o', folder + '/kernels.cubin', sources + '/cuda/kernels.cu']
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout)
        with open(folder + '/kernels.ptx', encoding='ascii') as ptx:
            return done.stdout, ptx.read()


def blocks_that_fit(registers, threads):
    """Of one multiprocessor, by registers alone."""
    warps = -(-threads // 32)
    return REGISTERS // (warps * -(-registers * 32 // PER_WARP) * PER_WARP)


def main():
    said, ptx = compile_kernels(*sys.argv[1:])
    frames = dict(re.findall(r'Function properties for (\S+)\n\s*(\d+ bytes stack frame, .*)', said))
    used = {name: int(n) for name, n in re.findall(r'Function properties for (\S+)\n.*\n.*Used (\d+) registers', said)}
    threads = {name: int(n) for name, n in re.findall(r'\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1', ptx)}
    wrong = 0
    for function, text in frames.items(): # also those that a kernel calls
        print(f'{function}: {text}')
        wrong += any(int(bytes) for bytes in re.findall(r'\d+', text))
    for name in KEEP:
        if name not in used or name not in threads:
            print(f'{name}: the compiler does not say how many registers and threads it has')
            wrong += 1
            continue
        fit = blocks_that_fit(used[name], threads[name])
        print(f'{name}: {used[name]} registers, {threads[name]} threads: {fit} blocks')
        wrong += fit < 1
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
