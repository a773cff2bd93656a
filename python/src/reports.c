// SPDX-License-Identifier: BSD-3-Clause
// What is known, as tuples with names and as a dictionary.
#include "binding.h"

static PyTypeObject *path_type, *peer_type;

static PyStructSequence_Field path_fields[] = {
    {"path", "\"ipc\", \"net\", \"self\" or \"none\""},
    {"method", "what moves large copies"},
    {"protocol", "\"put\", \"get\" or \"none\""},
    {"kind", "of the handle by which the peer's memory is reached"},
    {"flush", "what makes data of the net visible to streams"},
    {"ll_max", "bytes up to which a message goes by ll"},
    {"sm_max", "bytes up to which a message goes by sm"},
    {"rejected", "pairs of a name and why it was not taken"},
    {NULL, NULL},
};
static PyStructSequence_Desc path_desc = {"peerhop.Path", "How a direction moves bytes.",
                                          path_fields, 8};

static PyStructSequence_Field peer_fields[] = {
    {"state", "\"unknown\", \"known\", \"live\", \"suspect\", \"broken\", \"expelled\", \"gone\""},
    {"code", "what calls that need it raise, 0 while it can be used"},
    {"silent", "seconds since its last heartbeat, None before the first"},
    {"incarnation", "tells lives of the rank apart, 0: unknown"},
    {"process", "its id in its own namespace, 0: unknown"},
    {NULL, NULL},
};
static PyStructSequence_Desc peer_desc = {"peerhop.Peer", "What is known of a rank.", peer_fields,
                                          5};

static const char *const peer_states[] = {
    [PH_PEER_UNKNOWN] = "unknown", [PH_PEER_KNOWN] = "known",   [PH_PEER_LIVE] = "live",
    [PH_PEER_SUSPECT] = "suspect", [PH_PEER_BROKEN] = "broken", [PH_PEER_EXPELLED] = "expelled",
    [PH_PEER_GONE] = "gone",
};

int reports_add(PyObject *module)
{
    path_type = PyStructSequence_NewType(&path_desc);
    peer_type = PyStructSequence_NewType(&peer_desc);
    if (path_type == NULL || peer_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Path", (PyObject *)path_type) ||
                   PyModule_AddObjectRef(module, "Peer", (PyObject *)peer_type)
               ? -1
               : 0;
}

PyObject *report_named(PyTypeObject *type, PyObject **values, Py_ssize_t count)
{
    PyObject *tuple = PyStructSequence_New(type);
    bool whole = tuple != NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        whole = whole && values[i] != NULL;
        if (tuple != NULL)
            PyStructSequence_SetItem(tuple, i, values[i]);
        else
            Py_XDECREF(values[i]);
    }
    if (!whole)
        Py_CLEAR(tuple);
    return tuple;
}

PyObject *report_counters(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct ph_counters counters = {0};
    (void)args;
    if (args_none("counters", count, names) || check_open(context))
        return NULL;
    const int rc = ph_context_counters(context->handle, &counters, sizeof counters);
    if (rc)
        return fail(context, rc);
    PyObject *all = PyDict_New();
    PyObject *value;
#define ADD_COUNTER(member, meaning)                                                               \
    value = all ? PyLong_FromUnsignedLongLong(counters.member) : NULL;                             \
    if (value == NULL || PyDict_SetItemString(all, #member, value))                                \
        Py_CLEAR(all);                                                                             \
    Py_XDECREF(value);
    PH_COUNTER_MAP(ADD_COUNTER)
#undef ADD_COUNTER
    return all;
}

struct peer_args {
    int rank;
};
static const struct arg peer_list[] = {{"rank", ARG_INT, 0, true}};
static const struct arg_table peer_table = {"peer", peer_list, 1, 1};

PyObject *report_peer(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct peer_args given = {0};
    struct ph_peer_report report = {0};
    if (check_open(context) || args_take(&peer_table, args, count, names, &given))
        return NULL;
    const int rc = ph_context_peer(context->handle, given.rank, &report, sizeof report);
    if (rc)
        return fail(context, rc);
    const bool known = (size_t)report.state < ARG_COUNT(peer_states);
    PyObject *values[] = {
        PyUnicode_FromString(known ? peer_states[report.state] : "unknown"),
        PyLong_FromLong(report.code),
        report.silent_ms < 0 ? Py_NewRef(Py_None)
                             : PyFloat_FromDouble((double)report.silent_ms / 1000),
        PyLong_FromUnsignedLongLong(report.incarnation),
        PyLong_FromUnsignedLong(report.process),
    };
    return report_named(peer_type, values, 5);
}

static PyObject *rejected_of(const struct ph_path_report *report)
{
    PyObject *list = PyTuple_New((Py_ssize_t)report->rejected_count);
    for (size_t i = 0; list != NULL && i < report->rejected_count; i++) {
        PyObject *pair = Py_BuildValue("ss", report->rejected[i].name, report->rejected[i].reason);
        if (pair == NULL || PyTuple_SetItem(list, (Py_ssize_t)i, pair))
            Py_CLEAR(list);
    }
    return list;
}

struct path_args {
    bool outgoing;
};
static const struct arg path_list[] = {{"outgoing", ARG_BOOL, 0, false}};
static const struct arg_table path_table = {"path", path_list, 1, 1};

PyObject *report_path(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct path_args given = {true};
    struct ph_path_report report = {0};
    if (args_take(&path_table, args, count, names, &given) || check_channel(channel))
        return NULL;
    const int rc = ph_channel_path(channel->handle, given.outgoing, &report, sizeof report);
    if (rc)
        return fail(channel->context, rc);
    PyObject *values[] = {
        PyUnicode_FromString(report.path),          PyUnicode_FromString(report.method),
        PyUnicode_FromString(report.protocol),      PyUnicode_FromString(report.kind),
        PyUnicode_FromString(report.flush),         PyLong_FromUnsignedLongLong(report.ll_max),
        PyLong_FromUnsignedLongLong(report.sm_max), rejected_of(&report),
    };
    return report_named(path_type, values, 8);
}
