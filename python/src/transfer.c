// SPDX-License-Identifier: BSD-3-Clause
// Moving data on a channel: what enqueues, alone or in a group.
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
    int rc = stream_of(channel->context, given->stream, channel->bound ? &channel->view : view,
                       &stream, &queue);
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
    PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)       \
    {                                                                                              \
        return transfer(kind, self, args, count, names);                                           \
    }
TRANSFER(channel_send, PH_GROUP_SEND)
TRANSFER(channel_recv, PH_GROUP_RECV)
TRANSFER(channel_put, PH_GROUP_PUT)
TRANSFER(channel_get, PH_GROUP_GET)
TRANSFER(channel_signal, PH_GROUP_SIGNAL)
TRANSFER(channel_wait, PH_GROUP_WAIT)

PyObject *channel_complete(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    struct call_args given = {0};
    struct queue *queue;
    void *stream;
    if (check_channel(channel) || args_take(&complete_table, args, count, names, &given) ||
        stream_of(channel->context, given.stream, &channel->view, &stream, &queue))
        return NULL;
    const int rc = ph_complete(channel->handle, stream);
    if (queue != NULL)
        channel_used(channel, queue);
    if (rc)
        return fail(channel->context, rc);
    Py_RETURN_NONE;
}
