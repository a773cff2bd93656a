// SPDX-License-Identifier: BSD-3-Clause
// Python's limited API of 3.10, and the buffer protocol, which CPython has as it is since 3.3 and
// froze in 3.11: these are its declarations, which the headers leave out for an extension that 3.10
// is to load, too.
#ifndef PEERHOP_PYTHON_ABI_H
#define PEERHOP_PYTHON_ABI_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

struct py_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
};

PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject *object);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, struct py_buffer *view, int flags);
PyAPI_FUNC(int) PyBuffer_IsContiguous(const struct py_buffer *view, char order);
PyAPI_FUNC(int) PyBuffer_FillInfo(struct py_buffer *view, PyObject *object, void *memory,
                                  Py_ssize_t size, int readonly, int flags);
PyAPI_FUNC(void) PyBuffer_Release(struct py_buffer *view);

enum { PY_BUFFER_ANY = 0x0100 | 0x0010 | 0x0008 | 0x0004 }; // PyBUF_FULL_RO

#ifndef Py_bf_getbuffer
#define Py_bf_getbuffer 1
#endif

#endif
