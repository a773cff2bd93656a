# SPDX-License-Identifier: BSD-3-Clause
"""What shares memory by DLPack and __cuda_array_interface__, as frameworks do: looked at by what a context of host memory
takes and refuses. The producers are made here."""
import gc
import tempfile
import unittest

import peerhop
from producers import CUDA, Producer, table


class CudaArray:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


class Views(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.context = peerhop.Context(0, 1, device='host', store=f'file:{folder.name}', job='x')
        self.addCleanup(self.context.close)
        self.channel = self.context.unbound(0)

    def to_itself(self, sent, received):
        with self.context.group() as group:
            self.channel.send(sent, group=group)
            self.channel.recv(received, group=group)
        self.context.synchronize()

    def test_tensors_move(self):
        for versioned in (False, True):
            with self.subTest(versioned=versioned):
                data, came = bytearray(range(24)), bytearray(24)
                sent, received = Producer(data, (2, 3), versioned=versioned), Producer(came, (6,), (1,), versioned=versioned)
                self.to_itself(sent, received)
                self.assertEqual(data, came)
                self.assertEqual((0, 0), (sent.out, received.out))

    def test_a_table_is_quicker(self):
        first, capsule = table()
        later, later_capsule = table(major=2)
        both, both_capsule = table(major=2, older=first)
        for capsules, asked in ((capsule, 0), (both_capsule, 0), (later_capsule, 1), ('none', 1)):
            kind = type('Tabled', (Producer,), {'__dlpack_c_exchange_api__': capsules})
            for _ in range(2):  # the second time it is known
                came = bytearray(24)
                sent = kind(bytearray(range(24)), (6,), versioned=True)
                self.to_itself(sent, kind(came, (6,), versioned=True))
                self.assertEqual((bytes(range(24)), asked, 0), (bytes(came), len(sent.asked), sent.out))
            self.refuse(ValueError, 'read-only', kind(bytearray(8), (2,), versioned=True, read_only=True))
            self.refuse(ValueError, 'contiguous', kind(bytearray(24), (3,), (2,), versioned=True))
        self.assertEqual([1, 2, 2], [one.major for one in (first, later, both)])  # they are still there

    def test_an_offset(self):
        came = bytearray(8)
        self.to_itself(Producer(bytearray(range(24)), (2,), offset=12), came)
        self.assertEqual(bytes(range(12, 20)), came)

    def test_a_message_keeps_its_tensor(self):
        data = Producer(bytearray(8), (2,))
        with self.context.group() as group:
            self.channel.send(data, group=group)
            self.assertEqual(1, data.out)
            self.channel.recv(bytearray(8), group=group)
        self.context.synchronize()
        self.assertEqual(0, data.out)

    def refuse(self, kind, why, producer, receives=True):
        with self.context.group() as group, self.assertRaisesRegex(kind, why):
            (self.channel.recv if receives else self.channel.send)(producer, group=group)
        self.assertEqual(0, getattr(producer, 'out', 0))

    def test_scattered(self):
        self.refuse(ValueError, 'contiguous', memoryview(bytearray(24))[::2])
        self.refuse(ValueError, 'contiguous', Producer(bytearray(24), (2, 3), (1, 2)))
        self.refuse(ValueError, 'contiguous', Producer(bytearray(24), (3,), (2,)), False)

    def test_read_only(self):
        producer = Producer(bytearray(range(8)), (2,), versioned=True, read_only=True)
        self.refuse(ValueError, 'read-only', producer)
        came = bytearray(8)
        self.to_itself(producer, came)
        self.assertEqual(bytes(range(8)), came)

    def test_another_version(self):
        producer = Producer(bytearray(8), (2,), versioned=True, major=2)
        with self.context.group() as group, self.assertRaisesRegex(ValueError, 'another version of DLPack'):
            self.channel.recv(producer, group=group)
        self.assertEqual(1, producer.out)  # the capsule still has it

    def test_of_a_gpu(self):
        producer = Producer(bytearray(8), (2,), device=CUDA)
        self.refuse(ValueError, 'memory of a GPU', producer)
        self.assertEqual(-1, producer.asked[-1]['stream'])  # nobody waits for a stream

    def test_cuda_array(self):
        whole = {'data': (4096, False), 'shape': (2, 3), 'typestr': '<f4', 'version': 3}
        self.refuse(ValueError, 'memory of a GPU', CudaArray(**whole))
        self.refuse(ValueError, 'memory of a GPU', CudaArray(**whole, strides=(12, 4)))
        self.refuse(ValueError, 'contiguous', CudaArray(**whole, strides=(4, 8)))
        self.refuse(ValueError, 'read-only', CudaArray(**{**whole, 'data': (4096, True)}))
        self.refuse(KeyError, 'shape', CudaArray(data=(4096, False), typestr='<f4'))
        self.refuse(ValueError, '__cuda_array_interface__', CudaArray(**{**whole, 'typestr': 'f'}))

    def test_of_nothing(self):
        self.refuse(TypeError, 'no buffer protocol', object())
        self.refuse(TypeError, 'give one here', None)
        self.to_itself(b'', bytearray())
        self.to_itself(Producer(bytearray(), (0, 3)), bytearray())

    def test_sizes(self):
        with self.context.group() as group, self.assertRaisesRegex(ValueError, '8 bytes, and 9'):
            self.channel.send(bytes(8), size=9, group=group)
        with self.assertRaises(peerhop.Invalid):
            self.to_itself(bytes(8), bytearray(7))
        came = bytearray(8)
        with self.context.group() as group:
            self.channel.send(bytes(range(8)), size=3, group=group)
            self.channel.recv(came, size=3, group=group)
        self.context.synchronize()
        self.assertEqual(bytes((0, 1, 2, 0, 0, 0, 0, 0)), came)

    def test_arguments(self):
        buffer = self.context.alloc(8)
        self.assertEqual(8, len(buffer))
        for call, kind, why in (
                (lambda: self.channel.send(), TypeError, 'give one here'),
                (lambda: self.channel.send(b'x', b'y'), TypeError, 'at most 1'),
                (lambda: self.channel.send(b'x', data=b'y'), TypeError, 'given twice'),
                (lambda: self.channel.send(b'x', sise=1), TypeError, "no argument 'sise'"),
                (lambda: self.channel.send(b'x', size=-1), ValueError, 'size is from 0'),
                (lambda: self.channel.send(b'x', size='1'), TypeError, 'size is a number'),
                (lambda: self.channel.send(b'x', group=3), TypeError, 'Context.group'),
                (lambda: self.context.exchange(1, buffer=buffer), TypeError, 'needs peer'),
                (lambda: self.context.exchange(1, peer=0, role='bot'), ValueError, 'role is "sender"'),
                (lambda: self.context.exchange(1, peer=5), peerhop.Invalid, 'no rank 5'),
                (lambda: self.context.exchange(1, peer=0, buffer=b'x'), ValueError, 'read-only'),
                (lambda: self.context.exchange(1, peer=0, buffer=bytearray()), ValueError, 'no bytes'),
                (lambda: self.context.exchange(2 ** 64, peer=0), ValueError, r'2\*\*64'),
                (lambda: self.context.exchange([(1, 0)]), TypeError, 'dict'),
                (lambda: self.context.exchange([dict(op_id=1, peer=0, timeout=3)]), TypeError, "no argument 'timeout'"),
                (lambda: self.context.alloc(0), ValueError, '0 bytes'),
                (lambda: self.context.alloc(1 << 60), (MemoryError, OSError), ''),
                (lambda: self.context.synchronize(timeout='soon'), TypeError, 'seconds'),
                (lambda: self.context.synchronize(timeout=float('nan')), ValueError, 'at least 0'),
                (lambda: self.context.counters(1), TypeError, 'no arguments'),
                (lambda: peerhop.Channel(), TypeError, 'cannot create'),
                (lambda: self.context.release(bytes(5)), peerhop.Error, '')):
            with self.assertRaisesRegex(kind, why):
                call()
        self.assertEqual([], self.context.exchange([]))
        self.context.synchronize(timeout=float('inf'))

    def test_nothing_is_kept(self):
        for _ in range(3):
            producer = Producer(bytearray(8), (2,))
            self.context.exchange([])
            with self.assertRaises(peerhop.Error):  # it is not memory that peers can map
                self.context.exchange(1, peer=0, buffer=producer)
            self.assertEqual(0, producer.out)
        gc.collect()


if __name__ == '__main__':
    unittest.main()
