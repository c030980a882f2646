#include "convert/cli/integrity.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/publish.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/sha256.h"
#include "common/threads.h"

const char integrity_name[] = "integrity.json";

struct summing {
    struct arena arena;
    const char *folder;
    const char **files;
    char (*sums)[SHA256_TEXT];
    size_t num_files;
};

static enum status sum_file(const char *path, char sum[SHA256_TEXT], struct error *err)
{
    enum { CHUNK = 1 << 18 };
    struct file_stamp stamp;
    int fd;
    TRY(file_open(path, &fd, &stamp, err));
    char *chunk = must_calloc(1, CHUNK);
    struct sha256 *s = sha256_start();
    enum status st = OK;
    for (uint64_t at = 0, n; at < stamp.size_bytes && !st; at += n) {
        n = min_u64(stamp.size_bytes - at, CHUNK);
        st = interrupted() ? fail(err, ERR_INTERRUPTED, "interrupted")
                           : file_read(fd, path, chunk, n, at, err);
        if (!st) sha256_add(s, chunk, n);
    }
    sha256_finish(s, sum);
    free(chunk);
    close(fd);
    return st;
}

static enum status sum_task(void *context, size_t index, unsigned worker, struct error *err)
{
    struct summing *x = context;
    struct strbuf path = {0};
    (void)worker;
    strbuf_printf(&path, "%s/%s", x->folder, x->files[index]);
    enum status st = sum_file(path.data, x->sums[index], err);
    strbuf_release(&path);
    return st;
}

/* Locks and journals are not published. */
static enum status list_files(struct summing *x, struct error *err)
{
    struct name_list list;
    TRY(folder_list(x->folder, &x->arena, &list, err));
    x->files = arena_array(&x->arena, list.count, sizeof *x->files);
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.names[i], integrity_name) && !publish_is_private(list.names[i]) &&
            path_is_file(path_join(&x->arena, x->folder, list.names[i])))
            x->files[x->num_files++] = list.names[i];
    x->sums = arena_array(&x->arena, x->num_files, sizeof *x->sums);
    return OK;
}

static enum status write_sums(struct summing *x, bool durable, struct error *err)
{
    struct strbuf text = {0};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "algorithm", "sha256");
    cJSON *files = cJSON_AddObjectToObject(o, "files");
    for (size_t i = 0; i < x->num_files; i++)
        cJSON_AddStringToObject(files, x->files[i], x->sums[i]);
    json_print(&text, o, 2);
    cJSON_Delete(o);
    enum status st = file_replace_all(path_join(&x->arena, x->folder, integrity_name), text.data,
                                      text.length, durable, err);
    strbuf_release(&text);
    return st;
}

enum status integrity_write(const char *folder, unsigned threads, bool durable, struct error *err)
{
    struct summing x = {.folder = folder};
    arena_init(&x.arena);
    enum status st = list_files(&x, err);
    if (!st)
        st = threads_run(threads ? threads : threads_available(), x.num_files, sum_task, &x, err);
    if (!st) st = write_sums(&x, durable, err);
    arena_release(&x.arena);
    return st;
}
