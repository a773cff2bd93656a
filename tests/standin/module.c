// SPDX-License-Identifier: BSD-3-Clause
// Modules: any image is taken, and holds every kernel that kernels.c knows.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

// Bytes of shared memory of a block: by default, and where its function is allowed more.
#define SHARED      49152
#define SHARED_MOST 232448

struct CUmod_st {
    struct CUmod_st *next;
    struct CUfunc_st functions[SI_KERNELS_MAX];
    int count;
};
static struct CUmod_st *modules;

static struct CUmod_st **find(CUmodule handle)
{
    struct CUmod_st **m = &modules;
    while (*m && *m != handle)
        m = &(*m)->next;
    return m;
}

static bool is_function(const struct CUfunc_st *function)
{
    for (const struct CUmod_st *m = modules; m; m = m->next) {
        if (function >= m->functions && function < m->functions + m->count)
            return true;
    }
    return false;
}

SI_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    struct si_context *context;
    CUresult result = out && image ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct CUmod_st *module = calloc(1, sizeof(*module));
    if (!module)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    si_wait_idle(context, context->number);
    for (const struct CUfunc_st *k = si_kernels; k->name; k++) {
        module->functions[module->count] = *k;
        module->functions[module->count++].context = context;
    }
    module->next = modules;
    modules = module;
    *out = module;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuModuleUnload(CUmodule handle)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    if (!*find(handle))
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    result = si_unsafe();
    if (result)
        return si_end(result);
    si_wait_idle(context, context->number);
    struct CUmod_st **m = find(handle);
    struct CUmod_st *module = *m;
    if (!module)
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    *m = module->next;
    free(module);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    CUresult result = out && name ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct CUmod_st *module = *find(handle);
    if (!module)
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < module->count; i++) {
        if (!strcmp(module->functions[i].name, name)) {
            *out = &module->functions[i];
            return si_end(CUDA_SUCCESS);
        }
    }
    return si_end(CUDA_ERROR_NOT_FOUND);
}

SI_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
                                      CUfunction function)
{
    CUresult result = value ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!is_function(function))
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)function->threads;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int)function->registers;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = si.ptx;
        break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        break;
    default:
        *value = 0;
    }
    return si_end(CUDA_SUCCESS);
}

// The one attribute that is set here lets a launch have more shared memory.
SI_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                      int value)
{
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > SHARED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!is_function(function))
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    function->shared = (unsigned)value;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuFuncLoad(CUfunction function)
{
    CUresult result = si_begin_any();
    return result ? result
                  : si_end(is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

// The bytes of the one parameter, from either way of passing it.
static const void *parameter(void **params, void **extra, size_t size)
{
    if (params)
        return params[0];
    const void *buffer = NULL;
    for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && *(const size_t *)extra[i + 1] < size)
            return NULL;
    }
    return buffer;
}

// The same in a table that no module takes away.
static const struct CUfunc_st *function_of(const struct CUfunc_st *function)
{
    const struct CUfunc_st *k = si_kernels;
    while (strcmp(k->name, function->name) != 0)
        k++;
    return k;
}

static CUresult launch(CUfunction function, const CUlaunchConfig *config, void **params,
                       void **extra)
{
    const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    struct CUstream_st *stream;
    if (!is_function(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (threads > function->threads ||
        (config->sharedMemBytes > SHARED && config->sharedMemBytes > function->shared))
        return CUDA_ERROR_INVALID_VALUE;
    si_gate(function->context);
    CUresult result = si_stream_find(function->context, config->hStream, &stream);
    if (result)
        return result;
    if (stream->context != function->context)
        return CUDA_ERROR_INVALID_HANDLE;
    const void *args = parameter(params, extra, function->args);
    if (!args)
        return CUDA_ERROR_INVALID_VALUE;
    struct si_op *op = si_op_new(SI_OP_KERNEL);
    struct si_blob *blob = op ? si_blob_new(args, function->args) : NULL;
    if (!blob) {
        if (op)
            si_op_free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    si_kernel_check(function->run, args);
    si_check_grid(function, args, config->gridDimX, threads);
    op->blob = blob;
    op->u.kernel.function = function_of(function);
    op->u.kernel.blocks = config->gridDimX * config->gridDimY * config->gridDimZ;
    op->u.kernel.threads = threads;
    op->u.kernel.shared = config->sharedMemBytes;
    return si_enqueue(stream, op);
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra)
{
    const uint64_t blocks = (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
    const uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (!blocks || blocks > UINT32_MAX || !threads || threads > 1024 ||
        config->sharedMemBytes > SHARED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    return si_end(launch(function, config, params, extra));
}

SI_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                  unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                  void **params, void **extra)
{
    const CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                                   block_z, shared_bytes, stream, NULL,    0};
    return launch_config(&config, function, params, extra);
}

// Attributes only allow a kernel to begin early.
SI_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                    void **params, void **extra)
{
    si_check_launch(config);
    return launch_config(config, function, params, extra);
}
