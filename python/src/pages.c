// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages (peerhop/pages.h). The library reads lists that the host reads before the call
// returns; others the caller keeps, as for kernels of its own.
#include "binding.h"

#include <stdlib.h>

struct pages_args {
    PyObject *local, *peer, *count, *stream;
    size_t row_bytes, pages, rows, blocks;
    bool signals;
};
#define ARG(name, kind, required)                                                                  \
    {                                                                                              \
#name, kind, offsetof(struct pages_args, name), required                                   \
    }
#define OF_BOTH                                                                                    \
    ARG(row_bytes, ARG_SIZE, true), ARG(local, ARG_OBJECT, false), ARG(peer, ARG_OBJECT, false),   \
        ARG(pages, ARG_SIZE, false), ARG(rows, ARG_SIZE, false), ARG(count, ARG_OBJECT, false),    \
        ARG(blocks, ARG_SIZE, false), ARG(stream, ARG_OBJECT, false)

static const struct arg put_list[] = {
    OF_BOTH, {"signal", ARG_BOOL, offsetof(struct pages_args, signals), false}};
static const struct arg get_list[] = {OF_BOTH};
static const struct arg_table put_table = {"put_pages", put_list, ARG_COUNT(put_list), 3};
static const struct arg_table get_table = {"get_pages", get_list, ARG_COUNT(get_list), 3};

// Where the pages lie at one end, and what keeps it until the call is over.
struct end {
    struct ph_page_end given;
    struct view numbers;
    uint64_t *at;
    size_t parts, count; // of numbers; SIZE_MAX: none
};

static void end_drop(struct end *end)
{
    view_drop(&end->numbers);
    free(end->at);
    end->at = NULL;
}

static int take_bytes(const char *function, const char *name, PyObject *value, uint64_t *out)
{
    PyObject *index = PyNumber_Index(value);
    if (index != NULL)
        *out = PyLong_AsUnsignedLongLong(index);
    Py_XDECREF(index);
    if (!PyErr_Occurred())
        return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s: %s is a number of bytes, not %R", function, name, value);
    return -1;
}

static int take_at(const char *function, PyObject *at, struct end *end)
{
    const Py_ssize_t parts = PySequence_Size(at);
    if (parts < 0)
        return -1;
    if (parts == 0 || (end->at = malloc((size_t)parts * sizeof *end->at)) == NULL) {
        if (parts == 0)
            PyErr_Format(PyExc_ValueError, "%s: at has an offset for each part: at least one",
                         function);
        else
            PyErr_NoMemory();
        return -1;
    }
    end->parts = (size_t)parts;
    for (Py_ssize_t i = 0; i < parts; i++) {
        PyObject *offset = PySequence_GetItem(at, i);
        const int rc = offset ? take_bytes(function, "at", offset, &end->at[i]) : -1;
        Py_XDECREF(offset);
        if (rc)
            return rc;
    }
    return 0;
}

// look_at takes memory that the library reads now, or the device later.
static int look_at(const char *function, struct channel *channel, PyObject *object,
                   struct view *view)
{
    if (view_take(function, object, false, view))
        return -1;
    if (channel->context->ordinal >= 0) {
        memory_translate(channel->context, view);
        if (view->device != VIEW_CPU && memory_check(channel->context, function, view))
            return -1;
    } else if (view->device == VIEW_CUDA) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the context is one of host memory, which does not read %R of a GPU",
                     function, (PyObject *)Py_TYPE(object));
        return -1;
    }
    return 0;
}

static int take_numbers(const char *function, struct channel *channel, PyObject *object,
                        struct end *end)
{
    if (look_at(function, channel, object, &end->numbers))
        return -1;
    const size_t item = end->numbers.item;
    if (item != 4 && item != 8) {
        PyErr_Format(PyExc_ValueError, "%s: page numbers have 4 or 8 bytes, and not %zu", function,
                     item);
        return -1;
    }
    end->count = end->numbers.size / item;
    end->given.numbers = end->count ? end->numbers.data : NULL;
    end->given.number_bytes = end->count ? (uint32_t)item : 0;
    return 0;
}

static PyObject *item_of(PyObject *tuple, Py_ssize_t i)
{
    PyObject *item = PyTuple_GetItem(tuple, i); // borrowed
    return item == Py_None ? NULL : item;
}

// given: NULL, numbers, or a PageEnd, which is a tuple of four.
static int take_end(const char *function, struct channel *channel, PyObject *given,
                    const struct pages_args *args, struct end *end)
{
    PyObject *numbers = given, *at = NULL, *stride = NULL, *row_stride = NULL;
    *end = (struct end){.count = SIZE_MAX};
    if (given != NULL && PyTuple_Check(given)) {
        if (PyTuple_Size(given) != 4) {
            PyErr_Format(PyExc_TypeError, "%s: an end is an array of page numbers or a PageEnd",
                         function);
            return -1;
        }
        numbers = item_of(given, 0);
        at = item_of(given, 1);
        stride = item_of(given, 2);
        row_stride = item_of(given, 3);
    }
    end->given.row_stride = args->row_bytes;
    if (row_stride != NULL &&
        take_bytes(function, "row_stride", row_stride, &end->given.row_stride))
        return -1;
    end->given.page_stride = args->rows * end->given.row_stride;
    if (stride != NULL && take_bytes(function, "stride", stride, &end->given.page_stride))
        return -1;
    if (at != NULL) {
        if (take_at(function, at, end))
            return -1;
    } else if ((end->at = calloc(1, sizeof *end->at)) == NULL) {
        PyErr_NoMemory();
        return -1;
    } else {
        end->parts = 1;
    }
    end->given.at = end->at;
    return numbers != NULL ? take_numbers(function, channel, numbers, end) : 0;
}

// How many pages the list has: said, or as many as there are numbers.
static int length(const char *function, const struct pages_args *args, const struct end *local,
                  const struct end *peer, uint32_t *pages)
{
    const size_t least = local->count < peer->count ? local->count : peer->count;
    size_t n = args->pages;
    if (local->parts != peer->parts) {
        PyErr_Format(PyExc_ValueError, "%s: pages have %zu parts here, and %zu at the peer",
                     function, local->parts, peer->parts);
        return -1;
    }
    if (n == SIZE_MAX) {
        if (least == SIZE_MAX) {
            PyErr_Format(PyExc_TypeError, "%s: without numbers, pages says how many", function);
            return -1;
        }
        if (local->count != SIZE_MAX && peer->count != SIZE_MAX && local->count != peer->count) {
            PyErr_Format(PyExc_ValueError, "%s: %zu numbers of pages here, and %zu at the peer",
                         function, local->count, peer->count);
            return -1;
        }
        n = least;
    }
    if (n > least || n > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s: %zu pages, and %zu numbers", function, n, least);
        return -1;
    }
    *pages = (uint32_t)n;
    return 0;
}

static int take_count(const char *function, struct channel *channel, PyObject *object,
                      struct view *view, const uint32_t **count)
{
    if (object == NULL)
        return 0;
    if (look_at(function, channel, object, view))
        return -1;
    if (view->size != sizeof **count) {
        PyErr_Format(PyExc_ValueError, "%s: count is one number of 4 bytes, not %zu bytes",
                     function, view->size);
        return -1;
    }
    *count = view->data;
    return 0;
}

static int issue(struct channel *channel, const struct ph_pages *pages, bool puts, bool signals,
                 void *stream)
{
    const struct ph_group_op ops[] = {
        {.kind = PH_GROUP_PUT_PAGES, .channel = channel->handle, .data = (void *)pages},
        {.kind = PH_GROUP_SIGNAL, .channel = channel->handle}};
    if (!puts)
        return ph_get_pages(channel->handle, pages, stream);
    return signals ? ph_group(ops, 2, stream) : ph_put_pages(channel->handle, pages, stream);
}

static int enqueue(struct channel *channel, const struct ph_pages *pages, bool puts,
                   const struct pages_args *args)
{
    struct queue *queue;
    void *stream;
    if (stream_of(channel->context, args->stream, &channel->view, &stream, &queue))
        return -1;
    const int rc = issue(channel, pages, puts, args->signals, stream);
    if (queue != NULL)
        channel_used(channel, queue);
    if (rc)
        fail(channel->context, rc);
    return rc;
}

static PyObject *move(PyObject *self, bool puts, PyObject *const *given, Py_ssize_t n,
                      PyObject *names)
{
    struct channel *channel = (struct channel *)self;
    const struct arg_table *table = puts ? &put_table : &get_table;
    struct pages_args args = {.pages = SIZE_MAX, .rows = 1};
    struct end local = {0}, peer = {0};
    struct view count_view = {0};
    struct ph_pages pages = {.struct_size = sizeof pages};
    if (check_channel(channel) || args_take(table, given, n, names, &args))
        return NULL;
    int rc = -1;
    if (args.rows > UINT32_MAX || args.blocks > UINT32_MAX)
        PyErr_Format(PyExc_ValueError, "%s: rows and blocks are below 2**32", table->function);
    else if (take_end(table->function, channel, args.local, &args, &local) == 0 &&
             take_end(table->function, channel, args.peer, &args, &peer) == 0 &&
             length(table->function, &args, &local, &peer, &pages.pages) == 0 &&
             take_count(table->function, channel, args.count, &count_view, &pages.count) == 0) {
        pages.parts = (uint32_t)local.parts;
        pages.rows = (uint32_t)args.rows;
        pages.row_bytes = args.row_bytes;
        pages.blocks = (uint32_t)args.blocks;
        pages.local = local.given;
        pages.peer = peer.given;
        rc = enqueue(channel, &pages, puts, &args);
    }
    end_drop(&local);
    end_drop(&peer);
    view_drop(&count_view);
    return rc ? NULL : Py_NewRef(Py_None);
}

PyObject *channel_put_pages(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    return move(self, true, args, n, names);
}

PyObject *channel_get_pages(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    return move(self, false, args, n, names);
}
