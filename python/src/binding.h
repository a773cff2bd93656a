// SPDX-License-Identifier: BSD-3-Clause
// What the files of the extension share. All of it is guarded by the GIL. Of the library's threads
// those take the GIL that ask a store of Python's (store.c), and hold no lock that a call with the
// GIL takes.
#ifndef PEERHOP_PYTHON_BINDING_H
#define PEERHOP_PYTHON_BINDING_H

#include "abi.h"

#include <stdbool.h>
#include <stdint.h>

#include <peerhop/peerhop.h>

#include "args.h"
#include "blocking.h"
#include "view.h"

struct queue;
struct channel;
struct memory;

// A rank of a job. It lives from its creation until close, whoever forgets it: peers reach its
// memory.
struct context {
    PyObject base;
    struct ph_context *handle; // NULL: closed
    struct context *next;      // of all that are not closed
    unsigned life;             // of the process that made it: a forked child has nothing of it
    PyObject *store; // of Python's, or NULL: the library calls it for as long as it is open
    int64_t deadline_ms;
    int calls;            // of other threads that are inside the library without the GIL
    int ordinal;          // of the CUDA device, -1: host memory
    struct queue *queues; // all that are, also those that no object names any more
    struct queue *default_queue;
    struct memory *memories; // all that the library maps
    struct channel *used;    // channels whose status a synchronize is to ask for
};

// The state behind a queue of the library: it ends with the context, or when its object has gone
// and it is idle.
struct queue {
    struct context *context; // borrowed
    struct queue *next;
    struct ph_queue *handle;
    bool named; // an object of Python is there for it, or it is the default queue
    bool busy;  // a thread synchronises it
    struct hold *first, **last;
};

struct channel {
    PyObject base;
    struct context *context;
    struct ph_channel *handle; // NULL: closed
    struct view view;          // of its buffer, none where it is unbound
    // In context->used, where at_used is not NULL. queue: whose synchronize asks for the status,
    // NULL: each.
    struct channel *next_used, **at_used;
    struct queue *queue;
    bool bound;
};

// Host memory: the file is mapped twice, by the library and for Python, so that what Python has of
// it stays when the context ends.
struct memory {
    PyObject base;
    struct context *context;
    struct memory *next;
    void *own;     // Python's mapping
    void *library; // the library's, for as long as the context is open
    size_t size;
};

extern PyTypeObject *context_type, *channel_type, *group_type, *queue_type, *memory_type,
    *release_type;

// ---- errors.c

// fail sets the exception of a result of the library, with the context's sentence (NULL: the
// code's), and returns NULL.
PyObject *fail(struct context *context, int code);
PyObject *fail_with(int code, const char *sentence);
// errors_use takes the function that makes exceptions: (code, sentence) -> exception.
PyObject *errors_use(PyObject *module, PyObject *make);
PyObject *errors_codes(PyObject *module, PyObject *none);

// ---- context.c

// check_open: -1 with an exception where the context is closed.
int check_open(struct context *context);
bool is_forked(const struct context *context);
void context_enter(struct context *context); // a call that gives the GIL away begins, ends
void context_leave(struct context *context);
int contexts_watch_forks(void); // once

// ---- ending.c

enum { HURRY_MS = 2000 };                   // for an end that is not to wait for others
void contexts_add(struct context *context); // to those that end when Python exits
PyObject *contexts_close_all(PyObject *module, PyObject *failed);
PyObject *context_close(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_abort(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_enter_with(PyObject *self, PyObject *none);
PyObject *context_exit(PyObject *self, PyObject *const *args, Py_ssize_t count);

// ---- of a context's methods, each in the file of its subject

PyObject *context_exchange(PyObject *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *names);
PyObject *context_unbound(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_group(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_queue(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_synchronize(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names);
PyObject *context_alloc(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_release(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_reap(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_expel(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

// ---- reports.c

int reports_add(PyObject *module);
// report_named fills a tuple of that type; it takes the values, of which NULL is a failure.
PyObject *report_named(PyTypeObject *type, PyObject **values, Py_ssize_t count);
PyObject *report_counters(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *report_peer(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *report_path(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

// ---- channel.c

PyObject *channel_new(struct context *context, struct ph_channel *handle, struct view *view);
// channel_used: its status is to be asked for when the queue was synchronised.
void channel_used(struct channel *channel, struct queue *queue);
// check_channel: -1 with an exception where it, or its context, is closed.
int check_channel(struct channel *channel);
// channels_check: -1 with an exception where what a channel did on the queue did not do all of its
// work.
int channels_check(struct context *context, struct queue *queue);

// ---- transfer.c

PyObject *channel_send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_recv(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_put(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_get(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_signal(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_wait(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *channel_complete(PyObject *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *names);

// ---- pages.c

PyObject *channel_put_pages(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *channel_get_pages(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);

// ---- notify.c

int notify_add(PyObject *module);
PyObject *channel_notify(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *context_notifications(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names);
PyObject *context_wait_notifications(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names);
PyObject *context_notifications_fd(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names);
PyObject *context_record(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

// ---- store.c

// store_callbacks: the store must live as long as the library's context.
struct ph_store_callbacks store_callbacks(PyObject *store);
void stores_over(void); // Python ends: no callback comes to it any more

// ---- queue.c

// stream_of finds what the library takes for a stream of Python's (NULL: the one on which the
// framework of the view's tensor works; of no view any). -1 with an exception: it is none of the
// context's.
int stream_of(struct context *context, PyObject *stream, const struct view *view, void **handle,
              struct queue **queue);
// queue_hold keeps a view (and clears it) until the queue has come past what was just enqueued. On
// a CUDA stream (queue is NULL) it is let go: there the caller keeps memory, as for kernels of its
// own. A hold is made before the call.
struct hold *hold_new(void);
void hold_free(struct hold *hold);
void queue_hold(struct queue *queue, struct hold *hold, struct view *view);
void queues_end(struct context *context); // after the library's context
PyObject *streams_use(PyObject *module, PyObject *current);

// ---- group.c

// group_add notes one call for the group's end. It takes the view.
int group_add(PyObject *group, struct channel *channel, const struct ph_group_op *op,
              struct view *view);

// ---- memory.c

// memory_translate puts the library's address of ctx.alloc's memory for Python's; false: it is none
// of that.
bool memory_translate(struct context *context, struct view *view);
// memory_check refuses what the context's device does not reach.
int memory_check(struct context *context, const char *function, struct view *view);

extern PyType_Spec context_spec, channel_spec, group_spec, queue_spec, memory_spec, release_spec;

#define FAST(name, function, doc)                                                                  \
    {                                                                                              \
        name, (PyCFunction)(void (*)(void))function, METH_FASTCALL | METH_KEYWORDS, doc            \
    }

#endif
