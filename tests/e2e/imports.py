#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes each function that the library imports count its calls: imports.py ASSEMBLER LINKER LIBRARIES [--but NAME...]

Writes the assembler file of the counting functions and the file of --wrap options that put them in the way of the
imports. What is not in HARMLESS is counted, so an import that nobody has looked at is counted too. Fails where an
object enters the kernel without any import. --but: imports that the program wraps itself.
"""
import pathlib
import re
import subprocess
import sys

# Neither locks nor enters the kernel. The clock is the vDSO's: it reads a page that the kernel keeps.
HARMLESS = {'__errno_location', 'clock_gettime', 'memcmp', 'memcpy', 'memmove', 'memset'}
# Not functions.
DATA = {'_GLOBAL_OFFSET_TABLE_', 'environ', 'stderr'}
# Of a sanitizer's instrumentation.
RUNTIME = re.compile(r'__(asan|ubsan|tsan|sanitizer|sancov)_')
FORTIFIED = re.compile(r'__(\w+)_chk$')
ENTRY = re.compile(r'\t(syscall|sysenter|int +\$0x80)\b')

# r10 and r11 carry no arguments, so any function can be passed on, variadic ones too.
COUNTING = '''
.globl __wrap_{name}
.type __wrap_{name}, @function
__wrap_{name}:
    endbr64
    movq imported_calls@gottpoff(%rip), %r11
    incq %fs:(%r11)
    movq imported_latest@gottpoff(%rip), %r11
    leaq .Lname_{name}(%rip), %r10
    movq %r10, %fs:(%r11)
    jmp __real_{name}@PLT
.size __wrap_{name}, . - __wrap_{name}
.Lname_{name}: .asciz "{name}"
'''


def imports(symbols):
    """The names that `nm --format=posix` lists as used and not as defined."""
    used, defined = set(), set()
    for line in symbols.splitlines():
        name, kind, *_ = line.split() + ['', '']
        if kind in ('U', 'w', 'v'):
            used.add(name)
        elif len(kind) == 1:
            defined.add(name)
    return used - defined


def is_counted(name):
    fortified = FORTIFIED.match(name)
    return not ({name, fortified and fortified[1]} & (HARMLESS | DATA) or RUNTIME.match(name))


def entries(code):
    """Sentences on instructions of a disassembly that enter the kernel."""
    function = '?'
    for line in code.splitlines():
        if line.endswith('>:'):
            function = line.split('<')[1][:-2]
        elif ENTRY.search(line):
            yield f'{function} enters the kernel without an import: {line.strip()}'


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def self_test():
    symbols = 'lib.a[x.o]:\nread U         \nmemcpy U         \nphi_x T 0 10\nphi_y U\n__memcpy_chk U\nphi_y T 0 8\nmaybe w\n'
    assert imports(symbols) == {'read', 'memcpy', '__memcpy_chk', 'maybe'}
    assert [n for n in sorted(imports(symbols)) if is_counted(n)] == ['maybe', 'read']
    assert not is_counted('__asan_report_load8') and is_counted('__snprintf_chk')
    assert not list(entries('0000 <f>:\n 0:\te8 00\tcall 5 <syscall>\n'))
    assert list(entries('0000 <f>:\n 0:\t0f 05\tsyscall\n'))[0].startswith('f enters')


def main(assembler, linker, *rest):
    at = rest.index('--but') if '--but' in rest else len(rest)
    libraries, others = rest[:at], set(rest[at + 1:])
    wrong = list(entries(output_of('objdump', '-d', *libraries)))
    if wrong:
        sys.exit('\n'.join(wrong))
    names = sorted(n for n in imports(output_of('nm', '--format=posix', *libraries)) - others if is_counted(n))
    pathlib.Path(assembler).write_text(
        '.text' + ''.join(COUNTING.format(name=n) for n in names) + '.section .note.GNU-stack,"",@progbits\n')
    pathlib.Path(linker).write_text(''.join(f'--wrap={n}\n' for n in names))


if __name__ == '__main__':
    self_test() if sys.argv[1:] == ['--self-test'] else main(*sys.argv[1:])
