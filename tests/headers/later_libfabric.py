#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""later_libfabric.py OUTPUT COMPILER...: writes the installed rdma/fi_domain.h with what libfabric 1.20 and later have in
it for DMA-BUFs, where it lacks that: what is built for these headers only is compiled with older ones, too."""
import re
import subprocess
import sys

DMABUF = '''#define FI_MR_DMABUF (1ULL << 40)
struct fi_mr_dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
};
'''


def later(text):
    if 'define FI_MR_DMABUF' in text:
        return text
    text, members = re.subn(r'const struct iovec\s*\*mr_iov;',
                            r'union { \g<0> const struct fi_mr_dmabuf *dmabuf; };', text)
    text, structs = re.subn(r'^struct fi_mr_attr {', DMABUF + r'\g<0>', text, flags=re.MULTILINE)
    if (members, structs) != (1, 1):
        sys.exit('rdma/fi_domain.h is not as that of 1.17')
    return text


def main():
    output, *compiler = sys.argv[1:]
    words = subprocess.run(compiler + ['-M', '-xc', '-'], input='#include <rdma/fi_domain.h>\n', text=True, check=True,
                           stdout=subprocess.PIPE).stdout.split()
    installed = next(word for word in words if word.endswith('rdma/fi_domain.h'))
    with open(installed, encoding='utf-8') as source, open(output, 'w', encoding='utf-8') as target:
        target.write(later(source.read()))


main()
