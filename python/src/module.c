// SPDX-License-Identifier: BSD-3-Clause
// The extension behind the package peerhop: types, and what the package gives it at its import.
#include "binding.h"

static PyMethodDef methods[] = {
    {"use_errors", errors_use, METH_O, "Takes the function that makes exceptions."},
    {"use_streams", streams_use, METH_O, "Takes the function that knows the CUDA stream."},
    {"codes", errors_codes, METH_NOARGS, "The library's own codes: name to code and text."},
    {"close_all", contexts_close_all, METH_O, "Ends all contexts; True: the program has failed."},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_peerhop", "See peerhop.", -1, methods, NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type == NULL || PyModule_AddObjectRef(module, name, (PyObject *)*type) ? -1 : 0;
}

PyMODINIT_FUNC PyInit__peerhop(void);

PyMODINIT_FUNC PyInit__peerhop(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (contexts_watch_forks() || add_type(module, "Context", &context_spec, &context_type) ||
        add_type(module, "Channel", &channel_spec, &channel_type) ||
        add_type(module, "Group", &group_spec, &group_type) ||
        add_type(module, "Queue", &queue_spec, &queue_type) ||
        add_type(module, "Memory", &memory_spec, &memory_type) ||
        add_type(module, "Release", &release_spec, &release_type) || reports_add(module) ||
        notify_add(module) || PyModule_AddStringConstant(module, "version", ph_version()))
        Py_CLEAR(module);
    return module;
}
