// SPDX-License-Identifier: BSD-3-Clause
// Arguments of Python calls by tables: which there are, of what kind, and where in a struct each
// goes.
#ifndef PEERHOP_PYTHON_ARGS_H
#define PEERHOP_PYTHON_ARGS_H

#include "abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_kind {
    ARG_OBJECT,   // PyObject *, borrowed
    ARG_TEXT,     // const char *, lives as long as the argument
    ARG_BOOL,     // bool
    ARG_INT,      // int
    ARG_INT64,    // int64_t
    ARG_UINT64,   // uint64_t
    ARG_SIZE,     // size_t
    ARG_TIMEOUT,  // int64_t: seconds in Python, milliseconds here, at least 1
    ARG_ROLE,     // int: enum ph_role, "sender", "receiver", "both" or its number
    ARG_PROTOCOL, // int: enum ph_protocol, "put", "get" or its number
    ARG_STATE,    // int: enum ph_release_state, "revoked", "drained", "closed" or its number
};

struct arg {
    const char *name;
    enum arg_kind kind;
    size_t offset;
    bool required;
};

// positional: so many of the first may be given without their names.
struct arg_table {
    const char *function;
    const struct arg *args;
    size_t count;
    size_t positional;
};

#define ARG_COUNT(array) (sizeof(array) / sizeof((array)[0]))

// They write what is given into *out, and leave what is None or left out as it is. -1: a TypeError,
// ValueError or OverflowError is set, which names function and argument. Of a call by METH_FASTCALL
// | METH_KEYWORDS; of a tuple and a dictionary (either may be NULL).
int args_take(const struct arg_table *table, PyObject *const *args, Py_ssize_t count,
              PyObject *names, void *out);
int args_take_dict(const struct arg_table *table, PyObject *args, PyObject *named, void *out);

// args_none refuses the arguments of what takes none.
int args_none(const char *function, Py_ssize_t count, PyObject *names);

#endif
