#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether what messages by flags run keeps its values in registers: kernel_registers.py NVCC SOURCES ARCH

The functions of phi_hop share 64 registers a thread. Where the staged steps need more of them, the compiler has been seen to
spill in the copy of messages by flags, too, which then took a fifth longer.
"""
import re
import subprocess
import sys
import tempfile

KEEP = [r'phi_hop$', r'copy_when_told']


def main():
    nvcc, sources, arch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, '-cubin', '-O3', '-std=c++17', '-arch=sm_' + arch, '-I', sources, '-Xptxas', '-v', '-o', folder + '/kernels.cubin',
                   sources + '/cuda/kernels.cu']
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout)
        return 1
    found = re.findall(r'Function properties for (\S+)\n\s*(.*?, (\d+) bytes spill stores, (\d+) bytes spill loads)', done.stdout)
    wrong = 0
    for name in KEEP:
        rows = [row for row in found if re.search(name, row[0])]
        if not rows:
            print(f'{name}: the compiler says nothing of it')
            wrong += 1
        for function, text, stores, loads in rows:
            print(f'{function}: {text}')
            wrong += stores != '0' or loads != '0'
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
