#include "formats/ids_lines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/threads.h"

/* Hugging Face's label of a token without loss. */
enum { IGNORED_LABEL = -100 };

struct reader {
    FILE *file;
    char *text; /* of a line */
    size_t room;
    uint64_t number;
    int32_t *ids;
    uint8_t *mask;
    size_t capacity; /* of both */
};

/* ---- one line ---- */

/* Finds the list of ids. */
static enum status find_ids(const cJSON *o, const cJSON **ids, struct error *err)
{
    static const char *const names[] = {"ids", "input_ids", "tokens"};
    *ids = NULL;
    for (size_t i = 0; i < COUNT(names); i++) {
        const cJSON *item = json_get(o, names[i]);
        if (!item) continue;
        if (*ids)
            return fail(err, ERR_CORRUPT, "two lists of ids, %s and %s", (*ids)->string, names[i]);
        if (!cJSON_IsArray(item)) return fail(err, ERR_CORRUPT, "%s is not a list", names[i]);
        *ids = item;
    }
    if (*ids) return OK;
    return fail(err, ERR_CORRUPT, "%s",
                cJSON_IsObject(o) ? "no list \"ids\", \"input_ids\" or \"tokens\""
                                  : "not an object such as {\"ids\": [1, 2, 3]}");
}

static void reserve_ids(struct reader *r, size_t count)
{
    if (count <= r->capacity) return;
    r->capacity = count + count / 2;
    r->ids = must_realloc(r->ids, r->capacity * sizeof *r->ids);
    r->mask = must_realloc(r->mask, r->capacity * sizeof *r->mask);
}

static enum status take_ids(struct reader *r, const cJSON *list, size_t *count, struct error *err)
{
    size_t i = 0;
    reserve_ids(r, (size_t)cJSON_GetArraySize(list));
    for (const cJSON *c = list->child; c; c = c->next, i++) {
        uint64_t id;
        if (!json_as_u64(c, &id) || id > INT32_MAX)
            return fail(err, ERR_CORRUPT, "%s: element %zu is not a token id from 0 to %d",
                        list->string, i, INT32_MAX);
        r->ids[i] = (int32_t)id;
        r->mask[i] = 1;
    }
    *count = i;
    return OK;
}

/* An element of loss_mask. */
static bool as_mask(const cJSON *item, int32_t id, uint8_t *mask)
{
    int64_t n = cJSON_IsTrue(item);
    (void)id;
    if (!cJSON_IsBool(item) && !json_as_i64(item, &n)) return false;
    *mask = n != 0;
    return n == 0 || n == 1;
}

/* An element of labels. */
static bool as_label(const cJSON *item, int32_t id, uint8_t *mask)
{
    int64_t n;
    if (!json_as_i64(item, &n)) return false;
    *mask = n != IGNORED_LABEL;
    return n == IGNORED_LABEL || n == id;
}

static const struct {
    const char *name, *expected;
    bool (*take)(const cJSON *item, int32_t id, uint8_t *mask);
} masks[] = {
    {"loss_mask", "0 or 1", as_mask},
    {"labels", "-100 or the id", as_label},
};

static enum status take_mask(struct reader *r, const cJSON *list, size_t k, size_t count,
                             struct error *err)
{
    size_t i = 0;
    if (!cJSON_IsArray(list)) return fail(err, ERR_CORRUPT, "%s is not a list", masks[k].name);
    if ((size_t)cJSON_GetArraySize(list) != count)
        return fail(err, ERR_CORRUPT, "%s has %d elements, but there are %zu ids", masks[k].name,
                    cJSON_GetArraySize(list), count);
    for (const cJSON *c = list->child; c; c = c->next, i++)
        if (!masks[k].take(c, r->ids[i], &r->mask[i]))
            return fail(err, ERR_CORRUPT, "%s: element %zu is not %s", masks[k].name, i,
                        masks[k].expected);
    return OK;
}

static enum status take_object(struct reader *r, const cJSON *o, struct ids_line *line,
                               struct error *err)
{
    const cJSON *list = NULL;
    TRY(find_ids(o, &list, err));
    *line = (struct ids_line){.number = r->number};
    TRY(take_ids(r, list, &line->count, err));
    for (size_t k = 0; k < COUNT(masks); k++) {
        const cJSON *mask = json_get(o, masks[k].name);
        if (!mask) continue;
        if (line->has_mask)
            return fail(err, ERR_CORRUPT, "found both %s and %s", masks[0].name, masks[1].name);
        TRY(take_mask(r, mask, k, line->count, err));
        line->has_mask = true;
    }
    line->ids = r->ids;
    line->mask = r->mask;
    return OK;
}

static enum status take_line(struct reader *r, size_t length, struct ids_line *line,
                             struct error *err)
{
    cJSON *tree;
    TRY(json_parse(r->text, length, JSON_STRICT, &tree, err));
    enum status st = take_object(r, tree, line, err);
    cJSON_Delete(tree);
    return st;
}

/* ---- the file ---- */

static bool is_blank(const char *text, size_t length)
{
    return strspn(text, " \t\r\n") >= length;
}

static enum status read_lines(struct reader *r, const char *path,
                              enum status (*visit)(void *, const struct ids_line *, struct error *),
                              void *context, struct error *err)
{
    struct ids_line line;
    ssize_t length;
    while ((length = getline(&r->text, &r->room, r->file)) >= 0) {
        r->number++;
        TRY(work_check(err));
        if (is_blank(r->text, (size_t)length)) continue;
        if (take_line(r, (size_t)length, &line, err))
            return fail_in(err, "%s: line %" PRIu64, path, r->number);
        TRY(visit(context, &line, err));
    }
    if (!feof(r->file)) return fail_errno(err, ERR_IO, "%s", path);
    return OK;
}

enum status ids_lines_read(const char *path,
                           enum status (*visit)(void *context, const struct ids_line *line,
                                                struct error *err),
                           void *context, struct error *err)
{
    struct reader r = {.file = NULL};
    int fd;
    TRY(file_open(path, &fd, NULL, err));
    r.file = fdopen(fd, "r");
    if (!r.file) {
        const enum status st = fail_errno(err, ERR_IO, "%s", path);
        close(fd);
        return st;
    }
    enum status st = read_lines(&r, path, visit, context, err);
    (void)fclose(r.file);
    free(r.text);
    free(r.ids);
    free(r.mask);
    return st;
}
