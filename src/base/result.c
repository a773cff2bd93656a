// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <limits.h>
#include <string.h>

#include <peerhop/error.h>
#include <peerhop/version.h>

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)

const char *ph_version(void)
{
    return TEXT(PH_VERSION_MAJOR) "." TEXT(PH_VERSION_MINOR) "." TEXT(PH_VERSION_PATCH);
}

const char *ph_strerror(int result)
{
    const char *text = NULL;

    switch (result) {
#define CASE(name, value, sentence)                                                                \
    case PH_E##name:                                                                               \
        return sentence;
        PH_ERROR_MAP(CASE)
#undef CASE
    // The words of the C library do not say which limit to raise.
    case -EMFILE:
        return "Too many open files (of this process: RLIMIT_NOFILE, ulimit -n)";
    case -ENFILE:
        return "Too many open files in system (of all processes of the node: fs.file-max)";
    default:
        break;
    }
    // Unlike strerror(), this never writes to a buffer that threads share.
    if (result <= 0 && result != INT_MIN)
        text = strerrordesc_np(-result);
    return text ? text : "unknown error";
}
