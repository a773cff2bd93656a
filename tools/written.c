// SPDX-License-Identifier: BSD-3-Clause
#include "written.h"

#include <stdio.h>

int all_written(const char *program, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "%s: standard output did not take everything\n", program);
    return status ? status : 1;
}
