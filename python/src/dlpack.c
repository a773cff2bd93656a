// SPDX-License-Identifier: BSD-3-Clause
#include "dlpack.h"

#include <stdint.h>

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

// What a type has as __dlpack_c_exchange_api__: the same without a capsule, in a hundredth of the
// time.
struct dl_table {
    uint32_t major, minor;
    struct dl_table *older;
    void *allocate;
    int (*managed_of)(void *object, struct dl_versioned **versioned);
    void *object_of;
    void *tensor_of;
    int (*stream_of)(int32_t type, int32_t ordinal, void **stream);
};

enum { DL_READ_ONLY = 1, DL_ANY_STREAM = -1 };

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
    view->item = tensor->type.bits % 8 ? 0 : (size_t)tensor->type.bits / 8 * tensor->type.lanes;
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
            return view_refuse(function, "is described by another version of DLPack than 1",
                               object);
        if (PyCapsule_SetName(capsule, "used_dltensor_versioned"))
            return -1;
        view->versioned = versioned;
        *read_only = versioned->flags & DL_READ_ONLY;
        return 0;
    }
    if (!PyCapsule_IsValid(capsule, "dltensor"))
        return view_refuse(function, "is not described by DLPack", object);
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

// table_of returns the type's table, or NULL. The last type is remembered, whether or not it has
// one.
static const struct dl_table *table_of(PyTypeObject *type)
{
    static PyTypeObject *known;
    static const struct dl_table *table;
    if (type == known)
        return table;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    table = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    while (table != NULL && table->major != 1)
        table = table->older;
    PyTypeObject *forgotten = known;
    known = (PyTypeObject *)Py_NewRef((PyObject *)type);
    Py_XDECREF(capsule); // the table stays, whoever forgets the capsule
    Py_XDECREF(forgotten);
    return table;
}

static int take_capsule(const char *function, PyObject *object, bool *read_only, struct view *view)
{
    PyObject *capsule = call_dlpack(object, is_on_gpu(object));
    if (capsule == NULL)
        return -1;
    const int rc = claim(function, object, capsule, read_only, view);
    Py_DECREF(capsule);
    return rc;
}

int dlpack_take(const char *function, PyObject *object, bool writable, struct view *view)
{
    bool read_only = false;
    const struct dl_table *table = table_of(Py_TYPE(object));
    int rc;
    if (table != NULL) {
        rc = table->managed_of(object, &view->versioned);
        view->table = table;
        read_only = rc == 0 && view->versioned->flags & DL_READ_ONLY;
    } else if (PyObject_HasAttrString(object, "__dlpack__")) {
        rc = take_capsule(function, object, &read_only, view);
    } else {
        return 1;
    }
    if (rc)
        return -1;
    const struct dl_tensor *tensor =
        view->versioned ? &view->versioned->tensor : &view->managed->tensor;
    describe(tensor, view);
    if (!is_contiguous(tensor))
        rc = view_refuse_scattered(function, object);
    else if (writable && read_only)
        rc = view_refuse_read_only(function, object);
    if (rc)
        view_drop(view);
    return rc;
}

void dlpack_drop(struct view *view)
{
    if (view->managed != NULL && view->managed->drop != NULL)
        view->managed->drop(view->managed);
    if (view->versioned != NULL && view->versioned->drop != NULL)
        view->versioned->drop(view->versioned);
}

int dlpack_stream(const struct view *view, void **stream)
{
    if (view == NULL || view->table == NULL || view->device != VIEW_CUDA)
        return 1;
    return view->table->stream_of(VIEW_CUDA, view->ordinal, stream) ? -1 : 0;
}
