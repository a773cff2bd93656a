// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The oldest driver whose memory operations are the second version without a kernel module option.
#define OLDEST_VERSION 11070

struct entry {
    const char *name;
    size_t offset;
    bool required;
};

static const struct entry entries[] = {
#define ENTRY_REQUIRED(symbol) {#symbol, offsetof(struct phi_driver, symbol), true},
#define ENTRY_OPTIONAL(symbol) {#symbol, offsetof(struct phi_driver, symbol), false},
    PHI_CUDA_REQUIRED(ENTRY_REQUIRED) PHI_CUDA_OPTIONAL(ENTRY_OPTIONAL)
        PHI_CUDA_TESTS(ENTRY_OPTIONAL)
#undef ENTRY_REQUIRED
#undef ENTRY_OPTIONAL
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct phi_driver *loaded; // guarded by load_lock; never changes once set
static char *loaded_name;

static const char *fill_table(void *library, struct phi_driver *driver)
{
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *symbol = dlsym(library, entries[i].name);
        if (symbol == NULL && entries[i].required && missing == NULL)
            missing = entries[i].name;
        memcpy((char *)driver + entries[i].offset, &symbol, sizeof symbol);
    }
    return missing;
}

// start_driver initialises a filled table; false with the reason in why.
static bool start_driver(const struct phi_driver *driver, const char *library, char *why,
                         size_t size)
{
    int version = 0;
    CUresult result = driver->cuInit(0);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
        snprintf(why, size, "%s is the toolkit's stub library, not a driver", library);
        return false;
    }
    if (result != CUDA_SUCCESS) {
        snprintf(why, size, "cuInit of %s failed: %s", library, phi_cuda_name(driver, result));
        return false;
    }
    result = driver->cuDriverGetVersion(&version);
    if (result != CUDA_SUCCESS) {
        snprintf(why, size, "cuDriverGetVersion of %s failed: %s", library,
                 phi_cuda_name(driver, result));
        return false;
    }
    if (version < OLDEST_VERSION) {
        snprintf(why, size, "the driver %s supports CUDA %d.%d; 11.7 is the oldest that serves",
                 library, version / 1000, version % 1000 / 10);
        return false;
    }
    return true;
}

static struct phi_driver *open_driver(const char *library, char *why, size_t size)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *reason = dlerror();
        snprintf(why, size, "no CUDA driver: %s", reason ? reason : library);
        return NULL;
    }
    struct phi_driver *driver = calloc(1, sizeof *driver);
    if (driver == NULL) {
        snprintf(why, size, "out of memory");
        goto close_library;
    }
    const char *missing = fill_table(handle, driver);
    if (missing != NULL) {
        snprintf(why, size, "the driver %s has no %s; CUDA 11.7 is the oldest that serves", library,
                 missing);
        goto free_driver;
    }
    if (!start_driver(driver, library, why, size))
        goto free_driver;
    return driver; // the library stays open as long as the process

free_driver:
    free(driver);
close_library:
    dlclose(handle);
    return NULL;
}

const struct phi_driver *phi_driver_load(const char *library, char *why, size_t why_size)
{
    const struct phi_driver *driver = NULL;
    pthread_mutex_lock(&load_lock);
    if (loaded == NULL) {
        char *name = strdup(library);
        if (name == NULL)
            snprintf(why, why_size, "out of memory");
        loaded = name ? open_driver(library, why, why_size) : NULL;
        if (loaded != NULL)
            loaded_name = name;
        else
            free(name);
        driver = loaded;
    } else if (strcmp(loaded_name, library) == 0) {
        driver = loaded;
    } else {
        snprintf(why, why_size,
                 "this process uses the driver %s already, %s cannot stand beside it", loaded_name,
                 library);
    }
    pthread_mutex_unlock(&load_lock);
    return driver;
}

int phi_cuda_code(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS:
        return 0;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return -ENODEV;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return -ENOMEM;
    default:
        return PH_EDRIVER;
    }
}

bool phi_cuda_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
        return true;
    default:
        return false;
    }
}

const char *phi_cuda_name(const struct phi_driver *driver, CUresult result)
{
    const char *name = NULL;
    if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return "an error that the driver has no name for";
    return name;
}

int phi_cuda_result(struct phi_report *report, const struct phi_driver *driver, CUresult result,
                    const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    const char *meaning = NULL;
    if (driver->cuGetErrorString(result, &meaning) != CUDA_SUCCESS || meaning == NULL)
        meaning = "unknown";
    return phi_fail(report, phi_cuda_code(result), "%s: %s (%d, %s)%s", text,
                    phi_cuda_name(driver, result), (int)result, meaning,
                    phi_cuda_sticky(result) ? "; the device runs nothing of this process any more"
                                            : "");
}

CUresult phi_cuda_copy_together(const struct phi_driver *driver, CUdeviceptr *to, CUdeviceptr *from,
                                size_t *sizes, size_t n, CUstream stream)
{
#if CUDA_VERSION >= 13000
    CUmemcpyAttributes how = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                              .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
    size_t of_all = 0;
    if (driver->cuMemcpyBatchAsync_v2 != NULL)
        return driver->cuMemcpyBatchAsync_v2(to, from, sizes, n, &how, &of_all, 1, stream);
#else
    (void)driver, (void)to, (void)from, (void)sizes, (void)n, (void)stream;
#endif
    return CUDA_ERROR_NOT_SUPPORTED;
}
