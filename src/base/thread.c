// SPDX-License-Identifier: BSD-3-Clause
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
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

// Reads the name of a thread of this process, or of the process itself (""). -ENOENT: it has ended.
// Another -errno: nobody knows its name.
static int read_name(const char *thread, char name[NAME_SIZE])
{
    char path[64];
    FILE *file;
    int rc = 0;

    snprintf(path, sizeof(path), "/proc/self/%s%.20s/comm", *thread ? "task/" : "", thread);
    file = fopen(path, "re");
    if (!file)
        return errno == ESRCH ? -ENOENT : -errno;
    errno = 0;
    if (!fgets(name, NAME_SIZE, file))
        rc = errno && errno != ESRCH ? -errno : -ENOENT;
    fclose(file);
    if (rc == 0)
        name[strcspn(name, "\n")] = 0;
    return rc;
}

// The driver's threads have the names that libcuda gives them: cuda-EvtHandlr, and a number.
static bool is_driver(const char *name)
{
    const char *number = name + strlen("cuda");

    if (strcmp(name, "cuda-EvtHandlr") == 0)
        return true;
    return strncmp(name, "cuda", strlen("cuda")) == 0 && *number &&
           strspn(number, "0123456789") == strlen(number);
}

// A thread has the name of the thread that started it until it gets its own. So a provider's
// threads have a name of ours, and an application's have the program's name, whatever that is.
static bool is_application(const char *name, const char *program)
{
    static const char *const ours[] = {"service", "refresh", "try",    "net", "flush",
                                       "lookup",  "closer",  "queues", "open"};
    const char *prefix = "peerhop-";

    if (strcmp(name, program) == 0)
        return true;
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (strncmp(name, prefix, strlen(prefix)) == 0 &&
            strcmp(name + strlen(prefix), ours[i]) == 0)
            return false;
    }
    return !is_driver(name);
}

bool phi_thread_alone(void)
{
    char program[NAME_SIZE], name[NAME_SIZE];
    const struct dirent *task;
    int count = 0, rc = 0;
    DIR *tasks = read_name("", program) == 0 ? opendir("/proc/self/task") : NULL;

    if (!tasks)
        return false;
    while (count < 2 && (rc == 0 || rc == -ENOENT) && (task = readdir(tasks))) {
        if (task->d_name[0] == '.')
            continue;
        rc = read_name(task->d_name, name);
        count += rc == 0 && is_application(name, program);
    }
    closedir(tasks);
    return count < 2 && (rc == 0 || rc == -ENOENT);
}
