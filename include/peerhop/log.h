// SPDX-License-Identifier: BSD-3-Clause
// Log lines go to a callback of the context, as they are; without one, to stderr, behind the level,
// the time (UTC), the host and the rank: "peerhop warn 2026-11-28T03:52:59.123Z node1 rank 3: ...".
// A line that is written before the rank is known, as one about a variable, has none. The level is
// the context's, else that of PEERHOP_LOG, which is "warn" where nobody sets it. Of equal errors or
// warnings one a second is logged; the next equal one that is logged says how many were not: of
// what never comes again nothing does. Nothing is logged on the data path.
#ifndef PEERHOP_LOG_H
#define PEERHOP_LOG_H

// Which lines are logged: those of a level and of all before it.
enum ph_log_level {
    PH_LOG_NONE = 0,
    PH_LOG_ERROR = 1, // a call failed; the line is the sentence that ph_context_error() returns
    PH_LOG_WARN = 2,  // something is worse than the user may think: a slower path, a limit reached
    PH_LOG_INFO = 3,  // once per context, peer or channel: what was chosen and why
    PH_LOG_DEBUG = 4, // each exchange, message and import
};

// Called with one line, without a newline, valid during the call only. May be called from any
// thread of the library and of the application, several at once; must not call the library.
typedef void (*ph_log_fn)(void *opaque, enum ph_log_level level, const char *line);

#endif
