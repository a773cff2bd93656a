// SPDX-License-Identifier: BSD-3-Clause
#include "binding.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

PyTypeObject *memory_type;

struct alloc_args {
    size_t size;
};
static const struct arg alloc_list[] = {{"size", ARG_SIZE, 0, true}};
static const struct arg_table alloc_table = {"alloc", alloc_list, 1, 1};

static void *refuse_alloc(size_t size)
{
    PyErr_Format(PyExc_MemoryError, "alloc: no %zu bytes of host memory: %s", size,
                 strerror(errno));
    return NULL;
}

// A memory file of so many zeros, mapped.
static void *map_file(size_t size, int *file)
{
    *file = memfd_create("peerhop", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*file < 0)
        return refuse_alloc(size);
    void *own = MAP_FAILED;
    if (ftruncate(*file, (off_t)size) == 0)
        own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    if (own != MAP_FAILED)
        return own;
    refuse_alloc(size);
    close(*file);
    return NULL;
}

PyObject *context_alloc(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct context *context = (struct context *)self;
    struct alloc_args given = {0};
    int file, rc;
    if (check_open(context) || args_take(&alloc_table, args, count, names, &given))
        return NULL;
    if (given.size == 0) {
        PyErr_SetString(PyExc_ValueError, "alloc: host memory of 0 bytes was asked for");
        return NULL;
    }
    void *library = NULL, *own = map_file(given.size, &file);
    if (own == NULL)
        return NULL;
    context_enter(context);
    Py_BEGIN_ALLOW_THREADS rc = ph_host_register(context->handle, file, 0, given.size, &library);
    close(file);
    Py_END_ALLOW_THREADS context_leave(context);
    struct memory *memory = NULL;
    if (rc)
        fail(context, rc);
    else
        memory = PyObject_New(struct memory, memory_type);
    if (memory == NULL) {
        if (library != NULL)
            ph_host_free(context->handle, library, 1);
        munmap(own, given.size);
        return NULL;
    }
    memory->context = (struct context *)Py_NewRef(self);
    memory->own = own;
    memory->library = library;
    memory->size = given.size;
    memory->next = context->memories;
    context->memories = memory;
    return (PyObject *)memory;
}

// A channel in the cache may still have it: then it is released, and the context frees it at its
// end.
static void free_library(struct memory *memory)
{
    struct ph_context *handle = memory->context->handle;
    if (handle == NULL || is_forked(memory->context))
        return;
    if (ph_host_free(handle, memory->library, 1) != -EBUSY)
        return;
    ph_release_start(handle, memory->library, memory->size);
    ph_host_free(handle, memory->library, 1);
}

static void memory_dealloc(PyObject *self)
{
    struct memory *memory = (struct memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (struct memory **at = &memory->context->memories; *at != NULL; at = &(*at)->next) {
        if (*at == memory) {
            *at = memory->next;
            break;
        }
    }
    free_library(memory);
    munmap(memory->own, memory->size);
    Py_DECREF((PyObject *)memory->context);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *self, struct py_buffer *buffer, int flags)
{
    struct memory *memory = (struct memory *)self;
    return PyBuffer_FillInfo(buffer, self, memory->own, (Py_ssize_t)memory->size, 0, flags);
}

static Py_ssize_t memory_length(PyObject *self)
{
    return (Py_ssize_t)((struct memory *)self)->size;
}

bool memory_translate(struct context *context, struct view *view)
{
    const uintptr_t data = (uintptr_t)view->data;
    for (struct memory *memory = context->memories; memory != NULL; memory = memory->next) {
        const uintptr_t own = (uintptr_t)memory->own;
        if (data < own || data >= own + memory->size)
            continue;
        view->data = (char *)memory->library + (data - own);
        view->is_mapped = true;
        return true;
    }
    return false;
}

int memory_check(struct context *context, const char *function, struct view *view)
{
    const bool host = view->device == VIEW_CPU || view->device == VIEW_PINNED;
    if (context->ordinal < 0 && host)
        return 0;
    if (context->ordinal < 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s: memory of a GPU, and the context is one of host memory: make it with "
                     "device=\"cuda\"",
                     function);
        return -1;
    }
    if (view->device == VIEW_CPU && !view->is_mapped) {
        PyErr_Format(PyExc_ValueError,
                     "%s: host memory that the GPU does not reach: take it from Context.alloc",
                     function);
        return -1;
    }
    if (view->device == VIEW_CUDA && view->ordinal >= 0 && view->ordinal != context->ordinal) {
        PyErr_Format(PyExc_ValueError, "%s: memory of cuda:%d, and the context is on cuda:%d",
                     function, view->ordinal, context->ordinal);
        return -1;
    }
    return 0;
}

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {Py_sq_length, memory_length},
    {Py_tp_doc, "Host memory that peers can map: memoryview() and NumPy take it as it is."},
    {0, NULL},
};

PyType_Spec memory_spec = {"_peerhop.Memory", sizeof(struct memory), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};
