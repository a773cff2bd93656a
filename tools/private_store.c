// SPDX-License-Identifier: BSD-3-Clause
#include "private_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REMOVE_TRIES = 100 }; // of 10 ms: those who still write are just being ended

// What the keeper ends by. SIGTERM may come from elsewhere while ranks use the store: to all
// processes of a control group, or of a user.
#define END SIGRTMIN

static int refuse(char *error, size_t size, int code, const char *what)
{
    snprintf(error, size, "cannot make a private store: %s: %s", what, strerror(-code));
    return code;
}

// open_folder opens what was just made. Whoever owns what it is in can put something else there, so
// files are removed by the descriptor, and not by the path.
static int open_folder(struct private_store *store)
{
    struct stat st;
    int rc;

    store->directory = open(store->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (store->directory < 0)
        return -errno;
    rc = fstat(store->directory, &st) == 0 ? 0 : -errno;
    if (rc == 0 && (st.st_uid != geteuid() || st.st_mode & (S_IRWXG | S_IRWXO)))
        rc = -EACCES;
    if (rc < 0)
        close(store->directory);
    return rc;
}

static int make_folder_in(struct private_store *store, const char *base)
{
    int length, rc;

    // The folder becomes part of a URI, which says an absolute path and nothing else.
    if (!base || *base != '/' || strpbrk(base, "?%#"))
        return -EINVAL;
    length = snprintf(store->folder, sizeof(store->folder), "%s/peerhop-XXXXXX", base);
    if (length >= (int)sizeof(store->folder))
        return -ENAMETOOLONG;
    if (!mkdtemp(store->folder))
        return -errno;
    rc = open_folder(store);
    if (rc < 0)
        rmdir(store->folder);
    return rc;
}

// make_folder takes the user's word first, and prefers memory to a disk. XDG_RUNTIME_DIR is removed
// where the user's last session ends, ranks or not.
static int make_folder(struct private_store *store)
{
    const char *const bases[] = {getenv("TMPDIR"), "/dev/shm", "/tmp"};
    int rc = -EINVAL;

    for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]) && rc < 0; i++)
        rc = make_folder_in(store, bases[i]);
    return rc;
}

static void remove_files(int directory)
{
    // Of its own: a copy would share the place in the list.
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        unlinkat(directory, entry->d_name, 0); // fails for "." and "..", as it should
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

static void remove_folder(const struct private_store *store)
{
    for (int tries = 0; tries < REMOVE_TRIES; tries++) {
        remove_files(store->directory);
        if (rmdir(store->folder) == 0 || errno != ENOTEMPTY)
            return;
        usleep(10000);
    }
}

// keep is the child, a process that has nothing to do but to clean up: its owner may be killed. It
// never returns.
static void keep(const struct private_store *store, pid_t parent)
{
    int null = open("/dev/null", O_RDWR), number;
    sigset_t all, end;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(END, SIG_DFL); // what is ignored cannot be waited for
    prctl(PR_SET_NAME, "peerhop-store");
    setpgid(0, 0); // a Ctrl-C at the terminal is for the ranks
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd); // who reads the owner's output waits for its end
    sigemptyset(&end);
    sigaddset(&end, END);
    if (child_bind(parent, END))
        sigwait(&end, &number);
    remove_folder(store);
    _exit(0);
}

int private_store_start(struct private_store *store, char *error, size_t error_size)
{
    const pid_t self = getpid();
    int rc;

    *store = (struct private_store){0};
    rc = make_folder(store);
    if (rc < 0) {
        rc = refuse(error, error_size, rc, store->folder);
        store->folder[0] = 0;
        return rc;
    }
    snprintf(store->uri, sizeof(store->uri), "file:%s", store->folder);
    rc = child_fork(&store->keeper);
    if (rc == 0)
        keep(store, self);
    if (rc > 0)
        return 0;
    rc = refuse(error, error_size, rc, "fork");
    private_store_stop(store);
    return rc;
}

void private_store_stop(struct private_store *store)
{
    int status;

    // Where a policy denies the signal, the keeper gets it at our end.
    if (child_signal(&store->keeper, END) == 0) {
        child_signal(&store->keeper, SIGCONT); // who is stopped sees it then
        child_wait(&store->keeper, &status);
    }
    if (store->folder[0]) {
        remove_folder(store); // where the keeper was killed
        close(store->directory);
    }
    *store = (struct private_store){0};
}
