# SPDX-License-Identifier: BSD-3-Clause
"""Peerhop moves data between GPUs, and host memory, of different processes. See python/README.md."""
import atexit
import collections
import os
import sys

from . import _peerhop, _streams
from ._defaults import deadline, store_and_job
from ._peerhop import Channel, Group, Memory, Notification, Path, Peer, Queue, Release, Request
from . import errors
from .errors import *  # pylint: disable=wildcard-import

__version__ = _peerhop.version
__all__ = ['Channel', 'Context', 'Group', 'Memory', 'Notification', 'PageEnd', 'Path', 'Peer', 'Queue', 'Release', 'Request', *errors.TITLES]

PageEnd = collections.namedtuple('PageEnd', ('numbers', 'at', 'stride', 'row_stride'), defaults=(None, None, None, None))
PageEnd.__doc__ = """Where the pages of a list lie in one buffer: row r of part p of page i begins at byte
at[p] + numbers[i] * stride + r * row_stride. None: pages 0, 1, 2, ...; one part at 0; pages and rows that follow one another."""


class Context(_peerhop.Context):
    """A rank's membership of a job: its device, its store, and everything it owns.

    What is None comes from PEERHOP_* or the launcher (torchrun, mpirun, srun, peerhop-run). Without a store the ranks of one
    node meet in a directory of the user's in /dev/shm; ranks of several nodes need one (PEERHOP_STORE): a str, or an object
    of the program's, one of torch's or any with set and get, which threads of the library call. `timeout`: seconds
    of the calls that are given none. `settings`: PEERHOP_* variables for this context alone.

    It lives until close(), the end of its `with`, or the end of the program. An exception that leaves the `with` aborts it:
    peers that wait are told.
    """
    __slots__ = ('_folder', '__weakref__')

    def __new__(cls, rank=None, ranks=None, *, device=None, store=None, job=None, epoch=None, timeout=None, log_level=None,
                settings=None):
        if store is not None and not isinstance(store, str):
            from . import _stores  # pylint: disable=import-outside-toplevel
            store = _stores.adapt(store)
        store, job, folder = store_and_job(store, job)
        timeout = deadline(timeout, settings)
        settings = None if settings is None else tuple(f'{name}={value}' for name, value in settings.items())
        context = super().__new__(cls, rank, ranks, device=device, store=store, job=job, epoch=epoch, timeout=timeout,
                                  log_level=log_level, settings=settings)
        context._folder = folder
        return context

    def close(self, timeout=None):
        """Ends the membership: waits until this rank's operations are done and no peer touches its buffers."""
        super().close(timeout)
        self._remove_folder()

    async def notified(self):
        """Takes notifications in a task of asyncio, which waits until there are some."""
        import asyncio  # pylint: disable=import-outside-toplevel
        loop = asyncio.get_running_loop()
        while not (taken := self.notifications()):
            # A copy: a loop knows one reader for each descriptor, and several tasks may wait.
            fd = os.dup(self.notifications_fd())
            readable = asyncio.Event()
            try:
                loop.add_reader(fd, readable.set)
                await readable.wait()
            finally:
                loop.remove_reader(fd)
                os.close(fd)
        return taken

    def __exit__(self, *raised):
        result = super().__exit__(*raised)
        self._remove_folder()
        return result

    def _remove_folder(self):
        # Each rank takes what is its own: it is the last one that succeeds.
        folder, self._folder = self._folder, None
        if folder is not None:
            try:
                os.rmdir(folder)
            except OSError:
                pass


def _at_exit():
    # What nobody caught has ended the program, unless somebody types it.
    _peerhop.close_all((hasattr(sys, 'last_value') or hasattr(sys, 'last_exc')) and not hasattr(sys, 'ps1'))


atexit.register(_at_exit)
