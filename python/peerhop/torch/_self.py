# SPDX-License-Identifier: BSD-3-Clause
"""Messages of a rank to itself: the n-th send is copied to the n-th receive when both are there."""
import threading
from collections import deque

import torch
from torch.distributed import DistBackendError, Work

from ._work import seconds_of


class _Half(Work):
    """One end of such a message. On a GPU the copy is ordered behind both ends' current streams, and wait() behind the copy."""

    def __init__(self, tensor, timeout):
        super().__init__()
        self.tensor = tensor
        self._timeout = timeout
        self._met = threading.Event()
        self._device = tensor.device if tensor.is_cuda else None
        self._posted = self._stream().record_event() if self._device else None
        self._copied = None

    def _stream(self):
        return torch.cuda.current_stream(self._device)

    def follow(self):
        """follow orders what this thread enqueues from now on behind the half's call."""
        if self._device:
            self._stream().wait_event(self._posted)
            self.tensor.record_stream(self._stream())

    def copied(self):
        self._copied = self._stream().record_event() if self._device else None
        self._met.set()

    def wait(self, timeout=None):
        seconds = seconds_of(timeout, self._timeout)
        if not self._met.wait(seconds):
            raise DistBackendError(f'a message of this rank to itself has no other end after {seconds:g} s')
        if self._copied is not None:
            self._stream().wait_event(self._copied)
        return True

    def is_completed(self):
        return self._met.is_set() and (self._copied is None or self._copied.query())

    is_success = is_completed

    def exception(self):
        return None

    def result(self):
        return [self.tensor]

    def synchronize(self):
        self.wait()


class SelfLane:
    def __init__(self, timeout):
        self._timeout = timeout
        self._lock = threading.Lock()
        self._sends, self._recvs = deque(), deque()

    def post(self, tensor, sends):
        half = _Half(tensor.detach(), self._timeout)
        with self._lock:
            own, others = (self._sends, self._recvs) if sends else (self._recvs, self._sends)
            if not others:
                own.append(half)
                return half
            other = others.popleft()
        source, target = (half, other) if sends else (other, half)
        if source.tensor.nbytes != target.tensor.nbytes:
            raise DistBackendError(f'a message of this rank to itself: {source.tensor.nbytes} bytes are sent and '
                                   f'{target.tensor.nbytes} awaited')
        other.follow()
        target.tensor.copy_(source.tensor.view_as(target.tensor))
        half.copied()
        other.copied()
        return half
