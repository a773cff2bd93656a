// SPDX-License-Identifier: BSD-3-Clause
#include "net/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The oldest whose providers were tried.
#define OLDEST FI_VERSION(1, 17)

struct entry {
    const char *name;
    size_t offset;
};

static const struct entry entries[] = {
#define ENTRY(symbol) {#symbol, offsetof(struct phi_libfabric, symbol)},
    PHI_LIBFABRIC_MAP(ENTRY)
#undef ENTRY
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct phi_libfabric *loaded; // guarded by load_lock; never changes once set
static char *loaded_name;

// dlsym gives each function in its newest version, and all of them of one: they belong together.
static const char *fill_table(void *handle, struct phi_libfabric *library)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *symbol = dlsym(handle, entries[i].name);

        if (!symbol)
            return entries[i].name;
        memcpy((char *)library + entries[i].offset, &symbol, sizeof(symbol));
    }
    return NULL;
}

static struct phi_libfabric *open_library(const char *name, char *why, size_t size)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    struct phi_libfabric *library;
    const char *missing;
    uint32_t version;

    if (!handle) {
        const char *reason = dlerror();

        snprintf(why, size, "no libfabric: %s", reason ? reason : name);
        return NULL;
    }
    library = calloc(1, sizeof(*library));
    if (!library) {
        snprintf(why, size, "out of memory");
        goto close_handle;
    }
    missing = fill_table(handle, library);
    if (missing) {
        snprintf(why, size, "%s has no %s", name, missing);
        goto free_library;
    }
    version = library->fi_version();
    if (FI_VERSION_LT(version, OLDEST)) {
        snprintf(why, size, "%s is libfabric %u.%u; 1.17 is the oldest that serves", name,
                 FI_MAJOR(version), FI_MINOR(version));
        goto free_library;
    }
    library->api = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    if (FI_VERSION_LT(version, library->api))
        library->api = version;
    return library; // it stays open as long as the process

free_library:
    free(library);
close_handle:
    dlclose(handle);
    return NULL;
}

const struct phi_libfabric *phi_libfabric_load(const char *name, char *why, size_t why_size)
{
    const struct phi_libfabric *library = NULL;

    pthread_mutex_lock(&load_lock);
    if (!loaded) {
        char *copy = strdup(name);

        if (!copy)
            snprintf(why, why_size, "out of memory");
        loaded = copy ? open_library(name, why, why_size) : NULL;
        if (loaded)
            loaded_name = copy;
        else
            free(copy);
        library = loaded;
    } else if (strcmp(loaded_name, name) == 0) {
        library = loaded;
    } else {
        snprintf(why, why_size, "%s is loaded already, and %s cannot be beside it", loaded_name,
                 name);
    }
    pthread_mutex_unlock(&load_lock);
    return library;
}
