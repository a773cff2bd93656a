# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as frameworks share them by DLPack."""
import ctypes

CPU, CUDA = 1, 2


class Device(ctypes.Structure):
    _fields_ = [('type', ctypes.c_int32), ('ordinal', ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device', Device), ('dimensions', ctypes.c_int32), ('code', ctypes.c_uint8),
                ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16), ('shape', ctypes.POINTER(ctypes.c_int64)),
                ('strides', ctypes.POINTER(ctypes.c_int64)), ('offset', ctypes.c_uint64)]


Drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [('tensor', Tensor), ('owner', ctypes.c_void_p), ('drop', Drop)]


class Versioned(ctypes.Structure):
    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('owner', ctypes.c_void_p), ('drop', Drop),
                ('flags', ctypes.c_uint64), ('tensor', Tensor)]


capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """A tensor of 4-byte elements over a bytearray; `out` counts what consumers have not given back."""

    def __init__(self, data, shape, strides=None, device=CPU, versioned=False, read_only=False, offset=0, major=1, ordinal=0,
                 address=None):
        self.out, self.asked = 0, []
        self.data, self.versioned = data, versioned
        if data:
            address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        number = ctypes.c_int64 * len(shape)
        self.kept = number(*shape), number(*strides) if strides else None
        tensor = Tensor(address, Device(device, ordinal), len(shape), 2, 32, 1, self.kept[0], self.kept[1], offset)
        self.drop = Drop(self.dropped)
        self.struct = (Versioned(major, 0, None, self.drop, int(read_only), tensor) if versioned
                       else Managed(tensor, None, self.drop))
        self.device = device, ordinal

    def dropped(self, _):
        self.out -= 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        self.asked.append(how)
        if 'max_version' in how and not self.versioned:
            raise TypeError('max_version is not known')
        self.out += 1
        return capsule_new(ctypes.addressof(self.struct), b'dltensor_versioned' if self.versioned else b'dltensor', None)


ManagedOf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
StreamOf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    """What a type has as __dlpack_c_exchange_api__."""


Table._fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('older', ctypes.POINTER(Table)),
                  ('allocate', ctypes.c_void_p), ('managed_of', ManagedOf), ('object_of', ctypes.c_void_p),
                  ('tensor_of', ctypes.c_void_p), ('stream_of', StreamOf)]


@ManagedOf
def managed_of(producer, out):
    producer.out += 1
    out[0] = ctypes.addressof(producer.struct)
    return 0


def table(stream_of=lambda *_: -1, major=1, older=None):
    """table returns one, for which its maker cares, and its capsule; stream_of(type, ordinal) returns the stream."""
    def write(device, ordinal, out):
        out[0] = stream_of(device, ordinal)
        return 0

    made = Table(major, 3, ctypes.pointer(older) if older else None, None, managed_of, None, None, StreamOf(write))
    return made, capsule_new(ctypes.addressof(made), b'dlpack_exchange_api', None)
