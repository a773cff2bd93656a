// SPDX-License-Identifier: BSD-3-Clause
#include "store/trouble.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void phi_trouble_init(struct phi_trouble *trouble)
{
    pthread_mutex_init(&trouble->lock, NULL);
    trouble->text[0] = 0;
}

void phi_trouble_fini(struct phi_trouble *trouble)
{
    pthread_mutex_destroy(&trouble->lock);
}

void phi_trouble_set(struct phi_trouble *trouble, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&trouble->lock);
    vsnprintf(trouble->text, sizeof(trouble->text), format, args);
    pthread_mutex_unlock(&trouble->lock);
    va_end(args);
}

void phi_trouble_clear(struct phi_trouble *trouble)
{
    pthread_mutex_lock(&trouble->lock);
    trouble->text[0] = 0;
    pthread_mutex_unlock(&trouble->lock);
}

size_t phi_trouble_copy(struct phi_trouble *trouble, char *text, size_t size)
{
    pthread_mutex_lock(&trouble->lock);
    size_t length = strnlen(trouble->text, size - 1);
    memcpy(text, trouble->text, length);
    pthread_mutex_unlock(&trouble->lock);
    text[length] = 0;
    return length;
}
