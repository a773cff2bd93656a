// SPDX-License-Identifier: BSD-3-Clause
#include "hide.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"

enum { STARS = 3 }; // at most: the length is nobody's business either

const char *hide_password(char *argument)
{
    static char *copy; // as long-lived as the arguments
    const char *end;
    const char *from = phi_config_password(argument, &end);
    char *password;
    size_t size, stars;

    free(copy);
    copy = strdup(argument);
    if (!copy || !from)
        return copy;
    password = argument + (from - argument) + (*from == ':');
    size = (size_t)(end - password);
    stars = size < STARS ? size : STARS;
    memset(password, '*', stars);
    memmove(password + stars, end, strlen(end) + 1);
    // What is left behind the new end shows in /proc as well.
    memset(argument + strlen(argument), 0, size - stars);
    return copy;
}

const char *without_password(char *argument)
{
    if (strchr(argument, '@'))
        hide_password(argument);
    return argument;
}

bool is_hidden(const char *argument)
{
    const char *end;
    const char *from = phi_config_password(argument, &end);

    return from && *from == ':' && end > from + 1 &&
           strspn(from + 1, "*") == (size_t)(end - from - 1);
}
