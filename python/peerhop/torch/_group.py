# SPDX-License-Identifier: BSD-3-Clause
"""init_process_group("peerhop"): point-to-point by Peerhop, collectives by gloo (CPU) and NCCL (CUDA) inside."""
import threading

import torch
from torch.distributed import ProcessGroup

from ._transport import Transport
from ._work import Batch

_GLOO, _NCCL = ProcessGroup.BackendType.GLOO, ProcessGroup.BackendType.NCCL


def _gloo(options):
    return torch.distributed.ProcessGroupGloo(torch.distributed.PrefixStore('gloo/', options.store), options.group_rank,
                                              options.group_size, timeout=options.timeout)


def _nccl(options, ranks):
    nccl = torch.distributed.ProcessGroupNCCL
    given = nccl.Options()
    given._timeout = options.timeout  # pylint: disable=protected-access
    given.global_ranks_in_group = ranks
    given.group_name = options.group_id
    return nccl(torch.distributed.PrefixStore('nccl/', options.store), options.group_rank, options.group_size, given)


class PeerhopGroup(ProcessGroup):
    """What ProcessGroup does with the backends that are registered with it, but for point-to-point messages."""

    def __init__(self, options, ranks):
        try:
            super().__init__(options.store, options.group_rank, options.group_size)
        except TypeError:  # torch 2.11: classes of Python are made without a store
            super().__init__(options.group_rank, options.group_size)
        self._batch = threading.local()
        device_id = getattr(getattr(options, 'process_group', None), 'bound_device_id', None)  # torch 2.11 has no such option
        has_cuda = torch.cuda.is_available()
        self._register_backend(torch.device('cpu'), _GLOO, _gloo(options))
        if has_cuda:
            self._register_backend(torch.device('cuda'), _NCCL, _nccl(options, ranks))
        self._set_default_backend(_NCCL if has_cuda else _GLOO)
        if device_id is not None:
            self.bound_device_id = device_id
        self._transports = {}
        for kind in ('cpu', 'cuda') if has_cuda else ('cpu',):
            self._transports[kind] = Transport(kind, name=options.group_id, store=options.store, group_rank=options.group_rank,
                                               ranks=ranks, peers=range(options.group_size),
                                               timeout=options.timeout.total_seconds(), device_id=device_id)

    def _transport(self, tensor):
        try:
            return self._transports[tensor.device.type]
        except KeyError:
            raise ValueError(f'Peerhop moves tensors of {" and ".join(self._transports)} here, and none of '
                             f'{tensor.device.type}') from None

    def _post(self, tensors, peer, sends):
        tensor, = tensors
        operations = getattr(self._batch, 'operations', None)
        if operations is None:
            return self._transport(tensor).post(tensor, peer, sends)
        operations.append((tensor, peer, sends))
        return None

    def send(self, tensors, dstRank, tag=0):  # pylint: disable=unused-argument, invalid-name
        """send posts a message and returns its work. Tags do not matter: messages of a pair match in their order."""
        return self._post(tensors, dstRank, True)

    def recv(self, tensors, srcRank, tag=0):  # pylint: disable=unused-argument, invalid-name
        """recv posts the receipt of a message and returns its work."""
        return self._post(tensors, srcRank, False)

    def recv_anysource(self, tensors, tag=0):
        raise NotImplementedError('peerhop: a receive names its source: messages of a pair have an order, and none with others')

    def _coalesces(self, device):
        return getattr(self._get_backend(device), 'supports_coalescing', False)

    def _start_coalescing(self, device):
        if self._coalesces(device):
            super()._start_coalescing(device)
        self._batch.operations = []

    def _end_coalescing(self, device):
        operations, self._batch.operations = self._batch.operations, None
        inner = super()._end_coalescing(device) if self._coalesces(device) else None
        works = self._transports[device.type].post_batch(operations) if operations else []
        return Batch(works + [inner] if inner is not None else works) if works or inner is not None else None

    def shutdown(self):
        for transport in self._transports.values():
            transport.shutdown()
        super().shutdown()

    def abort(self):
        for transport in self._transports.values():
            transport.abort('abort of the process group')
        super().abort()


def create(options, _backend_options):
    """create is what torch calls for a group of the backend "peerhop", in each of its ranks."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return PeerhopGroup(options, ranks)
