// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *channel_type;

PyObject *channel_new(struct context *context, struct ph_channel *handle, struct view *view)
{
    struct channel *channel = PyObject_New(struct channel, channel_type);
    if (channel == NULL)
        return NULL;
    channel->context = (struct context *)Py_NewRef((PyObject *)context);
    channel->handle = handle;
    channel->bound = view->data != NULL;
    channel->view = *view;
    channel->next_used = NULL;
    channel->at_used = NULL;
    channel->queue = NULL;
    *view = (struct view){0};
    return (PyObject *)channel;
}

// ---- what is to be asked for its status

static void unlink_used(struct channel *channel)
{
    if (channel->at_used == NULL)
        return;
    *channel->at_used = channel->next_used;
    if (channel->next_used != NULL)
        channel->next_used->at_used = channel->at_used;
    channel->at_used = NULL;
    channel->queue = NULL;
}

void channel_used(struct channel *channel, struct queue *queue)
{
    struct context *context = channel->context;
    if (channel->at_used != NULL) {
        if (channel->queue != queue)
            channel->queue = NULL; // of two: with each, and after it
        return;
    }
    channel->queue = queue;
    channel->next_used = context->used;
    channel->at_used = &context->used;
    if (context->used != NULL)
        context->used->at_used = &channel->next_used;
    context->used = channel;
}

int channels_check(struct context *context, struct queue *queue)
{
    for (struct channel *channel = context->used; channel != NULL;) {
        struct channel *next = channel->next_used;
        if (channel->queue == queue || channel->queue == NULL) {
            const int rc = ph_channel_status(channel->handle);
            if (channel->queue == queue || rc)
                unlink_used(channel); // what it says is told once
            if (rc) {
                fail(context, rc);
                return -1;
            }
        }
        channel = next;
    }
    return 0;
}

// ---- the end

static int close_channel(struct channel *channel)
{
    struct ph_channel *handle = channel->handle;
    const bool closes = handle != NULL && channel->context->handle != NULL;
    const int rc = closes ? ph_channel_close(handle) : 0;
    if (rc && rc != PH_EFORKED)
        return rc;
    unlink_used(channel);
    channel->handle = NULL;
    view_drop(&channel->view);
    return 0;
}

static void channel_dealloc(PyObject *self)
{
    struct channel *channel = (struct channel *)self;
    PyTypeObject *type = Py_TYPE(self);
    close_channel(channel);
    unlink_used(channel);
    view_drop(&channel->view);
    Py_DECREF((PyObject *)channel->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *channel_close(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    (void)args;
    if (args_none("close", count, names))
        return NULL;
    const int rc = close_channel((struct channel *)self);
    if (rc)
        return fail(((struct channel *)self)->context, rc);
    Py_RETURN_NONE;
}

static PyObject *channel_enter(PyObject *self, PyObject *none)
{
    (void)none;
    return Py_NewRef(self);
}

static PyObject *channel_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    return channel_close(self, NULL, 0, NULL);
}

int check_channel(struct channel *channel)
{
    if (check_open(channel->context))
        return -1;
    if (channel->handle != NULL)
        return 0;
    fail_with(-EBADF, "the channel is closed");
    return -1;
}

// ---- what it says

static PyObject *channel_check(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    (void)args;
    if (args_none("check", count, names) || check_channel(channel))
        return NULL;
    const int rc = ph_channel_status(channel->handle);
    if (rc)
        return fail(channel->context, rc);
    Py_RETURN_NONE;
}

struct reason_args {
    const char *why;
};
static const struct arg reason_list[] = {{"why", ARG_TEXT, 0, false}};
static const struct arg_table reason_table = {"abort", reason_list, 1, 1};

static PyObject *channel_abort(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct reason_args given = {0};
    if (args_take(&reason_table, args, count, names, &given) || check_channel(channel))
        return NULL;
    const int rc = ph_channel_abort(channel->handle, given.why);
    if (rc)
        return fail(channel->context, rc);
    Py_RETURN_NONE;
}

// What the library tells by a call of its own.
#define VALUE(name, make)                                                                          \
    static PyObject *get_##name(PyObject *self, void *unused)                                      \
    {                                                                                              \
        struct channel *channel = (struct channel *)self;                                          \
        (void)unused;                                                                              \
        return check_channel(channel) ? NULL : make(ph_channel_##name(channel->handle));           \
    }
VALUE(status, PyLong_FromLong)
VALUE(ended, PyLong_FromLong)
VALUE(peer, PyLong_FromLong)
VALUE(op_id, PyLong_FromUnsignedLongLong)
VALUE(local_size, PyLong_FromSize_t)
VALUE(peer_size, PyLong_FromSize_t)
VALUE(skipped, PyLong_FromUnsignedLongLong)

static PyObject *get_closed(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return PyBool_FromLong(channel->handle == NULL || channel->context->handle == NULL);
}

static PyGetSetDef channel_values[] = {
    {"status", get_status, NULL, "0, or the code why not all came that was waited for.", NULL},
    {"ended", get_ended, NULL, "0, or the code why it cannot be used any more.", NULL},
    {"peer", get_peer, NULL, "The peer's rank.", NULL},
    {"op_id", get_op_id, NULL, "The number of the operation.", NULL},
    {"local_size", get_local_size, NULL, "Bytes of this rank's buffer, 0 without one.", NULL},
    {"peer_size", get_peer_size, NULL, "Bytes of the peer's buffer, 0 without one.", NULL},
    {"skipped", get_skipped, NULL, "Parts of pages left out so far: they lie in no buffer.", NULL},
    {"closed", get_closed, NULL, "Whether it, or its context, is closed.", NULL},
    {0},
};

static PyMethodDef channel_methods[] = {
    FAST("send", channel_send, "Enqueues a message to the peer."),
    FAST("recv", channel_recv, "Enqueues the receipt of a message of the peer's."),
    FAST("put", channel_put, "Enqueues a copy into the peer's buffer."),
    FAST("get", channel_get, "Enqueues a copy out of the peer's buffer."),
    FAST("put_pages", channel_put_pages, "Enqueues copies of pages into the peer's buffer."),
    FAST("get_pages", channel_get_pages, "Enqueues copies of pages out of the peer's buffer."),
    FAST("signal", channel_signal, "Enqueues a signal to the peer."),
    FAST("wait", channel_wait, "Enqueues a wait for the peer's next signal."),
    FAST("notify", channel_notify, "Gives the peer's program bytes when what is before is done."),
    FAST("complete", channel_complete, "Enqueues the end of a message begun with complete=False."),
    FAST("path", report_path, "How a direction moves bytes, and why not otherwise."),
    FAST("check", channel_check, "Raises where not all came that was waited for."),
    FAST("abort", channel_abort, "Ends an unbound channel, at both ends."),
    FAST("close", channel_close, "Lets go of the channel and of its buffer."),
    {"__enter__", channel_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))channel_exit, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot channel_slots[] = {
    {Py_tp_dealloc, channel_dealloc},
    {Py_tp_methods, channel_methods},
    {Py_tp_getset, channel_values},
    {Py_tp_doc, "What an exchange returns: data moves on it between two ranks."},
    {0, NULL},
};

PyType_Spec channel_spec = {"_peerhop.Channel", sizeof(struct channel), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, channel_slots};
