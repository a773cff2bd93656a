// SPDX-License-Identifier: BSD-3-Clause
#include "e2e/trial_lies.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "net/net.h"
#include "net/probe.h"
#include "peer/hello_wire.h"
#include "peer/node.h"

static bool (*_Atomic may)(void);
static _Atomic int made, closed;
static atomic_bool asked;
static struct trial_lie told;
static atomic_bool other_addresses, another_version;
static atomic_int slow_probes;
static _Atomic int slow_ms;

void hold_imports(bool (*may_go)(void))
{
    atomic_store(&may, may_go);
}

int imports_made(void)
{
    return made;
}

int imports_open(void)
{
    return made - closed;
}

bool was_asked(void)
{
    return asked;
}

void lie_in_trials(struct trial_lie lie)
{
    told = lie;
}

void have_other_addresses(void)
{
    other_addresses = true;
}

void have_another_version(void)
{
    another_version = true;
}

int version_of_others(void)
{
    return PHI_HELLO_VERSION;
}

void __real_phi_hello_encode(const struct phi_hello_words *words, struct phi_writer *writer);
void __wrap_phi_hello_encode(const struct phi_hello_words *words, struct phi_writer *writer);
void __wrap_phi_hello_encode(const struct phi_hello_words *words, struct phi_writer *writer)
{
    struct phi_hello_words own = *words;
    own.version = another_version ? 999 : words->version;
    __real_phi_hello_encode(&own, writer);
}

int __real_phi_hello_decode(const void *bytes, size_t size, struct phi_hello_words *words);
int __wrap_phi_hello_decode(const void *bytes, size_t size, struct phi_hello_words *words);
int __wrap_phi_hello_decode(const void *bytes, size_t size, struct phi_hello_words *words)
{
    const int rc = __real_phi_hello_decode(bytes, size, words);
    words->version += another_version;
    return rc;
}

void be_slow(int probes, int ms)
{
    slow_ms = ms;
    slow_probes = probes;
}

int __real_phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size);
int __wrap_phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size);
int __wrap_phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size)
{
    if (slow_probes == 0)
        return __real_phi_net_probe(net, ms, why, size);
    slow_probes--;
    usleep((useconds_t)slow_ms * 1000);
    snprintf(why, size, "the probe: it was slow");
    return -ETIMEDOUT;
}

const struct phi_net_wire *__real_phi_net_wire(const struct phi_net *net);
const struct phi_net_wire *__wrap_phi_net_wire(const struct phi_net *net);
const struct phi_net_wire *__wrap_phi_net_wire(const struct phi_net *net)
{
    static struct phi_net_wire wire; // the same each time
    if (!other_addresses)
        return __real_phi_net_wire(net);
    wire = *__real_phi_net_wire(net);
    wire.format++;
    return &wire;
}

int __real_phi_memory_import(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                             struct phi_import **import);
int __wrap_phi_memory_import(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                             struct phi_import **import);
int __wrap_phi_memory_import(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                             struct phi_import **import)
{
    while (atomic_load(&may) != NULL && !atomic_load(&may)())
        usleep(1000);
    const int rc = __real_phi_memory_import(memory, record, size, fd, import);
    made += rc == 0;
    return rc;
}

void __real_phi_memory_import_close(struct phi_import *import);
void __wrap_phi_memory_import_close(struct phi_import *import);
void __wrap_phi_memory_import_close(struct phi_import *import)
{
    closed += import != NULL;
    __real_phi_memory_import_close(import);
}

// ---- lies

static struct phi_node_message lie_of(const struct phi_node_message *message, bool answer)
{
    struct phi_node_message lie = *message;
    if (message->type != PHI_NODE_TRIAL)
        return lie;
    if (told.status && answer)
        lie.status = told.status;
    lie.a = told.a ? told.a : message->a;
    lie.b = told.b ? told.b : message->b;
    if (told.no_record) {
        memset(lie.bytes, 7, sizeof lie.bytes);
        lie.bytes_size = sizeof lie.bytes;
    }
    return lie;
}

int __real_phi_node_send(int socket, const struct phi_node_message *message, int fd);
int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd);
int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd)
{
    const struct phi_node_message lie = lie_of(message, true);
    const int rc = __real_phi_node_send(socket, &lie, fd);
    if (message->type == PHI_NODE_TRIAL)
        asked = true;
    return rc;
}

int __real_phi_node_call(int socket, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline);
int __wrap_phi_node_call(int socket, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline);
int __wrap_phi_node_call(int socket, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline)
{
    const struct phi_node_message lie = lie_of(request, false);
    return __real_phi_node_call(socket, &lie, answer, fd, deadline);
}
