// SPDX-License-Identifier: BSD-3-Clause
// Memory of Python's objects: the buffer protocol, DLPack, __cuda_array_interface__, in this order.
#ifndef PEERHOP_PYTHON_VIEW_H
#define PEERHOP_PYTHON_VIEW_H

#include "abi.h"

#include <stdbool.h>
#include <stddef.h>

// Where memory lies, as DLPack numbers it.
enum view_device { VIEW_CPU = 1, VIEW_CUDA = 2, VIEW_PINNED = 3, VIEW_MANAGED = 13 };

struct dl_managed;
struct dl_versioned;
struct dl_table;

struct view {
    void *data;
    size_t size;    // bytes
    size_t item;    // of an element; 0: no whole bytes
    int device;     // enum view_device
    int ordinal;    // of a CUDA device
    bool is_mapped; // what `data` was translated to: the library's own mapping
    // What keeps it, by one of these.
    struct py_buffer *buffer;
    struct dl_managed *managed;
    struct dl_versioned *versioned;
    PyObject *object;
    const struct dl_table *table; // of the framework that it is of, or NULL
    struct view *rest;            // of an operation of several ranges: the other ones, or NULL
    size_t rest_count;
};

// view_take looks at what `object` shares and keeps it until view_drop. -1 with an exception that
// says, for `function`, why it cannot be used: no buffer, not contiguous, read-only where writable
// memory is needed.
int view_take(const char *function, PyObject *object, bool writable, struct view *view);
void view_drop(struct view *view); // one that is none, or all zero, is fine

// They set a ValueError and return -1.
int view_refuse(const char *function, const char *why, PyObject *object);
int view_refuse_read_only(const char *function, PyObject *object);
int view_refuse_scattered(const char *function, PyObject *object);

#endif
