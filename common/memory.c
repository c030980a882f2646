#include "common/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"

void out_of_memory(size_t bytes)
{
    fprintf(stderr, "ferry: no memory for %zu bytes\n", bytes);
    exit(ERR_MEMORY);
}

void *must_malloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *must_calloc(size_t count, size_t bytes)
{
    void *p = calloc(count ? count : 1, bytes ? bytes : 1);
    if (!p) out_of_memory(count * bytes);
    return p;
}

void *must_realloc(void *old, size_t bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

char *must_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(must_malloc(bytes), text, bytes);
}
