// SPDX-License-Identifier: BSD-3-Clause
#include "base/array.h"

#include <stdlib.h>

void *phi_array_grow(void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return array;
    size_t more = *room ? *room * 2 : 1;
    void *bigger = realloc(array, more * size);
    if (bigger != NULL)
        *room = more;
    return bigger;
}
