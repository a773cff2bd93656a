# SPDX-License-Identifier: BSD-3-Clause
"""A context of a GPU, on the stand-in for the driver: streams and device memory are what Python's objects say they are."""
import ctypes
import os

import peerhop
import producers
import ranks

SIZE = 1 << 16


class Device:
    """The few calls of the driver that a framework would make."""

    def __init__(self, ordinal):
        self.driver = ctypes.CDLL(os.environ['PEERHOP_LIBCUDA'])
        self.ordinal = ordinal
        self.call('cuInit', 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call('cuDeviceGet', ctypes.byref(device), ordinal)
        self.call('cuDevicePrimaryCtxRetain', ctypes.byref(context), device)
        self.call('cuCtxSetCurrent', context)

    def call(self, name, *args):
        result = getattr(self.driver, name)(*args)
        assert result == 0, f'{name}: {result}'

    def stream(self):
        stream = ctypes.c_void_p()
        self.call('cuStreamCreate', ctypes.byref(stream), 1)
        return Stream(self, stream.value)

    def array(self, data):
        address = ctypes.c_uint64()
        self.call('cuMemAlloc_v2', ctypes.byref(address), ctypes.c_size_t(len(data)))
        self.call('cuMemcpyHtoD_v2', address, bytes(data), ctypes.c_size_t(len(data)))
        return Array(self, address.value, len(data))


class Stream:
    """As a stream of PyTorch names itself."""

    def __init__(self, device, handle):
        self.device, self.cuda_stream = device, handle

    def synchronize(self):
        self.device.call('cuStreamSynchronize', ctypes.c_void_p(self.cuda_stream))


class Array:
    def __init__(self, device, address, size):
        self.device, self.address, self.size = device, address, size
        self.__cuda_array_interface__ = {'data': (address, False), 'shape': (size // 4,), 'typestr': '<f4', 'version': 3}

    def read(self):
        data = ctypes.create_string_buffer(self.size)
        self.device.call('cuMemcpyDtoH_v2', data, ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))
        return data.raw


def int32(*numbers):
    return (ctypes.c_int32 * len(numbers))(*numbers)


def pattern(seed):
    return bytes((i * 7 + seed) % 251 for i in range(SIZE))


def ordinal():
    return int(os.environ['PEERHOP_RANK']) % 2


def rank_bound():
    device = Device(ordinal())
    with peerhop.Context(device=f'cuda:{ordinal()}') as context:
        assert context.device.startswith(f'cuda:{ordinal()} '), context.device
        array, stream = device.array(pattern(context.rank)), device.stream()
        channel = context.exchange(1, peer=1 - context.rank, buffer=array)
        assert channel.path().path == 'ipc', channel.path()
        if context.rank == 0:
            channel.send(stream=stream)
            channel.recv(stream=stream.cuda_stream)
        else:
            channel.recv(stream=stream)
            channel.send(stream=stream)
        stream.synchronize()
        channel.check()
        assert array.read() == pattern(0)
        channel.put(1000, at=2000, src=slice(0, 1000), signal=True, stream=stream)
        channel.wait(1000, stream=stream)
        stream.synchronize()
        assert array.read()[2000:3000] == pattern(0)[:1000]
        channel.close()
        context.release(array).wait('drained', timeout=20)


def rank_unbound():
    device = Device(ordinal())
    with peerhop.Context(device=f'cuda:{ordinal()}') as context:
        channel = context.unbound(1 - context.rank)
        sent, came, pinned = device.array(pattern(context.rank)), device.array(bytes(SIZE)), context.alloc(SIZE)
        memoryview(pinned)[:] = pattern(10 + context.rank)
        stream = device.stream()
        for out in (sent, pinned):
            with context.group(stream=stream) as group:
                channel.send(out, group=group)
                channel.recv(came, group=group)
            stream.synchronize()
            channel.check()
            assert came.read() == pattern(1 - context.rank + (10 if out is pinned else 0))


def rank_pages():
    """The numbers lie in the device's memory, which the stream reads, or in the program's."""
    device = Device(ordinal())
    with peerhop.Context(device=f'cuda:{ordinal()}') as context:
        memory, stream = device.array(pattern(context.rank)), device.stream()
        numbers = device.array(bytes(int32(*range(16, 32))))
        count = device.array(bytes(int32(12)))
        channel = context.exchange(1, peer=1 - context.rank, buffer=memory)
        if context.rank == 0:
            channel.put_pages(1024, numbers, (ctypes.c_int64 * 16)(*range(15, -1, -1)), count=count, signal=True, stream=stream)
            channel.wait(stream=stream)
            channel.get_pages(512, peer=int32(-1, 100, 127), stream=stream)
            stream.synchronize()
            assert memory.read() == pattern(0)[:512] + pattern(1)[51200:51712] + pattern(1)[65024:65536] + pattern(0)[1536:]
        else:
            channel.wait(stream=stream)
            channel.signal(stream=stream)
            stream.synchronize()
            now = bytearray(pattern(1))
            for i in range(12):
                now[(15 - i) * 1024:(16 - i) * 1024] = pattern(0)[(16 + i) * 1024:(17 + i) * 1024]
            assert memory.read() == now
        assert channel.skipped == 0
        channel.signal(stream=stream)
        channel.wait(stream=stream)
        stream.synchronize()


def rank_refused():
    device = Device(ordinal())
    with peerhop.Context(device=f'cuda:{ordinal()}') as context:
        channel = context.unbound(1 - context.rank)
        array = device.array(pattern(0))
        for call, kind, why in ((lambda: channel.send(b'x'), ValueError, 'Context.alloc'),
                                (lambda: channel.send(array, stream='main'), TypeError, 'CUDA stream'),
                                (lambda: channel.send(array, stream=-1), (OverflowError, peerhop.Error), ''),
                                (context.queue, peerhop.Invalid, 'host contexts'),
                                (context.synchronize, peerhop.Invalid, 'streams')):
            try:
                call()
                raise AssertionError('taken')
            except kind as error:
                assert why in str(error), error
        with context.group() as group:  # on the legacy stream: nobody has another one
            channel.send(array, group=group)
            channel.recv(device.array(bytes(SIZE)), group=group)
        device.call('cuStreamSynchronize', None)
        channel.check()


def rank_stream_of_the_framework():
    """Without a stream it is the one that the tensor's framework works on: what is held up there is not done."""
    device = Device(ordinal())
    streams = [device.stream(), device.stream()]
    now = streams[0]
    kept, capsule = producers.table(lambda kind, number: now.cuda_stream if (kind, number) == (2, ordinal()) else 0)

    class Tensor(producers.Producer):
        __dlpack_c_exchange_api__ = capsule

    def tensor(array):
        made = Tensor(None, (array.size // 4,), device=producers.CUDA, versioned=True, ordinal=ordinal(), address=array.address)
        made.array = array
        return made

    with peerhop.Context(device=f'cuda:{ordinal()}') as context:
        came = device.array(bytes(SIZE))
        out = device.array(pattern(context.rank))
        bound = context.exchange(1, peer=1 - context.rank, buffer=tensor(came))
        channel = context.unbound(1 - context.rank)
        for now in streams:
            if context.rank == 0:
                channel.send(tensor(out))
            else:
                channel.recv(tensor(came))
            now.synchronize()
            assert context.rank == 0 or came.read() == pattern(0)
        # A receive on the one stream holds up nothing on the other one.
        now = streams[0]
        if context.rank == 0:
            channel.recv(tensor(came))
            now = streams[1]
            bound.signal()
            now.synchronize()
            channel.send(tensor(out))
            streams[1].synchronize()
            streams[0].synchronize()
            assert came.read() == pattern(1)
        else:
            bound.wait()
            channel.recv(tensor(came))
            channel.send(tensor(out))
            now.synchronize()
        # So does a group, while the stream that it would be on otherwise is held up.
        now, held, later = streams[1], context.unbound(1 - context.rank, op_id=2), device.array(bytes(SIZE))
        if context.rank == 0:
            held.recv(later, stream=0)
        with context.group() as group:
            channel.send(tensor(out), group=group)
            channel.recv(tensor(came), group=group)
        now.synchronize()
        assert came.read() == pattern(1 - context.rank)
        if context.rank == 1:
            held.send(out, stream=0)
        device.call('cuStreamSynchronize', None)
        assert context.rank == 1 or later.read() == pattern(1)
        channel.check()
        bound.check()
        assert kept.major == 1


def rank_current():
    """Without a number it is the device that the thread works on, whatever rank this is."""
    other = 1 - ordinal()
    Device(other)
    for how in ({}, {'device': 'cuda'}):
        with peerhop.Context(**how) as context:
            assert context.device.startswith(f'cuda:{other} '), context.device
    with peerhop.Context(settings={'PEERHOP_DEVICE': 'host'}) as context:
        assert context.device == 'host'


class OnTheStandIn(ranks.Ranks):
    def run_on(self, program):
        self.run_ranks(program, PEERHOP_LIBCUDA=os.environ['PEERHOP_LIBCUDA'], TMPDIR='/tmp', PEERHOP_DEVICE='')

    def test_bound(self):
        self.run_on('rank_bound')

    def test_unbound(self):
        self.run_on('rank_unbound')

    def test_pages(self):
        self.run_on('rank_pages')

    def test_stream_of_the_framework(self):
        self.run_on('rank_stream_of_the_framework')

    def test_current_device(self):
        self.run_on('rank_current')

    def test_refused(self):
        self.run_on('rank_refused')


if __name__ == '__main__':
    ranks.main(globals())
