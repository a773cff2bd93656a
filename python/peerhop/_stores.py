# SPDX-License-Identifier: BSD-3-Clause
"""Stores that the program has: torch's, a mapping, what has set, get and delete. The extension calls them from any thread.

Each adapter has set(key, value, seconds), get(key, seconds), which returns None where the key has not come by then, and
remove(key), which returns whether it was there. Keys are str, values bytes.
"""
import threading
import time
from collections.abc import MutableMapping

_SLEEP_LEAST_S, _SLEEP_MOST_S = 0.0005, 0.02


class _Adapter:
    """What asks again and again until a key is there: _find(key) returns its value or None."""

    def get(self, key, seconds):
        end = time.monotonic() + seconds
        pause = _SLEEP_LEAST_S
        while True:
            value = self._find(key)
            left = end - time.monotonic()
            if value is not None or left <= 0:
                return None if value is None else bytes(value)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _SLEEP_MOST_S)


class _Mapping(_Adapter):
    """dict, multiprocessing.Manager().dict(), ..."""

    def __init__(self, mapping):
        self._mapping = mapping

    def set(self, key, value, _seconds):
        self._mapping[key] = value

    def _find(self, key):
        return self._mapping.get(key)

    def remove(self, key):
        return self._mapping.pop(key, None) is not None


class _Client(_Adapter):
    """A client of a server: set(key, value), get(key) -> bytes or None, delete(key) -> how many, as of redis.Redis."""

    def __init__(self, client):
        self._client = client

    def set(self, key, value, _seconds):
        self._client.set(key, value)

    def _find(self, key):
        return self._client.get(key)

    def remove(self, key):
        return bool(self._client.delete(key))


class _Torch(_Adapter):
    """A torch.distributed.Store. A client of it is one thread's at a time: one that waits would hold up the others."""

    def __init__(self, store):
        self._store = store
        self._lock = threading.Lock()
        self._idle = []

    def _call(self, call):
        with self._lock:
            client = self._idle.pop() if self._idle else None
        if client is None:
            client = self._store.clone()
        result = call(client)
        with self._lock:
            self._idle.append(client)  # of one that has raised nobody knows whether it can be used again
        return result

    def set(self, key, value, _seconds):
        self._call(lambda client: client.set(key, value))

    def _find(self, key):
        # get() of a key that is not there would wait, and warn.
        return self._call(lambda client: client.get(key) if client.check([key]) else None)

    def remove(self, key):
        return self._call(lambda client: client.delete_key(key))


def adapt(store):
    """adapt returns the adapter of a store that is no str."""
    if all(callable(getattr(store, name, None)) for name in ('set', 'get', 'check', 'delete_key', 'clone')):
        return _Torch(store)
    if isinstance(store, MutableMapping) or all(hasattr(store, name) for name in ('__setitem__', 'get', 'pop')):
        return _Mapping(store)
    if all(callable(getattr(store, name, None)) for name in ('set', 'get', 'delete')):
        return _Client(store)
    raise TypeError('a store is a str (file:, redis:, unix:), one of torch.distributed, a mapping, or what has set, get and '
                    f'delete, not {store!r}')
