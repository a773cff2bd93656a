// SPDX-License-Identifier: BSD-3-Clause
#include "job_found.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "peer/node.h"

enum { RANK_MOST = (1 << 20) - 1 };

// A socket that was asked.
struct asked {
    int socket;
    uint32_t process;
    int rc; // of asking, then of its answers
    struct phi_about about;
    struct phi_status status;
};

struct asking {
    struct asked *list;
    size_t count;
    int rc; // why not all could be asked
};

static int send_question(int socket, enum phi_node_type type)
{
    const struct phi_node_message question = {
        .magic = PHI_NODE_MAGIC,
        .version = PHI_NODE_VERSION,
        .type = (uint16_t)type,
        .rank = -1, // of nobody
    };
    return phi_node_send(socket, &question, -1);
}

static bool is_lack(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM;
}

// Names that are none of a rank's, whoever has ended meanwhile, and other users, are none of ours.
// -EAGAIN: so many have knocked at one that does not answer that there is no room for us.
static void ask(struct asking *asking, const char *name)
{
    struct ucred credentials = {0};
    socklen_t size = sizeof credentials;
    int socket = -1;
    int rc = phi_node_connect(name, &socket);
    if (is_lack(rc))
        asking->rc = rc;
    if (rc != 0 && rc != -EAGAIN)
        return;
    struct asked *grown = realloc(asking->list, (asking->count + 1) * sizeof *grown);
    if (grown == NULL) {
        asking->rc = -ENOMEM;
        if (socket >= 0)
            close(socket);
        return;
    }
    asking->list = grown;
    if (rc == 0)
        getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    if (rc == 0 && (rc = send_question(socket, PHI_NODE_ABOUT)) == 0)
        rc = send_question(socket, PHI_NODE_STATUS);
    grown[asking->count++] =
        (struct asked){.socket = socket, .process = (uint32_t)credentials.pid, .rc = rc};
}

// Connections have their listener's name as well.
#define LISTENS 0x10000u // of the flags in /proc/net/unix

// Those of this network namespace. 0, -errno: the kernel does not list them.
static int ask_abstract(struct asking *asking)
{
    FILE *file = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t size = 0;
    if (file == NULL)
        return -errno;
    while (getline(&line, &size, file) >= 0) {
        unsigned flags;
        char name[109];
        if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %108s", &flags, name) == 2 &&
            (flags & LISTENS) && name[0] == '@')
            ask(asking, name);
    }
    free(line);
    fclose(file);
    return 0;
}

// What ranks that were killed have left in the folder refuses.
static void ask_directory(struct asking *asking, const char *directory)
{
    DIR *folder = opendir(directory);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char path[108];
        int n = snprintf(path, sizeof path, "%s/%.40s", directory, entry->d_name);
        if (n > 0 && (size_t)n < sizeof path)
            ask(asking, path);
    }
    if (folder != NULL)
        closedir(folder);
}

static int hear(const struct asked *asked, enum phi_node_type type, void *into, size_t size,
                int64_t deadline)
{
    struct phi_node_message answer = {0};
    int rc = job_receive(asked->socket, &answer, deadline);
    if (rc == 0 && answer.type == type)
        rc = answer.status;
    else if (rc == 0)
        rc = -EBADMSG;
    if (rc == 0 && answer.bytes_size != size)
        rc = -EBADMSG; // of another version
    if (rc == 0)
        memcpy(into, answer.bytes, size);
    return rc;
}

// What a rank says is text for a terminal: no more than that.
static void make_plain(char *text, size_t size)
{
    text[size - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void hear_both(struct asked *asked, int64_t deadline)
{
    if (asked->rc == 0)
        asked->rc = hear(asked, PHI_NODE_ABOUT, &asked->about, sizeof asked->about, deadline);
    if (asked->rc == 0)
        asked->rc = hear(asked, PHI_NODE_STATUS, &asked->status, sizeof asked->status, deadline);
    if (asked->rc == 0 && (asked->about.rank < 0 || asked->about.rank > RANK_MOST))
        asked->rc = -EBADMSG;
    make_plain(asked->about.job, sizeof asked->about.job);
    make_plain(asked->about.device, sizeof asked->about.device);
    if (asked->socket >= 0)
        close(asked->socket);
}

static struct job *job_of(struct found *found, const struct phi_about *about, int64_t timeout_ms)
{
    for (size_t i = 0; i < found->count; i++)
        if (strcmp(found->jobs[i].name, about->job) == 0 && found->jobs[i].epoch == about->epoch)
            return &found->jobs[i];
    struct job *grown = realloc(found->jobs, (found->count + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    found->jobs = grown;
    struct job *job = &grown[found->count++];
    *job = (struct job){.epoch = about->epoch, .found = true, .timeout_ms = timeout_ms};
    memcpy(job->name, about->job, sizeof job->name);
    return job;
}

static int keep(struct found *found, const struct asked *asked, const struct phi_capabilities *here,
                int64_t timeout_ms)
{
    struct job *job = job_of(found, &asked->about, timeout_ms);
    struct member *member = job ? job_member(job, asked->about.rank) : NULL;
    if (member == NULL)
        return -ENOMEM;
    if (member->state != MEMBER_ABSENT && asked->about.incarnation <= member->incarnation)
        return 0; // a former life, which has not ended yet
    member->state = MEMBER_LIVES;
    member->incarnation = asked->about.incarnation;
    member->status = asked->status;
    member->capabilities = *here;
    member->capabilities.pid = asked->about.process;
    member->capabilities.device = asked->about.device[0] != 0;
    memcpy(member->capabilities.device_name, asked->about.device,
           sizeof member->capabilities.device_name);
    member->capabilities.device_name[sizeof member->capabilities.device_name - 1] = 0;
    return 0;
}

// One that ends just now has closed the connection: it is none any more.
static int keep_nameless(struct found *found, const struct asked *asked)
{
    if (job_state_of(asked->rc) == MEMBER_EXITED)
        return 0;
    struct nameless *grown = realloc(found->nameless, (found->nameless_count + 1) * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    found->nameless = grown;
    grown[found->nameless_count++] = (struct nameless){
        .process = asked->process, .state = job_state_of(asked->rc), .why = asked->rc};
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    return names ? names : x->epoch < y->epoch ? -1 : x->epoch > y->epoch;
}

int jobs_find(struct found *found, const struct phi_config *config, struct phi_report *report,
              int64_t timeout_ms)
{
    struct asking asking = {0};
    struct phi_capabilities here;
    const int64_t deadline = phi_deadline(timeout_ms);
    *found = (struct found){0};
    phi_capabilities_fill(&here, NULL, 0);
    int rc = ask_abstract(&asking);
    if (rc)
        return phi_fail(report, rc, "the sockets of this node cannot be listed: %s",
                        ph_strerror(rc));
    if (config->socket_directory[0] != 0)
        ask_directory(&asking, config->socket_directory);
    rc = asking.rc;
    for (size_t i = 0; i < asking.count; i++) {
        struct asked *asked = &asking.list[i];
        hear_both(asked, deadline);
        if (rc == 0)
            rc = asked->rc ? keep_nameless(found, asked) : keep(found, asked, &here, timeout_ms);
    }
    free(asking.list);
    if (found->count > 0)
        qsort(found->jobs, found->count, sizeof *found->jobs, by_name);
    for (size_t i = 0; i < found->count && rc == 0; i++) {
        job_sort(&found->jobs[i]);
        rc = job_add_absent(&found->jobs[i]);
    }
    return rc ? phi_fail(report, rc, "not all ranks of this node can be asked: %s", ph_strerror(rc))
              : 0;
}

void found_free(struct found *found)
{
    for (size_t i = 0; i < found->count; i++)
        job_free(&found->jobs[i]);
    free(found->jobs);
    free(found->nameless);
}
