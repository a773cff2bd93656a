// SPDX-License-Identifier: BSD-3-Clause
// The end of a context: by close, by its `with`, by an abort, and when Python exits.
#include "binding.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// How long an end takes at most where Python exits and nobody has said it.
enum { EXIT_MS = 5000 };

static struct context *contexts; // all that are open, with a reference to each

void contexts_add(struct context *context)
{
    context->next = contexts;
    contexts = context;
    Py_INCREF(context);
}

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
        // What it has is the thread's now, for as long as the process lives.
        Py_XINCREF(context->store);
        context_over(context);
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

PyObject *context_close(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

PyObject *context_abort(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct abort_args given = {0};
    if (args_take(&abort_table, args, count, names, &given) || check_open(context))
        return NULL;
    abort_it(context, given.why);
    Py_RETURN_NONE;
}

PyObject *context_enter_with(PyObject *self, PyObject *none)
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

PyObject *context_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
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
    stores_over();
    if (open == NULL)
        return NULL;
    Py_DECREF(open);
    Py_RETURN_NONE;
}
