// SPDX-License-Identifier: BSD-3-Clause
#include "service/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <peerhop/region.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/wire.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"

#define REGION_MAGIC   0x47524850u // "PHRG"
#define REGION_VERSION 1

// A service thread answers at once or never.
#define ASK_MS 2000

// ---- the bytes

static uint64_t hash_of(const void *bytes, size_t size, uint64_t hash)
{
    for (size_t i = 0; i < size; i++)
        hash = phi_hash(hash, ((const uint8_t *)bytes)[i]);
    return hash;
}

static uint64_t job_of(const struct phi_self *self)
{
    uint64_t epoch;
    const char *job = phi_mailbox_job(self->mailbox, &epoch);
    return hash_of(job, strlen(job), epoch);
}

int phi_attach_encode(struct phi_self *self, const struct phi_region_key *key, uint8_t *bytes)
{
    struct phi_writer writer = {0};
    char host[sizeof((struct phi_region_bytes *)0)->host];
    snprintf(host, sizeof host, "%.48s", self->mine.host);
    phi_put_u32(&writer, REGION_MAGIC);
    phi_put_u32(&writer, REGION_VERSION);
    phi_put_u32(&writer, (uint32_t)self->rank);
    phi_put_u64(&writer, self->incarnation);
    phi_put_u64(&writer, job_of(self));
    phi_put_u64(&writer, key->id);
    phi_put_bytes(&writer, key->secret, sizeof key->secret);
    phi_put_string(&writer, host);
    phi_put_string(&writer, self->mine.socket);
    int rc = writer.error;
    if (rc == 0) {
        memset(bytes, 0, PH_REGION_BYTES);
        memcpy(bytes, writer.bytes, writer.size);
        const uint64_t sum = hash_of(bytes, PH_REGION_BYTES - sizeof sum, REGION_MAGIC);
        writer.size = 0;
        phi_put_u64(&writer, sum);
        rc = writer.error;
        memcpy(bytes + PH_REGION_BYTES - sizeof sum, writer.bytes, sizeof sum);
    }
    phi_writer_fini(&writer);
    return rc ? phi_fail(self->report, rc, "out of memory for a region") : 0;
}

static int check_bytes(struct phi_self *self, const void *bytes, size_t size, uint32_t version)
{
    struct phi_reader sum;
    phi_reader_init(&sum, (const uint8_t *)bytes + PH_REGION_BYTES - 8, 8);
    if (version != REGION_VERSION)
        return phi_fail(self->report, -EBADMSG,
                        "the export of a region is of version %u, and not %d: both ranks must have "
                        "one version of the library",
                        version, REGION_VERSION);
    return phi_get_u64(&sum) == hash_of(bytes, size - 8, REGION_MAGIC)
               ? 0
               : phi_fail(self->report, -EBADMSG, "the export of a region has been damaged");
}

int phi_attach_decode(struct phi_self *self, const void *bytes, size_t size,
                      struct phi_region_bytes *out)
{
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    if (size != PH_REGION_BYTES || phi_get_u32(&reader) != REGION_MAGIC)
        return phi_fail(self->report, -EBADMSG, "%zu bytes are no export of a region, which has %d",
                        size, PH_REGION_BYTES);
    int rc = check_bytes(self, bytes, size, phi_get_u32(&reader));
    if (rc)
        return rc;
    out->rank = (int)phi_get_u32(&reader);
    out->incarnation = phi_get_u64(&reader);
    out->job = phi_get_u64(&reader);
    out->key.id = phi_get_u64(&reader);
    phi_get_bytes(&reader, out->key.secret, sizeof out->key.secret);
    phi_get_string(&reader, out->host, sizeof out->host);
    phi_get_string(&reader, out->socket, sizeof out->socket);
    if (reader.error)
        return phi_fail(self->report, -EBADMSG, "the export of a region is malformed");
    if (out->job != job_of(self))
        return phi_fail(self->report, PH_EMISMATCH,
                        "the region is of rank %d of another job, on %s: only ranks of that job "
                        "attach it",
                        out->rank, out->host);
    if (out->rank == self->rank)
        return phi_fail(self->report, -EINVAL, "the region is of this rank (%d) itself", out->rank);
    if (out->rank < 0 || out->rank >= self->ranks)
        return phi_fail(self->report, -EBADMSG, "the region is of rank %d, and there are %d ranks",
                        out->rank, self->ranks);
    return 0;
}

// ---- the question

// A peer that was met over the net, in the life that exported the region; else NULL. The caller
// visits it.
static struct phi_peer *met(struct phi_self *self, const struct phi_region_bytes *region)
{
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = self->table[region->rank];
    if (peer != NULL && (peer->state != PHI_PEER_READY || peer->to.link == NULL ||
                         peer->incarnation != region->incarnation))
        peer = NULL;
    if (peer != NULL)
        peer->life.visitors++;
    pthread_mutex_unlock(&self->lock);
    return peer;
}

static void leave(struct phi_peer *peer)
{
    pthread_mutex_lock(&peer->self->lock);
    peer->life.visitors--;
    phi_lives_due(peer);
    pthread_mutex_unlock(&peer->self->lock);
}

// By the socket of the owner, which needs no first contact; else over the net, where there was one.
static int ask(struct phi_self *self, const struct phi_region_bytes *region,
               struct phi_node_message *request, struct phi_node_message *answer, int64_t deadline)
{
    int socket, fd = -1;
    int rc = phi_node_connect(region->socket, &socket);
    if (rc == 0) {
        rc = phi_node_call(socket, request, answer, &fd, deadline);
        close(socket);
    } else if (rc != -EPERM) {
        struct phi_peer *peer = met(self, region);
        if (peer == NULL)
            return rc == -ECONNREFUSED || rc == -ENOENT || rc == -EACCES ? PH_ENOPATH : rc;
        rc = phi_peer_call(peer, request, answer, &fd, deadline);
        leave(peer);
    }
    if (fd >= 0)
        close(fd); // none belongs to it
    if (rc == -ECONNRESET)
        return PH_EPEER;
    return rc ? rc : answer->status;
}

static const char *why_of(int rc)
{
    switch (rc) {
    case -ESTALE:
        return "it was closed, its memory was released or freed, or this life of the rank is over";
    case -EACCES:
        return "it does not know the secret of this export";
    case -EBUSY:
        return "too many ranks attach regions of it at once";
    case -EPERM:
        return "its process is of another user";
    case PH_EPEER:
        return "it has closed the connection: it ends, or has too many";
    case PH_ENOPATH:
        return "its socket is not reached from here, and the two ranks have not met: its process "
               "has ended, or it is on another node, and then the two must exchange an operation "
               "first";
    default:
        return ph_strerror(rc);
    }
}

static int fail(struct phi_self *self, const struct phi_region_bytes *region, int rc)
{
    return phi_fail(self->report, rc, "cannot attach region %016llx of rank %d on %s: %s",
                    (unsigned long long)region->key.id, region->rank, region->host, why_of(rc));
}

int phi_attach_ask(struct phi_self *self, const struct phi_region_bytes *region, int64_t deadline,
                   struct ph_operation *operation)
{
    struct phi_node_message answer, request = {
                                        .magic = PHI_NODE_MAGIC,
                                        .version = PHI_NODE_VERSION,
                                        .type = PHI_NODE_ATTACH,
                                        .rank = self->rank,
                                        .from = self->incarnation,
                                        .to = region->incarnation,
                                        .a = region->key.id,
                                        .b = (uint64_t)phi_remaining_ms(deadline),
                                        .bytes_size = sizeof region->key.secret,
                                    };
    memcpy(request.bytes, region->key.secret, sizeof region->key.secret);
    const int64_t soon = phi_deadline(ASK_MS);
    int rc = ask(self, region, &request, &answer, soon < deadline ? soon : deadline);
    if (rc > 0 ||
        (rc == 0 && (answer.b < PH_REGION_READ || answer.b > (PH_REGION_READ | PH_REGION_WRITE))))
        rc = -EBADMSG;
    if (rc)
        return fail(self, region, rc);
    operation->op_id = answer.a;
    operation->peer = region->rank;
    operation->role = answer.b == PH_REGION_READ    ? PH_ROLE_RECEIVER
                      : answer.b == PH_REGION_WRITE ? PH_ROLE_SENDER
                                                    : PH_ROLE_BOTH;
    return 0;
}
