#include "common/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool find_beside(char path[LIBRARY_PATH], const char *file, const char *below,
                        const char *name)
{
    const char *slash = strrchr(file, '/');
    int n = slash
                ? snprintf(path, LIBRARY_PATH, "%.*s/%s%s", (int)(slash - file), file, below, name)
                : -1;
    return n > 0 && n < LIBRARY_PATH && access(path, F_OK) == 0;
}

bool library_find(char path[LIBRARY_PATH], const char *name, const void *code)
{
    char program[LIBRARY_PATH] = "";
    Dl_info own = {.dli_fname = NULL};
    (void)!readlink("/proc/self/exe", program, sizeof program - 1);
    if (code && dladdr(code, &own) && own.dli_fname && find_beside(path, own.dli_fname, "", name))
        return true;
    return find_beside(path, program, "", name) ||
           find_beside(path, program, "../lib/ferry/", name);
}
