# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's point-to-point messages by Peerhop. See python/README.md.

    import peerhop.torch
    torch.distributed.init_process_group('peerhop')  # send, recv, isend, irecv, batches; collectives by gloo and NCCL inside

    peerhop.torch.enable()                           # or: groups stay what they are, and these messages go by Peerhop
"""
import atexit

import torch.distributed as _dist

from ._group import create as _create
from ._patch import disable, enable, report
from ._transport import at_exit as _at_exit

__all__ = ['disable', 'enable', 'register', 'report']


def register():
    """register makes "peerhop" a backend of torch.distributed. The import does so, too."""
    if 'PEERHOP' not in _dist.Backend._plugins:  # pylint: disable=protected-access
        _dist.Backend.register_backend('peerhop', _create, extended_api=True, devices=['cpu', 'cuda'])


register()
atexit.register(_at_exit)
