// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

PyTypeObject *context_type;

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
    struct ph_store_callbacks callbacks;
    PyObject *callable; // the store behind them, or NULL
    struct ph_context *handle;
    char device[32];
    char error[1024];
};

struct creation_args {
    int rank, ranks;
    const char *device, *job;
    PyObject *store;
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
    {"store", ARG_OBJECT, AT(store), false},
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
    Py_XDECREF(creation->callable);
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

// A str is the library's to understand, anything else an adapter of peerhop._stores.
static int take_store(struct creation *creation, PyObject *store)
{
    if (store == NULL)
        return 0;
    if (PyUnicode_Check(store)) {
        creation->params.store = PyUnicode_AsUTF8AndSize(store, NULL);
        return creation->params.store ? 0 : -1;
    }
    creation->callable = Py_NewRef(store);
    creation->callbacks = store_callbacks(store);
    creation->params.store_callbacks = &creation->callbacks;
    return 0;
}

// The device that this thread works on, as the driver has it, -1 where it is not loaded or there is
// none: the library asks in the thread that creates the context, which is an errand's.
static int current_device(void)
{
    const char *name = getenv("PEERHOP_LIBCUDA");
    void *driver = dlopen(name && *name ? name : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int ordinal = -1;
    if (driver == NULL)
        return -1;
    int (*get)(int *ordinal) = (int (*)(int *))dlsym(driver, "cuCtxGetDevice");
    if (get == NULL || get(&ordinal) != 0)
        ordinal = -1;
    dlclose(driver);
    return ordinal;
}

static bool is_set(const struct creation *creation, const char *variable)
{
    for (const char **setting = creation->settings; setting && *setting; setting++)
        if (strncmp(*setting, variable, strlen(variable)) == 0)
            return true;
    return false;
}

static void choose_device(struct creation *creation, const char *device)
{
    const char *wish = device ? device : getenv("PEERHOP_DEVICE");
    creation->params.device = device;
    if ((wish && *wish && strcmp(wish, "cuda") != 0) ||
        (device == NULL && is_set(creation, "PEERHOP_DEVICE=")))
        return;
    const int ordinal = current_device();
    if (ordinal < 0)
        return;
    snprintf(creation->device, sizeof creation->device, "cuda:%d", ordinal);
    creation->params.device = creation->device;
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
        take_settings(creation, given.settings) || take_store(creation, given.store)) {
        forget_creation(&creation->errand);
        return NULL;
    }
    creation->errand.run = run_creation;
    creation->errand.undo = undo_creation;
    creation->errand.forget = forget_creation;
    creation->params.struct_size = sizeof creation->params;
    creation->params.rank = given.rank;
    creation->params.ranks = given.ranks;
    choose_device(creation, given.device);
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
    context->store = Py_XNewRef(creation->callable);
    context->life = life;
    context->ordinal = ordinal_of(context->handle);
    context->deadline_ms = creation->params.deadline_ms ? creation->params.deadline_ms : 60000;
    contexts_add(context);
    forget_creation(&creation->errand);
    return (PyObject *)context;
}

// Nothing refers to it: it is closed, and all that it had is gone.
static void context_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((struct context *)self)->store);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
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
    FAST("record", context_record, "A place on a stream: all that was enqueued so far."),
    FAST("notifications", context_notifications, "Takes what peers have given."),
    FAST("wait_notifications", context_wait_notifications, "Waits until there are some."),
    FAST("notifications_fd", context_notifications_fd, "Readable while there are some."),
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
