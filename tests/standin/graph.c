// SPDX-License-Identifier: BSD-3-Clause
// Graphs, their launches, and the user objects that live as long as any of them.
#include "standin.h"

#include <stdlib.h>

static void object_release(CUuserObject object, unsigned count)
{
    object->refs -= count;
    if (object->refs)
        return;
    si_callback(object->destroy, object->data, NULL);
    free(object);
}

void si_body_drop(struct si_body *body)
{
    if (--body->refs)
        return;
    for (int i = 0; i < body->count; i++) {
        si_op_clear(&body->nodes[i].op);
        si_set_clear(&body->nodes[i].after);
    }
    for (int i = 0; i < body->object_count; i++)
        object_release(body->objects[i].object, body->objects[i].count);
    free(body->nodes);
    free(body->objects);
    free(body);
}

SI_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = graph ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (graph->capture)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    si_body_drop(graph->body);
    free(graph);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                               unsigned long long flags)
{
    if (!out || !graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (graph->capture)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    result = si_unsafe();
    if (result)
        return si_end(result);
    struct CUgraphExec_st *exec = calloc(1, sizeof(*exec));
    if (!exec)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    exec->body = graph->body;
    exec->body->refs++;
    *out = exec;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = exec ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    result = si_unsafe();
    if (result)
        return si_end(result);
    si_body_drop(exec->body);
    if (exec->last)
        si_marker_drop(exec->last);
    free(exec);
    return si_end(CUDA_SUCCESS);
}

static struct si_run *run_new(struct CUgraphExec_st *exec)
{
    struct si_body *body = exec->body;
    struct si_run *run = calloc(1, sizeof(*run) + (size_t)body->count * sizeof(run->nodes[0]));
    if (!run)
        return NULL;
    run->marker = si_marker_new();
    if (!run->marker) {
        free(run);
        return NULL;
    }
    run->body = body;
    body->refs++;
    run->left = body->count;
    run->before = exec->last ? si_marker_hold(exec->last) : NULL;
    for (int i = 0; i < body->count; i++) {
        run->nodes[i].op = body->nodes[i].op;
        if (run->nodes[i].op.blob)
            run->nodes[i].op.blob->refs++;
    }
    return run;
}

void si_run_free(struct si_run *run)
{
    for (int i = 0; i < run->body->count; i++)
        si_op_clear(&run->nodes[i].op);
    if (run->before)
        si_marker_drop(run->before);
    si_marker_drop(run->marker);
    si_body_drop(run->body);
    free(run);
}

static bool ready(const struct si_run *run, int node)
{
    const struct si_set *after = &run->body->nodes[node].after;
    for (int i = 0; i < after->count; i++) {
        if (!run->nodes[after->items[i]].done)
            return false;
    }
    return true;
}

// Every node whose predecessors are done moves on, so that branches run side by side.
enum si_progress si_run_step(struct si_run *run, struct CUstream_st *stream)
{
    bool moved = false;
    if (run->before && !run->before->done)
        return SI_WAITING;
    for (int i = 0; i < run->body->count; i++)
        if (!run->nodes[i].done && ready(run, i))
            si_check_begin(&run->nodes[i].op, stream);
    for (int i = 0; i < run->body->count; i++) {
        if (run->nodes[i].done || !ready(run, i))
            continue;
        si_check_begin(&run->nodes[i].op, stream);
        enum si_progress progress = si_op_step(&run->nodes[i].op, stream);
        if (progress == SI_DONE)
            si_check_end(&run->nodes[i].op, stream);
        run->nodes[i].waiting = progress == SI_WAITING;
        run->nodes[i].done = progress == SI_DONE;
        run->left -= progress == SI_DONE;
        moved |= progress != SI_WAITING;
    }
    if (!run->left) {
        si_marker_finish(run->marker);
        return SI_DONE;
    }
    return moved ? SI_MOVED : SI_WAITING;
}

static bool copy_follows(const struct si_run *run, int node)
{
    for (int i = node + 1; i < run->body->count; i++) {
        const struct si_op *op = &run->nodes[i].op;
        const struct si_set *after = &run->body->nodes[i].after;
        for (int j = 0; j < after->count; j++) {
            if (after->items[j] == node && op->kind == SI_OP_COPY && op->u.copy.peer)
                return true;
        }
    }
    return false;
}

unsigned si_run_waits(const struct si_run *run, bool *copy_behind)
{
    unsigned waits = 0;
    for (int i = 0; i < run->body->count; i++) {
        enum si_op_kind kind = run->nodes[i].op.kind;
        if (run->nodes[i].done || !run->nodes[i].waiting)
            continue;
        waits += kind == SI_OP_MEMOPS;
        if ((kind == SI_OP_MEMOPS || kind == SI_OP_KERNEL) && copy_follows(run, i))
            *copy_behind = true;
    }
    return waits;
}

static CUresult launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
    struct si_op *op = si_op_new(SI_OP_GRAPH);
    struct si_run *run = op ? run_new(exec) : NULL;
    if (!run) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->u.run = run;
    struct si_marker *marker = si_marker_hold(run->marker);
    CUresult result = si_enqueue(stream, op);
    if (result) {
        si_marker_drop(marker);
        return result;
    }
    if (exec->last)
        si_marker_drop(exec->last);
    exec->last = marker;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = exec ? si_begin_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    si_gate(stream->context);
    return si_end(launch(exec, stream));
}

SI_EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy,
                                      unsigned int refs, unsigned int flags)
{
    if (!out || !destroy || !refs || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct CUuserObject_st *object = malloc(sizeof(*object));
    if (!object)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    *object = (struct CUuserObject_st){.refs = refs, .data = data, .destroy = destroy};
    *out = object;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CUresult result = object && count ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (count > object->refs)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    object_release(object, count);
    return si_end(CUDA_SUCCESS);
}

static CUresult retain(struct si_body *body, CUuserObject object, unsigned count)
{
    void *objects =
        realloc(body->objects, (size_t)(body->object_count + 1) * sizeof(*body->objects));
    if (!objects)
        return CUDA_ERROR_OUT_OF_MEMORY;
    body->objects = objects;
    body->objects[body->object_count].object = object;
    body->objects[body->object_count++].count = count;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                           unsigned int flags)
{
    if (!graph || !object || !count || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (flags & CU_GRAPH_USER_OBJECT_MOVE && count > object->refs)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    result = retain(graph->body, object, count);
    if (!result && !(flags & CU_GRAPH_USER_OBJECT_MOVE))
        object->refs += count;
    return si_end(result);
}
