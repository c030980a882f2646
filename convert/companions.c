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
                                          "ferry-names.json", /* published.h */
                                          "ferry-model.json",
                                          "integrity.json",
                                          ".*"};
    for (size_t i = 0; i < COUNT(without); i++)
        if (fnmatch(without[i], name, 0) == 0) return false;
    for (size_t i = 0; i < COUNT(with); i++)
        if (fnmatch(with[i], name, 0) == 0) return true;
    return false;
}

const char *tokenizer_file_stays(const char *folder, const char *name, bool beside_model)
{
    struct arena a;
    struct stat s;
    arena_init(&a);
    const bool found = lstat(path_join(&a, folder, name), &s) == 0;
    arena_release(&a);
    if (!found) return "gone";
    if (S_ISLNK(s.st_mode)) return "a link";
    if (S_ISDIR(s.st_mode)) return "a folder";
    if (!S_ISREG(s.st_mode)) return "not a plain file";
    if (*name == '.') return "a hidden file";
    if (beside_model && (!is_companion(name) || strcmp(name, "config.json") == 0))
        return "not a tokenizer's file by its name";
    return NULL;
}

/* ---- folders of them ---- */

/* Whether a file of a folder is copied. */
typedef bool file_test(const char *folder, const char *name);

static bool is_model_file(const char *folder, const char *name)
{
    struct arena a;
    if (!is_companion(name)) return false;
    arena_init(&a);
    const bool is = path_is_file(path_join(&a, folder, name));
    arena_release(&a);
    return is;
}

static bool is_tokenizer_file(const char *folder, const char *name)
{
    return !tokenizer_file_stays(folder, name, false);
}

static bool is_tokenizer_file_beside(const char *folder, const char *name)
{
    return !tokenizer_file_stays(folder, name, true);
}

static void fingerprint_files(const char *folder, file_test *is_copied,
                              char fingerprint[SHA256_TEXT])
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
        if (!is_copied(folder, list.names[i]) || stat(path_join(&a, folder, list.names[i]), &st))
            continue;
        const int64_t n[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        sha256_add(s, list.names[i], strlen(list.names[i]) + 1);
        sha256_add(s, n, sizeof n);
    }
    if (s) sha256_finish(s, fingerprint);
    arena_release(&a);
}

void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT])
{
    fingerprint_files(folder, is_model_file, fingerprint);
}

void tokenizer_fingerprint(const char *folder, char fingerprint[SHA256_TEXT])
{
    fingerprint_files(folder, is_tokenizer_file, fingerprint);
}

/* without: a file that is not copied; NULL: none. */
static enum status copy_files(const char *from, const char *to, file_test *is_copied,
                              const char *without, bool durable, struct error *err)
{
    struct arena a;
    struct name_list list;
    arena_init(&a);
    enum status st = folder_list(from, &a, &list, err);
    for (size_t i = 0; !st && i < list.count; i++) {
        const char *copy = path_join(&a, to, list.names[i]);
        if (!is_copied(from, list.names[i]) || path_exists(copy)) continue;
        if (without && strcmp(list.names[i], without) == 0) continue;
        st = folder_create(to, err);
        if (!st) st = file_copy(path_join(&a, from, list.names[i]), copy, durable, err);
    }
    arena_release(&a);
    return st;
}

enum status copy_companions(const char *from, const char *to, const char *without, bool durable,
                            struct error *err)
{
    return copy_files(from, to, is_model_file, without, durable, err);
}

enum status copy_tokenizer(const char *from, const char *to, bool beside_model, bool durable,
                           struct error *err)
{
    return copy_files(from, to, beside_model ? is_tokenizer_file_beside : is_tokenizer_file, NULL,
                      durable, err);
}
