// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// One exchange: what the library reads and writes, and what keeps the buffers.
struct exchange {
    struct errand errand; // owner: the context
    struct ph_context *handle;
    int64_t deadline_ms;
    size_t count;
    struct ph_operation *operations;
    struct ph_limits *limits;
    struct ph_range **ranges; // of each operation, or NULL
    struct ph_channel **channels;
    struct view *views;
};

struct operation_args {
    uint64_t op_id;
    int peer;
    PyObject *buffer, *buffers;
    int role, protocol;
    int64_t ll_max, sm_max;
    bool zero_sm;
    int64_t deadline_ms; // of the call
};

#define AT(member) offsetof(struct operation_args, member)
static const struct arg operation_list[] = {
    {"op_id", ARG_UINT64, AT(op_id), true},
    {"peer", ARG_INT, AT(peer), true},
    {"buffer", ARG_OBJECT, AT(buffer), false},
    {"role", ARG_ROLE, AT(role), false},
    {"protocol", ARG_PROTOCOL, AT(protocol), false},
    {"ll_max", ARG_INT64, AT(ll_max), false},
    {"sm_max", ARG_INT64, AT(sm_max), false},
    {"zero_sm", ARG_BOOL, AT(zero_sm), false},
    {"buffers", ARG_OBJECT, AT(buffers), false},
    {"timeout", ARG_TIMEOUT, AT(deadline_ms), false}, // last: of a call alone
};
static const struct arg_table operation_table = {"exchange", operation_list,
                                                 ARG_COUNT(operation_list), 1};
static const struct arg_table listed_table = {"exchange", operation_list,
                                              ARG_COUNT(operation_list) - 1, 0};

static const struct arg unbound_list[] = {
    {"peer", ARG_INT, AT(peer), true},
    {"op_id", ARG_UINT64, AT(op_id), false},
    {"role", ARG_ROLE, AT(role), false},
    {"timeout", ARG_TIMEOUT, AT(deadline_ms), false},
};
static const struct arg_table unbound_table = {"unbound", unbound_list, ARG_COUNT(unbound_list), 1};

static const struct arg many_list[] = {
    {"operations", ARG_OBJECT, AT(buffer), true},
    {"timeout", ARG_TIMEOUT, AT(deadline_ms), false},
};
static const struct arg_table many_table = {"exchange", many_list, ARG_COUNT(many_list), 1};
#undef AT

static struct operation_args operation_defaults(const struct context *context)
{
    return (struct operation_args){
        .role = PH_ROLE_BOTH, .ll_max = -1, .sm_max = -1, .deadline_ms = context->deadline_ms};
}

static int run_exchange(struct errand *errand)
{
    struct exchange *exchange = (struct exchange *)errand;
    struct ph_exchange_request *request;
    int rc = ph_exchange_start(exchange->handle, exchange->operations, exchange->count, &request);
    return rc ? rc : ph_exchange_finish(&request, exchange->channels, exchange->deadline_ms);
}

static void undo_exchange(struct errand *errand)
{
    struct exchange *exchange = (struct exchange *)errand;
    for (size_t i = 0; errand->rc == 0 && i < exchange->count; i++)
        ph_channel_close(exchange->channels[i]);
}

static void forget_exchange(struct errand *errand)
{
    struct exchange *exchange = (struct exchange *)errand;
    for (size_t i = 0; exchange->views != NULL && i < exchange->count; i++)
        view_drop(&exchange->views[i]);
    for (size_t i = 0; exchange->ranges != NULL && i < exchange->count; i++)
        free(exchange->ranges[i]);
    free(exchange->ranges);
    Py_XDECREF((PyObject *)exchange->errand.owner);
    free(exchange->operations);
    free(exchange->limits);
    free(exchange->channels);
    free(exchange->views);
    free(exchange);
}

static struct exchange *exchange_new(struct context *context, size_t count, int64_t deadline_ms)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    exchange->errand.run = run_exchange;
    exchange->errand.undo = undo_exchange;
    exchange->errand.forget = forget_exchange;
    exchange->errand.owner = Py_NewRef((PyObject *)context);
    exchange->handle = context->handle;
    exchange->deadline_ms = deadline_ms;
    exchange->count = count;
    const size_t some = count ? count : 1;
    exchange->operations = calloc(some, sizeof *exchange->operations);
    exchange->limits = calloc(some, sizeof *exchange->limits);
    exchange->ranges = calloc(some, sizeof *exchange->ranges);
    exchange->channels = calloc(some, sizeof *exchange->channels);
    exchange->views = calloc(some, sizeof *exchange->views);
    if (exchange->operations && exchange->limits && exchange->ranges && exchange->channels &&
        exchange->views)
        return exchange;
    forget_exchange(&exchange->errand);
    PyErr_NoMemory();
    return NULL;
}

// Who only sends has a buffer that nobody writes.
static int take_buffer(struct context *context, PyObject *buffer, int role, struct view *view)
{
    if (view_take("exchange", buffer, role != PH_ROLE_SENDER, view))
        return -1;
    memory_translate(context, view);
    if (memory_check(context, "exchange", view))
        return -1;
    if (view->size > 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "exchange: the buffer has no bytes");
    return -1;
}

static int take_range(struct context *context, PyObject *list, size_t i, int role,
                      struct view *first, struct ph_range *range)
{
    struct view *view = i == 0 ? first : &first->rest[i - 1];
    PyObject *buffer = PySequence_GetItem(list, (Py_ssize_t)i);
    const int rc = buffer != NULL ? take_buffer(context, buffer, role, view) : -1;
    Py_XDECREF(buffer); // the view has what it needs of it
    if (rc == 0)
        *range = (struct ph_range){view->data, view->size};
    return rc;
}

// take_ranges takes the buffers of one operation: the first view has those of the others. Returns
// how many there are, or -1.
static Py_ssize_t take_ranges(struct context *context, struct exchange *exchange, size_t i,
                              const struct operation_args *given)
{
    const Py_ssize_t count = PySequence_Size(given->buffers);
    struct view *first = &exchange->views[i];
    if (count < 0)
        return -1;
    if (count == 0 || given->buffer != NULL) {
        PyErr_SetString(PyExc_ValueError, count == 0
                                              ? "exchange: buffers has none"
                                              : "exchange: buffer and buffers: one of the two");
        return -1;
    }
    const size_t ranges = (size_t)count;
    exchange->ranges[i] = calloc(ranges, sizeof *exchange->ranges[i]);
    struct view *rest = calloc(ranges, sizeof *rest); // one too many, so that none is none
    if (exchange->ranges[i] == NULL || rest == NULL) {
        free(rest);
        PyErr_NoMemory();
        return -1;
    }
    // view_take begins with the view as a whole: it knows of the others when all of them are there.
    int rc = 0;
    struct view list = {.rest = rest, .rest_count = ranges - 1};
    for (size_t j = 1; j < ranges && rc == 0; j++)
        rc = take_range(context, given->buffers, j, given->role, &list, &exchange->ranges[i][j]);
    if (rc == 0)
        rc = take_range(context, given->buffers, 0, given->role, first, &exchange->ranges[i][0]);
    if (rc) {
        view_drop(&list);
        return -1;
    }
    first->rest = rest;
    first->rest_count = ranges - 1;
    return count;
}

static int take_operation(struct context *context, struct exchange *exchange, size_t i,
                          const struct operation_args *given)
{
    struct ph_operation *operation = &exchange->operations[i];
    struct view *view = &exchange->views[i];
    const Py_ssize_t count = given->buffers != NULL ? take_ranges(context, exchange, i, given) : 0;
    if (count < 0 || (given->buffers == NULL && given->buffer != NULL &&
                      take_buffer(context, given->buffer, given->role, view)))
        return -1;
    exchange->limits[i] = (struct ph_limits){given->ll_max, given->sm_max};
    *operation = (struct ph_operation){
        .op_id = given->op_id,
        .peer = given->peer,
        .role = (enum ph_role)given->role,
        .protocol = (enum ph_protocol)given->protocol,
        .buffer = count > 0 ? NULL : view->data,
        .size = count > 0 ? 0 : view->size,
        .range_count = (uint32_t)(count < UINT32_MAX ? count : UINT32_MAX),
        .ranges = exchange->ranges[i],
        .limits = given->ll_max != -1 || given->sm_max != -1 ? &exchange->limits[i] : NULL,
        .flags = given->zero_sm ? PH_ZERO_SM : 0,
    };
    return 0;
}

static PyObject *channels_of(struct context *context, struct exchange *exchange)
{
    PyObject *channels = PyList_New((Py_ssize_t)exchange->count);
    for (size_t i = 0; i < exchange->count; i++) {
        PyObject *channel =
            channels ? channel_new(context, exchange->channels[i], &exchange->views[i]) : NULL;
        if (channel == NULL) {
            ph_channel_close(exchange->channels[i]);
            Py_CLEAR(channels);
        } else {
            PyList_SetItem(channels, (Py_ssize_t)i, channel);
        }
    }
    return channels;
}

// meet ends the exchange: a list of channels, or NULL with an exception.
static PyObject *meet(struct context *context, struct exchange *exchange)
{
    context_enter(context);
    int rc = errand_run(&exchange->errand);
    context_leave(context);
    if (rc)
        return NULL;
    PyObject *channels =
        exchange->errand.rc ? fail(context, exchange->errand.rc) : channels_of(context, exchange);
    forget_exchange(&exchange->errand);
    return channels;
}

static PyObject *meet_one(struct context *context, const struct operation_args *given)
{
    struct exchange *exchange = exchange_new(context, 1, given->deadline_ms);
    if (exchange == NULL)
        return NULL;
    if (take_operation(context, exchange, 0, given)) {
        forget_exchange(&exchange->errand);
        return NULL;
    }
    PyObject *channels = meet(context, exchange);
    PyObject *channel = channels ? Py_NewRef(PyList_GetItem(channels, 0)) : NULL;
    Py_XDECREF(channels);
    return channel;
}

static int take_listed(struct context *context, struct exchange *exchange, PyObject *list)
{
    for (size_t i = 0; i < exchange->count; i++) {
        struct operation_args given = operation_defaults(context);
        PyObject *operation = PySequence_GetItem(list, (Py_ssize_t)i);
        int rc = operation != NULL ? 0 : -1;
        if (rc == 0 && !PyDict_Check(operation)) {
            PyErr_SetString(PyExc_TypeError,
                            "exchange: each of several operations is a dict of its arguments");
            rc = -1;
        }
        rc = rc || args_take_dict(&listed_table, NULL, operation, &given) ||
             take_operation(context, exchange, i, &given);
        Py_XDECREF(operation); // the view has what it needs of it
        if (rc)
            return -1;
    }
    return 0;
}

static PyObject *meet_many(struct context *context, PyObject *list, int64_t deadline_ms)
{
    const Py_ssize_t count = PySequence_Size(list);
    struct exchange *exchange =
        count < 0 ? NULL : exchange_new(context, (size_t)count, deadline_ms);
    if (exchange == NULL)
        return NULL;
    if (take_listed(context, exchange, list)) {
        forget_exchange(&exchange->errand);
        return NULL;
    }
    return meet(context, exchange);
}

PyObject *context_exchange(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct operation_args given = operation_defaults(context);
    const bool several = count > 0 && PySequence_Check(args[0]);
    if (check_open(context) ||
        args_take(several ? &many_table : &operation_table, args, count, names, &given))
        return NULL;
    return several ? meet_many(context, given.buffer, given.deadline_ms)
                   : meet_one(context, &given);
}

PyObject *context_unbound(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct operation_args given = operation_defaults(context);
    if (check_open(context) || args_take(&unbound_table, args, count, names, &given))
        return NULL;
    return meet_one(context, &given);
}
