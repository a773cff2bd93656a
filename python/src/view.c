// SPDX-License-Identifier: BSD-3-Clause
#include "view.h"

#include "dlpack.h"

#include <stdint.h>
#include <stdlib.h>

int view_refuse(const char *function, const char *why, PyObject *object)
{
    PyErr_Format(PyExc_ValueError, "%s: the memory of %R %s", function, (PyObject *)Py_TYPE(object),
                 why);
    return -1;
}

int view_refuse_read_only(const char *function, PyObject *object)
{
    return view_refuse(function, "is read-only, and is to be written", object);
}

int view_refuse_scattered(const char *function, PyObject *object)
{
    return view_refuse(function, "is not contiguous: make a contiguous copy of it", object);
}

// ---- the buffer protocol

static int take_buffer(const char *function, PyObject *object, bool writable, struct view *view)
{
    struct py_buffer *buffer = malloc(sizeof *buffer);
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyObject_GetBuffer(object, buffer, PY_BUFFER_ANY)) {
        free(buffer);
        return -1;
    }
    int rc = 0;
    if (!PyBuffer_IsContiguous(buffer, 'A'))
        rc = view_refuse_scattered(function, object);
    else if (writable && buffer->readonly)
        rc = view_refuse_read_only(function, object);
    if (rc) {
        PyBuffer_Release(buffer);
        free(buffer);
        return rc;
    }
    *view = (struct view){.data = buffer->buf,
                          .size = (size_t)buffer->len,
                          .item = (size_t)buffer->itemsize,
                          .device = VIEW_CPU,
                          .buffer = buffer};
    return 0;
}

// ---- __cuda_array_interface__

// The bytes of an element: what stands behind byte order and kind, as in "<f4".
static int64_t item_size(PyObject *interface)
{
    PyObject *type = PyMapping_GetItemString(interface, "typestr");
    const char *text = type ? PyUnicode_AsUTF8AndSize(type, NULL) : NULL;
    int64_t size = text && text[0] && text[1] ? strtoll(text + 2, NULL, 10) : -1;
    Py_XDECREF(type);
    return size;
}

// elements_of: how many there are, and whether the strides are those of contiguous memory.
static int64_t elements_of(PyObject *shape, PyObject *strides, int64_t item, bool *contiguous)
{
    int64_t elements = 1;
    *contiguous = true;
    for (Py_ssize_t i = PySequence_Size(shape) - 1; i >= 0; i--) {
        PyObject *length = PySequence_GetItem(shape, i);
        PyObject *stride = strides && strides != Py_None ? PySequence_GetItem(strides, i) : NULL;
        const int64_t n = length ? PyLong_AsLongLong(length) : -1;
        if (stride != NULL && n != 1 && PyLong_AsLongLong(stride) != elements * item)
            *contiguous = false;
        elements *= n;
        Py_XDECREF(length);
        Py_XDECREF(stride);
    }
    return elements;
}

static int read_data(const char *function, PyObject *object, PyObject *data, bool writable,
                     struct view *view)
{
    PyObject *address = PySequence_GetItem(data, 0);
    PyObject *read_only = address ? PySequence_GetItem(data, 1) : NULL;
    int rc = read_only ? PyObject_IsTrue(read_only) : -1;
    if (rc >= 0)
        view->data = PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    Py_XDECREF(read_only);
    if (PyErr_Occurred())
        return -1;
    return writable && rc ? view_refuse_read_only(function, object) : 0;
}

static int read_size(const char *function, PyObject *object, PyObject *shape, PyObject *interface,
                     struct view *view)
{
    bool contiguous = true;
    PyObject *strides = PyMapping_HasKeyString(interface, "strides")
                            ? PyMapping_GetItemString(interface, "strides")
                            : NULL;
    const int64_t item = item_size(interface);
    const int64_t elements = item > 0 ? elements_of(shape, strides, item, &contiguous) : 0;
    Py_XDECREF(strides);
    if (PyErr_Occurred())
        return -1;
    if (item <= 0 || elements < 0)
        return view_refuse(function, "is not described by __cuda_array_interface__", object);
    view->size = (size_t)(elements * item);
    view->item = (size_t)item;
    return contiguous || elements == 0 ? 0 : view_refuse_scattered(function, object);
}

static int read_interface(const char *function, PyObject *object, PyObject *interface,
                          bool writable, struct view *view)
{
    PyObject *data = PyMapping_GetItemString(interface, "data");
    PyObject *shape = data ? PyMapping_GetItemString(interface, "shape") : NULL;
    int rc = shape ? read_size(function, object, shape, interface, view) : -1;
    if (rc == 0)
        rc = read_data(function, object, data, writable, view);
    Py_XDECREF(data);
    Py_XDECREF(shape);
    return rc;
}

// It does not say on which device memory lies: the library asks the driver.
static int take_interface(const char *function, PyObject *object, bool writable, struct view *view)
{
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
    if (interface == NULL)
        return -1;
    int rc = read_interface(function, object, interface, writable, view);
    Py_DECREF(interface);
    if (rc) {
        *view = (struct view){0};
        return rc;
    }
    view->device = VIEW_CUDA;
    view->ordinal = -1;
    view->object = Py_NewRef(object);
    return 0;
}

int view_take(const char *function, PyObject *object, bool writable, struct view *view)
{
    *view = (struct view){0};
    if (PyObject_CheckBuffer(object))
        return take_buffer(function, object, writable, view);
    const int rc = dlpack_take(function, object, writable, view);
    if (rc <= 0)
        return rc;
    if (PyObject_HasAttrString(object, "__cuda_array_interface__"))
        return take_interface(function, object, writable, view);
    PyErr_Format(PyExc_TypeError,
                 "%s: %R has no memory to share: no buffer protocol, no __dlpack__, no "
                 "__cuda_array_interface__",
                 function, (PyObject *)Py_TYPE(object));
    return -1;
}

// What is given back may be code of Python's, and an exception be under way.
void view_drop(struct view *view)
{
    struct view old = *view;
    PyObject *kind, *value, *trace;
    *view = (struct view){0};
    for (size_t i = 0; i < old.rest_count; i++)
        view_drop(&old.rest[i]);
    free(old.rest);
    if (old.buffer == NULL && old.managed == NULL && old.versioned == NULL && old.object == NULL)
        return;
    PyErr_Fetch(&kind, &value, &trace);
    if (old.buffer != NULL) {
        PyBuffer_Release(old.buffer);
        free(old.buffer);
    }
    dlpack_drop(&old);
    Py_XDECREF(old.object);
    PyErr_Restore(kind, value, trace);
}
