// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct group {
    PyObject base;
    struct context *context;
    PyObject *stream;   // or NULL
    PyObject *channels; // a list: that of each call
    struct ph_group_op *ops;
    struct view *views;
    size_t count, room;
    bool open; // inside its `with`
};

PyTypeObject *group_type;

struct group_args {
    PyObject *stream;
};
static const struct arg group_list[] = {{"stream", ARG_OBJECT, 0, false}};
static const struct arg_table group_table = {"group", group_list, 1, 0};

PyObject *context_group(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct group_args given = {0};
    if (check_open(context) || args_take(&group_table, args, count, names, &given))
        return NULL;
    PyObject *channels = PyList_New(0);
    struct group *group = channels ? PyObject_New(struct group, group_type) : NULL;
    if (group == NULL) {
        Py_XDECREF(channels);
        return NULL;
    }
    group->context = (struct context *)Py_NewRef(self);
    group->stream = Py_XNewRef(given.stream);
    group->channels = channels;
    group->ops = NULL;
    group->views = NULL;
    group->count = group->room = 0;
    group->open = false;
    return (PyObject *)group;
}

static void clear(struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        view_drop(&group->views[i]);
    group->count = 0;
    PyList_SetSlice(group->channels, 0, PyList_Size(group->channels), NULL);
}

static void group_dealloc(PyObject *self)
{
    struct group *group = (struct group *)self;
    PyTypeObject *type = Py_TYPE(self);
    clear(group);
    free(group->ops);
    free(group->views);
    Py_DECREF(group->channels);
    Py_XDECREF(group->stream);
    Py_DECREF((PyObject *)group->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int grow(struct group *group)
{
    const size_t room = group->room ? 2 * group->room : 8;
    if (group->count < group->room)
        return 0;
    struct ph_group_op *ops = realloc(group->ops, room * sizeof *ops);
    if (ops != NULL)
        group->ops = ops;
    struct view *views = realloc(group->views, room * sizeof *views);
    if (views != NULL)
        group->views = views;
    if (ops == NULL || views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    group->room = room;
    return 0;
}

static int check_member(PyObject *object, const struct channel *channel)
{
    struct group *group = (struct group *)object;
    if (Py_TYPE(object) != group_type) {
        PyErr_Format(PyExc_TypeError, "group is what Context.group returned, not %R", object);
        return -1;
    }
    if (group->context == channel->context && group->open)
        return 0;
    PyErr_SetString(PyExc_ValueError, group->open ? "the group is one of another context"
                                                  : "the group is not inside its `with`");
    return -1;
}

int group_add(PyObject *object, struct channel *channel, const struct ph_group_op *op,
              struct view *view)
{
    struct group *group = (struct group *)object;
    if (check_member(object, channel) || grow(group) ||
        PyList_Append(group->channels, (PyObject *)channel)) {
        view_drop(view);
        return -1;
    }
    group->ops[group->count] = *op;
    group->views[group->count] = *view;
    group->count++;
    *view = (struct view){0};
    return 0;
}

// A channel that was closed meanwhile may be another one's by now.
static int check_channels(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct channel *channel = (struct channel *)PyList_GetItem(group->channels, (Py_ssize_t)i);
        if (channel->handle != group->ops[i].channel) {
            fail_with(-EBADF, "a channel of the group was closed before the group's end");
            return -1;
        }
    }
    return 0;
}

static int hold_views(struct group *group, struct queue *queue)
{
    for (size_t i = 0; i < group->count; i++) {
        struct hold *hold = group->views[i].data != NULL ? hold_new() : NULL;
        if (group->views[i].data != NULL && hold == NULL)
            return -1;
        if (hold != NULL)
            queue_hold(queue, hold, &group->views[i]);
        struct channel *channel = (struct channel *)PyList_GetItem(group->channels, (Py_ssize_t)i);
        if (queue != NULL)
            channel_used(channel, queue);
    }
    return 0;
}

// first_view: of the first tensor that says on which stream its framework works.
static const struct view *first_view(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        const struct channel *channel =
            (struct channel *)PyList_GetItem(group->channels, (Py_ssize_t)i);
        if (group->views[i].table != NULL)
            return &group->views[i];
        if (channel->view.table != NULL)
            return &channel->view;
    }
    return NULL;
}

static int run(struct group *group)
{
    struct queue *queue;
    void *stream;
    if (check_open(group->context) || check_channels(group) ||
        stream_of(group->context, group->stream, first_view(group), &stream, &queue))
        return -1;
    const int rc = group->count ? ph_group(group->ops, group->count, stream) : 0;
    if (rc)
        fail(group->context, rc);
    // Also of one that has failed, which may have been half-way.
    return hold_views(group, queue) || rc ? -1 : 0;
}

static PyObject *group_enter(PyObject *self, PyObject *none)
{
    (void)none;
    ((struct group *)self)->open = true;
    return Py_NewRef(self);
}

// Where an exception leaves the block nothing is enqueued.
static PyObject *group_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct group *group = (struct group *)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__ takes three arguments");
        return NULL;
    }
    group->open = false;
    const int rc = args[0] == Py_None ? run(group) : 0;
    clear(group);
    if (rc)
        return NULL;
    Py_RETURN_FALSE;
}

static Py_ssize_t group_length(PyObject *self)
{
    return (Py_ssize_t)((struct group *)self)->count;
}

static PyMethodDef group_methods[] = {
    {"__enter__", group_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))group_exit, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_methods, group_methods},
    {Py_sq_length, group_length},
    {Py_tp_doc, "Calls that are enqueued together when its `with` ends."},
    {0, NULL},
};

PyType_Spec group_spec = {"_peerhop.Group", sizeof(struct group), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, group_slots};
