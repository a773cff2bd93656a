// SPDX-License-Identifier: BSD-3-Clause
// A program that lets go of the library while a context lives: its threads go on, and need its
// code.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <peerhop/peerhop.h>

static int set(void *opaque, const char *key, const void *value, size_t size, int64_t deadline_ms)
{
    (void)opaque, (void)key, (void)value, (void)size, (void)deadline_ms;
    return 0;
}

static int get(void *opaque, const char *key, void **value, size_t *size, int64_t deadline_ms)
{
    (void)opaque, (void)key, (void)value, (void)size, (void)deadline_ms;
    return -ETIMEDOUT;
}

static int forget(void *opaque, const char *key, int64_t deadline_ms)
{
    (void)opaque, (void)key, (void)deadline_ms;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct ph_store_callbacks store = {.set = set, .get = get, .remove = forget};
    static const char *const settings[] = {"PEERHOP_HEARTBEAT_MS=5", "PEERHOP_WORKER_PARK_US=50",
                                           NULL};
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*create)(const struct ph_context_params *, struct ph_context **) = NULL;
    struct ph_context *context;

    if (library)
        *(void **)&create = dlsym(library, "ph_context_create");
    if (!create || create(&(struct ph_context_params){.device = "host",
                                                      .ranks = 2,
                                                      .store_callbacks = &store,
                                                      .settings = settings},
                          &context)) {
        fprintf(stderr, "no context: %s\n", library ? "see above" : dlerror());
        return 1;
    }
    if (dlclose(library))
        return 1;
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    puts("its threads live");
    return 0;
}
