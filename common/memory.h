/* memory.h - malloc and the like that never return NULL: a process without
 * memory for a few kilobytes prints a message and ends with ERR_MEMORY. Large
 * buffers use plain malloc, and their owner reports the failure. */
#ifndef FERRY_COMMON_MEMORY_H
#define FERRY_COMMON_MEMORY_H

#include <stddef.h>

void *must_malloc(size_t bytes);
void *must_calloc(size_t count, size_t bytes);
void *must_realloc(void *old, size_t bytes);
char *must_strdup(const char *text);
_Noreturn void out_of_memory(size_t bytes);

#endif
