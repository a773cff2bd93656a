// SPDX-License-Identifier: BSD-3-Clause
// Writes the seeds of all targets into a folder: make_seeds FOLDER. They are what the
// library's own encoders make, in the shape that each target reads; run it again where one of those
// changes.
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "cuda/device.h"
#include "exchange/offer.h"
#include "peer/hello_wire.h"
#include "peer/node.h"
#include "pair.h"
#include "semaphore/segment.h"
#include "store/envelope.h"

static const char *folder;

static void save(const char *target, const char *name, struct phi_writer *writer)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", folder, target);
    mkdir(path, 0777);
    snprintf(path, sizeof(path), "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "we");
    HOLD(file && fwrite(writer->bytes, 1, writer->size, file) == writer->size && fclose(file) == 0);
    phi_writer_fini(writer);
}

static void put_piece(struct phi_writer *writer, const void *bytes, size_t size)
{
    phi_put_u16(writer, (uint16_t)size);
    phi_put_bytes(writer, bytes, size);
}

// bytes writes single bytes, up to -1.
static void put_each(struct phi_writer *writer, ...)
{
    va_list values;

    va_start(values, writer);
    for (int value = va_arg(values, int); value >= 0; value = va_arg(values, int))
        phi_put_u8(writer, (uint8_t)value);
    va_end(values);
}

// ---- hellos

static void put_hello(struct phi_writer *writer, uint32_t reason)
{
    struct phi_hello_words words = {
        .version = PHI_HELLO_VERSION,
        .reason = reason,
        .nonce = 77,
        .ranks = 2,
        .channels = 16384,
        .wire =
            {.provider = "net", .protocol = 7, .protocol_version = 1, .immediate = 8, .format = 2},
        .rails = 1,
        .address = "an address, and one more of 16",
        .address_size = 32,
    };

    phi_hello_encode(&words, writer);
}

static void put_contact(struct phi_writer *writer, enum phi_node_type type, int rank)
{
    struct phi_node_message message = {.magic = PHI_NODE_MAGIC,
                                       .version = PHI_NODE_VERSION,
                                       .type = (uint16_t)type,
                                       .rank = rank,
                                       .from = THEIR_INCARNATION,
                                       .to = OWN_INCARNATION,
                                       .a = 0x5a5a5a5a5a5a5a5a};
    struct phi_writer hello = {0};

    put_hello(&hello, 0);
    memcpy(message.bytes, hello.bytes, hello.size);
    message.bytes_size = (uint32_t)hello.size;
    put_piece(writer, &message, offsetof(struct phi_node_message, bytes) + hello.size);
    phi_writer_fini(&hello);
}

static void hello_seeds(void)
{
    struct phi_writer hello = {0}, seed = {0};

    put_hello(&hello, 0);
    put_each(&seed, 0, 0, -1);
    put_piece(&seed, hello.bytes, hello.size);
    put_each(&seed, 1, -1);
    put_contact(&seed, PHI_NODE_CONNECTED, 1);
    save("hello", "connected", &seed);
    put_each(&seed, 1, 0, -1);
    put_piece(&seed, hello.bytes, hello.size);
    put_each(&seed, 1, -1);
    put_contact(&seed, PHI_NODE_CONNECT, 0);
    put_each(&seed, 1, -1);
    put_contact(&seed, PHI_NODE_CONNECTED, 0);
    save("hello", "connect", &seed);
    phi_writer_fini(&hello);
    put_hello(&hello, 3);
    put_each(&seed, 0, 0, -1);
    put_piece(&seed, hello.bytes, hello.size);
    save("hello", "no-link", &seed);
    phi_writer_fini(&hello);
}

// ---- configuration

static void config_seeds(void)
{
    static const char *const texts[] = {
        "PEERHOP_STORE=redis://user:p%40ssw0rd@host.example:7000/"
        "3\nPEERHOP_RANK=1\nPEERHOP_RANKS=2\n",
        "PEERHOP_STORE=unix://:secret-word@/run/"
        "redis.sock?db=2\nPEERHOP_WAIT=kernel\nPEERHOP_LOG=debug\n",
        "PEERHOP_STORE=file:/dev/shm/a%20b/\n",
        "PEERHOP_STORE=redis://"
        "[::1]:6379\n$PEERHOP_JOB=job\n$PEERHOP_DEADLINE_MS=500\n$PEERHOP_OTHER=1\n",
        "$RANK=1\n$WORLD_SIZE=4\n$LOCAL_RANK=1\n$TORCHELASTIC_RUN_ID=run\n$TORCHELASTIC_RESTART_"
        "COUNT=2\n",
        "$SLURM_PROCID=3\n$SLURM_NTASKS=8\n$SLURM_LOCALID=0\n$SLURM_JOB_ID=17\n$SLURM_STEP_ID=0\n",
        "$PMIX_RANK=0\n$PMI_SIZE=2\n$PMIX_NAMESPACE=space\nPEERHOP_EPOCH=9223372036854775807\n",
        "PEERHOP_STORE=unix://:E=unix:@/=",       // a password that the variable's name has too
        "PEERHOP_STORE=unix://DDDDDD:DDDDDD:@/=", // one that the user and the colon are
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct phi_writer writer = {0};
        char name[16];

        snprintf(name, sizeof(name), "%zu", i);
        phi_put_bytes(&writer, texts[i], strlen(texts[i]));
        save("config", name, &writer);
    }
}

// ---- what travels through the store

static void put_capabilities(struct phi_writer *writer, bool device)
{
    struct phi_capabilities capabilities = {.host = "host",
                                            .socket = "@peerhop-012345670123456789abcdef",
                                            .nonce = 99,
                                            .pid = 77,
                                            .kinds = 2};

    memset(capabilities.node, 1, sizeof(capabilities.node));
    capabilities.device = device;
    if (device) {
        strcpy(capabilities.device_name, "A Device");
        capabilities.others = 2;
        capabilities.other_access[1] = PHI_ACCESS_MAP | PHI_ACCESS_ATOMIC;
    }
    phi_capabilities_encode(&capabilities, writer);
}

static void put_envelope(struct phi_writer *writer, enum phi_envelope_kind kind, uint64_t sequence,
                         const struct phi_writer *payload)
{
    const bool member = kind == PHI_ENVELOPE_MEMBER;
    const struct phi_envelope envelope = {
        .kind = kind,
        .source = 1,
        .destination = member ? PHI_ENVELOPE_ALL : 0,
        .source_incarnation = THEIR_INCARNATION,
        .destination_incarnation = member ? 0 : OWN_INCARNATION,
        .sequence = sequence,
    };
    uint8_t *bytes = phi_envelope_encode(&envelope, payload->bytes, payload->size);

    HOLD(bytes);
    put_piece(writer, bytes, PHI_ENVELOPE_SIZE + payload->size);
    free(bytes);
}

static void put_offer(struct phi_writer *writer, const struct pair *pair, uint32_t slot)
{
    pair_offer(pair, 0, 2, writer);
    for (unsigned i = 0; i < 2; i++) {
        const struct pair_descriptor descriptor = {
            .op_id = i,
            .role = PH_ROLE_SENDER,
            .slot = slot == PHI_NO_SLOT ? slot : slot + i,
            .number = 1,
            .offset = 1024 * i,
            .size = 1024,
            .protocol = PH_PROTOCOL_PUT,
            .again = (uint8_t)i,
        };
        pair_describe(&descriptor, writer);
    }
}

// Bad ones the fuzzer finds by itself. Of the lower rank and of the higher one.
static struct phi_writer good[2];

static void hold_that_they_are_good(void)
{
    for (int rank = 0; rank < 2; rank++) {
        struct pair *pair = pair_open(rank, false);

        HOLD(phi_offer_file(pair->peer, good[rank].bytes, good[rank].size) == 0);
        HOLD(pair->peer->keys.all.count == 2);
        pair_close(pair);
        phi_writer_fini(&good[rank]);
    }
}

static void store_seeds(const struct pair *pair)
{
    struct phi_writer record = {0}, mailbox = {0}, offers = {0};

    put_capabilities(&record, true);
    put_offer(&good[0], pair, PHI_NO_SLOT);
    put_offer(&good[1], pair, 0);
    // Sequences out of order and one withdrawn, between looks that find nothing.
    put_each(&mailbox, 3, 0, 0, -1);
    put_envelope(&mailbox, PHI_ENVELOPE_MEMBER, 0, &record);
    for (unsigned i = 0; i < 4; i++) {
        static const uint64_t sequences[] = {2, 1, 4, 3};
        put_each(&mailbox, 3, 1, 0, 0, -1);
        put_envelope(&mailbox, i == 3 ? PHI_ENVELOPE_VOID : PHI_ENVELOPE_MESSAGE, sequences[i],
                     &good[1]);
    }
    save("mailbox", "out-of-order", &mailbox);
    put_each(&offers, 1, -1);
    put_piece(&offers, good[1].bytes, good[1].size);
    put_piece(&offers, good[1].bytes, good[1].size);
    save("offer", "to-the-higher", &offers);
    put_each(&offers, 0, -1);
    put_piece(&offers, good[0].bytes, good[0].size);
    save("offer", "to-the-lower", &offers);
    save("member", "device", &record);
    put_capabilities(&record, false);
    save("member", "host", &record);
}

// ---- export records

static void put_record(struct phi_writer *writer, enum phi_kind kind, size_t part)
{
    phi_put_u32(writer, 0x58454850u); // as src/memory/kinds.c begins
    phi_put_u16(writer, 1);
    phi_put_u16(writer, (uint16_t)kind);
    phi_put_u64(writer, 0x600000000000ull);
    phi_put_u64(writer, 4096);
    phi_put_u64(writer, 5);
    phi_put_u32(writer, (uint32_t)part);
    for (size_t i = 0; i < part; i++)
        phi_put_u8(writer, 0);
}

static void record_seeds(const struct pair *pair)
{
    static const struct {
        const char *name;
        enum phi_kind kind;
        size_t part; // owner, and a handle
        int descriptor;
    } kinds[] = {
        {"cuda", PHI_KIND_CUDA, 24 + 64, DESCRIPTOR_NONE},
        {"vmm", PHI_KIND_VMM, 24, DESCRIPTOR_NULL},
        {"pool", PHI_KIND_POOL, 24 + 64, DESCRIPTOR_NULL},
    };
    struct phi_writer writer = {0};

    put_each(&writer, 2, DESCRIPTOR_SEALED, 0, -1);
    phi_put_bytes(&writer, pair->foreign.record, pair->foreign.record_size);
    save("record", "host", &writer);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        put_each(&writer, 1, kinds[i].descriptor, 0, -1);
        put_record(&writer, kinds[i].kind, kinds[i].part);
        save("record", kinds[i].name, &writer);
    }
    put_each(&writer, 5, DESCRIPTOR_NONE, 0, -1);
    put_record(&writer, PHI_KIND_CUDA, 24 + 64);
    save("record", "own-process", &writer);
}

// ---- segments

static void segment_seeds(void)
{
    struct phi_segment *segment;
    struct phi_writer writer = {0};
    uint8_t header[32];

    HOLD(phi_segment_create(&fuzz_context()->report, 16, 0x77, &segment) == 0);
    HOLD(pread(segment->fd, header, sizeof(header), 0) == sizeof(header));
    put_each(&writer, 0, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW, -1);
    phi_put_u32(&writer, (uint32_t)segment->size);
    phi_put_bytes(&writer, header, sizeof(header));
    save("segment", "whole", &writer);
    phi_segment_close(segment);
    put_each(&writer, DESCRIPTOR_SEALED, -1);
    save("segment", "another-file", &writer);
}

// ---- messages of the socket

static void node_seeds(void)
{
    struct phi_writer writer = {0};
    struct phi_node_message message = {
        .magic = PHI_NODE_MAGIC, .version = PHI_NODE_VERSION, .type = PHI_NODE_EXPORT, .call = 1};

    put_each(&writer, 0, DESCRIPTOR_EVENT, DESCRIPTOR_PIPE, -1);
    put_piece(&writer, &message, sizeof(message));
    save("node", "two-descriptors", &writer);
    // The answer to an older call first.
    put_each(&writer, PHI_NODE_EXPORT, DESCRIPTOR_SEALED, DESCRIPTOR_NONE, -1);
    message.call = 0;
    put_piece(&writer, &message, sizeof(message));
    put_each(&writer, DESCRIPTOR_SEALED, DESCRIPTOR_NONE, -1);
    message.call = 1;
    put_piece(&writer, &message, sizeof(message));
    save("node", "late-answer", &writer);
}

static void put_request(struct phi_writer *writer, enum phi_node_type type, uint64_t a)
{
    bool nonce = type == PHI_NODE_HELLO;

    put_each(writer, 3, nonce ? 2 : 0, type, -1);
    if (!nonce)
        phi_put_u64(writer, a);
    phi_put_u16(writer, 1);
    phi_put_u16(writer, 0);
}

static void service_seeds(void)
{
    struct phi_writer writer = {0};

    for (int flags = 0; flags < 4; flags++) {
        char name[32];

        put_each(&writer, flags, -1);
        for (int type = PHI_NODE_HELLO; type <= PHI_NODE_NOTIFY; type++)
            put_request(&writer, (enum phi_node_type)type, 0);
        put_each(&writer, 2, -1);
        snprintf(name, sizeof(name), "all-requests-%d", flags);
        save("service", name, &writer);
    }
}

// ---- exchanges

// One operation, sender here, with an honest peer: it follows, offers, and answers well.
static void exchange_seeds(void)
{
    struct phi_writer writer = {0};

    for (int flags = 0; flags < 4; flags++) {
        char name[32];

        put_each(&writer, flags, -1);
        put_each(&writer, 6, 1, 2, 0, 0, PH_ROLE_RECEIVER, 0, 1, 0, 0, 0, 4, PH_PROTOCOL_PUT, -1);
        put_each(&writer, 0, 0, 0, -1);                // start, one operation
        put_each(&writer, 0x72, 3, 1, 0, 1, 0, 0, -1); // finish; meanwhile it follows
        for (int i = 0; i < 12; i++)
            put_each(&writer, 2, 0, 3, 0, 1, 1, 0, 1, 0, 0, -1);
        snprintf(name, sizeof(name), "one-operation-%d", flags);
        save("exchange", name, &writer);
    }
}

// ---- replies

static void put_text(struct phi_writer *writer, const char *text)
{
    put_piece(writer, text, strlen(text));
}

static void reply_seeds(void)
{
    // In the order of the commands: XLEN; EVAL; XADD, EXPIRE, EVAL and so on.
    static const char commands[] =
        ":0\r\n:0\r\n$6\r\n1000-1\r\n:1\r\n:0\r\n$6\r\n1000-1\r\n:1\r\n$6\r\n1000-2\r\n:1\r\n"
        "-ERR The ID specified in XADD is equal or smaller than the target\r\n:1\r\n"
        "*1\r\n*2\r\n$6\r\n1000-3\r\n*2\r\n$1\r\nm\r\n$4\r\ntext\r\n"
        "*2\r\n$17\r\nlast-generated-id\r\n$6\r\n1000-3\r\n:1\r\n:1\r\n";
    static const char inbound[] =
        "*2\r\n*2\r\n$19\r\nph:{fuzz}:0:members\r\n*1\r\n*2\r\n$3\r\n7-0\r\n*2\r\n"
        "$1\r\nm\r\n$1\r\nx\r\n*2\r\n$15\r\nph:{fuzz}:0:1>0\r\n*1\r\n*2\r\n$6\r\n"
        "2000-1\r\n*2\r\n$1\r\nm\r\n$1\r\ny\r\n*-1\r\n";
    static const char refused[] = "-WRONGPASS invalid username-password pair\r\n-NOAUTH\r\n";
    struct phi_writer writer = {0};

    put_each(&writer, 0, -1);
    put_text(&writer, commands);
    put_text(&writer, inbound);
    save("reply", "conversation", &writer);
    put_each(&writer, 1, -1);
    put_text(&writer, refused);
    put_text(&writer, "+OK\r\n+OK\r\n:0\r\n$4\r\n2000\r\n:0\r\n");
    put_text(&writer, "+OK\r\n+OK\r\n-WRONGTYPE a key\r\n:1\r\n");
    save("reply", "password", &writer);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    mkdir(folder, 0777);
    struct pair *pair = pair_open(0, false);
    config_seeds();
    hello_seeds();
    store_seeds(pair);
    record_seeds(pair);
    segment_seeds();
    node_seeds();
    service_seeds();
    exchange_seeds();
    reply_seeds();
    pair_close(pair);
    hold_that_they_are_good();
    return 0;
}
