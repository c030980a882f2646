/* memory.h - malloc and friends that do not return NULL: a process that cannot get a few kilobytes
 * for a description says so and ends with ERR_MEMORY. What is large and bounded (buffers of the
 * executor) is allocated with plain malloc by who can report it better. */
#ifndef FERRY_COMMON_MEMORY_H
#define FERRY_COMMON_MEMORY_H

#include <stddef.h>

void *must_malloc(size_t bytes);
void *must_calloc(size_t count, size_t bytes);
void *must_realloc(void *old, size_t bytes);
char *must_strdup(const char *text);
_Noreturn void out_of_memory(size_t bytes);

#endif
