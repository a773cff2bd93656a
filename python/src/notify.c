// SPDX-License-Identifier: BSD-3-Clause
// Notifications, and requests: places on streams.
#include "binding.h"

#include <errno.h>
#include <stdlib.h>

enum { MOST = PH_NOTIFICATIONS_MAX }; // that one call takes

static PyTypeObject *request_type, *notification_type;

static PyStructSequence_Field notification_fields[] = {
    {"peer", "the rank that gave it"},
    {"op_id", "of the channel on which it was given"},
    {"data", "bytes, at most 256"},
    {NULL, NULL},
};
static PyStructSequence_Desc notification_desc = {"peerhop.Notification", "What a peer has given.",
                                                  notification_fields, 3};

// ---- notifications

struct notify_args {
    PyObject *data, *stream;
};
static const struct arg notify_list[] = {
    {"data", ARG_OBJECT, offsetof(struct notify_args, data), true},
    {"stream", ARG_OBJECT, offsetof(struct notify_args, stream), false}};
static const struct arg_table notify_table = {"notify", notify_list, ARG_COUNT(notify_list), 1};

// The library copies the bytes in the call.
PyObject *channel_notify(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct notify_args given = {0};
    struct view view = {0};
    struct queue *queue;
    void *stream = NULL;
    if (check_channel(channel) || args_take(&notify_table, args, count, names, &given) ||
        view_take("notify", given.data, false, &view))
        return NULL;
    int rc = view.device == VIEW_CUDA
                 ? view_refuse("notify", "it is memory of a device: give bytes", given.data)
                 : stream_of(channel->context, given.stream, &channel->view, &stream, &queue);
    if (rc == 0 && (rc = ph_notify(channel->handle, view.data, view.size, stream)) != 0)
        fail(channel->context, rc);
    view_drop(&view);
    return rc ? NULL : Py_NewRef(Py_None);
}

static PyObject *one_of(const struct ph_notification *from)
{
    PyObject *values[] = {PyLong_FromLong(from->peer), PyLong_FromUnsignedLongLong(from->op_id),
                          PyBytes_FromStringAndSize((const char *)from->bytes, from->size)};
    return report_named(notification_type, values, 3);
}

static PyObject *list_of(const struct ph_notification *from, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *one = one_of(&from[i]);
        if (one == NULL || PyList_SetItem(list, (Py_ssize_t)i, one))
            Py_CLEAR(list);
    }
    return list;
}

PyObject *context_notifications(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names)
{
    struct context *context = (struct context *)self;
    struct ph_notification come[MOST];
    size_t taken = 0;
    (void)args;
    if (args_none("notifications", count, names) || check_open(context))
        return NULL;
    const int rc = ph_notifications(context->handle, come, MOST, &taken);
    return rc ? fail(context, rc) : list_of(come, taken);
}

struct come_wait {
    struct ph_context *handle;
    struct ph_notification come[MOST];
    size_t count;
};

static int wait_slice_for_some(void *opaque, int64_t deadline_ms)
{
    struct come_wait *wait = opaque;
    return ph_notifications_wait(wait->handle, wait->come, MOST, &wait->count, deadline_ms);
}

struct timeout_args {
    int64_t deadline_ms;
};
static const struct arg timeout_list[] = {{"timeout", ARG_TIMEOUT, 0, false}};
static const struct arg_table some_table = {"wait_notifications", timeout_list, 1, 1};
static const struct arg_table done_table = {"wait", timeout_list, 1, 1};

PyObject *context_wait_notifications(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names)
{
    struct context *context = (struct context *)self;
    struct timeout_args given = {context->deadline_ms};
    int rc;
    if (check_open(context) || args_take(&some_table, args, count, names, &given))
        return NULL;
    struct come_wait *wait = calloc(1, sizeof *wait);
    if (wait == NULL)
        return PyErr_NoMemory();
    wait->handle = context->handle;
    context_enter(context);
    const int raised = wait_slices(wait_slice_for_some, wait, given.deadline_ms, &rc);
    PyObject *list = NULL;
    if (!raised && rc)
        fail(context, rc);
    else if (!raised)
        list = list_of(wait->come, wait->count);
    context_leave(context);
    free(wait);
    return list;
}

PyObject *context_notifications_fd(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    struct context *context = (struct context *)self;
    (void)args;
    if (args_none("notifications_fd", count, names) || check_open(context))
        return NULL;
    const int fd = ph_notifications_fd(context->handle);
    return fd < 0 ? fail(context, fd) : PyLong_FromLong(fd);
}

// ---- requests

struct request {
    PyObject base;
    struct context *context;
    struct ph_request request;
};

static const struct arg record_list[] = {
    {"stream", ARG_OBJECT, offsetof(struct notify_args, stream), false}};
static const struct arg_table record_table = {"record", record_list, 1, 1};
static const struct arg_table wait_on_table = {"wait_on", record_list, 1, 1};

PyObject *context_record(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    const struct view none = {0};
    struct notify_args given = {0};
    struct ph_request request;
    struct queue *queue;
    void *stream;
    if (check_open(context) || args_take(&record_table, args, count, names, &given) ||
        stream_of(context, given.stream, &none, &stream, &queue))
        return NULL;
    const int rc = ph_request_record(context->handle, stream, &request);
    struct request *object = rc ? NULL : PyObject_New(struct request, request_type);
    if (object == NULL)
        return rc ? fail(context, rc) : NULL;
    object->context = (struct context *)Py_NewRef(self);
    object->request = request;
    return (PyObject *)object;
}

static void request_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF((PyObject *)((struct request *)self)->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *request_done(PyObject *self, void *unused)
{
    struct request *object = (struct request *)self;
    (void)unused;
    if (check_open(object->context))
        return NULL;
    return PyBool_FromLong(ph_request_test(&object->request) == 0);
}

static int wait_slice_for_request(void *opaque, int64_t deadline_ms)
{
    return ph_request_wait(opaque, deadline_ms);
}

static PyObject *request_wait(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names)
{
    struct context *context = ((struct request *)self)->context;
    struct timeout_args given = {context->deadline_ms};
    struct ph_request request = ((struct request *)self)->request;
    int rc;
    if (check_open(context) || args_take(&done_table, args, count, names, &given))
        return NULL;
    context_enter(context);
    const int raised = wait_slices(wait_slice_for_request, &request, given.deadline_ms, &rc);
    PyObject *done = NULL;
    if (!raised && rc)
        fail(context, rc);
    else if (!raised)
        done = Py_NewRef(Py_None);
    context_leave(context);
    return done;
}

static PyObject *request_wait_on(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names)
{
    struct request *object = (struct request *)self;
    const struct view none = {0};
    struct notify_args given = {0};
    struct queue *queue;
    void *stream;
    if (check_open(object->context) || args_take(&wait_on_table, args, count, names, &given) ||
        stream_of(object->context, given.stream, &none, &stream, &queue))
        return NULL;
    const int rc = ph_request_wait_on(&object->request, stream);
    return rc ? fail(object->context, rc) : Py_NewRef(Py_None);
}

static PyMethodDef request_methods[] = {
    FAST("wait", request_wait, "Waits until all that was enqueued before it is done."),
    FAST("wait_on", request_wait_on, "Lets what follows on a stream begin when it is done."),
    {0},
};

static PyGetSetDef request_values[] = {
    {"done", request_done, NULL, "Whether all that was enqueued before it is done.", NULL},
    {0},
};

static PyType_Slot request_slots[] = {
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_values},
    {Py_tp_doc, "A place on a stream."},
    {0, NULL},
};

static PyType_Spec request_spec = {"_peerhop.Request", sizeof(struct request), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   request_slots};

int notify_add(PyObject *module)
{
    notification_type = PyStructSequence_NewType(&notification_desc);
    request_type = (PyTypeObject *)PyType_FromSpec(&request_spec);
    if (notification_type == NULL || request_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Notification", (PyObject *)notification_type) ||
                   PyModule_AddObjectRef(module, "Request", (PyObject *)request_type)
               ? -1
               : 0;
}
