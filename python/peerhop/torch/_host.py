# SPDX-License-Identifier: BSD-3-Clause
"""CPU tensors. Each direction of each pair has a queue of its own, made at its first use: no message waits for one of
another peer or direction, and irecv posts at the call."""
import threading

import peerhop

from ._memory import memory_of
from ._work import HostWork


class HostLane:
    """One direction between this rank and another. Messages match in their order."""

    def __init__(self, transport, group_peer, channel, sends):
        self.group_peer, self.channel, self.sends = group_peer, channel, sends
        self.timeout = transport.timeout
        self.queue = None
        self.messages = self.bytes = 0
        self._transport = transport
        self._call = channel.send if sends else channel.recv
        self._lock = threading.Lock()

    def __str__(self):
        return f'{"send to" if self.sends else "receive from"} rank {self.channel.peer if not self.channel.closed else "?"}'

    def post(self, tensor):
        memory = memory_of(tensor)
        with self._lock:
            if self.queue is None:
                self.queue = self._transport.context.queue()
            self._call(memory, stream=self.queue)
            number = self.queue.issued
            self.messages += 1
            self.bytes += tensor.nbytes
        return HostWork(self, tensor, number)

    def give_up(self, seconds):
        """give_up ends the pair's channel after a timeout, at both ends; other pairs go on."""
        if self.channel.ended == 0:
            self.channel.abort(f'it waited {seconds:g} s for a message, the timeout of torch.distributed')


class HostFarewell:
    """Signals of ranks that leave. What is sent eagerly would be lost with its sender."""

    def __init__(self, context):
        self._queue = context.queue()

    def signal(self, channel):
        channel.signal(stream=self._queue)

    def wait(self, channel, seconds):
        channel.wait(stream=self._queue)
        self._queue.wait(self._queue.issued, seconds)

    def end(self):
        pass


def post_batch(operations):
    """post_batch posts each of (lane, tensor): the lanes' queues do not wait for one another."""
    return [lane.post(tensor) for lane, tensor in operations]


def open_context(device, **parameters):
    del device
    return peerhop.Context(device='host', **parameters)
