# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions: one class for each code of the library's own, made from its table, and for some of the system's."""
import errno
import os

from . import _peerhop


class Error(OSError):
    """What the library says: `code` as in C (negative), its `name`, and the sentence that names peer and cause (`strerror`)."""

    def __init__(self, code, sentence):
        super().__init__(code, sentence)
        self.code = code
        self.errno = -code if -code in errno.errorcode else None
        self.name = NAMES.get(code) or errno.errorcode.get(-code, str(code))

    def __str__(self):
        return f'{self.name}: {self.strerror}'

    def __reduce__(self):
        return type(self), (self.code, self.strerror)


class Timeout(Error, TimeoutError):
    """A deadline has passed: the sentence says for what and for whom the call waited."""


class Invalid(Error, ValueError):
    """An argument, a parameter or a variable is out of range."""


class Stale(Error):
    """The buffer was released; an exchange makes a new channel."""


class Busy(Error):
    """What was to end is in use, or another thread is in a call of it."""


class Full(Error):
    """No place is left: the queue is full, too many streams wait, or all channels of a pair are held."""


CLASSES: dict[int, type[Error]] = {-errno.ETIMEDOUT: Timeout, -errno.EINVAL: Invalid, -errno.ESTALE: Stale, -errno.EBUSY: Busy,
           -errno.EAGAIN: Full, -errno.ENOSPC: Full}
NAMES: dict[int, str] = {}
# Of the table's names those that would not do as a class's.
_SPELLED = {'NOPATH': 'NoPath', 'PEER': 'PeerGone', 'STORE': 'StoreError', 'DRIVER': 'DriverError', 'KIND': 'WrongKind'}


def _from_table():
    for name, (code, text) in _peerhop.codes().items():
        title = _SPELLED.get(name, name.capitalize())
        NAMES[code] = 'PH_E' + name
        CLASSES[code] = globals()[title] = type(title, (Error,), {'__doc__': text, '__module__': __name__})
        yield title


TITLES = ['Error', 'Timeout', 'Invalid', 'Stale', 'Busy', 'Full', *_from_table()]
__all__ = TITLES


def make(code, sentence):
    """make returns the exception of a result of the library."""
    if code not in CLASSES and code not in NAMES:
        return Error(code, sentence or os.strerror(-code))
    return CLASSES[code](code, sentence)


_peerhop.use_errors(make)
