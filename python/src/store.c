// SPDX-License-Identifier: BSD-3-Clause
// A store of Python's behind the library's callbacks. They take the GIL, in whatever thread the
// library asks; it holds no lock then that a call with the GIL takes.
//
// The store is an object of peerhop._stores: set(key, value, seconds), get(key, seconds) -> bytes or
// None, remove(key) -> bool. What they raise is a warning of the log, and PH_ESTORE in C.
#include "binding.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Set when Python ends: what is left of the library then has no store any more.
static atomic_bool over;

static int raised(const char *call, const char *key)
{
    PyObject *kind, *value, *trace;
    char line[512];
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *name = kind ? PyObject_GetAttrString(kind, "__name__") : NULL;
    const char *what = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const char *which = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    snprintf(line, sizeof line, "the store's %s of %s raised %s: %s", call, key,
             which ? which : "an exception", what ? what : "");
    const bool late = kind != NULL && PyErr_GivenExceptionMatches(kind, PyExc_TimeoutError);
    Py_XDECREF(text);
    Py_XDECREF(name);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    log_line(NULL, PH_LOG_WARN, line);
    return late ? -ETIMEDOUT : -EIO;
}

static double seconds_of(int64_t deadline_ms)
{
    return (double)deadline_ms / 1000;
}

static int store_set(void *opaque, const char *key, const void *value, size_t size,
                     int64_t deadline_ms)
{
    if (atomic_load(&over))
        return -ESHUTDOWN;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallMethod(opaque, "set", "sy#d", key, value, (Py_ssize_t)size,
                                           seconds_of(deadline_ms));
    const int rc = result ? 0 : raised("set", key);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return rc;
}

// copy_bytes: 0, or -1 with an exception.
static int copy_bytes(PyObject *bytes, void **value, size_t *size)
{
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &data, &length))
        return -1;
    void *copy = malloc(length ? (size_t)length : 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(copy, data, (size_t)length);
    *value = copy;
    *size = (size_t)length;
    return 0;
}

static int store_get(void *opaque, const char *key, void **value, size_t *size, int64_t deadline_ms)
{
    if (atomic_load(&over))
        return -ESHUTDOWN;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *bytes = PyObject_CallMethod(opaque, "get", "sd", key, seconds_of(deadline_ms));
    int rc = 0;
    if (bytes == Py_None)
        rc = -ETIMEDOUT;
    else if (bytes == NULL || copy_bytes(bytes, value, size))
        rc = raised("get", key);
    Py_XDECREF(bytes);
    PyGILState_Release(state);
    return rc;
}

static int store_remove(void *opaque, const char *key, int64_t deadline_ms)
{
    (void)deadline_ms; // neither torch's stores nor mappings have one for this
    if (atomic_load(&over))
        return -ESHUTDOWN;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *removed = PyObject_CallMethod(opaque, "remove", "s", key);
    const int there = removed ? PyObject_IsTrue(removed) : -1;
    const int rc = there > 0 ? 0 : there == 0 ? -ENOENT : raised("remove", key);
    Py_XDECREF(removed);
    PyGILState_Release(state);
    return rc;
}

void stores_over(void)
{
    atomic_store(&over, true);
}

struct ph_store_callbacks store_callbacks(PyObject *store)
{
    return (struct ph_store_callbacks){store_set, store_get, store_remove, store};
}
