# SPDX-License-Identifier: BSD-3-Clause
"""Requests and notifications: by calls, by a descriptor, and in asyncio."""
import asyncio
import select

import peerhop
import ranks


def other(context):
    return 1 - context.rank


def rank_told():
    """Rank 0 puts and notifies, and rank 1 finds the data; it answers."""
    with peerhop.Context() as context:
        buffer = context.alloc(1000)
        data = memoryview(buffer)
        channel = context.exchange(7, peer=other(context), buffer=buffer)
        queue = context.queue()
        for i in range(10):
            if context.rank == 0:
                data[:] = bytes([i]) * 1000
                channel.put(stream=queue)
                channel.notify(b'round %d' % i, stream=queue)
                request = context.record(queue)
                request.wait(20)
                assert request.done
                (answer,) = context.wait_notifications(20)
                assert answer == (1, 7, b''), answer
            else:
                (come,) = context.wait_notifications(20)
                assert (come.peer, come.op_id, come.data) == (0, 7, b'round %d' % i), come
                assert data == bytes([i]) * 1000
                assert context.notifications() == []
                channel.notify(b'')  # the next one may come at once
        queue.synchronize()
        context.synchronize()


def rank_waited_for():
    """A request is done when its queue is, and lets another queue wait."""
    with peerhop.Context() as context:
        channel = context.exchange(1, peer=other(context), buffer=context.alloc(8))
        first, second = context.queue(), context.queue()
        if context.rank == 0:
            channel.wait(stream=first)
            heard = context.record(first)
            heard.wait_on(second)
            channel.signal(stream=second)
            said = context.record(second)
            assert not said.done
            try:
                said.wait(0.05)
                raise AssertionError('nobody has signalled')
            except peerhop.Timeout:
                pass
            channel.notify(b'go')
            said.wait(20)
            assert heard.done and said.done
        else:
            assert [one.data for one in context.wait_notifications(20)] == [b'go']
            channel.signal(stream=first)
            channel.wait(stream=second)
            second.synchronize()
        for queue in (first, second):
            queue.synchronize()
        context.synchronize()


def rank_in_tasks():
    """Two tasks take what comes, while a third one goes on."""
    async def run(context):
        seen, ticks = [], 0

        async def take():
            while len(seen) < 100:
                taking = asyncio.ensure_future(context.notified())
                done, _ = await asyncio.wait([taking], timeout=0.2)
                if not done:
                    taking.cancel()
                for one in taking.result() if done else ():
                    seen.append(int(one.data))

        async def tick():
            nonlocal ticks
            while len(seen) < 100:
                ticks += 1
                await asyncio.sleep(0.001)

        await asyncio.wait_for(asyncio.gather(take(), take(), tick()), 40)
        assert sorted(seen) == list(range(100)), seen
        assert ticks > 0

    with peerhop.Context() as context:
        channel = context.exchange(1, peer=other(context), buffer=context.alloc(8))
        if context.rank == 1:
            asyncio.run(run(context))
            return
        for i in range(100):
            while True:
                try:
                    channel.notify(str(i).encode())
                    break
                except peerhop.Full as error:
                    assert 'notifications' in str(error), error
        context.synchronize()


def rank_refused():
    with peerhop.Context() as context:
        channel = context.exchange(1, peer=other(context), buffer=context.alloc(8))
        readable = select.poll()
        readable.register(context.notifications_fd(), select.POLLIN)
        assert context.rank == 1 or readable.poll(0) == []
        for wrong, kind in ((bytes(257), peerhop.Invalid), (7, TypeError)):
            try:
                channel.notify(wrong)
                raise AssertionError(wrong)
            except kind:
                pass
        if context.rank == 0:  # rank 1 answers
            try:
                context.wait_notifications(0.02)
                raise AssertionError('there is none')
            except peerhop.Timeout:
                pass
            channel.notify(bytearray(256))
            context.synchronize()
        assert readable.poll(20000)
        assert [len(one.data) for one in context.notifications()] == [256]
        assert readable.poll(0) == []
        if context.rank == 1:
            channel.notify(bytearray(256))
            context.synchronize()
        request = context.record()
    try:
        request.done
        raise AssertionError('the context is closed')
    except peerhop.Error as error:
        assert error.name == 'EBADF', error


class Notify(ranks.Ranks):
    def test_comes_behind_its_data(self):
        self.run_ranks('rank_told')

    def test_requests_order_queues(self):
        self.run_ranks('rank_waited_for')

    def test_in_asyncio(self):
        self.run_ranks('rank_in_tasks')

    def test_is_refused(self):
        self.run_ranks('rank_refused')


if __name__ == '__main__':
    ranks.main(globals())
