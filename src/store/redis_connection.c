// SPDX-License-Identifier: BSD-3-Clause
#include "store/redis_connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/lookup.h"
#include "store/mailbox.h"

enum {
    RETRY_MS = 20,     // between the beginnings of two attempts to connect
    LOOKUP_MS = 500,   // between the beginnings of two look-ups of a name
    TURN_MS = 250,     // for an address that does not answer, where there are more; and
    TURN_DOUBLES = 6,  // twice as much in each round, so often
    DENIED_MOST = 10,  // attempts that find a socket closed to us: its server may be making it
    CHUNK = 64 << 10,  // bytes of one recv
    SLACK = 1 << 20,   // what may lie in the buffer beside one message
    REPLY_FACTOR = 64, // a reply may hold so many messages of the largest size
    LATE_MOST = 256,   // chunks read after the deadline of a reply that is arriving
    KEEPALIVE_S = 30,
};

// ---- bounds on replies

#if HIREDIS_MAJOR >= 1
typedef size_t element_count;
#else
typedef int element_count;
#endif

static void *create_array(const redisReadTask *task, element_count count)
{
    struct phi_redis_connection *connection = task->privdata;
    if (count < 0 || (size_t)count > connection->bounds.elements_left) {
        connection->bounds.over = true;
        return NULL;
    }
    connection->bounds.elements_left -= (size_t)count;
    return connection->bounds.outside->createArray(task, count);
}

static void *create_string(const redisReadTask *task, char *text, size_t size)
{
    struct phi_redis_connection *connection = task->privdata;
    if (size > connection->bounds.bytes_left) {
        connection->bounds.over = true;
        return NULL;
    }
    connection->bounds.bytes_left -= size;
    return connection->bounds.outside->createString(task, text, size);
}

static void reset_bounds(struct phi_redis_connection *connection)
{
    connection->bounds.over = false;
    connection->bounds.elements_left = connection->server->elements_max;
    connection->bounds.bytes_left = (size_t)REPLY_FACTOR * PHI_MESSAGE_MAX;
}

static int make_reader(struct phi_redis_connection *connection)
{
    redisReader *reader = redisReaderCreate();
    connection->chunk = malloc(CHUNK);
    if (!reader || !connection->chunk) {
        if (reader)
            redisReaderFree(reader);
        free(connection->chunk);
        connection->chunk = NULL;
        return phi_fail(connection->server->report, -ENOMEM,
                        "no memory for a connection to the store");
    }
    connection->bounds.outside = reader->fn;
    connection->bounds.inside = *reader->fn;
    connection->bounds.inside.createArray = create_array;
    connection->bounds.inside.createString = create_string;
    reader->fn = &connection->bounds.inside;
    redisReaderSetPrivdata(reader, connection);
    reader->maxbuf = SLACK; // keeps a buffer of this size instead of growing one for every answer
    connection->reader = reader;
    reset_bounds(connection);
    return 0;
}

// ---- life

int phi_redis_read_uri(struct phi_redis_server *server, const struct phi_mailbox_params *params)
{
    const char *password = params->config->store_password;
    const char *file = params->config->store_password_file;
    if (!params->config->store || !params->config->store[0])
        return phi_fail(params->report, -EINVAL, "no store is given: set PEERHOP_STORE");
    int result = phi_store_uri_parse(&server->uri, params->config->store, params->report);
    if (result == 0 && file && file[0])
        result = phi_store_uri_password_file(&server->uri, file, params->report);
    else if (result == 0 && password && password[0])
        result = phi_store_uri_password(&server->uri, password, params->report);
    return result;
}

void phi_redis_connection_init(struct phi_redis_connection *connection,
                               struct phi_redis_server *server)
{
    *connection = (struct phi_redis_connection){.server = server, .fd = -1};
}

static void set_trouble(struct phi_redis_connection *connection, const char *trouble)
{
    snprintf(connection->trouble, sizeof(connection->trouble), "%s", trouble);
    if (trouble[0])
        phi_trouble_set(&connection->server->trouble, "the store at %s: %s",
                        connection->server->uri.address, trouble);
}

void phi_redis_close(struct phi_redis_connection *connection, const char *trouble)
{
    set_trouble(connection, trouble); // first: the text may be the reader's
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = -1;
    connection->established = connection->heard = false;
    connection->greeting = 0;
    connection->out_at = connection->out_size = 0;
    if (connection->reader)
        redisReaderFree(connection->reader);
    connection->reader = NULL;
    free(connection->chunk);
    connection->chunk = NULL;
}

static void drop_addresses(struct phi_redis_connection *connection)
{
    if (connection->addresses)
        freeaddrinfo(connection->addresses);
    connection->addresses = connection->address = NULL;
}

void phi_redis_connection_fini(struct phi_redis_connection *connection)
{
    if (connection->reader || connection->fd >= 0)
        phi_redis_close(connection, "");
    drop_addresses(connection);
    phi_lookup_drop(connection->lookup);
    connection->lookup = NULL;
    free(connection->out);
    connection->out = NULL;
}

// ---- connecting

// next_address turns from an address that failed to the host's next one. After the last one all are
// tried again, and the name is looked up meanwhile.
static void next_address(struct phi_redis_connection *connection)
{
    if (!connection->address)
        return;
    connection->address = connection->address->ai_next;
    if (connection->address) {
        connection->retry_at = 0;
        return;
    }
    connection->address = connection->addresses;
    connection->stale = true;
    connection->round += connection->round < TURN_DOUBLES;
}

static void failed_attempt(struct phi_redis_connection *connection, int error)
{
    // EAGAIN: a unix socket whose backlog is full.
    const char *why = error == EAGAIN ? "its backlog is full" : ph_strerror(-error);
    const struct addrinfo *address = connection->address;
    char host[NI_MAXHOST], text[PHI_REDIS_WORDS];
    if (!address || getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof(host), NULL, 0,
                                NI_NUMERICHOST) != 0)
        host[0] = 0;
    snprintf(text, sizeof(text), "%s%s%s", host, host[0] ? ": " : "", why);
    phi_redis_close(connection, text);
    next_address(connection);
}

static void tune(int fd)
{
    // A server whose machine is gone sends no end. For a read without a deadline, keepalive finds
    // that.
    int on = 1, idle = KEEPALIVE_S, interval = KEEPALIVE_S / 3, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static int start_connect(struct phi_redis_connection *connection, const struct sockaddr *address,
                         socklen_t size)
{
    connection->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        return -errno;
    if (address->sa_family != AF_UNIX)
        tune(connection->fd);
    if (connect(connection->fd, address, size) == 0)
        return 0;
    return -errno;
}

// turn_end is when an address that does not answer makes way for the next one. It gets its part of
// the time that is left, and less in the first rounds.
static int64_t turn_end(const struct phi_redis_connection *connection, int64_t deadline)
{
    int64_t now = phi_now(), turn = TURN_MS * PHI_MS << connection->round, left = 0;
    if (!connection->addresses->ai_next)
        return PHI_FOREVER;
    for (const struct addrinfo *at = connection->address; at; at = at->ai_next)
        left++;
    if (deadline > now && (deadline - now) / left < turn)
        turn = (deadline - now) / left;
    return now + turn;
}

static int start_attempt(struct phi_redis_connection *connection, int64_t deadline)
{
    const struct phi_store_uri *uri = &connection->server->uri;
    if (uri->path) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, uri->path, strlen(uri->path) + 1); // the parser saw to the length
        return start_connect(connection, (struct sockaddr *)&address, sizeof(address));
    }
    connection->give_up_at = turn_end(connection, deadline);
    return start_connect(connection, connection->address->ai_addr, connection->address->ai_addrlen);
}

// wait_for polls the socket (fd -1: only sleeps) until `until`. It returns the events, 0 at the
// end, -EINTR where it was woken.
static int wait_for(const struct phi_redis_connection *connection, int fd, short events,
                    int wake_fd, int64_t until)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = fd, .events = events}, {.fd = wake_fd, .events = POLLIN}};
        int ready = poll(fds, 2, phi_remaining_ms(until));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready < 0)
            return phi_fail(connection->server->report, -errno,
                            "poll while waiting for the store at %s: %s",
                            connection->server->uri.address, ph_strerror(-errno));
        if (ready > 0 && fds[1].revents)
            return -EINTR;
        return ready > 0 ? fds[0].revents : 0;
    }
}

// note_local keeps this end's address of the first connection. No other thread looks at it before
// open is over.
static void note_local(struct phi_redis_connection *connection)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    if (!connection->server->uri.path && connection->server->local.ss_family == AF_UNSPEC &&
        getsockname(connection->fd, (struct sockaddr *)&own, &size) == 0)
        connection->server->local = own;
}

static int queue_greeting(struct phi_redis_connection *connection)
{
    const struct phi_store_uri *uri = &connection->server->uri;
    int result = 0;
    if (uri->password) {
        const char *argv[3] = {"AUTH", uri->user ? uri->user : uri->password, uri->password};
        result = phi_redis_queue(connection, uri->user ? 3 : 2, argv, NULL);
        connection->greeting++;
    }
    if (uri->db && result == 0) {
        char db[12];
        snprintf(db, sizeof(db), "%d", uri->db);
        const char *argv[2] = {"SELECT", db};
        result = phi_redis_queue(connection, 2, argv, NULL);
        connection->greeting++;
    }
    return result;
}

// take_addresses takes the addresses that a look-up has found, in the place of the former ones.
static void take_addresses(struct phi_redis_connection *connection)
{
    struct addrinfo *found;
    int error, failed = phi_lookup_end(connection->lookup, &found, &error);
    char why[PHI_REDIS_WORDS];
    connection->lookup = NULL;
    if (failed) {
        snprintf(why, sizeof(why), "its host name, %.100s, is not found: %s",
                 connection->server->uri.host,
                 failed == EAI_SYSTEM ? ph_strerror(-error) : gai_strerror(failed));
        set_trouble(connection, why);
        return;
    }
    drop_addresses(connection);
    connection->addresses = connection->address = found;
    connection->round = 0;
}

static int start_lookup(struct phi_redis_connection *connection)
{
    const struct phi_redis_server *server = connection->server;
    if (connection->lookup || phi_now() < connection->lookup_at)
        return 0;
    connection->lookup_at = phi_deadline(LOOKUP_MS);
    connection->stale = false;
    int result = phi_lookup_start(server->uri.host, server->uri.port, &connection->lookup);
    return result ? phi_fail(server->report, result,
                             "the host name of the store at %s cannot be looked up: %s",
                             server->uri.address, ph_strerror(result))
                  : 0;
}

// find_address: 1: there is one to try. 0: not yet. Or an error. While a name is looked up again,
// its former addresses serve.
static int find_address(struct phi_redis_connection *connection, int wake_fd, int64_t deadline)
{
    int result = 0;
    if (connection->lookup && phi_lookup_done(connection->lookup))
        take_addresses(connection);
    if (!connection->address || connection->stale)
        result = start_lookup(connection);
    if (result || connection->address)
        return result ? result : 1;
    bool pause = !connection->lookup && connection->lookup_at < deadline;
    result = wait_for(connection, connection->lookup ? phi_lookup_fd(connection->lookup) : -1,
                      POLLIN, wake_fd, pause ? connection->lookup_at : deadline);
    if (result == 0 && connection->lookup) {
        char why[PHI_REDIS_WORDS];
        snprintf(why, sizeof(why), "no answer to the look-up of its host name, %.100s",
                 connection->server->uri.host);
        set_trouble(connection, why);
    }
    return result < 0 ? result : 0;
}

// finish_attempt: 1: connected. 0: failed, or still under way. Or an error.
static int finish_attempt(struct phi_redis_connection *connection, int wake_fd, int64_t deadline)
{
    int64_t until = connection->give_up_at < deadline ? connection->give_up_at : deadline;
    int events = wait_for(connection, connection->fd, POLLOUT, wake_fd, until);
    if (events == 0 && phi_now() >= connection->give_up_at)
        failed_attempt(connection, ETIMEDOUT);
    if (events <= 0)
        return events;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        failed_attempt(connection, error);
        return 0;
    }
    int result = make_reader(connection);
    connection->established = result == 0;
    connection->denied = connection->round = 0;
    note_local(connection);
    if (result == 0)
        result = queue_greeting(connection);
    if (result)
        phi_redis_close(connection, "no memory");
    return result ? result : 1;
}

// is_denied: a unix socket that may not be opened, unless its server is just making it.
static bool is_denied(struct phi_redis_connection *connection, int error)
{
    bool denied = connection->server->uri.path &&
                  (error == EACCES || error == EPERM || error == ENOTDIR || error == EPROTOTYPE);
    connection->denied = denied ? connection->denied + 1 : 0;
    return connection->denied >= DENIED_MOST;
}

static int begin_attempt(struct phi_redis_connection *connection, int64_t deadline)
{
    const struct phi_redis_server *server = connection->server;
    // Counted from here, so that a connection which had stood for a while is made again at once.
    connection->retry_at = phi_deadline(RETRY_MS);
    connection->give_up_at = PHI_FOREVER;
    int result = start_attempt(connection, deadline);
    if (connection->fd < 0 && (result == -EMFILE || result == -ENFILE)) // waiting frees none
        return phi_fail(server->report, result,
                        "no descriptor for a connection to the store at %s: %s",
                        server->uri.address, ph_strerror(result));
    if (result == 0 || result == -EINPROGRESS)
        return 0;
    bool denied = is_denied(connection, -result);
    failed_attempt(connection, -result);
    return denied ? phi_fail(server->report, result,
                             "the store at %s: its socket may not be opened: %s",
                             server->uri.address, ph_strerror(result))
                  : 0;
}

static int attempt(struct phi_redis_connection *connection, int wake_fd, int64_t deadline)
{
    if (connection->fd >= 0)
        return finish_attempt(connection, wake_fd, deadline);
    if (phi_now() < connection->retry_at) {
        int64_t until = connection->retry_at < deadline ? connection->retry_at : deadline;
        return wait_for(connection, -1, 0, wake_fd, until);
    }
    int found = connection->server->uri.path ? 1 : find_address(connection, wake_fd, deadline);
    return found == 1 ? begin_attempt(connection, deadline) : found;
}

int phi_redis_connect(struct phi_redis_connection *connection, int wake_fd, int64_t deadline)
{
    if (connection->established)
        return 0;
    for (;;) {
        bool late = phi_now() >= deadline;
        int result = attempt(connection, wake_fd, deadline);
        if (result)
            return result;
        if (late)
            return phi_fail(connection->server->report, -ETIMEDOUT,
                            "the store at %s was not reached before the deadline: %s",
                            connection->server->uri.address,
                            connection->trouble[0] ? connection->trouble : "no answer to connect");
    }
}

int phi_redis_try(struct phi_redis_connection *connection)
{
    int result = attempt(connection, -1, phi_now());
    return result || connection->fd < 0 ? result : attempt(connection, -1, phi_now());
}

// ---- commands and answers

static int reserve(struct phi_redis_connection *connection, size_t size)
{
    if (connection->out_capacity - connection->out_size >= size)
        return 0;
    size_t capacity = connection->out_capacity ? connection->out_capacity : 512;
    while (capacity - connection->out_size < size)
        capacity *= 2;
    char *out = realloc(connection->out, capacity);
    if (!out)
        return -ENOMEM;
    connection->out = out;
    connection->out_capacity = capacity;
    return 0;
}

int phi_redis_queue(struct phi_redis_connection *connection, int argc, const char *const *argv,
                    const size_t *sizes)
{
    char *command;
    int size = redisFormatCommandArgv(&command, argc, (const char **)argv, sizes);
    int result = size < 0 ? -ENOMEM : reserve(connection, (size_t)size);
    if (result == 0) {
        memcpy(connection->out + connection->out_size, command, (size_t)size);
        connection->out_size += (size_t)size;
        phi_count(connection->server->counters, store_commands, 1);
    }
    if (size >= 0)
        redisFreeCommand(command);
    if (result)
        phi_fail(connection->server->report, result, "no memory for a command to the store");
    return result;
}

// lost: a server that ends connections before its first answer may be no store, or may want TLS.
// The sentence says so. A host's next address may do better.
static int lost(struct phi_redis_connection *connection, const char *why)
{
    bool mute = !connection->heard;
    char text[PHI_REDIS_WORDS];
    snprintf(text, sizeof(text), "%s%s", why,
             mute ? " before any answer, as by a port for TLS, or of no Redis" : "");
    phi_log(connection->server->report, PH_LOG_INFO,
            "the connection to the store at %s was lost: %s", connection->server->uri.address,
            text);
    phi_redis_close(connection, text);
    if (mute)
        next_address(connection);
    return -ECONNRESET;
}

// is_readable: whether there is something to read, or the end, where nothing can be written. The
// server may have said why.
static bool is_readable(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static int flush(struct phi_redis_connection *connection)
{
    while (connection->out_at < connection->out_size) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_at,
                            connection->out_size - connection->out_at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        const int error = errno;
        if (sent < 0 && error == EAGAIN)
            return 0;
        if (sent < 0 && !is_readable(connection->fd))
            return lost(connection, ph_strerror(-error));
        if (sent < 0)
            break;
        connection->out_at += (size_t)sent;
    }
    connection->out_at = connection->out_size = 0;
    if (connection->out_capacity > SLACK) { // one large message should not cost its size for ever
        free(connection->out);
        connection->out = NULL;
        connection->out_capacity = 0;
    }
    return 0;
}

static int not_redis(struct phi_redis_connection *connection, const char *why)
{
    phi_fail(connection->server->report, PH_ESTORE,
             "the store at %s does not speak as Redis does: %s", connection->server->uri.address,
             why);
    phi_redis_close(connection, why);
    return PH_ESTORE;
}

// is_alert: whether a server of TLS has refused, by an alert record, what is no TLS.
static bool is_alert(const char *bytes, size_t size)
{
    return size >= 2 && bytes[0] == 0x15 && bytes[1] == 0x03;
}

static int feed(struct phi_redis_connection *connection)
{
    ssize_t got = recv(connection->fd, connection->chunk, CHUNK, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        return lost(connection, got ? ph_strerror(-errno) : "the server closed it");
    if (!connection->heard && is_alert(connection->chunk, (size_t)got))
        return not_redis(connection, "it answers in TLS, which is not supported; name its port "
                                     "without TLS");
    connection->heard = true;
    redisReader *reader = connection->reader;
    if (reader->len - reader->pos > (size_t)PHI_MESSAGE_MAX + SLACK)
        return not_redis(connection, "an answer is over the limit");
    if (redisReaderFeed(reader, connection->chunk, (size_t)got) != REDIS_OK)
        return lost(connection, "no memory for its answer");
    return 0;
}

// pump moves bytes both ways once, after waiting for the socket.
static int pump(struct phi_redis_connection *connection, int wake_fd, int64_t deadline)
{
    int result = flush(connection);
    if (result)
        return result;
    short out = connection->out_at < connection->out_size ? POLLOUT : 0;
    int events = wait_for(connection, connection->fd, POLLIN | out, wake_fd, deadline);
    if (events <= 0)
        return events ? events : -ETIMEDOUT;
    return events & ~POLLOUT ? feed(connection) : 0;
}

// parse returns 1 with a reply, 0 where more bytes are needed.
static int parse(struct phi_redis_connection *connection, redisReply **reply)
{
    void *got = NULL;
    int result = redisReaderGetReply(connection->reader, &got);
    if (result != REDIS_OK && connection->reader->err == REDIS_ERR_OOM &&
        !connection->bounds.over) {
        phi_redis_close(connection, "no memory for its answer");
        return phi_fail(connection->server->report, -ENOMEM,
                        "no memory for an answer of the store at %s",
                        connection->server->uri.address);
    }
    if (result != REDIS_OK)
        return not_redis(connection, connection->reader->err == REDIS_ERR_OOM
                                         ? "an answer is over the limit"
                                         : connection->reader->errstr);
    *reply = got;
    if (!got)
        return 0;
    reset_bounds(connection);
    return 1;
}

static int check_greeting(struct phi_redis_connection *connection, redisReply *reply)
{
    bool auth = connection->server->uri.password &&
                connection->greeting == 1 + (connection->server->uri.db != 0);
    const char *command = auth ? "AUTH" : "SELECT";
    int result = 0;
    connection->greeting--;
    if (reply->type == REDIS_REPLY_ERROR)
        result = phi_redis_refused(connection, command, reply);
    else if (reply->type != REDIS_REPLY_STATUS)
        result = phi_redis_nonsense(connection, command);
    freeReplyObject(reply);
    return result;
}

int phi_redis_answer(struct phi_redis_connection *connection, int wake_fd, int64_t deadline,
                     redisReply **reply)
{
    int late = 0;
    for (;;) {
        redisReply *got = NULL;
        int result = parse(connection, &got);
        if (result == 1 && connection->greeting == 0) {
            if (connection->trouble[0])
                phi_trouble_clear(&connection->server->trouble);
            connection->trouble[0] = 0;
            *reply = got;
            return 0;
        }
        if (result == 1)
            result = check_greeting(connection, got);
        else if (result == 0)
            result = pump(connection, wake_fd, deadline);
        if (result)
            return result;
        // Bytes that trickle in without end are no answer.
        if (phi_now() >= deadline && ++late > LATE_MOST)
            return -ETIMEDOUT;
    }
}

// ---- errors in words

void phi_redis_words(const struct phi_redis_server *server, const redisReply *reply,
                     char text[PHI_REDIS_WORDS])
{
    snprintf(text, PHI_REDIS_WORDS, "%s", reply->str);
    for (char *c = text; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    if (server->uri.password && strstr(reply->str, server->uri.password))
        snprintf(text, PHI_REDIS_WORDS, "an error that repeats the password");
}

int phi_redis_refused(struct phi_redis_connection *connection, const char *command,
                      const redisReply *reply)
{
    const struct phi_store_uri *uri = &connection->server->uri;
    char text[PHI_REDIS_WORDS];
    phi_redis_words(connection->server, reply, text);
    if (phi_redis_is_error(reply, "LOADING") || phi_redis_is_error(reply, "UNBLOCKED"))
        return lost(connection, text);
    phi_fail(connection->server->report, PH_ESTORE, "the store at %s refused %s: %s%s",
             uri->address, command, text, phi_redis_advice(reply));
    // A connection that the server does not let in stays so. The next try begins anew.
    if (phi_redis_is_error(reply, "NOAUTH") || strcmp(command, "AUTH") == 0 ||
        strcmp(command, "SELECT") == 0)
        phi_redis_close(connection, text);
    return PH_ESTORE;
}

int phi_redis_nonsense(struct phi_redis_connection *connection, const char *command)
{
    char why[64];
    snprintf(why, sizeof(why), "its answer to %s has the wrong shape", command);
    return not_redis(connection, why);
}
