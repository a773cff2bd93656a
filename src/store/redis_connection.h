// SPDX-License-Identifier: BSD-3-Clause
// One connection to a Redis server: own socket, deadlines by poll(), hiredis for the protocol only
// (its socket half raises SIGPIPE and keeps late answers for the wrong question).
#ifndef PHI_STORE_REDIS_CONNECTION_H
#define PHI_STORE_REDIS_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/socket.h>

#include <hiredis/hiredis.h>

#include "base/counters.h"
#include "base/report.h"
#include "store/redis_errors.h"
#include "store/trouble.h"
#include "store/uri.h"

struct addrinfo;
struct phi_lookup;
struct phi_mailbox_params;

enum { PHI_REDIS_WORDS = 200 }; // of a server's error, as much as is repeated

// The connections of one store have these in common.
struct phi_redis_server {
    struct phi_store_uri uri;
    struct phi_report *report;
    struct phi_counters *counters;
    size_t elements_max; // of the arrays in one reply, all together
    struct phi_trouble trouble;
    struct sockaddr_storage local; // of the first connection; AF_UNSPEC: none of IP
};

// The bounds on a reply. Our constructors check them and call hiredis' own.
struct phi_redis_bounds {
    struct redisReplyObjectFunctions inside;
    const struct redisReplyObjectFunctions *outside;
    size_t elements_left, bytes_left; // of the reply being read
    bool over;                        // the reader was refused more
};

struct phi_redis_connection {
    struct phi_redis_server *server;
    int fd;                               // -1: closed
    bool established;                     // connect() is through
    bool heard;                           // ... and something has come
    int greeting;                         // answers to AUTH and SELECT that are still to come
    struct phi_lookup *lookup;            // of the host's name, under way, or NULL
    int64_t lookup_at;                    // the next one not before
    bool stale;                           // all addresses were tried: look the name up again
    struct addrinfo *addresses, *address; // of a host: all, and the one being tried
    int round;                            // so often were all of them tried
    int64_t give_up_at;                   // of the one being tried
    int denied;                           // attempts in a row that were not permitted
    int64_t retry_at;                     // connect not before
    char trouble[PHI_REDIS_WORDS];        // why the last one ended; empty after an answer
    char *out;                            // formatted commands that are not sent yet
    size_t out_at, out_size, out_capacity;
    redisReader *reader;
    char *chunk; // where it gets what comes: not on the caller's stack
    struct phi_redis_bounds bounds;
};

// phi_redis_read_uri fills the server's address and password from the configuration.
int phi_redis_read_uri(struct phi_redis_server *server, const struct phi_mailbox_params *params);

void phi_redis_connection_init(struct phi_redis_connection *connection,
                               struct phi_redis_server *server);
void phi_redis_connection_fini(struct phi_redis_connection *connection);

// close drops the connection, with everything unsent and unread. trouble: why, or "" where nothing
// is wrong with the store.
void phi_redis_close(struct phi_redis_connection *connection, const char *trouble);

// phi_redis_connect returns 1 where it made a new connection (AUTH and SELECT are under way), 0
// where one is up. It tries again until the deadline. The next call goes on with a try, or a
// look-up of the host's name, that is under way. It tries each of several addresses, the first ones
// for a part of the time only.
// Errors:
//   -ETIMEDOUT: reported, with the last trouble
//   -EINTR: wake_fd (may be -1) became readable
//   -EACCES and the like: a unix socket may not be opened
//   -ENOMEM, -EMFILE
int phi_redis_connect(struct phi_redis_connection *connection, int wake_fd, int64_t deadline);

// phi_redis_try is one step of that, and waits for nothing. 1 as connect; 0: not yet (not
// reported); or an error except -ETIMEDOUT. Only where no connection is up.
int phi_redis_try(struct phi_redis_connection *connection);

// phi_redis_queue formats one command and counts it. The next phi_redis_answer sends it. 0 or
// -ENOMEM (reported).
int phi_redis_queue(struct phi_redis_connection *connection, int argc, const char *const *argv,
                    const size_t *sizes);

// phi_redis_answer sends the queued commands and returns the next reply (freeReplyObject).
// Errors:
//   -ETIMEDOUT: not reported; the connection stays, and a caller that gives the question up must
//     close it
//   -EINTR: as connect
//   -ECONNRESET: lost and closed
//   PH_ESTORE: nonsense or a refused password; reported and closed
int phi_redis_answer(struct phi_redis_connection *connection, int wake_fd, int64_t deadline,
                     redisReply **reply);

// phi_redis_refused turns an error reply into a result. It closes the connection where another may
// do better, with -ECONNRESET (still loading, unblocked by a change of roles). Else it returns
// PH_ESTORE, reported in the server's words, with advice.
int phi_redis_refused(struct phi_redis_connection *connection, const char *command,
                      const redisReply *reply);

// phi_redis_nonsense reports an answer of the wrong type or shape, and closes. PH_ESTORE.
int phi_redis_nonsense(struct phi_redis_connection *connection, const char *command);

// phi_redis_words copies the server's error, printable and without the password (some servers
// repeat words that they do not know).
void phi_redis_words(const struct phi_redis_server *server, const redisReply *reply,
                     char text[PHI_REDIS_WORDS]);

#endif
