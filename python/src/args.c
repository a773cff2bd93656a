// SPDX-License-Identifier: BSD-3-Clause
#include "args.h"

#include <string.h>

#include <peerhop/peerhop.h>

// Longer than any program runs, and far from where milliseconds overflow.
#define SECONDS_MOST 1e9

enum { TABLE_MOST = 16 }; // arguments of one call

struct word {
    const char *name;
    int value;
};
static const struct word roles[] = {
    {"sender", PH_ROLE_SENDER}, {"receiver", PH_ROLE_RECEIVER}, {"both", PH_ROLE_BOTH}, {0}};
static const struct word protocols[] = {{"put", PH_PROTOCOL_PUT}, {"get", PH_PROTOCOL_GET}, {0}};
static const struct word states[] = {{"revoked", PH_RELEASE_REVOKED},
                                     {"drained", PH_RELEASE_DRAINED},
                                     {"closed", PH_RELEASE_CLOSED},
                                     {0}};

static int refuse(const struct arg_table *table, const struct arg *arg, PyObject *type,
                  const char *wanted, PyObject *value)
{
    PyErr_Format(type, "%s: %s is %s, not %R", table->function, arg->name, wanted, value);
    return -1;
}

// Numbers are whatever has __index__: those of NumPy, too.
static int take_int64(const struct arg_table *table, const struct arg *arg, PyObject *value,
                      int64_t least, int64_t most, int64_t *out)
{
    PyObject *index = PyNumber_Index(value);
    int overflow = 0;
    if (index == NULL) {
        PyErr_Clear();
        return refuse(table, arg, PyExc_TypeError, "a number", value);
    }
    *out = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow || *out < least || *out > most) {
        PyErr_Format(PyExc_ValueError, "%s: %s is from %lld to %lld, not %R", table->function,
                     arg->name, (long long)least, (long long)most, value);
        return -1;
    }
    return 0;
}

static int take_uint64(const struct arg_table *table, const struct arg *arg, PyObject *value,
                       uint64_t *out)
{
    PyObject *index = PyNumber_Index(value);
    if (index == NULL) {
        PyErr_Clear();
        return refuse(table, arg, PyExc_TypeError, "a number", value);
    }
    *out = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (*out == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return refuse(table, arg, PyExc_ValueError, "from 0 to 2**64 - 1", value);
    }
    return 0;
}

// 0 would be the context's deadline to the library; here it is no time at all, or nearly.
static int take_timeout(const struct arg_table *table, const struct arg *arg, PyObject *value,
                        int64_t *out)
{
    double seconds = PyFloat_AsDouble(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return refuse(table, arg, PyExc_TypeError, "a number of seconds or None", value);
    }
    if (!(seconds >= 0))
        return refuse(table, arg, PyExc_ValueError, "at least 0 seconds", value);
    if (seconds > SECONDS_MOST)
        seconds = SECONDS_MOST;
    *out = (int64_t)(seconds * 1000);
    if (*out == 0)
        *out = 1;
    return 0;
}

static int take_text(const struct arg_table *table, const struct arg *arg, PyObject *value,
                     const char **out)
{
    Py_ssize_t size;
    if (!PyUnicode_Check(value))
        return refuse(table, arg, PyExc_TypeError, "a str", value);
    *out = PyUnicode_AsUTF8AndSize(value, &size);
    if (*out == NULL)
        return -1;
    if (strlen(*out) != (size_t)size)
        return refuse(table, arg, PyExc_ValueError, "without a null character", value);
    return 0;
}

static int take_word(const struct arg_table *table, const struct arg *arg, PyObject *value,
                     const struct word *words, int *out)
{
    int64_t number;
    if (!PyUnicode_Check(value)) {
        if (take_int64(table, arg, value, INT32_MIN, INT32_MAX, &number))
            return -1;
        *out = (int)number;
        return 0;
    }
    for (const struct word *word = words; word->name != NULL; word++) {
        if (PyUnicode_CompareWithASCIIString(value, word->name) == 0) {
            *out = word->value;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%s: %s is \"%s\", \"%s\"%s%s%s, not %R", table->function,
                 arg->name, words[0].name, words[1].name, words[2].name ? ", \"" : "",
                 words[2].name ? words[2].name : "", words[2].name ? "\"" : "", value);
    return -1;
}

static int take(const struct arg_table *table, const struct arg *arg, PyObject *value, void *out)
{
    void *to = (char *)out + arg->offset;
    int64_t number = 0;
    int rc;
    if (value == Py_None && !arg->required)
        return 0;
    switch (arg->kind) {
    case ARG_OBJECT:
        *(PyObject **)to = value;
        return 0;
    case ARG_TEXT:
        return take_text(table, arg, value, to);
    case ARG_BOOL:
        rc = PyObject_IsTrue(value);
        *(bool *)to = rc > 0;
        return rc < 0 ? -1 : 0;
    case ARG_INT:
        rc = take_int64(table, arg, value, INT32_MIN, INT32_MAX, &number);
        *(int *)to = (int)number;
        return rc;
    case ARG_INT64:
        return take_int64(table, arg, value, INT64_MIN, INT64_MAX, to);
    case ARG_UINT64:
        return take_uint64(table, arg, value, to);
    case ARG_SIZE:
        rc = take_int64(table, arg, value, 0, INT64_MAX, &number);
        *(size_t *)to = (size_t)number;
        return rc;
    case ARG_TIMEOUT:
        return take_timeout(table, arg, value, to);
    case ARG_ROLE:
        return take_word(table, arg, value, roles, to);
    case ARG_PROTOCOL:
        return take_word(table, arg, value, protocols, to);
    case ARG_STATE:
        return take_word(table, arg, value, states, to);
    }
    return -1;
}

// given: a bit for each argument that came.
static int take_positional(const struct arg_table *table, size_t i, PyObject *value,
                           uint32_t *given, void *out)
{
    if (i >= table->positional) {
        PyErr_Format(PyExc_TypeError, "%s takes at most %zu arguments without a name",
                     table->function, table->positional);
        return -1;
    }
    *given |= 1u << i;
    return take(table, &table->args[i], value, out);
}

static int take_named(const struct arg_table *table, PyObject *name, PyObject *value,
                      uint32_t *given, void *out)
{
    for (size_t i = 0; i < table->count; i++) {
        if (!PyUnicode_Check(name) ||
            PyUnicode_CompareWithASCIIString(name, table->args[i].name) != 0)
            continue;
        if (*given & 1u << i) {
            PyErr_Format(PyExc_TypeError, "%s: %s is given twice", table->function,
                         table->args[i].name);
            return -1;
        }
        *given |= 1u << i;
        return take(table, &table->args[i], value, out);
    }
    PyErr_Format(PyExc_TypeError, "%s has no argument %R", table->function, name);
    return -1;
}

static int check_required(const struct arg_table *table, uint32_t given)
{
    _Static_assert(TABLE_MOST <= 32, "a bit for each argument");
    for (size_t i = 0; i < table->count; i++) {
        if (table->args[i].required && !(given & 1u << i)) {
            PyErr_Format(PyExc_TypeError, "%s needs %s", table->function, table->args[i].name);
            return -1;
        }
    }
    return 0;
}

int args_take(const struct arg_table *table, PyObject *const *args, Py_ssize_t count,
              PyObject *names, void *out)
{
    const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    uint32_t given = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (take_positional(table, (size_t)i, args[i], &given, out))
            return -1;
    for (Py_ssize_t i = 0; i < named; i++)
        if (take_named(table, PyTuple_GetItem(names, i), args[count + i], &given, out))
            return -1;
    return check_required(table, given);
}

int args_take_dict(const struct arg_table *table, PyObject *args, PyObject *named, void *out)
{
    const Py_ssize_t count = args ? PyTuple_Size(args) : 0;
    PyObject *name, *value;
    Py_ssize_t at = 0;
    uint32_t given = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (take_positional(table, (size_t)i, PyTuple_GetItem(args, i), &given, out))
            return -1;
    while (named != NULL && PyDict_Next(named, &at, &name, &value))
        if (take_named(table, name, value, &given, out))
            return -1;
    return check_required(table, given);
}

int args_none(const char *function, Py_ssize_t count, PyObject *names)
{
    if (count == 0 && (names == NULL || PyTuple_Size(names) == 0))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes no arguments", function);
    return -1;
}
