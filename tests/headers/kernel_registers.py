#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether what messages by flags run keeps its values in registers: kernel_registers.py NVCC SOURCES ARCH

A message of 1 MiB took a fifth longer when the compiler spilled, or called functions through memory, in the kernel that copies it.
"""
import re
import subprocess
import sys
import tempfile

KEEP = ['phi_hop', 'phi_hop_spread', 'phi_hop_staged', 'phi_copies', 'phi_copy', 'phi_transfer']


def main():
    nvcc, sources, arch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, '-cubin', '-O3', '-std=c++17', '-arch=sm_' + arch, '-I', sources, '-Xptxas', '-v', '-o', folder + '/kernels.cubin',
                   sources + '/cuda/kernels.cu']
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout)
        return 1
    found = re.findall(r'Function properties for (\S+)\n\s*(\d+ bytes stack frame, .*)', done.stdout)
    wrong = 0
    for name in KEEP:
        if name not in [row[0] for row in found]:
            print(f'{name}: the compiler says nothing of it')
            wrong += 1
    for function, text in found: # also those that a kernel calls
        print(f'{function}: {text}')
        wrong += any(int(bytes) for bytes in re.findall(r'\d+', text))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
