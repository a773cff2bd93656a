// SPDX-License-Identifier: BSD-3-Clause
#include "output.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

enum { OUTPUT_SIZE = 1 << 18 };

struct output {
    int fd, wake;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    size_t head, count; // of the bytes to write
    bool closed;        // nobody reads any more, or it cannot be written
    int error;          // why not
    char bytes[OUTPUT_SIZE];
};

static void ring(const struct output *output)
{
    const uint64_t one = 1;
    ssize_t ignored = write(output->wake, &one, sizeof(one));

    (void)ignored;
}

// Without the lock. Returns what was written; -1: nobody reads, or what errno says.
static ssize_t write_some(const struct output *output, const char *bytes, size_t size)
{
    for (;;) {
        ssize_t n = write(output->fd, bytes, size);

        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            return n;
        if (errno == EAGAIN) // who shares it has made it non-blocking
            poll(&(struct pollfd){.fd = output->fd, .events = POLLOUT}, 1, -1);
    }
}

// Runs until the process ends.
static void *write_all(void *opaque)
{
    struct output *output = opaque;

    pthread_mutex_lock(&output->lock);
    for (;;) {
        size_t size = OUTPUT_SIZE - output->head;
        ssize_t n;
        int error;

        while (output->count == 0)
            pthread_cond_wait(&output->filled, &output->lock);
        if (size > output->count)
            size = output->count;
        pthread_mutex_unlock(&output->lock);
        n = write_some(output, output->bytes + output->head, size);
        error = n < 0 && errno != EPIPE ? -errno : 0;
        pthread_mutex_lock(&output->lock);
        if (n < 0) {
            output->closed = true;
            output->error = error;
            output->count = 0;
        } else {
            output->head = (output->head + (size_t)n) % OUTPUT_SIZE;
            output->count -= (size_t)n;
        }
        ring(output);
    }
    return NULL;
}

int output_open(int fd, int wake, struct output **out)
{
    struct output *output = calloc(1, sizeof(*output));
    pthread_t thread;
    int rc;

    if (!output)
        return -ENOMEM;
    output->fd = fd;
    output->wake = wake;
    pthread_mutex_init(&output->lock, NULL);
    pthread_cond_init(&output->filled, NULL);
    rc = phi_thread_start(&thread, "peerhop-output", write_all, output);
    if (rc < 0) {
        free(output);
        return rc;
    }
    pthread_detach(thread); // it may wait for ever, and ends with the process
    *out = output;
    return 0;
}

static bool fits(const struct output *output, size_t size, size_t reserve)
{
    return output->closed || output->count + size + reserve <= OUTPUT_SIZE;
}

bool output_fits(struct output *output, size_t size, size_t reserve)
{
    bool room;

    pthread_mutex_lock(&output->lock);
    room = fits(output, size, reserve);
    pthread_mutex_unlock(&output->lock);
    return room;
}

bool output_put(struct output *output, const void *bytes, size_t size, size_t reserve)
{
    size_t at, first;
    bool room;

    pthread_mutex_lock(&output->lock);
    room = fits(output, size, reserve);
    if (room && !output->closed) {
        at = (output->head + output->count) % OUTPUT_SIZE;
        first = size < OUTPUT_SIZE - at ? size : OUTPUT_SIZE - at;
        memcpy(output->bytes + at, bytes, first);
        memcpy(output->bytes, (const char *)bytes + first, size - first);
        output->count += size;
        pthread_cond_signal(&output->filled);
    }
    pthread_mutex_unlock(&output->lock);
    return room;
}

bool output_done(struct output *output)
{
    bool done;

    pthread_mutex_lock(&output->lock);
    done = output->count == 0;
    pthread_mutex_unlock(&output->lock);
    return done;
}

int output_error(struct output *output)
{
    int error;

    pthread_mutex_lock(&output->lock);
    error = output->error;
    pthread_mutex_unlock(&output->lock);
    return error;
}
