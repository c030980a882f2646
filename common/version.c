#include "common/version.h"

#include "common/count.h"
#include "common/json.h"
#include "common/library.h"

#ifndef __clang__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER __VERSION__
#endif

/* The Makefile defines FERRY_VERSION and FERRY_TARGET for this file. */
const char ferry_version[] = FERRY_VERSION;

void version_add_build(cJSON *o)
{
    static const struct {
        const char *name, *file;
    } libraries[] = {
        {"engine", "libferry_engine.so"}, {"mpi", "libferry_mpi.so"}, {"cuda", "libferry_cuda.so"}};
    char path[LIBRARY_PATH];
    json_add_text(o, "compiler", COMPILER);
    json_add_text(o, "target", FERRY_TARGET);
    for (size_t i = 0; i < COUNT(libraries); i++)
        json_add_text(o, libraries[i].name,
                      library_find(path, libraries[i].file, NULL) ? path : NULL);
}
