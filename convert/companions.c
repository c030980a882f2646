#include "convert/companions.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#include "common/arena.h"
#include "common/count.h"
#include "common/file.h"

bool is_companion(const char *name)
{
    static const char *const with[] = {"*.json", "*.model",  "*.txt",  "*.jinja",
                                       "*.py",   "LICENSE*", "README*"};
    static const char *const without[] = {"*.safetensors.index.json",
                                          "*.bin.index.json",
                                          "training.json", /* describes the optimizer beside it */
                                          "ferry.json",
                                          "integrity.json",
                                          ".*"};
    for (size_t i = 0; i < COUNT(without); i++)
        if (fnmatch(without[i], name, 0) == 0) return false;
    for (size_t i = 0; i < COUNT(with); i++)
        if (fnmatch(with[i], name, 0) == 0) return true;
    return false;
}

void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT])
{
    struct arena a;
    struct name_list list;
    struct sha256 *s;
    arena_init(&a);
    bool found = folder && folder_list(folder, &a, &list, NULL) == OK;
    s = found ? sha256_start() : NULL;
    if (s) sha256_add(s, fingerprint, strlen(fingerprint));
    for (size_t i = 0; s && i < list.count; i++) {
        struct stat st;
        if (!is_companion(list.names[i]) || stat(path_join(&a, folder, list.names[i]), &st))
            continue;
        const int64_t n[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        sha256_add(s, list.names[i], strlen(list.names[i]) + 1);
        sha256_add(s, n, sizeof n);
    }
    if (s) sha256_finish(s, fingerprint);
    arena_release(&a);
}

enum status copy_companions(const char *from, const char *to, bool durable, struct error *err)
{
    struct arena a;
    struct name_list list;
    arena_init(&a);
    enum status st = folder_list(from, &a, &list, err);
    for (size_t i = 0; i < list.count && !st; i++) {
        const char *source = path_join(&a, from, list.names[i]);
        const char *copy = path_join(&a, to, list.names[i]);
        if (!is_companion(list.names[i]) || !path_is_file(source) || path_exists(copy)) continue;
        st = file_copy(source, copy, durable, err);
    }
    arena_release(&a);
    return st;
}
