# SPDX-License-Identifier: BSD-3-Clause
"""Stores that the program has: a mapping, a client, and what is none."""
import threading
import unittest

import peerhop


class Client:
    """As redis.Redis: set, get, delete."""

    def __init__(self):
        self.keys = {}

    def set(self, key, value):
        self.keys[key] = value
        return True

    def get(self, key):
        return self.keys.get(key)

    def delete(self, key):
        return int(self.keys.pop(key, None) is not None)


class Broken(dict):
    def __setitem__(self, key, value):
        raise OSError('the shelf is full')


def meet(store, job):
    """meet returns what rank 1 of two threads got from rank 0, and what either of them raised."""
    word, raised = bytearray(5), []

    def rank(number):
        try:
            with peerhop.Context(rank=number, ranks=2, job=job, device='host', store=store, timeout=20) as ctx:
                channel = ctx.unbound(1 - number)
                if number == 0:
                    channel.send(b'hello')
                else:
                    channel.recv(word)
                ctx.synchronize()
        except Exception as error:  # pylint: disable=broad-except
            raised.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), 'a rank hangs'
    return bytes(word), raised


class Stores(unittest.TestCase):
    def test_mapping(self):
        store = {}
        self.assertEqual(meet(store, 'mapping'), (b'hello', []))
        self.assertTrue(all(isinstance(key, str) and isinstance(value, bytes) for key, value in store.items()), store)

    def test_client(self):
        self.assertEqual(meet(Client(), 'client'), (b'hello', []))

    def test_a_store_that_fails_says_so(self):
        word, raised = meet(Broken(), 'broken')
        self.assertEqual(word, bytes(5))
        self.assertEqual(len(raised), 2, raised)
        for error in raised:
            self.assertIsInstance(error, peerhop.Error)

    def test_what_is_no_store(self):
        for store in (7, object(), ['a']):
            with self.subTest(store=store), self.assertRaisesRegex(TypeError, 'a store is a str'):
                peerhop.Context(rank=0, ranks=1, job='none', device='host', store=store)


if __name__ == '__main__':
    unittest.main()
