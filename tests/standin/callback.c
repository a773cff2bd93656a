// SPDX-License-Identifier: BSD-3-Clause
// The thread that runs host functions of streams and destructors of user objects, one after the
// other.
#include "standin.h"

#include <signal.h>
#include <stdlib.h>

struct callback {
    struct callback *next;
    CUhostFn call;
    void *data;
    struct si_marker *finished;
};

static struct {
    struct callback *head, **tail;
    pthread_cond_t work;
    bool runs;
} queue = {.tail = &queue.head, .work = PTHREAD_COND_INITIALIZER};

static void *run(void *unused)
{
    (void)unused;
    si_thread()->callback = true;
    pthread_mutex_lock(&si.lock);
    for (;;) {
        struct callback *callback = queue.head;
        if (!callback) {
            pthread_cond_wait(&queue.work, &si.lock);
            continue;
        }
        queue.head = callback->next;
        if (!queue.head)
            queue.tail = &queue.head;
        pthread_mutex_unlock(&si.lock);
        callback->call(callback->data);
        pthread_mutex_lock(&si.lock);
        if (callback->finished) {
            si_marker_finish(callback->finished);
            si_marker_drop(callback->finished);
        }
        free(callback);
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, run, NULL))
        abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    queue.runs = true;
}

void si_callback(CUhostFn call, void *data, struct si_marker *finished)
{
    struct callback *callback = malloc(sizeof(*callback));
    if (!callback)
        abort();
    *callback = (struct callback){.call = call, .data = data, .finished = finished};
    *queue.tail = callback;
    queue.tail = &callback->next;
    if (!queue.runs)
        start();
    pthread_cond_signal(&queue.work);
}
