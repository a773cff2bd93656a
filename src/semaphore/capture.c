// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/capture.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

struct phi_capture {
    struct phi_captures *owner;
    struct phi_capture *next;
    uint64_t id; // of the capture sequence: never used again in the process
    struct phi_uses **uses;
    size_t uses_count, uses_capacity;
    struct phi_branch *branches;
    size_t branch_count, branch_capacity;
};

void phi_captures_init(struct phi_captures *captures, struct phi_report *report,
                       const struct phi_driver *driver)
{
    *captures = (struct phi_captures){.report = report, .driver = driver};
    pthread_mutex_init(&captures->lock, NULL);
}

void phi_captures_fini(struct phi_captures *captures)
{
    pthread_mutex_destroy(&captures->lock);
}

static void unpin(struct phi_capture *capture, size_t down_to)
{
    while (capture->uses_count > down_to)
        atomic_fetch_sub_explicit(&capture->uses[--capture->uses_count]->pins, 1,
                                  memory_order_seq_cst);
}

// Locked.
static void give_back_sync(struct phi_captures *captures, const struct phi_branch *branch)
{
    if (branch->sync != 0)
        captures->sync[(branch->sync - 1) / 64] &= ~((uint64_t)1 << (branch->sync - 1) % 64);
}

// forget runs on a thread of the driver's when the graph and its executables are gone and their
// last launch has ended. It may make no driver call.
static void CUDA_CB forget(void *opaque)
{
    struct phi_capture *capture = opaque;
    struct phi_captures *captures = capture->owner;
    pthread_mutex_lock(&captures->lock);
    struct phi_capture **at = &captures->list;
    while (*at != NULL && *at != capture)
        at = &(*at)->next;
    if (*at == capture)
        *at = capture->next;
    for (size_t i = 0; i < capture->branch_count; i++)
        give_back_sync(captures, &capture->branches[i]);
    pthread_mutex_unlock(&captures->lock);
    unpin(capture, 0);
    free(capture->uses);
    free(capture->branches);
    free(capture);
    // Pairs with the acquire load of whoever closes the executor: nothing of it is touched after
    // this.
    atomic_fetch_sub_explicit(&captures->live, 1, memory_order_release);
}

static struct phi_capture *find(struct phi_captures *captures, uint64_t id)
{
    struct phi_capture *capture = captures->list;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

// adopt makes a capture that the graph owns. Without the lock: the driver may run forget()
// meanwhile.
static int adopt(struct phi_captures *captures, CUgraph graph, uint64_t id,
                 struct phi_capture **out)
{
    const struct phi_driver *driver = captures->driver;
    CUuserObject object;
    struct phi_capture *capture = calloc(1, sizeof *capture);
    if (capture == NULL)
        return phi_fail(captures->report, -ENOMEM, "capturing into a graph: out of memory");
    capture->owner = captures;
    capture->id = id;
    CUresult result =
        driver->cuUserObjectCreate(&object, capture, forget, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) {
        free(capture);
        return phi_cuda_result(captures->report, driver, result, "capturing into a graph");
    }
    atomic_fetch_add_explicit(&captures->live, 1, memory_order_relaxed);
    result = driver->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        driver->cuUserObjectRelease(object, 1); // calls forget()
        return phi_cuda_result(captures->report, driver, result, "capturing into a graph");
    }
    pthread_mutex_lock(&captures->lock);
    capture->next = captures->list;
    captures->list = capture;
    pthread_mutex_unlock(&captures->lock);
    *out = capture;
    return 0;
}

static bool has(const struct phi_capture *capture, const struct phi_uses *uses)
{
    for (size_t i = 0; i < capture->uses_count; i++)
        if (capture->uses[i] == uses)
            return true;
    return false;
}

uint64_t phi_captures_holder(struct phi_captures *captures, const struct phi_uses *uses)
{
    uint64_t id = 0;
    pthread_mutex_lock(&captures->lock);
    for (const struct phi_capture *c = captures->list; c != NULL && id == 0; c = c->next)
        id = has(c, uses) ? c->id : 0;
    pthread_mutex_unlock(&captures->lock);
    return id;
}

static int pin(struct phi_capture *capture, struct phi_uses *uses)
{
    if (uses == NULL || has(capture, uses))
        return 0;
    struct phi_uses **array = phi_array_grow(capture->uses, capture->uses_count,
                                             &capture->uses_capacity, sizeof(struct phi_uses *));
    if (array == NULL)
        return -ENOMEM;
    capture->uses = array;
    // Against the revoker's store of `revoked` and load of `pins`: one sees the other.
    atomic_fetch_add_explicit(&uses->pins, 1, memory_order_seq_cst);
    capture->uses[capture->uses_count++] = uses;
    return 0;
}

static int pin_all(struct phi_captures *captures, struct phi_capture *capture,
                   const struct phi_work *work, size_t n)
{
    const size_t before = capture->uses_count;
    int rc = 0;
    pthread_mutex_lock(&captures->lock);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = pin(capture, work[i].uses);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (work[i].uses != NULL &&
            atomic_load_explicit(&work[i].uses->revoked, memory_order_seq_cst) != 0)
            rc = PH_EBROKEN;
    if (rc)
        unpin(capture, before);
    // While the pin is there: who finds none finds this.
    for (size_t i = 0; i < n && rc == 0; i++)
        if (work[i].uses != NULL && phi_step_hops(work[i].kind))
            atomic_store(&work[i].uses->captured, 1);
    pthread_mutex_unlock(&captures->lock);
    return rc ? phi_fail(captures->report, rc, "capturing into a graph: %s", ph_strerror(rc)) : 0;
}

int phi_capture_begin(struct phi_captures *captures, CUstream stream, const struct phi_work *work,
                      size_t n, struct phi_capture **out)
{
    const struct phi_driver *driver = captures->driver;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    if (driver->cuStreamGetCaptureInfo_v2 == NULL)
        return phi_fail(captures->report, -ENOTSUP, "the driver does not tell a stream's graph");
    CUresult result = driver->cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, NULL, NULL);
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(captures->report, driver, result, "capturing into a graph");

    pthread_mutex_lock(&captures->lock);
    struct phi_capture *capture = find(captures, id);
    pthread_mutex_unlock(&captures->lock);
    // Two threads that record into one graph may both come here: then it has two captures, which is
    // harmless.
    int rc = capture ? 0 : adopt(captures, graph, id, &capture);
    if (rc)
        return rc;
    assert(capture != NULL);
    rc = pin_all(captures, capture, work, n);
    if (rc == 0)
        *out = capture;
    return rc;
}

static struct phi_branch *find_branch(struct phi_capture *capture, uint64_t key)
{
    for (size_t i = 0; i < capture->branch_count; i++)
        if (capture->branches[i].key == key)
            return &capture->branches[i];
    return NULL;
}

struct phi_branch phi_capture_branch(struct phi_captures *captures, struct phi_capture *capture,
                                     uint64_t key)
{
    struct phi_branch branch = {.key = key};
    pthread_mutex_lock(&captures->lock);
    const struct phi_branch *found = find_branch(capture, key);
    if (found != NULL)
        branch = *found;
    pthread_mutex_unlock(&captures->lock);
    return branch;
}

static struct phi_branch *add_branch(struct phi_capture *capture, uint64_t key)
{
    struct phi_branch *array = phi_array_grow(capture->branches, capture->branch_count,
                                              &capture->branch_capacity, sizeof *array);
    if (array == NULL)
        return NULL;
    capture->branches = array;
    array[capture->branch_count] = (struct phi_branch){.key = key};
    return &array[capture->branch_count++];
}

int phi_capture_sync(struct phi_captures *captures, struct phi_capture *capture,
                     struct phi_branch *branch)
{
    if (branch->sync != 0)
        return 0;
    pthread_mutex_lock(&captures->lock);
    // A graph gives back at its end the syncs that its branches have. So the branch comes first.
    struct phi_branch *found = find_branch(capture, branch->key);
    if (found == NULL)
        found = add_branch(capture, branch->key);
    for (uint32_t i = 0; found != NULL && i < PHI_GRAPH_SYNCS && branch->sync == 0; i++) {
        if (captures->sync[i / 64] >> i % 64 & 1)
            continue;
        captures->sync[i / 64] |= (uint64_t)1 << i % 64;
        branch->sync = found->sync = i + 1;
    }
    pthread_mutex_unlock(&captures->lock);
    if (found == NULL)
        return -ENOMEM;
    return branch->sync ? 0 : -EAGAIN;
}

int phi_capture_update(struct phi_captures *captures, struct phi_capture *capture,
                       const struct phi_branch *branch)
{
    pthread_mutex_lock(&captures->lock);
    struct phi_branch *found = find_branch(capture, branch->key);
    if (found == NULL)
        found = add_branch(capture, branch->key);
    if (found != NULL)
        *found = *branch;
    pthread_mutex_unlock(&captures->lock);
    return found ? 0 : -ENOMEM;
}
