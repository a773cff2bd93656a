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

static int check_channel(struct channel *channel)
{
    if (check_open(channel->context))
        return -1;
    if (channel->handle != NULL)
        return 0;
    fail_with(-EBADF, "the channel is closed");
    return -1;
}

// ---- transfers

// The arguments of all calls that enqueue; each has those of its table.
struct call_args {
    PyObject *data, *place, *stream, *group;
    size_t size, at;
    bool signals, unfinished, completes;
};
#define AT(member) offsetof(struct call_args, member)
#define ANY_SIZE   SIZE_MAX
#define STREAM                                                                                     \
    {                                                                                              \
        "stream", ARG_OBJECT, AT(stream), false                                                    \
    }
#define GROUP                                                                                      \
    {                                                                                              \
        "group", ARG_OBJECT, AT(group), false                                                      \
    }
#define SIZE                                                                                       \
    {                                                                                              \
        "size", ARG_SIZE, AT(size), false                                                          \
    }
#define PLACE(name)                                                                                \
    {                                                                                              \
        name, ARG_OBJECT, AT(place), false                                                         \
    }

static const struct arg message_list[] = {{"data", ARG_OBJECT, AT(data), false},
                                          SIZE,
                                          STREAM,
                                          GROUP,
                                          {"complete", ARG_BOOL, AT(completes), false}};
static const struct arg put_list[] = {SIZE,         {"at", ARG_SIZE, AT(at), false},
                                      PLACE("src"), {"signal", ARG_BOOL, AT(signals), false},
                                      STREAM,       GROUP};
static const struct arg get_list[] = {
    SIZE, {"at", ARG_SIZE, AT(at), false}, PLACE("dst"), STREAM, GROUP};
static const struct arg wait_list[] = {SIZE, STREAM, GROUP};
static const struct arg bare_list[] = {STREAM, GROUP};

static const struct arg_table tables[] = {
    [PH_GROUP_SEND] = {"send", message_list, ARG_COUNT(message_list), 1},
    [PH_GROUP_RECV] = {"recv", message_list, ARG_COUNT(message_list), 1},
    [PH_GROUP_PUT] = {"put", put_list, ARG_COUNT(put_list), 1},
    [PH_GROUP_GET] = {"get", get_list, ARG_COUNT(get_list), 1},
    [PH_GROUP_SIGNAL] = {"signal", bare_list, ARG_COUNT(bare_list), 0},
    [PH_GROUP_WAIT] = {"wait", wait_list, ARG_COUNT(wait_list), 1},
};
static const struct arg_table complete_table = {"complete", bare_list, 1, 0};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// With its buffers a message is as long as the shorter one, to both ends.
static int size_bound(const char *function, struct channel *channel, const struct call_args *given,
                      struct ph_group_op *op)
{
    if (given->data != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s: the channel has a buffer of its own: only a channel of Context.unbound "
                     "takes one here",
                     function);
        return -1;
    }
    op->size = given->size != ANY_SIZE ? given->size
                                       : least(ph_channel_local_size(channel->handle),
                                               ph_channel_peer_size(channel->handle));
    return 0;
}

static int size_unbound(const char *function, struct channel *channel,
                        const struct call_args *given, struct ph_group_op *op, struct view *view)
{
    if (given->data == NULL) {
        PyErr_Format(PyExc_TypeError, "%s: the channel has no buffer: give one here", function);
        return -1;
    }
    if (view_take(function, given->data, op->kind == PH_GROUP_RECV, view))
        return -1;
    if (channel->context->ordinal >= 0)
        memory_translate(channel->context, view);
    if (memory_check(channel->context, function, view))
        return -1;
    op->data = view->data;
    op->size = given->size != ANY_SIZE ? given->size : view->size;
    if (op->size <= view->size)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: the buffer has %zu bytes, and %zu are to be moved",
                 function, view->size, op->size);
    return -1;
}

// Of this rank's buffer: an offset, or a slice of its bytes.
static int place_of(const char *function, struct channel *channel, const struct call_args *given,
                    struct ph_group_op *op)
{
    const size_t local = ph_channel_local_size(channel->handle);
    Py_ssize_t start = 0, stop = (Py_ssize_t)local, step = 1;
    if (given->place != NULL && PySlice_Check(given->place)) {
        if (PySlice_Unpack(given->place, &start, &stop, &step))
            return -1;
        PySlice_AdjustIndices((Py_ssize_t)local, &start, &stop, step);
        if (step != 1) {
            PyErr_Format(PyExc_ValueError, "%s: a slice of bytes has the step 1", function);
            return -1;
        }
    } else if (given->place != NULL) {
        start = PyNumber_AsSsize_t(given->place, PyExc_OverflowError);
        if (PyErr_Occurred())
            return -1;
    }
    if (start < 0 || (size_t)start > local) {
        PyErr_Format(PyExc_ValueError, "%s: the offset %zd is not in the buffer, of %zu bytes",
                     function, start, local);
        return -1;
    }
    op->local_offset = (size_t)start;
    op->peer_offset = given->at;
    op->size = given->size != ANY_SIZE ? given->size : stop > start ? (size_t)(stop - start) : 0;
    return 0;
}

static int fill(enum ph_group_kind kind, struct channel *channel, struct call_args *given,
                struct ph_group_op *op, struct view *view)
{
    const char *function = tables[kind].function;
    *op = (struct ph_group_op){.kind = kind, .channel = channel->handle};
    switch (kind) {
    case PH_GROUP_SEND:
    case PH_GROUP_RECV:
        return channel->bound ? size_bound(function, channel, given, op)
                              : size_unbound(function, channel, given, op, view);
    case PH_GROUP_PUT:
        if (given->signals)
            op->kind = PH_GROUP_PUT_SIGNAL;
        return place_of(function, channel, given, op);
    case PH_GROUP_GET:
        return place_of(function, channel, given, op);
    case PH_GROUP_WAIT:
        op->size = given->size != ANY_SIZE ? given->size : 0;
        return 0;
    default:
        return 0;
    }
}

static int message(const struct ph_group_op *op, bool completes, void *stream)
{
    struct ph_channel *channel = op->channel;
    const bool sends = op->kind == PH_GROUP_SEND;
    if (op->data != NULL || ph_channel_local_size(channel) == 0)
        return sends ? ph_send_from(channel, op->data, op->size, stream)
                     : ph_recv_into(channel, op->data, op->size, stream);
    const int rc = sends ? ph_send(channel, op->size, stream) : ph_recv(channel, op->size, stream);
    return rc || !completes ? rc : ph_complete(channel, stream);
}

static int issue(const struct ph_group_op *op, bool completes, void *stream)
{
    switch (op->kind) {
    case PH_GROUP_SEND:
    case PH_GROUP_RECV:
        return message(op, completes, stream);
    case PH_GROUP_PUT:
        return ph_put(op->channel, op->peer_offset, op->local_offset, op->size, stream);
    case PH_GROUP_PUT_SIGNAL:
        return ph_put_signal(op->channel, op->peer_offset, op->local_offset, op->size, stream);
    case PH_GROUP_GET:
        return ph_get(op->channel, op->local_offset, op->peer_offset, op->size, stream);
    case PH_GROUP_SIGNAL:
        return ph_signal(op->channel, stream);
    default:
        return ph_wait(op->channel, op->size, stream);
    }
}

// enqueue takes the view, whatever comes of it: a call may fail when the library has it already.
static int enqueue(struct channel *channel, const struct ph_group_op *op,
                   const struct call_args *given, struct view *view)
{
    struct queue *queue;
    void *stream;
    struct hold *hold = NULL;
    int rc = stream_of(channel->context, given->stream, &stream, &queue);
    if (rc == 0 && op->data != NULL && (hold = hold_new()) == NULL)
        rc = -1;
    if (rc) {
        view_drop(view);
        return -1;
    }
    rc = issue(op, given->completes, stream);
    if (hold != NULL)
        queue_hold(queue, hold, view);
    view_drop(view); // of no bytes
    if (queue != NULL)
        channel_used(channel, queue);
    if (rc)
        fail(channel->context, rc);
    return rc;
}

static PyObject *transfer(enum ph_group_kind kind, PyObject *self, PyObject *const *args,
                          Py_ssize_t count, PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct call_args given = {.size = ANY_SIZE, .completes = true};
    struct ph_group_op op;
    struct view view = {0};
    if (check_channel(channel) || args_take(&tables[kind], args, count, names, &given))
        return NULL;
    if (fill(kind, channel, &given, &op, &view)) {
        view_drop(&view);
        return NULL;
    }
    if (given.group != NULL ? group_add(given.group, channel, &op, &view)
                            : enqueue(channel, &op, &given, &view))
        return NULL;
    Py_RETURN_NONE;
}

#define TRANSFER(name, kind)                                                                       \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count,                 \
                          PyObject *names)                                                         \
    {                                                                                              \
        return transfer(kind, self, args, count, names);                                           \
    }
TRANSFER(channel_send, PH_GROUP_SEND)
TRANSFER(channel_recv, PH_GROUP_RECV)
TRANSFER(channel_put, PH_GROUP_PUT)
TRANSFER(channel_get, PH_GROUP_GET)
TRANSFER(channel_signal, PH_GROUP_SIGNAL)
TRANSFER(channel_wait, PH_GROUP_WAIT)

static PyObject *channel_complete(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct call_args given = {0};
    struct queue *queue;
    void *stream;
    if (check_channel(channel) || args_take(&complete_table, args, count, names, &given) ||
        stream_of(channel->context, given.stream, &stream, &queue))
        return NULL;
    const int rc = ph_complete(channel->handle, stream);
    if (queue != NULL)
        channel_used(channel, queue);
    if (rc)
        return fail(channel->context, rc);
    Py_RETURN_NONE;
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

static PyObject *get_status(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL : PyLong_FromLong(ph_channel_status(channel->handle));
}

static PyObject *get_ended(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL : PyLong_FromLong(ph_channel_ended(channel->handle));
}

static PyObject *get_peer(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL : PyLong_FromLong(ph_channel_peer(channel->handle));
}

static PyObject *get_op_id(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL
                                  : PyLong_FromUnsignedLongLong(ph_channel_op_id(channel->handle));
}

static PyObject *get_local_size(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL
                                  : PyLong_FromSize_t(ph_channel_local_size(channel->handle));
}

static PyObject *get_peer_size(PyObject *self, void *unused)
{
    struct channel *channel = (struct channel *)self;
    (void)unused;
    return check_channel(channel) ? NULL : PyLong_FromSize_t(ph_channel_peer_size(channel->handle));
}

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
    {"closed", get_closed, NULL, "Whether it, or its context, is closed.", NULL},
    {0},
};

static PyMethodDef channel_methods[] = {
    FAST("send", channel_send, "Enqueues a message to the peer."),
    FAST("recv", channel_recv, "Enqueues the receipt of a message of the peer's."),
    FAST("put", channel_put, "Enqueues a copy into the peer's buffer."),
    FAST("get", channel_get, "Enqueues a copy out of the peer's buffer."),
    FAST("signal", channel_signal, "Enqueues a signal to the peer."),
    FAST("wait", channel_wait, "Enqueues a wait for the peer's next signal."),
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
