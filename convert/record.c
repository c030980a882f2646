#include "convert/record.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "common/arena.h"
#include "common/file.h"
#include "common/json.h"

enum { RECORD_CAP = 1 << 30 };

const char record_name[] = "ferry.json";

enum status record_read(const char *folder, cJSON **tree, struct error *err)
{
    struct arena a;
    arena_init(&a);
    const char *path = path_join(&a, folder, record_name);
    enum status st = OK;
    *tree = NULL;
    if (path_is_file(path)) st = json_read_file(path, RECORD_CAP, 0, tree, err);
    arena_release(&a);
    return st;
}

bool record_is_of(const char *folder, const char *run, const char *plan)
{
    cJSON *record;
    if (record_read(folder, &record, NULL)) return false;
    const char *is = json_as_text(json_get(record, run ? "run" : "plan"));
    bool same = is && strcmp(is, run ? run : plan) == 0;
    cJSON_Delete(record);
    return same;
}

static enum status check_file_sizes(const char *folder, const struct plan *p, struct arena *a,
                                    struct error *err)
{
    for (size_t i = 0; i < p->num_files; i++) {
        const char *path = path_join(a, folder, p->files[i].path);
        struct stat st;
        if (stat(path, &st) == 0 && (uint64_t)st.st_size == p->files[i].size_bytes) continue;
        return fail(err, ERR_EXISTS,
                    "%s: was complete, but %s no longer has %" PRIu64
                    " bytes; --overwrite replaces it",
                    folder, p->files[i].path, p->files[i].size_bytes);
    }
    return OK;
}

enum status record_check_files(const char *folder, const struct plan *p, struct error *err)
{
    struct arena a;
    cJSON *record;
    TRY(record_read(folder, &record, err));
    arena_init(&a);
    enum status st = OK;
    const cJSON *files = json_get(record, "files");
    for (const cJSON *f = files ? files->child : NULL; f && !st; f = f->next) {
        const char *name = json_as_text(f);
        if (name && !path_exists(path_join(&a, folder, name)))
            st = fail(err, ERR_EXISTS,
                      "%s: was complete, but %s is missing; --overwrite replaces it", folder, name);
    }
    if (!st) st = check_file_sizes(folder, p, &a, err);
    cJSON_Delete(record);
    arena_release(&a);
    return st;
}
