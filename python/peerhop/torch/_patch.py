# SPDX-License-Identifier: BSD-3-Clause
"""enable(): groups stay gloo or NCCL, and point-to-point messages between ranks of a node go by Peerhop."""
# pylint: disable=protected-access
import inspect
import threading

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from . import _group
from ._transport import Transport, transports
from ._work import Batch

_originals = {}  # what is replaced, by name; empty: not enabled
_signature = None  # of _new_process_group_helper
_kinds = ()
_groups = {}  # group -> _Ways


class _Ways:
    """What a group of another backend has of Peerhop."""

    def __init__(self, name, transports):
        self.name, self.transports = name, transports
        self.batch = threading.local()
        self.others = {}  # (kind of device, group rank) -> messages that went by the group's backend

    def find(self, tensor, peer):
        transport = self.transports.get(tensor.device.type)
        if transport is not None and transport.reaches(peer):
            return transport
        key = (tensor.device.type, peer)
        self.others[key] = self.others.get(key, 0) + 1
        return None


def _node():
    # Ranks that share a kernel and its /dev/shm share memory.
    with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as boot:
        return boot.read().strip().encode()


def _near(store, rank, count):
    """_near returns the ranks of the group that are on this node."""
    here = _node()
    store.set(f'peerhop/node/{rank}', here)
    return [peer for peer in range(count) if store.get(f'peerhop/node/{peer}') == here]


def _timeout_of(group, device):
    backend = group._get_backend(torch.device(device))
    options = getattr(backend, 'options', None)
    timeout = getattr(options, '_timeout', None)
    return (timeout or dist.default_pg_timeout).total_seconds()


def _has(group, kind):
    try:
        group._get_backend(torch.device(kind))
    except RuntimeError:
        return False
    return True


def _equip(group, store, ranks):
    """_equip connects a group that torch has made: all of its ranks are here at the same time."""
    kinds = [kind for kind in _kinds if _has(group, kind)]
    if isinstance(group, _group.PeerhopGroup) or len(ranks) < 2 or not kinds or group in _groups:
        return
    near = _near(store, group.rank(), len(ranks))
    _groups[group] = _Ways(group.group_name, {
        kind: Transport(kind, name=group.group_name, store=store, group_rank=group.rank(), ranks=ranks, peers=near,
                        timeout=_timeout_of(group, kind), device_id=group.bound_device_id) for kind in kinds})


# ---- in place of torch's

def _original(name, group):
    return _originals[name].__get__(group)


def _make(*args, **named):
    group, store = _originals['_new_process_group_helper'](*args, **named)
    if isinstance(group, ProcessGroup):
        given = _signature.bind(*args, **named).arguments
        _equip(group, store, list(given['global_ranks_in_group']) or list(range(given['group_size'])))
    return group, store


def _post(name, group, tensors, peer, tag):
    ways = _groups.get(group)
    transport = ways.find(tensors[0], peer) if ways is not None and len(tensors) == 1 else None
    if transport is None:
        return _original(name, group)(tensors, peer, tag)
    sends = name == 'send'
    operations = getattr(ways.batch, 'operations', None)
    if operations is None:
        return transport.post(tensors[0], peer, sends)
    operations.append((transport, (tensors[0], peer, sends)))
    return None


def _send(self, tensors, dstRank, tag=0):  # pylint: disable=invalid-name
    return _post('send', self, tensors, dstRank, tag)


def _recv(self, tensors, srcRank, tag=0):  # pylint: disable=invalid-name
    return _post('recv', self, tensors, srcRank, tag)


def _start_coalescing(self, device):
    if self in _groups:
        _groups[self].batch.operations = []
    return _original('_start_coalescing', self)(device)


def _end_coalescing(self, device):
    ways = _groups.get(self)
    operations = getattr(ways.batch, 'operations', None) if ways is not None else None
    if not operations:
        if ways is not None:
            ways.batch.operations = None
        return _original('_end_coalescing', self)(device)
    ways.batch.operations = None
    inner = _original('_end_coalescing', self)(device)
    works = [] if inner is None else [inner]
    for transport in ways.transports.values():
        works += transport.post_batch([operation for of, operation in operations if of is transport])
    return Batch(works)


def _shutdown(self, *args):
    ways = _groups.pop(self, None)
    for transport in ways.transports.values() if ways is not None else ():
        transport.shutdown()
    return _original('shutdown', self)(*args)


def _abort(self, *args):
    ways = _groups.pop(self, None)
    for transport in ways.transports.values() if ways is not None else ():
        transport.abort('abort of the process group')
    return _original('abort', self)(*args)


_REPLACEMENTS = {'send': _send, 'recv': _recv, '_start_coalescing': _start_coalescing, '_end_coalescing': _end_coalescing,
                 'shutdown': _shutdown, 'abort': _abort}


def enable(devices=('cuda',)):
    """enable lets point-to-point messages of tensors on these kinds of device ("cuda", "cpu") go by Peerhop, between ranks of
    one node, in every group that is there or is made later; all else goes as before. All ranks call it at the same place, as
    they do new_group: it blocks until those of each group have come, at most the group's timeout. Raises RuntimeError where
    this torch has not what it replaces."""
    global _kinds, _signature  # pylint: disable=global-statement
    if _originals:
        raise RuntimeError('peerhop.torch is enabled already')
    missing = [name for name in _REPLACEMENTS if name not in vars(ProcessGroup)]
    _signature = inspect.signature(c10d._new_process_group_helper)
    missing += [name for name in ('group_size', 'global_ranks_in_group') if name not in _signature.parameters]
    if missing:
        raise RuntimeError(f'peerhop.torch does not know torch {torch.__version__}: it has no {", ".join(missing)}')
    _kinds = tuple(devices)
    _originals['_new_process_group_helper'] = c10d._new_process_group_helper
    c10d._new_process_group_helper = _make
    for name, function in _REPLACEMENTS.items():
        _originals[name] = vars(ProcessGroup)[name]
        setattr(ProcessGroup, name, function)
    try:
        for group, (_, store) in list(c10d._world.pg_map.items()):
            if isinstance(group, ProcessGroup):
                _equip(group, store, dist.get_process_group_ranks(group))
    except BaseException:
        disable()
        raise


def disable():
    """disable gives torch back what enable() has replaced, in all ranks: messages that are under way are over then."""
    if not _originals:
        return
    for name in _REPLACEMENTS:
        setattr(ProcessGroup, name, _originals[name])
    c10d._new_process_group_helper = _originals['_new_process_group_helper']
    _originals.clear()
    groups = list(_groups.values())
    _groups.clear()
    for ways in groups:
        for transport in ways.transports.values():
            transport.shutdown()


def report():
    """report returns what goes where: by group and kind of device, for each rank its path and what went to it and came from it
    (messages, bytes); "others": messages that the group's own backend has moved, by its ranks."""
    result = {}
    for transport in transports:
        result.setdefault(transport.name, {})[transport.kind] = transport.report()
    for ways in _groups.values():
        if ways.others:
            result.setdefault(ways.name, {})['others'] = {f'{kind}:{peer}': count for (kind, peer), count in ways.others.items()}
    return result
