/* library.h - finds the libraries that Ferry
 * loads only when it needs them. */
#ifndef FERRY_COMMON_LIBRARY_H
#define FERRY_COMMON_LIBRARY_H

#include <stdbool.h>

enum { LIBRARY_PATH = 4096 };

/* Looks beside the program or library that has `code` (NULL: the program),
 * beside the program (in a build), and in ../lib/ferry (installed). */
bool library_find(char path[LIBRARY_PATH], const char *name, const void *code);

#endif
