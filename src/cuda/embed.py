# SPDX-License-Identifier: BSD-3-Clause
"""Writes an assembler file that holds a fatbin as read-only bytes: embed.py OUTPUT FATBIN NAME TEXT

It defines NAME (the bytes), NAME_size (64 bits) and NAME_architectures (TEXT). The file is generated, not static, because
compilers do not list what .incbin reads among a file's dependencies.
"""
import pathlib
import sys

output, fatbin, name, text = sys.argv[1:]
size = pathlib.Path(fatbin).stat().st_size
path = pathlib.Path(fatbin).resolve()


def symbol(label, body):
    return f'.hidden {label}\n.globl {label}\n.type {label}, %object\n{label}:\n{body}\n'


pathlib.Path(output).write_text(
    '.section .rodata,"a",%progbits\n.balign 16\n'
    + symbol(name, f'.incbin "{path}"')
    + '.balign 8\n'
    + symbol(f'{name}_size', f'.quad {size}')
    + symbol(f'{name}_architectures', f'.asciz "{text}"')
    + '.section .note.GNU-stack,"",%progbits\n')
