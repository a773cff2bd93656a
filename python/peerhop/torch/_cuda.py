# SPDX-License-Identifier: BSD-3-Clause
"""CUDA tensors, as torch's programs know it of NCCL: a call takes its place behind the current stream, moves on a stream of
its own (one for each direction of each pair, and one for batches), and wait() orders the current stream behind it. Nothing of
it waits on the host; a thread looks for works that are late."""
import atexit
import logging
import os
import threading
import time

import torch

import peerhop

from ._memory import memory_of
from ._work import _Work, seconds_of

_LOOK_S = 0.5  # between looks for works that are late
_log = logging.getLogger('peerhop.torch')


class _Watch:
    """Works that are not known to be over. A thread aborts the channel of one that is late: streams that wait then go on."""

    def __init__(self):
        self._lock = threading.Lock()
        self._works = []
        self._thread = None
        self._ends = threading.Event()

    def add(self, work):
        with self._lock:
            self._works.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name='peerhop-watch', daemon=True)
                self._thread.start()
                atexit.register(self._ends.set)

    def _run(self):
        while not self._ends.wait(_LOOK_S):
            self.look()

    def look(self):
        with self._lock:
            works, self._works = self._works, []
        left = [work for work in works if not self._is_over(work)]
        with self._lock:
            self._works = left + self._works

    @staticmethod
    def _is_over(work):
        try:
            return work.look()
        except Exception:  # pylint: disable=broad-except
            _log.exception('%s', work.lane)
            return True


_watch = _Watch()


class CudaWork(_Work):
    def __init__(self, lane, tensor, event):
        super().__init__(lane, tensor)
        self._event = event
        self._begin, self._seconds = time.monotonic(), lane.timeout

    def wait(self, timeout=None):
        """wait orders the current stream behind the message. A message that is broken by now raises here; one that breaks
        later is in the log, and later calls of the pair raise."""
        self._seconds = min(self._seconds, time.monotonic() - self._begin + seconds_of(timeout, self._seconds))
        self.check()
        torch.cuda.current_stream(self._tensor.device).wait_event(self._event)
        return True

    def is_completed(self):
        return self._event.query()

    def look(self):
        """look returns whether nothing more is to be looked for."""
        if self.lane.channel.closed:
            return True  # CudaFarewell has looked before
        if self._event.query():
            error = self.exception()
            if error is not None and not self.lane.channel.closed:
                _log.error('%s', error)
            return True
        if time.monotonic() > self._begin + self._seconds:
            self.lane.give_up(self._seconds)  # the stream goes on, and the next look finds that
        return False


class CudaLane:
    """One direction between this rank and another. Messages match in their order."""

    def __init__(self, transport, group_peer, channel, sends):
        self.group_peer, self.channel, self.sends = group_peer, channel, sends
        self.context, self.timeout = transport.context, transport.timeout
        self.messages = self.bytes = 0
        self._call = channel.send if sends else channel.recv
        self._stream = None
        self._lock = threading.Lock()
        self._last = None  # event of the last message that no graph has: batches and others are on different streams

    def __str__(self):
        return f'{"send to" if self.sends else "receive from"} rank {self.channel.peer if not self.channel.closed else "?"}'

    def take_place(self, stream, tensor):
        """take_place orders the stream behind the caller's and behind the message before, and keeps the tensor for it. In a
        graph batches have no order with other messages of their pairs."""
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        if self._last is not None and not torch.cuda.is_current_stream_capturing():
            stream.wait_event(self._last)
        tensor.record_stream(stream)

    def note(self, tensor, event):
        self.messages += 1
        self.bytes += tensor.nbytes
        work = CudaWork(self, tensor, event)
        if not torch.cuda.is_current_stream_capturing():  # of a graph's events nobody may ask
            self._last = event
            _watch.add(work)
        return work

    def post(self, tensor):
        memory = memory_of(tensor)
        with self._lock:
            if self._stream is None:
                self._stream = torch.cuda.Stream(tensor.device)
            self.take_place(self._stream, tensor)
            self._call(memory, stream=self._stream)
            return self.note(tensor, self._stream.record_event())

    def give_up(self, seconds):
        """give_up ends the pair's channel after a timeout, at both ends; other pairs go on."""
        if self.channel.ended == 0:
            self.channel.abort(f'it waited {seconds:g} s for a message, the timeout of torch.distributed')


class CudaFarewell:
    """As HostFarewell."""

    def __init__(self, context):
        del context
        self._stream = torch.cuda.Stream()

    def signal(self, channel):
        channel.signal(stream=self._stream)

    def wait(self, channel, seconds):
        channel.wait(stream=self._stream)
        end = time.monotonic() + seconds
        while not self._stream.query():
            if time.monotonic() > end:
                raise TimeoutError(f'no farewell of rank {channel.peer} for {seconds:g} s')
            time.sleep(0.001)

    def end(self):
        """end says what has not come whole: a closed channel tells nothing of its messages."""
        _watch.look()


_batch_streams = {}  # by device: batches are groups of the library, each one launch


def post_batch(operations):
    """post_batch posts all of (lane, tensor) as one group, which cannot deadlock whatever their order."""
    if not operations:
        return []
    device = operations[0][1].device
    if device not in _batch_streams:
        _batch_streams[device] = torch.cuda.Stream(device)
    stream = _batch_streams[device]
    for lane, tensor in operations:
        lane.take_place(stream, tensor)
    memories = [memory_of(tensor) for _, tensor in operations]
    with operations[0][0].context.group(stream=stream) as group:
        for (lane, _), memory in zip(operations, memories):
            (lane.channel.send if lane.sends else lane.channel.recv)(memory, group=group)
    event = stream.record_event()
    return [lane.note(tensor, event) for lane, tensor in operations]


def _ordinal(device_id):
    if device_id is not None and device_id.index is not None:
        return device_id.index
    if torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()


def open_context(device_id, **parameters):
    return peerhop.Context(device=f'cuda:{_ordinal(device_id)}', **parameters)
