#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Two ranks pass numbers to and fro: a tensor of PyTorch where that has CUDA, else host memory.

    peerhop-run -n 2 python3 examples/pair.py
    PEERHOP_STORE=file:/dev/shm/name PEERHOP_JOB=name torchrun --nproc-per-node 2 examples/pair.py

Rank 0 sends, rank 1 doubles what comes and sends it back. With CUDA nothing waits for a stream in between, and the same
rounds are captured into a CUDA graph and replayed.
"""
import ctypes
import os
import sys

try:
    import torch

    CUDA = torch.cuda.is_available()
except ImportError:
    CUDA = False

COUNT, ROUNDS, ROLE_BOTH = 1 << 18, 10, 3
peerhop = ctypes.CDLL(os.environ.get('PEERHOP_LIBRARY', 'libpeerhop.so.0'))
peerhop.ph_strerror.restype = ctypes.c_char_p


class Params(ctypes.Structure):
    _fields_ = [('struct_size', ctypes.c_size_t), ('rank', ctypes.c_int), ('ranks', ctypes.c_int),
                ('device', ctypes.c_char_p), ('store', ctypes.c_char_p), ('store_callbacks', ctypes.c_void_p),
                ('job', ctypes.c_char_p), ('epoch', ctypes.c_uint64), ('deadline_ms', ctypes.c_int64),
                ('log', ctypes.c_void_p), ('log_opaque', ctypes.c_void_p), ('log_level', ctypes.c_int),
                ('settings', ctypes.c_void_p), ('error', ctypes.c_char_p), ('error_size', ctypes.c_size_t)]


class Operation(ctypes.Structure):
    _fields_ = [('op_id', ctypes.c_uint64), ('peer', ctypes.c_int), ('role', ctypes.c_int), ('protocol', ctypes.c_int),
                ('buffer', ctypes.c_void_p), ('size', ctypes.c_size_t), ('limits', ctypes.c_void_p), ('flags', ctypes.c_uint32),
                ('range_count', ctypes.c_uint32), ('ranges', ctypes.c_void_p)]


context = ctypes.c_void_p()


def check(result):
    if result == 0:
        return
    text = ctypes.create_string_buffer(1024)
    if context:
        peerhop.ph_context_error(context, text, ctypes.c_size_t(len(text)))
    sys.exit(f'{peerhop.ph_strerror(result).decode()}: {text.value.decode()}')


def create(device):
    error = ctypes.create_string_buffer(1024)
    params = Params(struct_size=ctypes.sizeof(Params), device=device.encode(), error_size=len(error),
                    error=ctypes.cast(error, ctypes.c_char_p))
    if peerhop.ph_context_create(ctypes.byref(params), ctypes.byref(context)):
        sys.exit(error.value.decode())
    return peerhop.ph_context_rank(context)


def exchange(peer, address, size):
    channel = ctypes.c_void_p()
    operation = Operation(op_id=1, peer=peer, role=ROLE_BOTH, buffer=address, size=size)
    check(peerhop.ph_exchange(context, ctypes.byref(operation), ctypes.c_size_t(1), ctypes.byref(channel)))
    return channel


def send(channel, size, stream):
    check(peerhop.ph_send(channel, ctypes.c_size_t(size), stream))
    check(peerhop.ph_complete(channel, stream))


def receive(channel, size, stream):
    check(peerhop.ph_recv(channel, ctypes.c_size_t(size), stream))
    check(peerhop.ph_complete(channel, stream))


def a_round(rank, channel, size, stream, double):
    """double() is enqueued between what comes and what goes back."""
    if rank == 0:
        send(channel, size, stream)
    receive(channel, size, stream)
    if rank == 1:
        double()
        send(channel, size, stream)


def with_tensors():
    local = int(os.environ.get('LOCAL_RANK', os.environ.get('PEERHOP_RANK', '0'))) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    rank = create(f'cuda:{local}')
    tensor = torch.arange(COUNT, dtype=torch.float64, device='cuda')
    size = tensor.numel() * tensor.element_size()
    torch.cuda.synchronize()  # the rounds have a stream of their own
    channel = exchange(1 - rank, tensor.data_ptr(), size)

    def rounds():
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for _ in range(ROUNDS):
            a_round(rank, channel, size, stream, lambda: tensor.mul_(2))

    with torch.cuda.stream(torch.cuda.Stream()):
        rounds()
        torch.cuda.current_stream().synchronize()
    check(peerhop.ph_channel_status(channel))  # a stream is done also where the peer has died
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rounds()
    graph.replay()
    torch.cuda.synchronize()
    check(peerhop.ph_channel_status(channel))
    wanted = torch.arange(COUNT, dtype=torch.float64, device='cuda') * 2 ** (2 * ROUNDS)
    del graph  # pins the channel
    return rank, torch.equal(tensor, wanted), 'CUDA tensors'


def with_host_memory():
    rank = create('host')
    address, queue, size = ctypes.c_void_p(), ctypes.c_void_p(), COUNT * ctypes.sizeof(ctypes.c_double)
    check(peerhop.ph_host_alloc(context, ctypes.c_size_t(size), ctypes.byref(address)))
    numbers = (ctypes.c_double * COUNT).from_address(address.value)
    numbers[:] = range(COUNT)
    check(peerhop.ph_queue_create(context, ctypes.byref(queue)))
    channel = exchange(1 - rank, address.value, size)

    def wait():
        check(peerhop.ph_queue_synchronize(queue, ctypes.c_int64(0)))
        check(peerhop.ph_channel_status(channel))  # a queue is done also where the peer has died

    def double():
        wait()
        numbers[:] = [2 * number for number in numbers]

    for _ in range(ROUNDS):
        a_round(rank, channel, size, queue, double)
    wait()
    same = all(number == i * 2 ** ROUNDS for i, number in enumerate(numbers))
    check(peerhop.ph_queue_destroy(ctypes.byref(queue)))
    return rank, same, 'host memory'


RANK, SAME, WHERE = with_tensors() if CUDA else with_host_memory()
check(peerhop.ph_context_destroy(ctypes.byref(context), ctypes.c_int64(0)))
print(f'rank {RANK}: {"as expected" if SAME else "WRONG"} ({WHERE})')
sys.exit(not SAME)
