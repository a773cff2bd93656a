// SPDX-License-Identifier: BSD-3-Clause
#include "view.h"

#include <stdint.h>
#include <stdlib.h>

// ---- the layouts of DLPack 0.x and 1.x

struct dl_device {
    int32_t type, ordinal;
};

struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t dimensions;
    struct dl_type type;
    int64_t *shape, *strides; // in elements; no strides: contiguous
    uint64_t offset;          // bytes
};

struct dl_managed {
    struct dl_tensor tensor;
    void *owner;
    void (*drop)(struct dl_managed *managed);
};

struct dl_versioned {
    uint32_t major, minor;
    void *owner;
    void (*drop)(struct dl_versioned *versioned);
    uint64_t flags;
    struct dl_tensor tensor;
};

enum { DL_READ_ONLY = 1, DL_ANY_STREAM = -1 };

static int refuse(const char *function, const char *why, PyObject *object)
{
    PyErr_Format(PyExc_ValueError, "%s: the memory of %R %s", function, (PyObject *)Py_TYPE(object),
                 why);
    return -1;
}

static int refuse_read_only(const char *function, PyObject *object)
{
    return refuse(function, "is read-only, and is to be written", object);
}

static int refuse_scattered(const char *function, PyObject *object)
{
    return refuse(function, "is not contiguous: make a contiguous copy of it", object);
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
        rc = refuse_scattered(function, object);
    else if (writable && buffer->readonly)
        rc = refuse_read_only(function, object);
    if (rc) {
        PyBuffer_Release(buffer);
        free(buffer);
        return rc;
    }
    *view = (struct view){
        .data = buffer->buf, .size = (size_t)buffer->len, .device = VIEW_CPU, .buffer = buffer};
    return 0;
}

// ---- DLPack

static bool is_contiguous(const struct dl_tensor *tensor)
{
    int64_t wanted = 1;
    for (int32_t i = 0; i < tensor->dimensions; i++)
        if (tensor->shape[i] == 0)
            return true;
    if (tensor->strides == NULL)
        return true;
    for (int32_t i = tensor->dimensions - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != wanted)
            return false;
        wanted *= tensor->shape[i];
    }
    return true;
}

static void describe(const struct dl_tensor *tensor, struct view *view)
{
    uint64_t elements = 1;
    for (int32_t i = 0; i < tensor->dimensions; i++)
        elements *= (uint64_t)tensor->shape[i];
    view->data = (char *)tensor->data + tensor->offset;
    view->size = (elements * tensor->type.bits * tensor->type.lanes + 7) / 8;
    view->device = tensor->device.type;
    view->ordinal = tensor->device.ordinal;
}

// call_dlpack: of a tensor on a GPU the producer is not to wait for any stream: calls order
// themselves on theirs. Producers older than version 1 do not know max_version.
static PyObject *call_dlpack(PyObject *object, bool on_gpu)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0);
    PyObject *named =
        on_gpu ? Py_BuildValue("{s:(ii),s:i}", "max_version", 1, 0, "stream", DL_ANY_STREAM)
               : Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    PyObject *capsule = NULL;
    if (method != NULL && none != NULL && named != NULL)
        capsule = PyObject_Call(method, none, named);
    if (capsule == NULL && named != NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        if (PyDict_DelItemString(named, "max_version") == 0)
            capsule = PyObject_Call(method, none, named);
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(named);
    return capsule;
}

// claim takes what the capsule has: its name says that it is taken.
static int claim(const char *function, PyObject *object, PyObject *capsule, bool *read_only,
                 struct view *view)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct dl_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (versioned->major != 1)
            return refuse(function, "is described by another version of DLPack than 1", object);
        if (PyCapsule_SetName(capsule, "used_dltensor_versioned"))
            return -1;
        view->versioned = versioned;
        *read_only = versioned->flags & DL_READ_ONLY;
        return 0;
    }
    if (!PyCapsule_IsValid(capsule, "dltensor"))
        return refuse(function, "is not described by DLPack", object);
    view->managed = PyCapsule_GetPointer(capsule, "dltensor");
    *read_only = false;
    return PyCapsule_SetName(capsule, "used_dltensor");
}

// Of what is not known where it lies, nothing is asked of a stream.
static bool is_on_gpu(PyObject *object)
{
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = device ? PySequence_GetItem(device, 0) : NULL;
    PyObject *number = type ? PyNumber_Index(type) : NULL;
    const bool on_gpu = number != NULL && PyLong_AsLong(number) == VIEW_CUDA;
    Py_XDECREF(device);
    Py_XDECREF(type);
    Py_XDECREF(number);
    PyErr_Clear();
    return on_gpu;
}

static int take_dlpack(const char *function, PyObject *object, bool writable, struct view *view)
{
    bool read_only;
    PyObject *capsule = call_dlpack(object, is_on_gpu(object));
    if (capsule == NULL)
        return -1;
    int rc = claim(function, object, capsule, &read_only, view);
    Py_DECREF(capsule);
    if (rc)
        return rc;
    const struct dl_tensor *tensor =
        view->versioned ? &view->versioned->tensor : &view->managed->tensor;
    describe(tensor, view);
    if (!is_contiguous(tensor))
        rc = refuse_scattered(function, object);
    else if (writable && read_only)
        rc = refuse_read_only(function, object);
    if (rc)
        view_drop(view);
    return rc;
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
    return writable && rc ? refuse_read_only(function, object) : 0;
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
        return refuse(function, "is not described by __cuda_array_interface__", object);
    view->size = (size_t)(elements * item);
    return contiguous || elements == 0 ? 0 : refuse_scattered(function, object);
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
    if (PyObject_HasAttrString(object, "__dlpack__"))
        return take_dlpack(function, object, writable, view);
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
    if (old.buffer == NULL && old.managed == NULL && old.versioned == NULL && old.object == NULL)
        return;
    PyErr_Fetch(&kind, &value, &trace);
    if (old.buffer != NULL) {
        PyBuffer_Release(old.buffer);
        free(old.buffer);
    }
    if (old.managed != NULL && old.managed->drop != NULL)
        old.managed->drop(old.managed);
    if (old.versioned != NULL && old.versioned->drop != NULL)
        old.versioned->drop(old.versioned);
    Py_XDECREF(old.object);
    PyErr_Restore(kind, value, trace);
}
