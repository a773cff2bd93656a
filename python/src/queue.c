// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"
#include "dlpack.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

// Messages keep their buffers until the queue has come past them.
struct hold {
    struct hold *next;
    uint64_t number; // of the queue's operations: once so many are done the message is over
    struct view view;
};

struct queue_object {
    PyObject base;
    struct context *context;
    struct queue *queue;
};

PyTypeObject *queue_type;
static PyObject *current_stream; // (device) -> int: the stream that a framework works on

// ---- what messages hold

struct hold *hold_new(void)
{
    struct hold *hold = malloc(sizeof *hold);
    if (hold == NULL)
        PyErr_NoMemory();
    return hold;
}

void hold_free(struct hold *hold)
{
    free(hold);
}

// drop_until lets go of all up to the number. What is dropped may run code of Python's, which may
// come here again.
static void drop_until(struct queue *queue, uint64_t number)
{
    while (queue->first != NULL && queue->first->number <= number) {
        struct hold *hold = queue->first;
        queue->first = hold->next;
        if (queue->first == NULL)
            queue->last = &queue->first;
        view_drop(&hold->view);
        free(hold);
    }
}

static void drop_done(struct queue *queue)
{
    uint64_t done;
    if (queue->first != NULL && ph_queue_progress(queue->handle, NULL, &done) == 0)
        drop_until(queue, done);
}

void queue_hold(struct queue *queue, struct hold *hold, struct view *view)
{
    if (queue == NULL) {
        view_drop(view);
        free(hold);
        return;
    }
    *hold = (struct hold){.number = UINT64_MAX, .view = *view};
    ph_queue_progress(queue->handle, &hold->number, NULL);
    *view = (struct view){0};
    *queue->last = hold;
    queue->last = &hold->next;
    drop_done(queue);
}

// ---- queues of a context

static void free_queue(struct queue *queue)
{
    drop_until(queue, UINT64_MAX);
    free(queue);
}

// Queues that no object names any more end when they are idle.
static void end_unnamed(struct context *context)
{
    for (struct queue **at = &context->queues; *at != NULL;) {
        struct queue *queue = *at;
        if (queue->named || queue->busy || ph_queue_destroy(&queue->handle)) {
            at = &queue->next;
            continue;
        }
        *at = queue->next;
        for (struct channel *channel = context->used; channel; channel = channel->next_used)
            if (channel->queue == queue)
                channel->queue = NULL;
        free_queue(queue);
    }
}

void queues_end(struct context *context)
{
    struct queue *queue = context->queues;
    if (context->default_queue != NULL)
        context->default_queue->named = false;
    context->queues = NULL;
    context->default_queue = NULL;
    while (queue != NULL) {
        struct queue *next = queue->next;
        queue->handle = NULL;
        if (queue->named)
            drop_until(queue, UINT64_MAX); // its object frees it
        else
            free_queue(queue);
        queue = next;
    }
}

static struct queue *queue_new(struct context *context)
{
    struct queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    end_unnamed(context);
    const int rc = ph_queue_create(context->handle, &queue->handle);
    if (rc) {
        free(queue);
        fail(context, rc);
        return NULL;
    }
    queue->context = context;
    queue->last = &queue->first;
    queue->named = true;
    queue->next = context->queues;
    context->queues = queue;
    return queue;
}

static struct queue *default_of(struct context *context)
{
    if (context->default_queue == NULL)
        context->default_queue = queue_new(context);
    return context->default_queue;
}

PyObject *context_queue(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    (void)args;
    if (args_none("queue", count, names) || check_open(context))
        return NULL;
    struct queue *queue = queue_new(context);
    struct queue_object *object = queue ? PyObject_New(struct queue_object, queue_type) : NULL;
    if (object == NULL) {
        if (queue != NULL)
            queue->named = false;
        return NULL;
    }
    object->queue = queue;
    object->context = (struct context *)Py_NewRef(self);
    return (PyObject *)object;
}

static void queue_dealloc(PyObject *self)
{
    struct queue_object *object = (struct queue_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    object->queue->named = false;
    if (object->queue->handle == NULL)
        free_queue(object->queue);
    else if (object->context->handle != NULL)
        end_unnamed(object->context);
    Py_DECREF((PyObject *)object->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

// ---- streams

PyObject *streams_use(PyObject *module, PyObject *current)
{
    (void)module;
    Py_XDECREF(current_stream);
    current_stream = Py_NewRef(current);
    Py_RETURN_NONE;
}

// cuda_stream_of asks the framework that the tensor is of, else Python: what a stream is,
// frameworks say in several ways.
static int cuda_stream_of(struct context *context, PyObject *stream, const struct view *view,
                          void **handle)
{
    const int rc = stream == NULL ? dlpack_stream(view, handle) : 1;
    if (rc <= 0)
        return rc;
    PyObject *ordinal = PyLong_FromLong(context->ordinal);
    PyObject *number = ordinal ? PyObject_CallFunctionObjArgs(current_stream, ordinal,
                                                              stream ? stream : Py_None, NULL)
                               : NULL;
    Py_XDECREF(ordinal);
    if (number == NULL)
        return -1;
    *handle = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

// One thread at a time may use a queue of the library.
static int check_queue(const struct queue *queue)
{
    if (!queue->busy)
        return 0;
    fail_with(-EBUSY, "another thread synchronizes the queue: give each thread one of its own");
    return -1;
}

int stream_of(struct context *context, PyObject *stream, const struct view *view, void **handle,
              struct queue **queue)
{
    *queue = NULL;
    if (context->ordinal >= 0)
        return cuda_stream_of(context, stream, view, handle);
    if (stream == NULL) {
        *queue = default_of(context);
    } else if (Py_TYPE(stream) == queue_type &&
               ((struct queue_object *)stream)->context == context) {
        *queue = ((struct queue_object *)stream)->queue;
    } else {
        PyErr_Format(PyExc_TypeError,
                     "a stream of this context, which is one of host memory, is a queue of "
                     "Context.queue or None, not %R",
                     stream);
    }
    if (*queue == NULL || check_queue(*queue))
        return -1;
    *handle = (*queue)->handle;
    return 0;
}

// ---- waiting

static int synchronize_slice(void *opaque, int64_t deadline_ms)
{
    return ph_queue_synchronize(opaque, deadline_ms);
}

// A queue is done also where a peer has died, so its channels are asked whether all came.
static PyObject *synchronize(struct context *context, struct queue *queue, int64_t deadline_ms)
{
    int rc;
    if (check_queue(queue))
        return NULL;
    queue->busy = true;
    context_enter(context);
    const int raised = wait_slices(synchronize_slice, queue->handle, deadline_ms, &rc);
    queue->busy = false;
    PyObject *done = NULL;
    if (!raised && rc)
        fail(context, rc);
    if (!raised && rc == 0)
        drop_until(queue, UINT64_MAX);
    if (!raised && rc == 0 && !channels_check(context, queue))
        done = Py_NewRef(Py_None);
    context_leave(context);
    return done;
}

struct wait_args {
    int64_t deadline_ms;
};
static const struct arg wait_list[] = {{"timeout", ARG_TIMEOUT, 0, false}};
static const struct arg_table wait_table = {"synchronize", wait_list, 1, 1};

PyObject *context_synchronize(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names)
{
    struct context *context = (struct context *)self;
    struct wait_args given = {context->deadline_ms};
    if (check_open(context) || args_take(&wait_table, args, count, names, &given))
        return NULL;
    if (context->ordinal >= 0)
        return fail_with(-EINVAL,
                         "synchronize: the context runs on a GPU: synchronize its streams");
    struct queue *queue = default_of(context);
    return queue ? synchronize(context, queue, given.deadline_ms) : NULL;
}

static PyObject *queue_synchronize(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    struct queue_object *object = (struct queue_object *)self;
    struct wait_args given = {object->context->deadline_ms};
    if (check_open(object->context) || args_take(&wait_table, args, count, names, &given))
        return NULL;
    return synchronize(object->context, object->queue, given.deadline_ms);
}

struct number_args {
    uint64_t number;
    int64_t deadline_ms;
};
static const struct arg number_list[] = {
    {"number", ARG_UINT64, offsetof(struct number_args, number), true},
    {"timeout", ARG_TIMEOUT, offsetof(struct number_args, deadline_ms), false}};
static const struct arg_table number_table = {"wait", number_list, ARG_COUNT(number_list), 2};

struct number_wait {
    struct ph_queue *handle;
    uint64_t number;
};

static int wait_slice_for_number(void *opaque, int64_t deadline_ms)
{
    const struct number_wait *wait = opaque;
    return ph_queue_wait(wait->handle, wait->number, deadline_ms);
}

// Others may use the queue meanwhile. What became of the messages, their channels say.
static PyObject *queue_wait(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names)
{
    struct queue_object *object = (struct queue_object *)self;
    struct context *context = object->context;
    struct number_args given = {.deadline_ms = context->deadline_ms};
    int rc;
    if (check_open(context) || args_take(&number_table, args, count, names, &given))
        return NULL;
    struct number_wait wait = {object->queue->handle, given.number};
    context_enter(context);
    const int raised = wait_slices(wait_slice_for_number, &wait, given.deadline_ms, &rc);
    PyObject *done = NULL;
    if (!raised && rc)
        fail(context, rc);
    if (!raised && rc == 0) {
        drop_done(object->queue);
        done = Py_NewRef(Py_None);
    }
    context_leave(context);
    return done;
}

static PyMethodDef queue_methods[] = {
    FAST("synchronize", queue_synchronize, "Waits until all that was enqueued is done."),
    FAST("wait", queue_wait, "Waits for so many operations, counted as `issued` does."),
    {0},
};

static PyObject *progress_of(PyObject *self, bool issued)
{
    struct queue_object *object = (struct queue_object *)self;
    uint64_t all = 0, done = 0;
    if (check_open(object->context))
        return NULL;
    ph_queue_progress(object->queue->handle, &all, &done);
    return PyLong_FromUnsignedLongLong(issued ? all : done);
}

static PyObject *get_issued(PyObject *self, void *unused)
{
    (void)unused;
    return progress_of(self, true);
}

static PyObject *get_done(PyObject *self, void *unused)
{
    (void)unused;
    return progress_of(self, false);
}

static PyGetSetDef queue_values[] = {
    {"issued", get_issued, NULL, "How many operations were enqueued so far.", NULL},
    {"done", get_done, NULL, "How many of them are done.", NULL},
    {0},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_methods, queue_methods},
    {Py_tp_getset, queue_values},
    {Py_tp_doc, "To a context of host memory what a CUDA stream is to one of a GPU."},
    {0, NULL},
};

PyType_Spec queue_spec = {"_peerhop.Queue", sizeof(struct queue_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, queue_slots};
