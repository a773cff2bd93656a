// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// How long an end takes at most where nobody has said it: of a context whose `with` an exception
// has left, and of each that is left when Python exits.
enum { HURRY_MS = 2000, EXIT_MS = 5000 };

PyTypeObject *context_type;
static struct context *contexts; // all that are open, with a reference to each

// Which process this is, counted in forks: to ask the kernel at each call would be most of the
// call.
static unsigned life;

static void forked(void)
{
    life++;
}

int contexts_watch_forks(void)
{
    return pthread_atfork(NULL, NULL, forked) ? -1 : 0;
}

bool is_forked(const struct context *context)
{
    return context->life != life;
}

int check_open(struct context *context)
{
    if (context->handle != NULL && is_forked(context)) {
        fail(context, PH_EFORKED);
        return -1;
    }
    if (context->handle != NULL)
        return 0;
    fail_with(-EBADF, "the context is closed");
    return -1;
}

void context_enter(struct context *context)
{
    context->calls++;
    Py_INCREF(context);
}

void context_leave(struct context *context)
{
    context->calls--;
    Py_DECREF(context);
}

// ---- creation

struct creation {
    struct errand errand;
    PyObject *args, *named; // have the strings
    const char **settings;
    struct ph_context_params params;
    struct ph_context *handle;
    char error[1024];
};

struct creation_args {
    int rank, ranks;
    const char *device, *store, *job;
    uint64_t epoch;
    int64_t deadline_ms;
    int log_level;
    PyObject *settings;
};

#define AT(member) offsetof(struct creation_args, member)
static const struct arg creation_list[] = {
    {"rank", ARG_INT, AT(rank), false},
    {"ranks", ARG_INT, AT(ranks), false},
    {"device", ARG_TEXT, AT(device), false},
    {"store", ARG_TEXT, AT(store), false},
    {"job", ARG_TEXT, AT(job), false},
    {"epoch", ARG_UINT64, AT(epoch), false},
    {"timeout", ARG_TIMEOUT, AT(deadline_ms), false},
    {"log_level", ARG_INT, AT(log_level), false},
    {"settings", ARG_OBJECT, AT(settings), false},
};
#undef AT
static const struct arg_table creation_table = {"Context", creation_list, ARG_COUNT(creation_list),
                                                2};

static int run_creation(struct errand *errand)
{
    struct creation *creation = (struct creation *)errand;
    return ph_context_create(&creation->params, &creation->handle);
}

static void undo_creation(struct errand *errand)
{
    struct creation *creation = (struct creation *)errand;
    if (creation->handle == NULL)
        return;
    ph_context_abort(creation->handle, "its creation was interrupted");
    ph_context_destroy(&creation->handle, HURRY_MS);
}

static void forget_creation(struct errand *errand)
{
    struct creation *creation = (struct creation *)errand;
    Py_XDECREF(creation->args);
    Py_XDECREF(creation->named);
    free(creation->settings);
    free(creation);
}

// The tuple is kept by the arguments, and its strings by it.
static int take_settings(struct creation *creation, PyObject *settings)
{
    if (settings == NULL)
        return 0;
    if (!PyTuple_Check(settings)) {
        PyErr_SetString(PyExc_TypeError, "Context: settings is a tuple of \"NAME=value\"");
        return -1;
    }
    const Py_ssize_t count = PyTuple_Size(settings);
    creation->settings = calloc((size_t)count + 1, sizeof *creation->settings);
    if (creation->settings == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        creation->settings[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(settings, i), NULL);
        if (creation->settings[i] == NULL)
            return -1;
    }
    creation->params.settings = creation->settings;
    return 0;
}

static struct creation *creation_new(PyObject *args, PyObject *named)
{
    struct creation_args given = {0};
    struct creation *creation = calloc(1, sizeof *creation);
    if (creation == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    creation->args = Py_XNewRef(args);
    creation->named = Py_XNewRef(named);
    if (args_take_dict(&creation_table, args, named, &given) ||
        take_settings(creation, given.settings)) {
        forget_creation(&creation->errand);
        return NULL;
    }
    creation->errand.run = run_creation;
    creation->errand.undo = undo_creation;
    creation->errand.forget = forget_creation;
    creation->params.struct_size = sizeof creation->params;
    creation->params.rank = given.rank;
    creation->params.ranks = given.ranks;
    creation->params.device = given.device;
    creation->params.store = given.store;
    creation->params.job = given.job;
    creation->params.epoch = given.epoch;
    creation->params.deadline_ms = given.deadline_ms;
    creation->params.log = log_line;
    creation->params.log_level = (enum ph_log_level)given.log_level;
    creation->params.error = creation->error;
    creation->params.error_size = sizeof creation->error;
    return creation;
}

// "host", or "cuda:N NAME GPU-UUID".
static int ordinal_of(struct ph_context *handle)
{
    int ordinal = -1;
    sscanf(ph_context_device(handle), "cuda:%d", &ordinal);
    return ordinal;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct context *context = (struct context *)allocate(type, 0);
    struct creation *creation = context ? creation_new(args, named) : NULL;
    if (creation == NULL || errand_run(&creation->errand)) {
        Py_XDECREF(context);
        return NULL;
    }
    if (creation->errand.rc) {
        fail_with(creation->errand.rc, creation->error);
        forget_creation(&creation->errand);
        Py_DECREF(context);
        return NULL;
    }
    context->handle = creation->handle;
    context->life = life;
    context->ordinal = ordinal_of(context->handle);
    context->deadline_ms = creation->params.deadline_ms ? creation->params.deadline_ms : 60000;
    context->next = contexts;
    contexts = context;
    Py_INCREF(context);
    forget_creation(&creation->errand);
    return (PyObject *)context;
}

// Nothing refers to it: it is closed, and all that it had is gone.
static void context_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

// ---- the end

struct destruction {
    struct errand errand;
    struct ph_context *handle;
    int64_t deadline_ms;
};

static int run_destruction(struct errand *errand)
{
    struct destruction *destruction = (struct destruction *)errand;
    return ph_context_destroy(&destruction->handle, destruction->deadline_ms);
}

// It goes on as far as it comes: the process is about to end.
static void undo_destruction(struct errand *errand)
{
    (void)errand;
}

static void forget_destruction(struct errand *errand)
{
    free(errand);
}

static void context_over(struct context *context)
{
    context->handle = NULL;
    for (struct context **at = &contexts; *at != NULL; at = &(*at)->next) {
        if (*at == context) {
            *at = context->next;
            Py_DECREF(context);
            return;
        }
    }
}

// destroy: 0, the library's code, or 1 with an exception.
static int destroy(struct context *context, int64_t deadline_ms)
{
    struct destruction *destruction = calloc(1, sizeof *destruction);
    if (destruction == NULL) {
        PyErr_NoMemory();
        return 1;
    }
    destruction->errand.run = run_destruction;
    destruction->errand.undo = undo_destruction;
    destruction->errand.forget = forget_destruction;
    destruction->handle = context->handle;
    destruction->deadline_ms = deadline_ms;
    context->handle = NULL; // to others it is closed from here on
    if (errand_run(&destruction->errand)) {
        context_over(context); // what it has is the thread's now, for as long as the process lives
        return 1;
    }
    const int rc = destruction->errand.rc;
    if (rc)
        context->handle = destruction->handle;
    free(destruction);
    if (rc)
        return rc;
    queues_end(context);
    context_over(context);
    return 0;
}

static void abort_it(struct context *context, const char *why)
{
    context_enter(context);
    Py_BEGIN_ALLOW_THREADS ph_context_abort(context->handle, why);
    Py_END_ALLOW_THREADS context_leave(context);
}

// An exchange that a signal has ended goes on in its thread, which must be over before the context
// is.
static int end_errands(struct context *context)
{
    errands_reap();
    if (!errands_of(context))
        return 0;
    abort_it(context, "an exchange of it was interrupted");
    return errands_wait(context, HURRY_MS) ? 0 : -1;
}

static int close_it(struct context *context, int64_t deadline_ms)
{
    if (context->handle == NULL)
        return 0;
    if (is_forked(context)) { // nothing of it is this process's
        context_over(context);
        return 0;
    }
    if (context->calls > 0 || end_errands(context)) {
        fail_with(-EBUSY, "another thread is in a call of the context: abort() ends such calls");
        return -1;
    }
    const int rc = destroy(context, deadline_ms);
    if (rc < 0)
        fail(context, rc);
    return rc ? -1 : 0;
}

struct close_args {
    int64_t deadline_ms;
};
static const struct arg close_list[] = {{"timeout", ARG_TIMEOUT, 0, false}};
static const struct arg_table close_table = {"close", close_list, 1, 1};

static PyObject *context_close(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    struct context *context = (struct context *)self;
    struct close_args given = {context->deadline_ms};
    if (args_take(&close_table, args, count, names, &given) || close_it(context, given.deadline_ms))
        return NULL;
    Py_RETURN_NONE;
}

struct abort_args {
    const char *why;
};
static const struct arg abort_list[] = {{"why", ARG_TEXT, 0, false}};
static const struct arg_table abort_table = {"abort", abort_list, 1, 1};

static PyObject *context_abort(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    struct context *context = (struct context *)self;
    struct abort_args given = {0};
    if (args_take(&abort_table, args, count, names, &given) || check_open(context))
        return NULL;
    abort_it(context, given.why);
    Py_RETURN_NONE;
}

static PyObject *context_enter_with(PyObject *self, PyObject *none)
{
    (void)none;
    return check_open((struct context *)self) ? NULL : Py_NewRef(self);
}

// sys.exit(0) is a good end.
static bool is_failure(PyObject *type, PyObject *value)
{
    if (type == Py_None)
        return false;
    if (!PyErr_GivenExceptionMatches(type, PyExc_SystemExit))
        return true;
    PyObject *code = PyObject_GetAttrString(value, "code");
    const int failed = code ? PyObject_IsTrue(code) : 1;
    Py_XDECREF(code);
    PyErr_Clear();
    return failed != 0;
}

// Peers that wait for this rank are told that it has failed, and it does not wait for them.
static void leave_failed(struct context *context, PyObject *type)
{
    char why[120];
    PyObject *text = PyObject_GetAttrString(type, "__name__");
    const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    snprintf(why, sizeof why, "%s was raised", name ? name : "an exception");
    Py_XDECREF(text);
    abort_it(context, why);
    if (close_it(context, HURRY_MS))
        PyErr_Clear(); // the exception that left the block says more
}

static PyObject *context_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct context *context = (struct context *)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__ takes three arguments");
        return NULL;
    }
    if (context->handle != NULL && !is_forked(context) && is_failure(args[0], args[1]))
        leave_failed(context, args[0]);
    else if (close_it(context, context->deadline_ms))
        return NULL;
    Py_RETURN_FALSE;
}

// A thread of Python's that waits in a call ends by the abort.
static bool wait_calls(struct context *context)
{
    for (int i = 0; i < 1000 && context->calls > 0; i++) {
        Py_BEGIN_ALLOW_THREADS nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS
    }
    return context->calls == 0;
}

// When Python exits. After an exception that nobody caught the peers are told at once.
static void close_at_exit(struct context *context, bool failed)
{
    if (context->calls > 0 || failed)
        abort_it(context, failed ? "the program ends by an exception" : "the program ends");
    if (!wait_calls(context))
        return;
    if (close_it(context, failed ? HURRY_MS : EXIT_MS) == 0)
        return;
    PyErr_WriteUnraisable((PyObject *)context); // to standard error
    if (context->handle != NULL)
        abort_it(context, "the program has ended");
}

// What is closed gives other threads their turn, so the list is one of its own.
PyObject *contexts_close_all(PyObject *module, PyObject *failed)
{
    (void)module;
    const bool has_failed = PyObject_IsTrue(failed) > 0;
    PyObject *open = PyList_New(0);
    errands_reap();
    for (struct context *context = contexts; open != NULL && context != NULL;
         context = context->next)
        if (PyList_Append(open, (PyObject *)context))
            Py_CLEAR(open);
    for (Py_ssize_t i = 0; open != NULL && i < PyList_Size(open); i++) {
        struct context *context = (struct context *)PyList_GetItem(open, i);
        if (!is_forked(context) && context->handle != NULL)
            close_at_exit(context, has_failed);
    }
    if (open == NULL)
        return NULL;
    Py_DECREF(open);
    Py_RETURN_NONE;
}

// ---- what it is

static PyObject *get_rank(PyObject *self, void *unused)
{
    (void)unused;
    struct context *context = (struct context *)self;
    return check_open(context) ? NULL : PyLong_FromLong(ph_context_rank(context->handle));
}

static PyObject *get_ranks(PyObject *self, void *unused)
{
    (void)unused;
    struct context *context = (struct context *)self;
    return check_open(context) ? NULL : PyLong_FromLong(ph_context_ranks(context->handle));
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    struct context *context = (struct context *)self;
    return check_open(context) ? NULL : PyUnicode_FromString(ph_context_device(context->handle));
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct context *)self)->handle == NULL);
}

static PyObject *get_timeout(PyObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble((double)((struct context *)self)->deadline_ms / 1000);
}

static PyGetSetDef context_values[] = {
    {"rank", get_rank, NULL, "This rank.", NULL},
    {"ranks", get_ranks, NULL, "How many ranks there are.", NULL},
    {"device", get_device, NULL, "\"host\", or \"cuda:N\" with the GPU's name.", NULL},
    {"closed", get_closed, NULL, "Whether it is closed.", NULL},
    {"timeout", get_timeout, NULL, "Seconds that calls wait that are given no timeout.", NULL},
    {0},
};

static PyMethodDef context_methods[] = {
    FAST("exchange", context_exchange, "Meets the peers; returns a channel for each operation."),
    FAST("unbound", context_unbound, "Meets a peer; returns a channel without a buffer."),
    FAST("group", context_group, "Calls that have no order among themselves."),
    FAST("queue", context_queue, "Makes a queue of a host context."),
    FAST("synchronize", context_synchronize, "Waits for the default queue of a host context."),
    FAST("alloc", context_alloc, "Makes host memory that peers can map."),
    FAST("release", context_release, "Gives a buffer back that channels use."),
    FAST("reap", context_reap, "Unmaps what peers have released."),
    FAST("expel", context_expel, "Ends the membership of a rank that does not answer."),
    FAST("counters", report_counters, "What it has done so far."),
    FAST("peer", report_peer, "What is known of a rank."),
    FAST("abort", context_abort, "Breaks all channels, and tells the peers."),
    FAST("close", context_close, "Ends the membership."),
    {"__enter__", context_enter_with, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))context_exit, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot context_slots[] = {
    {Py_tp_new, context_new},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_values},
    {Py_tp_doc, "A rank's membership of a job."},
    {0, NULL},
};

PyType_Spec context_spec = {"_peerhop.Context", sizeof(struct context), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, context_slots};
