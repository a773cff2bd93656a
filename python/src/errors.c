// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <string.h>

static PyObject *make_error; // (code, sentence) -> exception

PyObject *fail_with(int code, const char *sentence)
{
    // What other processes wrote may be in it.
    PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace");
    PyObject *number = PyLong_FromLong(code);
    PyObject *error = NULL;
    if (text != NULL && number != NULL)
        error = PyObject_CallFunctionObjArgs(make_error, number, text, NULL);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(text);
    Py_XDECREF(number);
    Py_XDECREF(error);
    return NULL;
}

PyObject *fail(struct context *context, int code)
{
    char sentence[1024] = "";
    if (context != NULL && context->handle != NULL)
        ph_context_error(context->handle, sentence, sizeof sentence);
    return fail_with(code, sentence[0] ? sentence : ph_strerror(code));
}

PyObject *errors_use(PyObject *module, PyObject *make)
{
    (void)module;
    Py_XDECREF(make_error);
    make_error = Py_NewRef(make);
    Py_RETURN_NONE;
}

PyObject *errors_codes(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    PyObject *codes = PyDict_New();
    PyObject *value;
#define ADD_CODE(name, number, text)                                                               \
    value = codes ? Py_BuildValue("is", number, text) : NULL;                                      \
    if (value == NULL || PyDict_SetItemString(codes, #name, value))                                \
        Py_CLEAR(codes);                                                                           \
    Py_XDECREF(value);
    PH_ERROR_MAP(ADD_CODE)
#undef ADD_CODE
    return codes;
}
