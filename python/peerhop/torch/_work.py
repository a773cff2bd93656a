# SPDX-License-Identifier: BSD-3-Clause
"""What isend, irecv and a batch return: works of torch.distributed."""
from datetime import timedelta

from torch.distributed import DistBackendError, Work

import peerhop


def seconds_of(timeout, default):
    """seconds_of returns the seconds of a timedelta; None and 0 (torch's "none given") are the default."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return seconds if seconds else default


class _Work(Work):
    """A message. `lane`: the direction of the pair that it goes on."""

    def __init__(self, lane, tensor):
        super().__init__()
        self.lane = lane
        self._tensor = tensor  # alive until the work is
        self._error = None

    def fail(self, error):
        """fail raises what torch's programs catch, with what the library said. It stays."""
        if self._error is None:
            self._error = DistBackendError(f'{self.lane}: {error}')
            self._error.__cause__ = error
        raise self._error

    def check(self):
        """check raises where the message did not come whole."""
        if self._error is not None:
            raise self._error
        try:
            self.lane.channel.check()
        except peerhop.Error as error:
            self.fail(error)

    def exception(self):
        if self.is_completed():
            try:
                self.check()
            except DistBackendError as error:
                return error
        return self._error

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def source_rank(self):
        return self.lane.group_peer

    _source_rank = source_rank

    def result(self):
        return [self._tensor]

    def synchronize(self):
        self.wait()


class HostWork(_Work):
    """A message of host memory: `number` of its queue's operations are done when it is."""

    def __init__(self, lane, tensor, number):
        super().__init__(lane, tensor)
        self._number = number

    def wait(self, timeout=None):
        seconds = seconds_of(timeout, self.lane.timeout)
        try:
            self.lane.queue.wait(self._number, seconds)
        except peerhop.Timeout as error:
            self.lane.give_up(seconds)
            self.fail(error)
        except peerhop.Error as error:
            self.fail(error)
        self.check()
        return True

    def is_completed(self):
        return self._error is not None or self.lane.queue.done >= self._number


class Batch(Work):
    """Works of one batch of operations."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=None):
        for work in self._works:
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def is_success(self):
        return all(work.is_success() for work in self._works)

    def exception(self):
        return next((error for error in (work.exception() for work in self._works) if error is not None), None)

    def synchronize(self):
        self.wait()
