# SPDX-License-Identifier: BSD-3-Clause
"""As much of the library as the scripts of this folder need, by ctypes."""
import ctypes
import os
import sys

import torch
import torch.distributed

BOTH, ZERO_SM = 3, 1  # enum ph_role, enum ph_operation_flags


def join():
    """Both ranks' group of NCCL, each on a GPU of its own; returns the rank."""
    rank = int(os.environ['PEERHOP_RANK'])
    torch.cuda.set_device(rank)
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29511')
    torch.distributed.init_process_group('nccl', rank=rank, world_size=2, device_id=torch.device('cuda', rank))
    return rank


class Params(ctypes.Structure):
    """struct ph_context_params, of which only the environment counts."""
    _fields_ = [('zero', ctypes.c_uint64 * 32)]


class Operation(ctypes.Structure):
    """struct ph_operation"""
    _fields_ = [('op_id', ctypes.c_uint64), ('peer', ctypes.c_int), ('role', ctypes.c_int), ('protocol', ctypes.c_int),
                ('buffer', ctypes.c_void_p), ('size', ctypes.c_size_t), ('limits', ctypes.c_void_p), ('flags', ctypes.c_uint32),
                ('range_count', ctypes.c_uint32), ('ranges', ctypes.c_void_p)]


class Peerhop:
    """A context of this rank's; rank 0 sends, rank 1 receives."""

    def __init__(self, path, rank):
        self.peerhop, self.rank, self.context = ctypes.CDLL(path), rank, ctypes.c_void_p()
        self.call('ph_context_create', ctypes.byref(Params()), ctypes.byref(self.context))

    def call(self, name, *arguments):
        """Ends with the library's sentence where a call fails."""
        code = getattr(self.peerhop, name)(*arguments)
        if code:
            text = ctypes.create_string_buffer(1024)
            if self.context:
                self.peerhop.ph_context_error(self.context, text, ctypes.c_size_t(len(text)))
            sys.exit(f'{name}: {code}: {text.value.decode()}')

    def channel(self, op_id, tensor=None, flags=0):
        """With the other rank; unbound without a tensor."""
        address, size = (tensor.data_ptr(), tensor.nbytes) if tensor is not None else (None, 0)
        operation, channel = Operation(op_id, 1 - self.rank, BOTH, 0, address, size, None, flags), ctypes.c_void_p()
        self.call('ph_exchange', self.context, ctypes.byref(operation), ctypes.c_size_t(1), ctypes.byref(channel))
        return channel

    def close(self, channel):
        """Closes a channel."""
        self.peerhop.ph_channel_close(channel)

    def bound(self, channel, size, stream):
        """One message of a bound channel."""
        on = ctypes.c_void_p(stream.cuda_stream)
        self.call('ph_send' if self.rank == 0 else 'ph_recv', channel, ctypes.c_size_t(size), on)
        self.call('ph_complete', channel, on)

    def unbound(self, channel, tensor, stream):
        """One message of an unbound channel."""
        name = 'ph_send_from' if self.rank == 0 else 'ph_recv_into'
        self.call(name, channel, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), ctypes.c_void_p(stream.cuda_stream))

    def destroy(self):
        """Ends the context."""
        self.call('ph_context_destroy', ctypes.byref(self.context), ctypes.c_int64(0))
