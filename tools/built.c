// SPDX-License-Identifier: BSD-3-Clause
#include "built.h"

#include <stdio.h>

#include <peerhop/version.h>

void print_version(const char *program)
{
    printf("%s %d.%d.%d\n%s\n", program, PH_VERSION_MAJOR, PH_VERSION_MINOR, PH_VERSION_PATCH,
           PEERHOP_BUILT); // by tools/meson.build, as the summary of the configuration has it
}
