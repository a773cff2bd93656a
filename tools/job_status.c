// SPDX-License-Identifier: BSD-3-Clause
#include "job_status.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <peerhop/context.h>

#include "base/clock.h"
#include "base/counters.h"
#include "peer/node.h"
#include "semaphore/words.h"
#include "store/members.h"

enum { RANKS_MOST = 1 << 20 };

// ---- who there is

struct reading {
    struct job *job;
    bool failed; // out of memory
};

static struct member *find(const struct job *job, int rank)
{
    for (size_t i = 0; i < job->count; i++)
        if (job->members[i].rank == rank)
            return &job->members[i];
    return NULL;
}

struct member *job_member(struct job *job, int rank)
{
    struct member *there = find(job, rank);
    if (there != NULL)
        return there;
    struct member *grown = realloc(job->members, (job->count + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    job->members = grown;
    grown[job->count] = (struct member){.rank = rank, .state = MEMBER_ABSENT, .socket = -1};
    return &grown[job->count++];
}

// visit keeps the latest life of each rank. A record of no bytes expels the life before it.
static void visit(void *opaque, const struct phi_message *record)
{
    struct reading *reading = opaque;
    struct phi_capabilities capabilities;
    struct member *member = find(reading->job, record->rank);
    if (member != NULL && record->incarnation <= member->incarnation)
        return;
    if (record->size == 0) {
        if (member != NULL)
            member->expelled = true;
        return;
    }
    if (phi_capabilities_decode(&capabilities, record->bytes, record->size) != 0)
        return;
    member = job_member(reading->job, record->rank);
    if (member == NULL) {
        reading->failed = true;
        return;
    }
    member->incarnation = record->incarnation;
    member->capabilities = capabilities;
    member->expelled = false;
}

// ---- asking: all at first, then all answers, so that silent ranks cost one timeout together

static int by_rank(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

void job_sort(struct job *job)
{
    if (job->count > 0)
        qsort(job->members, job->count, sizeof *job->members, by_rank);
}

static void ask(struct member *member, const struct phi_capabilities *here)
{
    struct phi_node_message request = {
        .magic = PHI_NODE_MAGIC,
        .version = PHI_NODE_VERSION,
        .type = PHI_NODE_STATUS,
        .rank = -1, // of nobody
        .to = member->incarnation,
        .a = member->capabilities.nonce,
    };
    if (!phi_capabilities_same_node(here, &member->capabilities)) {
        member->state = MEMBER_ELSEWHERE;
        return;
    }
    if (phi_capabilities_out_of_reach(here, &member->capabilities)) {
        member->state = MEMBER_APART;
        return;
    }
    int rc = phi_node_connect(member->capabilities.socket, &member->socket);
    if (rc == 0)
        rc = phi_node_send(member->socket, &request, -1);
    member->why = rc;
    member->state = rc == 0 || rc == -EAGAIN                                    ? MEMBER_SILENT
                    : rc == -ECONNREFUSED || rc == -ENOENT || rc == -ECONNRESET ? MEMBER_EXITED
                    : rc == -EPERM                                              ? MEMBER_FOREIGN
                                                                                : MEMBER_REFUSES;
}

int job_receive(int socket, struct phi_node_message *answer, int64_t deadline)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};
    int fd = -1, n, rc;
    do {
        n = poll(&p, 1, phi_remaining_ms(deadline));
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n ? -errno : -EAGAIN;
    rc = phi_node_receive(socket, answer, &fd);
    if (rc == 0 && fd >= 0)
        close(fd); // none was asked for
    return rc;
}

enum member_state job_state_of(int rc)
{
    return rc == 0             ? MEMBER_LIVES
           : rc == -EAGAIN     ? MEMBER_SILENT
           : rc == -ECONNRESET ? MEMBER_EXITED
                               : MEMBER_REFUSES;
}

static void hear(struct member *member, int64_t deadline)
{
    struct phi_node_message answer = {0};
    int rc = job_receive(member->socket, &answer, deadline);
    if (rc == 0 && (answer.type != PHI_NODE_STATUS || answer.rank != member->rank))
        rc = -EBADMSG;
    if (rc == 0)
        rc = answer.status;
    if (rc == 0 && answer.bytes_size != sizeof member->status)
        rc = -EBADMSG; // of another version
    member->why = rc;
    member->state = job_state_of(rc);
    if (rc == 0)
        memcpy(&member->status, answer.bytes, sizeof member->status);
}

static void ask_all(struct job *job)
{
    struct phi_capabilities here;
    const int64_t deadline = phi_deadline(job->timeout_ms);
    phi_capabilities_fill(&here, NULL, 0);
    for (size_t i = 0; i < job->count; i++)
        ask(&job->members[i], &here);
    for (size_t i = 0; i < job->count; i++) {
        struct member *member = &job->members[i];
        if (member->state == MEMBER_SILENT && member->socket >= 0)
            hear(member, deadline);
        if (member->socket >= 0)
            close(member->socket);
        member->socket = -1;
    }
}

int job_add_absent(struct job *job)
{
    int ranks = 0;
    for (size_t i = 0; i < job->count; i++) {
        const struct member *member = &job->members[i];
        if (member->state == MEMBER_LIVES && member->status.ranks <= RANKS_MOST &&
            (int)member->status.ranks > ranks)
            ranks = (int)member->status.ranks;
    }
    const size_t there = job->count;
    size_t next = 0;
    for (int rank = 0; rank < ranks; rank++) {
        while (next < there && job->members[next].rank < rank)
            next++;
        if ((next == there || job->members[next].rank != rank) && job_member(job, rank) == NULL)
            return -ENOMEM;
    }
    job_sort(job);
    return 0;
}

int job_read(struct job *job, const struct phi_config *config, struct phi_report *report)
{
    struct phi_counters counters = {0};
    struct reading reading = {.job = job};
    const struct phi_mailbox_params params = {.report = report,
                                              .counters = &counters,
                                              .config = config,
                                              .job = job->name,
                                              .epoch = job->epoch};
    int rc = phi_members_read(&params, phi_deadline(job->timeout_ms), visit, &reading);
    if (rc)
        return rc;
    job_sort(job);
    ask_all(job);
    if (reading.failed || job_add_absent(job) != 0)
        return phi_fail(report, -ENOMEM, "no memory for the ranks of the job");
    return 0;
}

void job_free(struct job *job)
{
    free(job->members);
}

// ---- printing

static const char *const peer_states[PHI_STATUS_STATES] = {
    [PH_PEER_UNKNOWN] = "unknown", [PH_PEER_KNOWN] = "known",   [PH_PEER_LIVE] = "live",
    [PH_PEER_SUSPECT] = "suspect", [PH_PEER_BROKEN] = "broken", [PH_PEER_EXPELLED] = "expelled",
    [PH_PEER_GONE] = "gone",
};

const char *peer_state_name(unsigned state)
{
    return state < PHI_STATUS_STATES ? peer_states[state] : "?";
}

static const char *const words[MEMBER_STATES] = {
    [MEMBER_LIVES] = "lives",          [MEMBER_SILENT] = "no answer",
    [MEMBER_EXITED] = "exited",        [MEMBER_ELSEWHERE] = "another node",
    [MEMBER_FOREIGN] = "another user", [MEMBER_REFUSES] = "refuses",
    [MEMBER_ABSENT] = "no record",     [MEMBER_APART] = "out of reach",
};

// The states of peers that are worth a look: who.
static void print_who(const struct phi_status *status, unsigned state)
{
    const char *before = " (rank ";
    for (unsigned rank = 0; rank < PHI_STATUS_RANKS; rank++) {
        if (phi_status_state(status, rank) != state || rank >= status->ranks)
            continue;
        printf("%s%u", before, rank);
        before = ", ";
    }
    if (before[0] == ',')
        printf(")");
}

static void print_peers(const struct phi_status *status)
{
    const char *before = "peers: ";
    for (unsigned state = 0; state < PHI_STATUS_STATES; state++) {
        if (status->peers[state] == 0)
            continue;
        printf("%s%u %s", before, status->peers[state], peer_states[state]);
        if (state >= PH_PEER_SUSPECT)
            print_who(status, state);
        before = ", ";
    }
    printf("%s; ", before[0] == ',' ? "" : "no peers");
}

static void print_oldest(const struct phi_status *status)
{
    printf("%llu in flight", (unsigned long long)status->in_flight);
    if (status->oldest_ms < 0)
        return;
    printf(" on %u stream%s, the oldest for at least %lld ms", status->streams,
           status->streams == 1 ? "" : "s", (long long)status->oldest_ms);
    if (status->oldest_peer >= 0)
        printf(": %s of operation %llu waits for '%s' of rank %d",
               phi_program_name(status->oldest_call), (unsigned long long)status->oldest_op,
               phi_program_awaits(status->oldest_call), status->oldest_peer);
}

static void print_life(const struct member *member)
{
    const struct phi_status *status = &member->status;
    printf("      ");
    if (status->locked) {
        printf("busy: its tables cannot be read now; ");
    } else {
        print_peers(status);
        printf("channels: %u kept, %u with handles; ", status->channels, status->held);
        if (status->exchanges > 0)
            printf("exchanges under way: %u; ", status->exchanges);
        if (status->releases + status->theirs > 0)
            printf("releases under way: %u own, %u of peers; ", status->releases, status->theirs);
    }
    if (status->device_bytes > 0)
        printf("device memory: %.1f MiB; ", (double)status->device_bytes / (1 << 20));
    printf("\n      ");
    print_oldest(status);
    printf("\n");
}

static void print_state(const struct job *job, const struct member *member)
{
    if (member->state == MEMBER_SILENT)
        printf("no answer in %lld ms", (long long)job->timeout_ms);
    else if (member->state == MEMBER_EXITED)
        printf("exited: nobody listens at its socket");
    else if (member->state == MEMBER_APART)
        printf("cannot be asked from here: its socket has its name in another network namespace "
               "(PEERHOP_SOCKET_DIRECTORY)");
    else if (member->state == MEMBER_REFUSES)
        printf("refuses: %s", ph_strerror(member->why));
    else if (member->state == MEMBER_ABSENT)
        printf(job->found ? "not found on this node"
                          : "no record: it has not come yet, or has left");
    else
        printf("%s", words[member->state]);
    printf("%s\n", member->expelled ? "; expelled" : "");
}

void job_print_table(const struct job *job)
{
    printf("job %s, epoch %llu\n  %-5s %-20s %-8s %-24s state\n", job->name,
           (unsigned long long)job->epoch, "rank", "incarnation", "process", "device");
    for (size_t i = 0; i < job->count; i++) {
        const struct member *member = &job->members[i];
        const struct phi_capabilities *c = &member->capabilities;
        if (member->state == MEMBER_ABSENT)
            printf("  %-5d %-20s %-8s %-24s ", member->rank, "-", "-", "-");
        else
            printf("  %-5d %-20llu %-8u %-24s ", member->rank,
                   (unsigned long long)member->incarnation, c->pid,
                   c->device ? c->device_name : "host");
        print_state(job, member);
        if (member->state == MEMBER_LIVES)
            print_life(member);
    }
}

void print_json_string(const char *name, const char *text)
{
    printf(",\"%s\":\"", name);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            printf("\\u%04x", (unsigned)*text);
        else
            putchar(*text);
    putchar('"');
}

static void print_number(const char *name, int64_t value)
{
    printf(",\"%s\":%lld", name, (long long)value);
}

// What may not fit into the doubles of some readers is a string.
static void print_large(const char *name, uint64_t value)
{
    printf(",\"%s\":\"%llu\"", name, (unsigned long long)value);
}

static void print_json_tables(const struct phi_status *status, int self)
{
    printf(",\"peers\":{");
    for (unsigned state = 0; state < PHI_STATUS_STATES; state++)
        printf("%s\"%s\":%u", state ? "," : "", peer_states[state], status->peers[state]);
    printf("},\"peer_states\":[");
    for (unsigned rank = 0; rank < PHI_STATUS_RANKS && rank < status->ranks; rank++) {
        const unsigned state = phi_status_state(status, rank);
        printf("%s\"%s\"", rank ? "," : "", (int)rank == self ? "self" : peer_state_name(state));
    }
    printf("]");
    print_number("channels", status->channels);
    print_number("channels_with_handles", status->held);
    print_number("exchanges", status->exchanges);
    print_number("releases", status->releases);
    print_number("releases_of_peers", status->theirs);
}

static void print_json_life(const struct phi_status *status, int self)
{
    printf(",\"busy\":%s", status->locked ? "true" : "false");
    if (!status->locked)
        print_json_tables(status, self);
    print_number("device_bytes", (int64_t)status->device_bytes);
    print_number("in_flight", (int64_t)status->in_flight);
    print_number("streams", status->streams);
    if (status->oldest_ms >= 0)
        print_number("oldest_at_least_ms", status->oldest_ms);
    if (status->oldest_ms < 0 || status->oldest_peer < 0)
        return;
    print_number("waits_for_rank", status->oldest_peer);
    print_large("waits_in_operation", status->oldest_op);
    print_json_string("waits_in_call", phi_program_name(status->oldest_call));
    print_json_string("waits_for_word", phi_program_awaits(status->oldest_call));
}

void job_print_json(const struct job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        const struct member *member = &job->members[i];
        printf("{\"rank\":%d", member->rank);
        print_json_string("job", job->name);
        print_large("epoch", job->epoch);
        print_json_string("state", job->found && member->state == MEMBER_ABSENT
                                       ? "not on this node"
                                       : words[member->state]);
        if (member->state == MEMBER_REFUSES)
            print_json_string("why", ph_strerror(member->why));
        if (member->state != MEMBER_ABSENT) {
            printf(",\"expelled\":%s", member->expelled ? "true" : "false");
            print_large("incarnation", member->incarnation);
            print_number("process", member->capabilities.pid);
            print_json_string("host", member->capabilities.host);
            print_json_string(
                "device", member->capabilities.device ? member->capabilities.device_name : "host");
        }
        if (member->state == MEMBER_LIVES)
            print_json_life(&member->status, member->rank);
        printf("}\n");
    }
}
