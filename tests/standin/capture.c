// SPDX-License-Identifier: BSD-3-Clause
// Stream capture: what a capturing stream is given becomes nodes of a graph; events carry it to
// other streams.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

bool si_set_add(struct si_set *set, int item)
{
    for (int i = 0; i < set->count; i++) {
        if (set->items[i] == item)
            return true;
    }
    int *items = realloc(set->items, (size_t)(set->count + 1) * sizeof(*items));
    if (!items)
        return false;
    set->items = items;
    set->items[set->count++] = item;
    return true;
}

bool si_set_copy(struct si_set *to, const struct si_set *from)
{
    for (int i = 0; i < from->count; i++) {
        if (!si_set_add(to, from->items[i])) {
            si_set_clear(to);
            return false;
        }
    }
    return true;
}

void si_set_clear(struct si_set *set)
{
    free(set->items);
    *set = (struct si_set){0};
}

struct si_capture *si_capture_find(uint64_t id)
{
    struct si_capture *capture = si.captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

void si_capture_invalidate(struct si_capture *capture)
{
    capture->invalid = true;
}

bool si_capture_legacy_conflict(const struct CUstream_st *stream)
{
    for (const struct CUstream_st *s = stream->legacy ? stream->context->streams : NULL; s;
         s = s->next) {
        if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
            return true;
    }
    return false;
}

void si_capture_legacy_break(const struct CUstream_st *legacy)
{
    for (const struct CUstream_st *s = legacy->context->streams; s; s = s->next) {
        if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
            si_capture_invalidate(s->capture);
    }
}

static bool node_add(struct si_body *body, const struct si_op *op, const struct si_set *after)
{
    struct si_node *nodes = realloc(body->nodes, (size_t)(body->count + 1) * sizeof(*nodes));
    if (!nodes)
        return false;
    body->nodes = nodes;
    struct si_node *node = &nodes[body->count];
    *node = (struct si_node){.op = *op};
    if (!si_set_copy(&node->after, after))
        return false;
    body->count++;
    return true;
}

static CUresult unsupported(struct si_capture *capture)
{
    si_capture_invalidate(capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult si_capture_add(struct CUstream_st *stream, struct si_op *op)
{
    struct si_capture *capture = stream->capture;
    CUresult result = CUDA_SUCCESS;
    if (capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (op->kind == SI_OP_GRAPH || op->kind == SI_OP_FREE)
        result = unsupported(capture); // child graphs and memory nodes
    else if (!node_add(capture->graph->body, op, &stream->last))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result) {
        si_op_free(op);
        return result;
    }
    free(op); // the node has taken over what it held
    si_set_clear(&stream->last);
    si_set_add(&stream->last, capture->graph->body->count - 1);
    return CUDA_SUCCESS;
}

CUresult si_capture_join(struct CUstream_st *stream, struct CUevent_st *event)
{
    struct si_capture *capture = si_capture_find(event->capture_id);
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture && stream->capture != capture)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    for (int i = 0; i < event->nodes.count; i++) {
        if (!si_set_add(&stream->last, event->nodes.items[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->capture = capture;
    return CUDA_SUCCESS;
}

static struct CUgraph_st *graph_new(struct si_capture *capture)
{
    struct CUgraph_st *graph = calloc(1, sizeof(*graph));
    struct si_body *body = calloc(1, sizeof(*body));
    if (!graph || !body) {
        free(graph);
        free(body);
        return NULL;
    }
    body->refs = 1;
    graph->body = body;
    graph->capture = capture;
    return graph;
}

static CUresult begin(struct CUstream_st *stream, CUstreamCaptureMode mode)
{
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct si_capture *capture = calloc(1, sizeof(*capture));
    struct CUgraph_st *graph = capture ? graph_new(capture) : NULL;
    if (!graph) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct si_capture){.id = ++si.next_id,
                                   .mode = mode,
                                   .thread = si_thread(),
                                   .origin = stream,
                                   .graph = graph,
                                   .next = si.captures};
    si.captures = capture;
    stream->capture = capture;
    si_set_clear(&stream->last);
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    struct CUstream_st *stream;
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_stream(handle, &stream);
    return result ? result : si_end(begin(stream, mode));
}

static bool contains(const struct si_set *set, int item)
{
    for (int i = 0; i < set->count; i++) {
        if (set->items[i] == item)
            return true;
    }
    return false;
}

// Every branch must have come back to the stream where the capture began.
static bool joined(const struct si_body *body, const struct si_set *last)
{
    for (int i = 0; i < body->count; i++) {
        bool followed = contains(last, i);
        for (int j = i + 1; j < body->count && !followed; j++)
            followed = contains(&body->nodes[j].after, i);
        if (!followed)
            return false;
    }
    return true;
}

static void detach(struct si_capture *capture)
{
    for (int i = 0; i < si.device_count; i++) {
        for (struct CUstream_st *s = si.devices[i].context.streams; s; s = s->next) {
            if (s->capture != capture)
                continue;
            s->capture = NULL;
            si_set_clear(&s->last);
        }
    }
    struct si_capture **c = &si.captures;
    while (*c != capture)
        c = &(*c)->next;
    *c = capture->next;
    capture->graph->capture = NULL;
    free(capture);
}

void si_capture_abandon(struct CUstream_st *stream)
{
    struct si_capture *capture = stream->capture;
    if (capture->origin != stream) {
        capture->invalid = true;
        stream->capture = NULL;
        return;
    }
    struct CUgraph_st *graph = capture->graph;
    detach(capture);
    si_body_drop(graph->body);
    free(graph);
}

static CUresult end(struct CUstream_st *stream, CUgraph *out)
{
    struct si_capture *capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    CUresult result = CUDA_SUCCESS;
    struct CUgraph_st *graph = capture->graph;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != si_thread())
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; // and yet it is over
    else if (capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(graph->body, &stream->last))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    detach(capture);
    if (result) {
        si_body_drop(graph->body);
        free(graph);
        graph = NULL;
    }
    *out = graph;
    return result;
}

SI_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct CUstream_st *stream;
    CUresult result = graph ? si_begin_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : si_end(end(stream, graph));
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult find_to_ask(CUstream handle, struct CUstream_st **stream)
{
    CUresult result = si_begin_stream(handle, stream);
    if (result)
        return result;
    return si_capture_legacy_conflict(*stream) ? si_end(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
                                               : CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    struct CUstream_st *stream;
    CUresult result = status ? find_to_ask(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *status = status_of(stream);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status,
                                             cuuint64_t *id, CUgraph *graph,
                                             const CUgraphNode **dependencies, size_t *count)
{
    struct CUstream_st *stream;
    if (!status || dependencies) // nodes have no handles here
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = find_to_ask(handle, &stream);
    if (result)
        return result;
    *status = status_of(stream);
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id)
            *id = stream->capture->id;
        if (graph)
            *graph = stream->capture->graph;
        if (count)
            *count = (size_t)stream->last.count;
    }
    return si_end(CUDA_SUCCESS);
}
