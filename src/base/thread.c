// SPDX-License-Identifier: BSD-3-Clause
#include "base/thread.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

int phi_thread_start(pthread_t *thread, const char *name, void *(*main)(void *), void *opaque)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(thread, NULL, main, opaque);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*thread, name);
    return rc;
}

enum { NAME_SIZE = 32 };

// The name of a thread of this process, or of the process itself (""); false where it has ended.
static bool read_name(const char *thread, char name[NAME_SIZE])
{
    char path[64];
    FILE *file;
    bool read;

    snprintf(path, sizeof(path), "/proc/self/%s%.20s/comm", *thread ? "task/" : "", thread);
    file = fopen(path, "re");
    if (!file)
        return false;
    read = fgets(name, NAME_SIZE, file) != NULL;
    fclose(file);
    return read;
}

// A thread has the name of the one that started it until it gets its own: so what a provider starts
// has one of ours, and what an application starts has the program's, whatever that is.
static bool is_application(const char *name, const char *program)
{
    static const char *const others[] = {"peerhop-", "cuda-", "cuda0"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return strcmp(name, program) == 0;
    }
    return true;
}

bool phi_thread_alone(void)
{
    char program[NAME_SIZE], name[NAME_SIZE];
    const struct dirent *task;
    int count = 0;
    DIR *tasks = read_name("", program) ? opendir("/proc/self/task") : NULL;

    if (!tasks)
        return false;
    while (count < 2 && (task = readdir(tasks)))
        count += task->d_name[0] != '.' && read_name(task->d_name, name) &&
                 is_application(name, program);
    closedir(tasks);
    return count < 2;
}
