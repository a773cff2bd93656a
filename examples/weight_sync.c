/* SPDX-License-Identifier: BSD-3-Clause */
/* Weights from a trainer to workers: rank 0 trains, all other ranks serve with its weights.

       cc weight_sync.c $(pkg-config --cflags --libs peerhop) -o weight_sync
       peerhop-run -n 4 ./weight_sync

   A model is many tensors of one allocation: a worker maps the trainer's allocation once, however
   many they are. An update is one group. Half-way the workers move their weights elsewhere, and
   give the old memory back before they use it for something else. */
#include "example.h"

enum { TENSORS = 24, VERSIONS = 6 };

struct model {
    char *memory;
    size_t offset[TENSORS + 1]; /* of tensor i, and where it ends */
};

static void *stream;

/* Tensors of unlike sizes, each at a multiple of 256 bytes. */
static struct model model_new(void)
{
    struct model model = {0};

    for (int i = 0; i < TENSORS; i++)
        model.offset[i + 1] = model.offset[i] + (size_t)(1 + i * 37 % 100) * 1024;
    model.memory = memory_new(model.offset[TENSORS]);
    return model;
}

static size_t tensor_size(const struct model *model, size_t i)
{
    return model->offset[i + 1] - model->offset[i];
}

/* One channel for each tensor: both ranks name it by the tensor's number. Where both come back to
   memory that they know, this costs a message, and yields the channels that there are. */
static void meet(const struct model *model, int peer, enum ph_role role,
                 struct ph_channel **channels)
{
    struct ph_operation ops[TENSORS];

    for (size_t i = 0; i < TENSORS; i++)
        ops[i] = (struct ph_operation){.op_id = i + 1,
                                       .peer = peer,
                                       .role = role,
                                       .buffer = model->memory + model->offset[i],
                                       .size = tensor_size(model, i)};
    check(ph_exchange(context, ops, TENSORS, channels));
}

/* What no rank has a handle on makes way when room is short. */
static void part(struct ph_channel *const *channels)
{
    for (int i = 0; i < TENSORS; i++)
        check(ph_channel_close(channels[i]));
}

/* A worker that receives says by that when its old weights are no longer needed: the trainer's
   copies wait for it, on the stream. */
static void sync_weights(const struct model *model, enum ph_group_kind kind,
                         struct ph_channel *const *channels, size_t workers)
{
    const size_t n = workers * TENSORS;
    struct ph_group_op *ops = allocate(n, sizeof *ops);

    for (size_t i = 0; i < n; i++)
        ops[i] = (struct ph_group_op){
            .kind = kind, .channel = channels[i], .size = tensor_size(model, i % TENSORS)};
    check(ph_group(ops, n, stream));
    stream_wait(stream);
    for (size_t i = 0; i < n; i++)
        check(ph_channel_status(channels[i])); /* a stream is done also where a peer has died */
    free(ops);
}

static char weight(int version, size_t i)
{
    return (char)((size_t)version * 41 + i % 251);
}

/* Stands for what a step of training, or another use of the memory, writes. */
static void write_weights(const struct model *model, int version)
{
    const size_t size = model->offset[TENSORS];
    char *weights = allocate(size, 1);

    for (size_t i = 0; i < size; i++)
        weights[i] = weight(version, i);
    copy(model->memory, weights, size, stream);
    free(weights);
}

static void serve(const struct model *model, int version)
{
    const size_t size = model->offset[TENSORS];
    char *weights = allocate(size, 1);

    copy(weights, model->memory, size, stream);
    for (size_t i = 0; i < size; i++)
        expect(weights[i] == weight(version, i), "weight");
    free(weights);
}

static void train(size_t workers)
{
    const struct model model = model_new();
    struct ph_channel **channels = allocate(workers * TENSORS, sizeof(struct ph_channel *));

    for (int version = 0; version < VERSIONS; version++) {
        write_weights(&model, version);
        for (size_t i = 0; version == VERSIONS / 2 && i < workers; i++)
            part(channels + i * TENSORS); /* the workers move */
        for (size_t i = 0; version % (VERSIONS / 2) == 0 && i < workers; i++)
            meet(&model, (int)i + 1, PH_ROLE_SENDER, channels + i * TENSORS);
        sync_weights(&model, PH_GROUP_SEND, channels, workers);
    }
    printf("%d versions of %d tensors went to %zu workers, on %s\n", VERSIONS, TENSORS, workers,
           ph_context_device(context));
    free(channels);
}

/* Ends the channels on the memory, at both ranks. When it is drained no peer touches it. */
static void give_back(const struct model *model, struct ph_channel *const *channels)
{
    const size_t size = model->offset[TENSORS];

    check(ph_release_start(context, model->memory, size));
    check(ph_release_wait(context, model->memory, size, PH_RELEASE_DRAINED, 0));
    part(channels);
    write_weights(model, VERSIONS); /* the memory is this rank's alone again */
}

static void work(void)
{
    struct ph_channel *channels[TENSORS];
    struct model model = model_new();

    meet(&model, 0, PH_ROLE_RECEIVER, channels);
    for (int version = 0; version < VERSIONS; version++) {
        if (version == VERSIONS / 2) {
            give_back(&model, channels);
            model = model_new();
            meet(&model, 0, PH_ROLE_RECEIVER, channels);
        }
        sync_weights(&model, PH_GROUP_RECV, channels, 1);
        serve(&model, version);
    }
}

int main(void)
{
    begin(2);
    stream = stream_new();
    if (ph_context_rank(context) == 0)
        train((size_t)ph_context_ranks(context) - 1);
    else
        work();
    end();
    return 0;
}
