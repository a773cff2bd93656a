# SPDX-License-Identifier: BSD-3-Clause
"""What CUDA stream is meant. Frameworks are asked only where the program has imported them."""
import sys

from . import _peerhop


def handle_of(device, stream):
    """handle_of returns a stream's address: of None the one that the framework works on, else the legacy stream."""
    if stream is None:
        return current(device)
    if isinstance(stream, int):
        return stream
    if hasattr(stream, 'cuda_stream'):  # torch.cuda.Stream
        return stream.cuda_stream
    if hasattr(stream, '__cuda_stream__'):
        protocol = stream.__cuda_stream__
        return (protocol() if callable(protocol) else protocol)[1]
    if hasattr(stream, 'ptr'):  # cupy.cuda.Stream
        return stream.ptr
    raise TypeError('a stream of this context, which runs on a GPU, is a CUDA stream: its address, a stream of PyTorch or '
                    f'CuPy, what has __cuda_stream__, or None, not {stream!r}')


def current(device):
    torch, cupy = sys.modules.get('torch'), sys.modules.get('cupy')
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.current_stream(device).cuda_stream
    if cupy is not None:
        return cupy.cuda.get_current_stream(device).ptr
    return 0


_peerhop.use_streams(handle_of)
