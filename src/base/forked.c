// SPDX-License-Identifier: BSD-3-Clause
#include "base/forked.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The index is the descriptor. The value is the inode of its socket, which no later socket of this
// kernel has; 0: none. The table is one for the process: a fork copies the descriptors of all
// contexts.
static struct {
    pthread_mutex_t lock;
    ino_t *inodes;
    size_t count;
} sockets = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ino_t inode_of(int fd)
{
    struct stat about;

    return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

// The lock is held across the fork, so that nobody changes the table while it is copied.
static void before(void)
{
    pthread_mutex_lock(&sockets.lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&sockets.lock);
}

// The child has only this thread, so it makes nothing but system calls.
static void in_child(void)
{
    for (size_t fd = 0; fd < sockets.count; fd++) {
        if (sockets.inodes[fd] != 0 && inode_of((int)fd) == sockets.inodes[fd])
            close((int)fd);
        sockets.inodes[fd] = 0;
    }
    pthread_mutex_unlock(&sockets.lock);
}

static void watch_forks(void)
{
    pthread_atfork(before, in_parent, in_child);
}

static void make_room(size_t count)
{
    ino_t *grown = realloc(sockets.inodes, count * sizeof(*grown));

    if (!grown)
        return;
    memset(grown + sockets.count, 0, (count - sockets.count) * sizeof(*grown));
    sockets.inodes = grown;
    sockets.count = count;
}

void phi_forked_close(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const size_t at = (size_t)fd;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&sockets.lock);
    if (at >= sockets.count)
        make_room(2 * at + 64);
    if (at < sockets.count)
        sockets.inodes[at] = inode_of(fd);
    pthread_mutex_unlock(&sockets.lock);
}
