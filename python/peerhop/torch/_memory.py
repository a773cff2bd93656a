# SPDX-License-Identifier: BSD-3-Clause
import re

import torch

# Of less than a byte to DLPack, and of one to torch.
_SHORT = {dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype) and re.fullmatch('u?int[1-7]', name)}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_of(tensor):
    """memory_of returns the tensor as the binding takes it. As with NCCL it is contiguous, or channels last: bytes move as they
    lie, and the layout is not told."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        layout = _CHANNELS_LAST.get(tensor.dim())
        if layout is None or not tensor.is_contiguous(memory_format=layout):
            raise ValueError('the tensor is not contiguous: make a contiguous copy of it')
        tensor = tensor.as_strided((tensor.numel(),), (1,))
    return tensor.view(torch.uint8) if tensor.dtype in _SHORT else tensor
