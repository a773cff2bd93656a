# SPDX-License-Identifier: BSD-3-Clause
"""Data comes as it was sent: bound and unbound, in groups, by put and get, of every kind of buffer."""
import array
import unittest

import peerhop
import ranks

try:
    import numpy
except ImportError:
    numpy = None


def pattern(size, seed):
    return bytes((i * 7 + seed) % 251 for i in range(size))


def other(context):
    return 1 - context.rank


def rank_ranges():
    with peerhop.Context() as context:
        parts = [context.alloc(n) for n in ((1000, 1, 4096) if context.rank == 0 else (77, 5020))]
        channel = context.exchange(1, peer=other(context), buffers=parts)
        assert channel.local_size == channel.peer_size == 5097
        if context.rank == 0:
            data = pattern(5097, 3)
            for part, begin in zip(parts, (0, 1000, 1001)):
                memoryview(part)[:] = data[begin:begin + len(part)]
            channel.send()
            for wrong in (dict(buffers=[]), dict(buffers=[parts[0], bytearray()]), dict(buffers=5),
                          dict(buffer=parts[0], buffers=parts)):
                try:
                    context.exchange(2, peer=1, **wrong)
                    raise AssertionError(wrong)
                except (ValueError, TypeError):
                    pass
        else:
            channel.recv()
            context.synchronize()
            assert b''.join(bytes(part) for part in parts) == pattern(5097, 3)
        context.synchronize()


def rank_pages():
    size, page, pages = 64 * 1024, 256, 40
    with peerhop.Context() as context:
        buffer = context.alloc(size)
        data = memoryview(buffer)
        channel = context.exchange(1, peer=other(context), buffer=buffer)
        here, there = array.array('i', range(pages)), array.array('q', ((i * 37) % (size // page) for i in range(pages)))
        if context.rank == 0:
            data[:] = pattern(size, 5)
            channel.put_pages(page, here, there, signal=True)
            channel.wait()
            context.synchronize()
            mine, theirs = pattern(size, 5), pattern(size, 9)
            expected = bytearray(mine)
            # Two parts of two rows each: a tile of the peer's, of which numbers that are padding or lie nowhere are left out.
            channel.get_pages(16, peerhop.PageEnd(at=(0, 4096), stride=64, row_stride=32),
                              peerhop.PageEnd(array.array('i', [3, -1, 1 << 30, 2]), (0, 8192), 1024, 512), rows=2)
            context.synchronize()
            for part in range(2):
                for i, number in ((0, 3), (3, 2)):
                    for row in range(2):
                        to, at = part * 4096 + i * 64 + row * 32, part * 8192 + number * 1024 + row * 512
                        expected[to:to + 16] = theirs[at:at + 16]
            assert data == expected
            assert channel.skipped == 2, channel.skipped
            channel.put_pages(page, there, here, pages=3, count=array.array('I', [2]), blocks=1)
            channel.put_pages(page, pages=0)
            channel.put_pages(page, array.array('i'), array.array('i'))
            refused = [(dict(row_bytes=page), TypeError), (dict(row_bytes=page, local=here, pages=pages + 1), ValueError),
                       (dict(row_bytes=page, local=here, peer=there[:3]), ValueError),
                       (dict(row_bytes=page, local=b'abc'), ValueError), (dict(row_bytes=page, local=here, peer=(1, 2)), TypeError),
                       (dict(row_bytes=page, local=here, peer=peerhop.PageEnd(at=(0, 1))), ValueError),
                       (dict(row_bytes=page, local=peerhop.PageEnd(here, at=())), ValueError),
                       (dict(row_bytes=page, local=peerhop.PageEnd(here, stride=-1)), ValueError),
                       (dict(row_bytes=page, local=here, count=b'12'), ValueError),
                       (dict(row_bytes=page, local=here, rows=0), peerhop.Invalid),
                       (dict(row_bytes=2 * size, local=here), peerhop.Invalid)]
            for named, kind in refused:
                try:
                    channel.put_pages(**named)
                    raise AssertionError(named)
                except kind:
                    pass
            channel.signal()
        else:
            channel.wait()
            context.synchronize()
            for i, number in enumerate(there):
                assert data[number * page:(number + 1) * page] == pattern(size, 5)[i * page:(i + 1) * page], i
            data[:] = pattern(size, 9)
            channel.signal()
            channel.wait()
        context.synchronize()


def rank_bound():
    with peerhop.Context() as context:
        buffer = context.alloc(100_000)
        data = memoryview(buffer)
        channel = context.exchange(1, peer=other(context), buffer=buffer)
        assert (channel.peer, channel.op_id, channel.local_size, channel.peer_size) == (other(context), 1, 100_000, 100_000)
        for i in range(20):
            if context.rank == 0:
                data[:] = pattern(100_000, i)
                channel.send()
                channel.recv()
            else:
                channel.recv()
                context.synchronize()
                assert data == pattern(100_000, i), i
                data[:] = bytes(reversed(data))
                channel.send()
            context.synchronize()
            assert bytes(reversed(data)) == pattern(100_000, i), i
        assert context.rank != 0 or channel.path().path == 'ipc', channel.path()
        channel.close()
        for call in (channel.send, channel.path, channel.check):
            try:
                call()
                raise AssertionError('the channel is closed')
            except peerhop.Error as error:
                assert error.name == 'EBADF' and 'the channel is closed' in str(error), error


def rank_halves():
    """A message begun with complete=False is over with complete()."""
    with peerhop.Context() as context:
        sends = context.rank == 0
        data = memoryview(context.alloc(64))
        channel = context.exchange(1, peer=other(context), buffer=data, role='sender' if sends else 'receiver')
        if sends:
            data[:] = pattern(64, 1)
            channel.send(size=32, complete=False)
        else:
            channel.recv(size=32, complete=False)
            context.synchronize()  # says that the buffer may be written, and waits for nothing
        channel.complete()
        context.synchronize()
        assert sends or data == pattern(64, 1)[:32] + bytes(32), bytes(data)


def rank_put_get():
    with peerhop.Context() as context:
        data = memoryview(context.alloc(1000))
        channel = context.exchange(1, peer=other(context), buffer=data)
        data[:100] = pattern(100, context.rank)
        for wrong in (lambda: channel.put(at=999, src=slice(0, 2)), lambda: channel.put(src=1001),
                      lambda: channel.get(at=0, dst=990, size=11), lambda: channel.put(src=slice(0, 10, 2))):
            try:
                wrong()
                raise AssertionError('out of range, and taken')
            except ValueError:
                pass
        channel.put(at=500, src=slice(10, 60))
        channel.put(7, at=900, src=3, signal=True)
        channel.wait(7)
        context.synchronize()
        theirs = pattern(100, other(context))
        assert data[500:550] == theirs[10:60]
        assert data[900:907] == theirs[3:10]
        channel.get(at=0, dst=slice(200, 300))
        channel.signal()
        channel.wait()
        context.synchronize()
        assert data[200:300] == theirs


def rank_unbound():
    with peerhop.Context() as context:
        channel = context.unbound(other(context), op_id=4)
        assert channel.local_size == 0
        for i, size in enumerate([0, 1, 8, 8193, 300_000, 5_000_000]):
            mine = bytearray(size)
            if context.rank == 0:
                channel.send(pattern(size, i))  # only the channel has it
                channel.recv(mine)
            else:
                channel.recv(mine)
                channel.send(mine)
            context.synchronize()
            assert mine == pattern(size, i), (i, size)


def rank_group():
    with peerhop.Context() as context:
        channels = {peer: context.unbound(peer, op_id=1) for peer in range(context.ranks)}
        for i in range(10):
            came = {peer: bytearray(50_000) for peer in channels}
            with context.group() as group:
                for peer, channel in channels.items():
                    channel.recv(came[peer], group=group)
                    channel.send(pattern(50_000, 10 * context.rank + peer + i), group=group)
                assert len(group) == 2 * context.ranks
            context.synchronize()
            for peer in channels:
                assert came[peer] == pattern(50_000, 10 * peer + context.rank + i), (i, peer)


def rank_group_left():
    """Of a block that an exception has left nothing is enqueued."""
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        came = bytearray(4)
        try:
            with context.group() as group:
                channel.send(b'lost', group=group)
                raise KeyError
        except KeyError:
            pass
        with context.group() as group:
            channel.send(b'came', group=group)
            channel.recv(came, group=group)
        context.synchronize()
        assert came == b'came', came
        try:
            channel.send(b'late', group=group)
            raise AssertionError('a group is over with its block')
        except ValueError:
            pass


def rank_many_operations():
    with peerhop.Context() as context:
        buffer = memoryview(context.alloc(300))
        buffer[:] = pattern(300, context.rank)
        mine = bytes(buffer)
        channels = context.exchange([dict(op_id=i, peer=other(context), buffer=buffer[100 * i:100 * i + 100]) for i in range(3)],
                                    timeout=20)
        assert [channel.op_id for channel in channels] == [0, 1, 2]
        with context.group() as group:
            for channel in channels[:2]:
                channel.put(50, at=50, signal=True, group=group)
                channel.wait(50, group=group)
        context.synchronize()
        theirs = pattern(300, other(context))
        assert buffer[50:100] == theirs[:50] and buffer[150:200] == theirs[100:150]
        assert buffer[200:] == mine[200:] and buffer[:50] == mine[:50]


def rank_queues():
    with peerhop.Context() as context:
        queues = [context.queue() for _ in range(3)]
        channels = [context.unbound(other(context), op_id=i) for i in range(3)]
        came = [bytearray(10) for _ in range(3)]
        for i in (2, 0, 1):
            with context.group(stream=queues[i]) as group:
                channels[i].send(bytes([i]) * 10, group=group)
                channels[i].recv(came[i], group=group)
        for queue in queues:
            queue.synchronize(timeout=20)
        assert came == [bytes([i]) * 10 for i in range(3)]
        del queues, queue
        context.queue()  # those that are idle and forgotten are gone
        try:
            channels[0].send(b'x', stream=7)
            raise AssertionError('7 is no queue')
        except TypeError:
            pass


def rank_numpy():
    with peerhop.Context() as context:
        array = numpy.frombuffer(context.alloc(80), dtype=numpy.float64)
        channel = context.exchange(1, peer=other(context), buffer=array)
        if context.rank == 0:
            array[:] = numpy.arange(10)
            channel.send()
        else:
            channel.recv()
        context.synchronize()
        assert (array == numpy.arange(10)).all()
        unbound = context.unbound(other(context))
        grid = numpy.zeros((3, 4), order='F')
        if context.rank == 0:
            unbound.send(numpy.arange(12.0).reshape(3, 4, order='F'))
        else:
            unbound.recv(grid)
        context.synchronize()
        assert context.rank == 0 or (grid == numpy.arange(12.0).reshape(3, 4, order='F')).all()
        for wrong in (grid[::2], grid[:, 1:][:2]):
            try:
                unbound.recv(wrong)
                raise AssertionError('not contiguous, and taken')
            except ValueError:
                pass
        grid.flags.writeable = False
        try:
            unbound.recv(grid)
            raise AssertionError('read-only, and taken')
        except ValueError:
            pass


class Transfer(ranks.Ranks):
    def test_bound(self):
        self.run_ranks('rank_bound')

    def test_get_protocol(self):
        self.run_ranks('rank_bound', PEERHOP_PROTOCOL='get')

    def test_halves(self):
        self.run_ranks('rank_halves')

    def test_put_get(self):
        self.run_ranks('rank_put_get')

    def test_unbound(self):
        self.run_ranks('rank_unbound')

    def test_all_to_all_in_groups(self):
        self.run_ranks('rank_group', ranks=3)

    def test_group_that_is_left(self):
        self.run_ranks('rank_group_left')

    def test_pages(self):
        self.run_ranks('rank_pages')

    def test_one_operation_of_several_buffers(self):
        self.run_ranks('rank_ranges')

    def test_many_operations_in_one_exchange(self):
        self.run_ranks('rank_many_operations')

    def test_queues(self):
        self.run_ranks('rank_queues')

    @unittest.skipIf(numpy is None, 'NumPy is not installed')
    def test_numpy(self):
        self.run_ranks('rank_numpy')


if __name__ == '__main__':
    ranks.main(globals())
