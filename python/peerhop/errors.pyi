# SPDX-License-Identifier: BSD-3-Clause
from . import Aborted as Aborted, Broken as Broken, Busy as Busy, Crossed as Crossed, DriverError as DriverError, Error as Error
from . import Fenced as Fenced, Forked as Forked, Full as Full, Invalid as Invalid, Mismatch as Mismatch, NoPath as NoPath
from . import PeerGone as PeerGone, Stale as Stale, StoreError as StoreError, Timeout as Timeout, WrongKind as WrongKind

CLASSES: dict[int, type[Error]]
NAMES: dict[int, str]
TITLES: list[str]

def make(code: int, sentence: str) -> Error: ...
