# SPDX-License-Identifier: BSD-3-Clause
"""What a process group has of Peerhop: a context for each kind of device, which all groups of the process share, and a
channel to each other rank, made when the group is: a first message waits for nobody's first message."""
import hashlib
import logging
import sys
import threading
import time

import torch.distributed as dist

import peerhop

from . import _cuda, _host
from ._self import SelfLane

_FAREWELL_S = 10.0  # how long a rank that leaves waits for those it has sent to
_EXIT_S = 5.0  # ... where it ends without destroy_process_group

_log = logging.getLogger('peerhop.torch')
_KINDS = {'cpu': (_host.open_context, _host.HostLane, _host.HostFarewell, _host.post_batch),
          'cuda': (_cuda.open_context, _cuda.CudaLane, _cuda.CudaFarewell, _cuda.post_batch)}


class _Shared:
    """The process's context for one kind of device. It is there as long as a group is."""

    def __init__(self):
        self._lock = threading.Lock()
        self._context, self._users = None, 0

    def enter(self, make):
        with self._lock:
            if self._context is None or self._context.closed:
                self._context, self._users = make(), 0
            self._users += 1
            return self._context

    def leave(self, context):
        with self._lock:
            if context is not self._context:
                return
            self._users -= 1
            if self._users == 0:
                self._context = None
                context.close(_FAREWELL_S)


_shared = {kind: _Shared() for kind in _KINDS}
transports = []  # all that are open


def _store_of(store):
    # All groups share a context, so all ranks name the store of the first group alike: the default group's, where there is one.
    return dist.distributed_c10d._get_default_store() if dist.is_initialized() else store  # pylint: disable=protected-access


def _identity(group_rank, group_ranks):
    # Of the process: the default group may be under way.
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (group_rank, group_ranks)


class Transport:
    """Point-to-point messages of one group, of tensors of one kind of device ("cpu", "cuda").

    ranks: the global ranks of the group, in its order; peers: the group ranks that are to be reached. It blocks until all of
    them have come here, at most the group's timeout.
    """

    def __init__(self, kind, *, name, store, group_rank, ranks, peers, timeout, device_id=None):
        open_context, lane, self._farewell_kind, self._post_batch = _KINDS[kind]
        self.kind, self.name, self.timeout = kind, name, timeout
        self._ranks, self._group_rank = ranks, group_rank
        rank, count = _identity(group_rank, len(ranks))

        def make():
            return open_context(device_id, rank=rank, ranks=count, job='torch', timeout=timeout,
                                store=dist.PrefixStore(f'peerhop/{kind}', _store_of(store)))
        self.context = _shared[kind].enter(make)
        try:
            self._connect(lane, [peer for peer in peers if peer != group_rank])
        except BaseException:
            _shared[kind].leave(self.context)
            raise
        transports.append(self)

    def _connect(self, lane, peers):
        op_id = int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=8).digest(), 'little')
        self._self = SelfLane(self.timeout)
        self._channels = dict(zip(peers, self.context.exchange(
            [{'op_id': op_id, 'peer': self._ranks[peer]} for peer in peers], timeout=self.timeout)))
        self._lanes = {(peer, sends): lane(self, peer, channel, sends)
                       for peer, channel in self._channels.items() for sends in (False, True)}

    def reaches(self, peer):
        return peer in self._channels or peer == self._group_rank

    def post(self, tensor, peer, sends):
        """post starts a message and returns its work. It never waits for the peer."""
        lane = self._lanes.get((peer, sends))
        return self._self.post(tensor, sends) if lane is None else lane.post(tensor)

    def post_batch(self, operations):
        """post_batch starts (tensor, peer, sends) all at once; returns their works."""
        works = [self._self.post(tensor, sends) for tensor, peer, sends in operations if peer == self._group_rank]
        return works + self._post_batch([(self._lanes[peer, sends], tensor)
                                         for tensor, peer, sends in operations if peer != self._group_rank])

    def report(self):
        """report returns, for each peer, its way and what went to it and came from it."""
        result = {}
        for peer, channel in self._channels.items():
            out, back = self._lanes[peer, True], self._lanes[peer, False]
            path = 'closed' if channel.closed else f'{channel.path().path}/{channel.path().method}'
            result[self._ranks[peer]] = {'path': path, 'sent': (out.messages, out.bytes), 'received': (back.messages, back.bytes)}
        return result

    def _say_farewell(self, seconds):
        # Of what has no order with messages a signal is enough: it says that the peer, which calls this last, has taken them.
        farewell = self._farewell_kind(self.context)
        end = time.monotonic() + seconds
        open_ = {peer: channel for peer, channel in self._channels.items() if not channel.closed and channel.ended == 0}
        for channel in open_.values():
            try:
                farewell.signal(channel)
            except peerhop.Error:
                pass  # it has ended meanwhile
        for peer, channel in open_.items():
            if self._lanes[peer, True].messages == 0:
                continue
            try:
                farewell.wait(channel, max(0.0, end - time.monotonic()))
            except TimeoutError:
                _log.warning('group %s: rank %d has not left for %g s: what it has not received by now is lost', self.name,
                             channel.peer, seconds)
                channel.abort('its peer has left')
            except peerhop.Error:
                pass  # it has gone, or ended the pair
        farewell.end()

    def shutdown(self, seconds=_FAREWELL_S):
        """shutdown waits until the ranks that this one has sent to leave the group, too, and closes. It may be called again."""
        if self not in transports:
            return
        transports.remove(self)
        try:
            if not self.context.closed:
                self._say_farewell(seconds)
                for channel in self._channels.values():
                    channel.close()
        finally:
            _shared[self.kind].leave(self.context)

    def abort(self, why):
        """abort ends all pairs of the group, at both ends, and closes."""
        if self not in transports:
            return
        transports.remove(self)
        if not self.context.closed:
            for channel in self._channels.values():
                if channel.ended == 0:
                    channel.abort(why)
        _shared[self.kind].leave(self.context)


def at_exit():
    """at_exit says farewell for a program that ends well without destroy_process_group. Of one that fails peers hear at once,
    when peerhop ends."""
    if hasattr(sys, 'last_value') or hasattr(sys, 'last_exc'):
        return
    for transport in list(transports):
        try:
            transport.shutdown(_EXIT_S)
        except peerhop.Error as error:
            _log.warning('group %s: %s', transport.name, error)
