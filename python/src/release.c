// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <stdlib.h>

struct release {
    PyObject base;
    struct context *context;
    struct view view; // keeps the memory as long as the release is asked for
};

PyTypeObject *release_type;

struct release_args {
    PyObject *buffer;
    int state, rank;
    int64_t deadline_ms;
};
#define AT(member) offsetof(struct release_args, member)
static const struct arg release_list[] = {{"buffer", ARG_OBJECT, AT(buffer), true}};
static const struct arg wait_list[] = {{"state", ARG_STATE, AT(state), false},
                                       {"timeout", ARG_TIMEOUT, AT(deadline_ms), false}};
static const struct arg timeout_list[] = {{"timeout", ARG_TIMEOUT, AT(deadline_ms), false}};
static const struct arg rank_list[] = {{"rank", ARG_INT, AT(rank), true}};
#undef AT
static const struct arg_table release_table = {"release", release_list, 1, 1};
static const struct arg_table wait_table = {"wait", wait_list, 2, 1};
static const struct arg_table test_table = {"test", wait_list, 1, 1};
static const struct arg_table reap_table = {"reap", timeout_list, 1, 1};
static const struct arg_table expel_table = {"expel", rank_list, 1, 1};

PyObject *context_release(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct release_args given = {0};
    struct view view;
    if (check_open(context) || args_take(&release_table, args, count, names, &given) ||
        view_take("release", given.buffer, false, &view))
        return NULL;
    memory_translate(context, &view);
    const int rc = ph_release_start(context->handle, view.data, view.size);
    struct release *release = NULL;
    if (rc)
        fail(context, rc);
    else
        release = PyObject_New(struct release, release_type);
    if (release == NULL) {
        view_drop(&view);
        return NULL;
    }
    release->context = (struct context *)Py_NewRef(self);
    release->view = view;
    return (PyObject *)release;
}

static void release_dealloc(PyObject *self)
{
    struct release *release = (struct release *)self;
    PyTypeObject *type = Py_TYPE(self);
    view_drop(&release->view);
    Py_DECREF((PyObject *)release->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

struct release_wait {
    struct release *release;
    int state;
};

static int wait_slice(void *opaque, int64_t deadline_ms)
{
    struct release_wait *wait = opaque;
    const struct view *view = &wait->release->view;
    return ph_release_wait(wait->release->context->handle, view->data, view->size,
                           (enum ph_release_state)wait->state, deadline_ms);
}

static int reap_slice(void *opaque, int64_t deadline_ms)
{
    return ph_reap(opaque, deadline_ms);
}

static PyObject *wait_for(struct context *context, int (*slice)(void *, int64_t), void *opaque,
                          int64_t deadline_ms)
{
    int rc = 0;
    context_enter(context);
    const int raised = wait_slices(slice, opaque, deadline_ms, &rc);
    if (!raised && rc)
        fail(context, rc);
    context_leave(context);
    return raised || rc ? NULL : Py_NewRef(Py_None);
}

static PyObject *release_wait(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names)
{
    struct release *release = (struct release *)self;
    struct release_args given = {.state = PH_RELEASE_DRAINED,
                                 .deadline_ms = release->context->deadline_ms};
    if (check_open(release->context) || args_take(&wait_table, args, count, names, &given))
        return NULL;
    struct release_wait wait = {release, given.state};
    return wait_for(release->context, wait_slice, &wait, given.deadline_ms);
}

static PyObject *release_test(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names)
{
    struct release *release = (struct release *)self;
    struct release_args given = {.state = PH_RELEASE_DRAINED};
    if (check_open(release->context) || args_take(&test_table, args, count, names, &given))
        return NULL;
    const int rc = ph_release_test(release->context->handle, release->view.data, release->view.size,
                                   (enum ph_release_state)given.state);
    if (rc && rc != -EAGAIN && rc != -EBUSY)
        return fail(release->context, rc);
    return PyBool_FromLong(rc == 0);
}

PyObject *context_reap(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct release_args given = {.deadline_ms = context->deadline_ms};
    if (check_open(context) || args_take(&reap_table, args, count, names, &given))
        return NULL;
    return wait_for(context, reap_slice, context->handle, given.deadline_ms);
}

// Other ranks are told, or the store, for which it may wait up to the context's deadline.
struct expulsion {
    struct errand errand; // owner: the context
    struct ph_context *handle;
    int rank;
};

static int run_expulsion(struct errand *errand)
{
    struct expulsion *expulsion = (struct expulsion *)errand;
    return ph_context_expel(expulsion->handle, expulsion->rank);
}

static void undo_expulsion(struct errand *errand)
{
    (void)errand; // who was told is told
}

static void forget_expulsion(struct errand *errand)
{
    Py_DECREF((PyObject *)errand->owner);
    free(errand);
}

PyObject *context_expel(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct release_args given = {0};
    if (check_open(context) || args_take(&expel_table, args, count, names, &given))
        return NULL;
    struct expulsion *expulsion = calloc(1, sizeof *expulsion);
    if (expulsion == NULL)
        return PyErr_NoMemory();
    expulsion->errand.run = run_expulsion;
    expulsion->errand.undo = undo_expulsion;
    expulsion->errand.forget = forget_expulsion;
    expulsion->errand.owner = Py_NewRef(self);
    expulsion->handle = context->handle;
    expulsion->rank = given.rank;
    context_enter(context);
    const int raised = errand_run(&expulsion->errand);
    context_leave(context);
    if (raised)
        return NULL;
    const int rc = expulsion->errand.rc;
    forget_expulsion(&expulsion->errand);
    return rc ? fail(context, rc) : Py_NewRef(Py_None);
}

static PyMethodDef release_methods[] = {
    FAST("wait", release_wait, "Waits until the release has come so far."),
    FAST("test", release_test, "Whether the release has come so far."),
    {0},
};

static PyType_Slot release_slots[] = {
    {Py_tp_dealloc, release_dealloc},
    {Py_tp_methods, release_methods},
    {Py_tp_doc, "A buffer that is being given back."},
    {0, NULL},
};

PyType_Spec release_spec = {"_peerhop.Release", sizeof(struct release), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, release_slots};
