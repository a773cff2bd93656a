// SPDX-License-Identifier: BSD-3-Clause
#include "net/library.h"
#include "net/net.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// The oldest version whose providers were tried.
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

// The table lives as long as the process, so it is not on the heap. load_lock guards it. It never
// changes once it is set.
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct phi_libfabric loaded;
static char loaded_name[PATH_MAX]; // "": none

// dlsym finds each function in its newest version. All are of one library: they belong together.
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

static bool open_library(const char *name, struct phi_libfabric *library, char *why, size_t size)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *missing;
    uint32_t version;

    if (!handle) {
        const char *reason = dlerror();

        snprintf(why, size, "no libfabric: %s", reason ? reason : name);
        return false;
    }
    missing = fill_table(handle, library);
    if (missing) {
        snprintf(why, size, "%s has no %s", name, missing);
        goto close_handle;
    }
    version = library->fi_version();
    if (FI_VERSION_LT(version, OLDEST)) {
        snprintf(why, size, "%s is libfabric %u.%u; 1.17 is the oldest that serves", name,
                 FI_MAJOR(version), FI_MINOR(version));
        goto close_handle;
    }
    library->version = version;
    library->api = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    if (FI_VERSION_LT(version, library->api))
        library->api = version;
    return true; // it stays open as long as the process

close_handle:
    dlclose(handle);
    return false;
}

const struct phi_libfabric *phi_libfabric_load(const char *name, char *why, size_t why_size)
{
    struct phi_libfabric opened;
    bool good;

    pthread_mutex_lock(&load_lock);
    good = loaded_name[0] && strcmp(loaded_name, name) == 0;
    if (loaded_name[0] && !good) {
        snprintf(why, why_size, "%s is loaded already, and %s cannot be beside it", loaded_name,
                 name);
    } else if (!good && strlen(name) >= sizeof(loaded_name)) {
        snprintf(why, why_size, "no libfabric: a name of %zu bytes", strlen(name));
    } else if (!good && open_library(name, &opened, why, why_size)) {
        loaded = opened;
        memcpy(loaded_name, name, strlen(name) + 1);
        good = true;
    }
    pthread_mutex_unlock(&load_lock);
    return good ? &loaded : NULL;
}

void phi_net_library(char *text, size_t size)
{
    pthread_mutex_lock(&load_lock);
    text[0] = '\0';
    if (loaded_name[0])
        snprintf(text, size, "libfabric %u.%u (%s), built for %u.%u", FI_MAJOR(loaded.version),
                 FI_MINOR(loaded.version), loaded_name, FI_MAJOR_VERSION, FI_MINOR_VERSION);
    pthread_mutex_unlock(&load_lock);
}

struct fi_info *phi_libfabric_hints(const struct phi_libfabric *library)
{
    struct fi_info *hints = library->fi_dupinfo(NULL);

    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                                  FI_MR_RAW | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    return hints;
}
