# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed on Peerhop, with CPU tensors: point-to-point messages of a group of the backend "peerhop", and of groups of
gloo with peerhop.torch.enable()."""
import os
import signal
import time
import unittest
from datetime import timedelta

import torch_ranks

torch_ranks.interpreter()

import torch  # pylint: disable=wrong-import-position
import torch.distributed as dist  # pylint: disable=wrong-import-position

import peerhop  # pylint: disable=wrong-import-position
import peerhop.torch  # pylint: disable=wrong-import-position

LARGE = 3_000_001  # elements: more than the library holds of a message


def init(backend='peerhop', timeout=60, name='store'):
    dist.init_process_group(backend, init_method=f'file://{os.environ["TEST_FOLDER"]}/{name}', rank=int(os.environ['RANK']),
                            world_size=int(os.environ['WORLD_SIZE']), timeout=timedelta(seconds=timeout))


def values(seed, size=1000, dtype=torch.float32):
    return torch.arange(size).mul(7).add(seed).remainder(251).to(dtype)


def expect(kind, text, call, *args, **named):
    """expect returns the exception, and the seconds it took to come."""
    begin = time.monotonic()
    try:
        call(*args, **named)
    except kind as error:
        assert text in str(error), error
        return error, time.monotonic() - begin
    raise AssertionError(f'{call} raised nothing')


# ---- messages

def blocking(rank):
    init()
    peer = 1 - rank
    for number, (size, dtype) in enumerate(((1, torch.float32), (0, torch.float32), (1000, torch.bfloat16), (33, torch.bool), (LARGE, torch.int64),
                                            (77, torch.complex64), (1000, torch.float8_e4m3fn), (7, torch.uint4))):
        want = values(number, size, torch.float32).to(dtype) if dtype != torch.uint4 else values(number, size, torch.uint8).view(dtype)
        got = torch.empty_like(want)
        for turn in range(2):
            if turn == rank:
                dist.send(want, peer)
            else:
                assert dist.recv(got, peer) == peer
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), (size, dtype)
    scalar = torch.tensor(float(rank))
    if rank == 0:
        dist.recv(scalar, 1)
        assert scalar.item() == 1
    else:
        dist.send(scalar, 0)
    dist.destroy_process_group()


def layouts(rank):
    init()
    image = values(0, 2 * 3 * 4 * 5).view(2, 3, 4, 5)
    grown = image.clone().requires_grad_()
    if rank == 0:
        expect(ValueError, 'not contiguous', dist.isend, image.transpose(0, 1), 1)
        dist.send(image.to(memory_format=torch.channels_last), 1)
        dist.send(grown * 2, 1)
        dist.send(grown, 1)
    else:
        expect(ValueError, 'not contiguous', dist.irecv, image.transpose(0, 1), 0)
        got = torch.empty_like(image, memory_format=torch.channels_last)
        dist.recv(got, 0)
        assert torch.equal(got, image)
        for factor in (2, 1):
            got = torch.empty_like(image)
            dist.recv(got, 0)
            assert torch.equal(got, factor * image)
    dist.destroy_process_group()


def in_flight(rank):
    """Many messages each way, all begun before any is waited for, by both ranks sends first; waited for in another order."""
    init()
    peer = 1 - rank
    sizes = [1, 70_000, 3, LARGE, 5, 0, 200_000]
    works = [dist.isend(values(rank + i, size), peer, tag=i) for i, size in enumerate(sizes)]
    got = [torch.empty(size) for size in sizes]
    works += [dist.irecv(tensor, peer, tag=99) for tensor in got]  # tags do not matter
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    for i, tensor in enumerate(got):
        assert torch.equal(tensor, values(peer + i, sizes[i])), i
    dist.destroy_process_group()


def early(rank):
    """A receive that is posted early does not hold up what is waited for before it, and a send is not to be waited for."""
    init()
    first, second = torch.empty(10), torch.empty(10)
    if rank == 0:
        works = [dist.irecv(first, 1), dist.irecv(second, 1)]
        works[0].wait()
        assert not works[1].is_completed()
        dist.isend(first + 1, 1)
        works[1].wait()
        assert torch.equal(second, values(5, 10) + 2), second
    else:
        dist.isend(values(5, 10), 0)
        dist.recv(first, 0)
        dist.isend(first + 1, 0)
    dist.destroy_process_group()


def batches(rank):
    init()
    count = dist.get_world_size()
    peers = [(rank + 1) % count, (rank - 1) % count]
    for size in (10, LARGE):
        got = [torch.empty(size) for _ in range(4)]
        operations = [dist.P2POp(dist.isend, values(rank, size), peers[0]), dist.P2POp(dist.irecv, got[0], peers[1], tag=3),
                      dist.P2POp(dist.irecv, got[1], peers[0]), dist.P2POp(dist.isend, values(rank + 50, size), peers[1]),
                      dist.P2POp(dist.irecv, got[2], peers[0]), dist.P2POp(dist.isend, values(rank + 90, size), peers[1])]
        for work in dist.batch_isend_irecv(operations[::-1] if rank % 2 else operations):
            work.wait()
        order = (50, 90) if peers[0] % 2 == 0 else (90, 50)  # of the two messages each way odd ranks send the second one first
        mine = got[1:3] if rank % 2 == 0 else got[2:0:-1]
        assert torch.equal(got[0], values(peers[1], size))
        for tensor, seed in zip(mine, order):
            assert torch.equal(tensor, values(peers[0] + seed, size)), (rank, seed)
    dist.destroy_process_group()


def coalesced(rank):
    """What a backend that coalesces is asked for, as of CUDA tensors."""
    init()
    got = torch.empty(100)
    with dist.distributed_c10d._coalescing_manager(device=torch.device('cpu'), async_ops=True) as manager:
        assert dist.isend(values(rank, 100), 1 - rank) is None
        assert dist.irecv(got, 1 - rank) is None
    manager.wait()
    assert torch.equal(got, values(1 - rank, 100))
    dist.destroy_process_group()


def with_itself(rank):
    init()
    got = [torch.empty(10), torch.empty(2, 5)]
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got[0], rank), dist.P2POp(dist.isend, values(1, 10), rank),
                                    dist.P2POp(dist.isend, values(2, 10), rank), dist.P2POp(dist.irecv, got[1], rank)])
    for work in works:
        work.wait()
    assert torch.equal(got[0], values(1, 10)) and torch.equal(got[1].view(-1), values(2, 10))
    expect(dist.DistBackendError, 'no other end', dist.isend(got[0], rank).wait, timedelta(seconds=0.05))
    expect(dist.DistBackendError, '40 bytes are sent and 12 awaited', dist.irecv, torch.empty(3), rank)
    dist.destroy_process_group()


def groups(rank):
    """Groups have messages of their own, whose ranks are counted in the group; collectives are gloo's."""
    init()
    odd, even = dist.new_group([1, 3]), dist.new_group([2, 0])
    group, peer = (odd, (rank + 2) % 4) if rank % 2 else (even, (rank + 2) % 4)
    works = [dist.isend(values(rank, 20), peer), dist.isend(values(rank + 100, 20), peer, group=group)]
    got = [torch.empty(20), torch.empty(20)]
    dist.irecv(got[1], group=group, group_src=1 - dist.get_group_rank(group, rank)).wait()
    dist.irecv(got[0], peer).wait()
    assert torch.equal(got[0], values(peer, 20)) and torch.equal(got[1], values(peer + 100, 20))
    for work in works:
        work.wait()
    total = torch.tensor([rank])
    dist.all_reduce(total, group=group)
    assert total.item() == (4 if rank % 2 else 2)
    gathered = [None] * 4
    dist.all_gather_object(gathered, ('rank', rank))
    assert gathered == [('rank', i) for i in range(4)]
    objects = ['sent', {'by': 0}] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(objects, 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == ['sent', {'by': 0}]
    told = peerhop.torch.report()
    assert told[group.group_name]['cpu'][peer]['sent'] == (1, 80), told
    assert told[dist.group.WORLD.group_name]['cpu'][peer]['path'].startswith('ipc/'), told
    dist.destroy_process_group(group)
    assert group.group_name not in peerhop.torch.report()
    dist.barrier()
    dist.destroy_process_group()
    assert not peerhop.torch.report()


def again(rank):
    """A second life of the groups."""
    for name in ('store', 'other'):
        init(name=name)
        got = torch.empty(5)
        dist.batch_isend_irecv([dist.P2POp(dist.isend, values(rank, 5), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)])[1].wait()
        assert torch.equal(got, values(1 - rank, 5))
        dist.destroy_process_group()


# ---- what goes wrong

def mismatch(rank):
    init()
    if rank == 0:
        dist.isend(torch.empty(1000), 1)  # it is held for the receiver: the answer tells
        work = dist.irecv(torch.empty(1), 1)
    else:
        work = dist.irecv(torch.empty(999), 0)
    error, _ = expect(dist.DistBackendError, 'PH_EMISMATCH', work.wait)
    assert '4000' in str(error) and '3996' in str(error) and isinstance(error.__cause__, peerhop.Mismatch), error
    expect(dist.DistBackendError, 'PH_EMISMATCH', work.wait)  # it stays
    assert isinstance(work.exception(), dist.DistBackendError) and not work.is_success()
    dist.destroy_process_group()


def late(rank):
    """A timeout ends its pair, at both ends, and no other."""
    init(timeout=60)
    got = torch.empty(5)
    if rank == 0:
        error, seconds = expect(dist.DistBackendError, 'rank 1', dist.irecv(got, 1).wait, timedelta(seconds=0.5))
        assert 0.4 < seconds < 10 and isinstance(error.__cause__, peerhop.Timeout), (error, seconds)
        expect(peerhop.Aborted, '', dist.irecv, got, 1)
        dist.send(values(0, 5), 2)
    elif rank == 1:
        time.sleep(2)
        expect((dist.DistBackendError, peerhop.Error), 'timeout', lambda: dist.isend(got, 0).wait())
        dist.send(values(1, 5), 2)
    else:
        for peer in (0, 1):
            dist.recv(got, peer)
            assert torch.equal(got, values(peer, 5))
    dist.destroy_process_group()


def late_group(rank):
    init(timeout=1)
    if rank == 0:
        _, seconds = expect(dist.DistBackendError, 'ETIMEDOUT', dist.recv, torch.empty(3), 1)
        assert 0.9 < seconds < 10, seconds
    else:
        time.sleep(1.5)


def killed(rank):
    """Survivors of a killed rank hear of it at once, and go on with each other."""
    init()
    got = torch.empty(LARGE)
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.irecv(got, 1), dist.isend(got, 1)]
    for work in works:
        error, seconds = expect(dist.DistBackendError, 'rank 1', work.wait)
        assert seconds < 20 and isinstance(error.__cause__, peerhop.PeerGone), (error, seconds)
    expect(peerhop.PeerGone, 'rank 1', dist.irecv, got, 1)
    peer = 2 - rank
    dist.batch_isend_irecv([dist.P2POp(dist.isend, values(rank, LARGE), peer), dist.P2POp(dist.irecv, got, peer)])[1].wait()
    assert torch.equal(got, values(peer, LARGE))


def sent_and_left(rank):
    """What was sent is received also where its sender has called destroy_process_group long before."""
    init()
    if rank == 0:
        for i in range(3):
            dist.send(values(i, 10), 1)
    else:
        time.sleep(1.5)
        got = torch.empty(10)
        for i in range(3):
            dist.recv(got, 0)
            assert torch.equal(got, values(i, 10))
    dist.destroy_process_group()


def of_any(rank):
    del rank
    init()
    expect(NotImplementedError, 'names its source', dist.irecv, torch.empty(1))
    expect(ValueError, 'none of meta', dist.isend, torch.empty(1, device='meta'), 0)
    dist.destroy_process_group()


# ---- enable()

def enabled(rank):
    """Groups of gloo, made before and after."""
    init('gloo')
    peerhop.torch.enable(devices=('cpu',))
    expect(RuntimeError, 'enabled already', peerhop.torch.enable)
    pair = dist.new_group([0, 2])
    got = torch.empty(10)
    dist.batch_isend_irecv([dist.P2POp(dist.isend, values(rank, 10), (rank + 1) % 3),
                            dist.P2POp(dist.irecv, got, (rank - 1) % 3)])[1].wait()
    assert torch.equal(got, values((rank - 1) % 3, 10))
    told = peerhop.torch.report()
    assert told[dist.group.WORLD.group_name]['cpu'][(rank + 1) % 3]['sent'] == (1, 40), told
    if rank != 1:
        work = dist.isend(values(rank, 10), 2 - rank, group=pair)
        dist.recv(got, 2 - rank, group=pair)
        work.wait()
        assert peerhop.torch.report()[pair.group_name]['cpu'][2 - rank]['received'] == (1, 40)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    assert total.item() == 3
    dist.barrier()
    peerhop.torch.disable()
    assert not peerhop.torch.report()
    if rank == 0:
        dist.send(got, 1)
    elif rank == 1:
        dist.recv(got, 0)
    dist.destroy_process_group()


class Torch(torch_ranks.Ranks):
    def test_blocking_messages_of_every_type(self):
        self.run_ranks(blocking)

    def test_layouts(self):
        self.run_ranks(layouts)

    def test_many_in_flight(self):
        self.run_ranks(in_flight)

    def test_receives_posted_early(self):
        self.run_ranks(early)

    def test_batches(self):
        self.run_ranks(batches, 4)

    def test_coalesced(self):
        self.run_ranks(coalesced)

    def test_itself(self):
        self.run_ranks(with_itself)

    def test_groups(self):
        self.run_ranks(groups, 4)

    def test_again(self):
        self.run_ranks(again)

    def test_sizes_that_differ(self):
        self.run_ranks(mismatch)

    def test_timeout_of_a_wait(self):
        self.run_ranks(late, 3)

    def test_timeout_of_the_group(self):
        self.run_ranks(late_group)

    def test_killed_rank(self):
        self.run_ranks(killed, 3, ended={1: -signal.SIGKILL})

    def test_sent_and_left(self):
        self.run_ranks(sent_and_left)

    def test_what_is_refused(self):
        self.run_ranks(of_any)

    def test_enabled(self):
        self.run_ranks(enabled, 3)


if __name__ == '__main__':
    unittest.main()
