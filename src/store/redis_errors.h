// SPDX-License-Identifier: BSD-3-Clause
// Error replies of a Redis server.
#ifndef PHI_STORE_REDIS_ERRORS_H
#define PHI_STORE_REDIS_ERRORS_H

#include <stdbool.h>

#include <hiredis/hiredis.h>

bool phi_redis_is_error(const redisReply *reply, const char *prefix);

// phi_redis_advice returns advice about an error, as the end of a sentence. "": there is none.
const char *phi_redis_advice(const redisReply *reply);

#endif
