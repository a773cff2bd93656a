// SPDX-License-Identifier: BSD-3-Clause
#include "store/redis_errors.h"

#include <string.h>

bool phi_redis_is_error(const redisReply *reply, const char *prefix)
{
    return reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, prefix, strlen(prefix)) == 0;
}

static const struct {
    const char *prefix, *advice;
} advices[] = {
    {"NOAUTH",
     "; give a password by PEERHOP_STORE_PASSWORD_FILE, PEERHOP_STORE_PASSWORD or in the URI"},
    {"WRONGPASS", "; the user or password given is wrong"},
    {"NOPERM", "; the server's access list does not allow this user what ranks need"},
    {"ERR The user executing the script",
     "; the server's access list does not allow this user what ranks need"},
    {"READONLY", "; this server is a replica: name its master"},
    {"OOM", "; the server is at its maxmemory"},
    {"MISCONF", "; the server refuses writes because it cannot save"},
    {"NOREPLICAS", "; the server refuses writes because it has too few replicas"},
    {"MOVED", "; clusters are not supported"},
    {"ERR Protocol error: invalid bulk length", "; it is over the server's proto-max-bulk-len"},
    {"WRONGTYPE", "; another program uses the job's keys"},
    {"ERR unknown command", "; Redis 5.0 or later is needed"},
    {"ERR max number of clients", "; raise the server's maxclients"},
};

const char *phi_redis_advice(const redisReply *reply)
{
    for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); i++)
        if (phi_redis_is_error(reply, advices[i].prefix))
            return advices[i].advice;
    return "";
}
