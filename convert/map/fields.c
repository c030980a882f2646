#include "convert/map/fields.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/model_config.h"
#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/embedded.h"

/* Index of a word in a list; -1: not there. */
static int word_of(const char *word, const char *const *words, int count)
{
    int i = 0;
    while (i < count && !text_equal(words[i], word))
        i++;
    return i < count ? i : -1;
}

static enum status declare(const cJSON *row, struct error *err)
{
    static const char *const members[] = {"name", "type",       "by_layer", "role",
                                          "args", "run_config", "when",     "about"};
    static const char *const types[] = {"whole", "real", "bool", "text"};
    static const enum field_kind kinds[] = {FIELD_UINT, FIELD_REAL, FIELD_BOOL, FIELD_TEXT};
    static const char *const roles[] = {"model", "training"};
    const char *name = json_as_text(json_get(row, "name")),
               *role = json_as_text(json_get(row, "role"));
    const int type = word_of(json_as_text(json_get(row, "type")), types, COUNT(types));
    const int which = role ? word_of(role, roles, COUNT(roles)) : 0;
    if (!name || !*name) return fail(err, ERR_USAGE, "fields: a row without name");
    for (const cJSON *i = row->child; i; i = i->next)
        if (word_of(i->string, members, COUNT(members)) < 0)
            return fail(err, ERR_USAGE, "field %s: \"%s\" is not a member", name, i->string);
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return fail(err, ERR_USAGE, "field %s: expected a name of a to z, 0 to 9 and _", name);
    if (type < 0)
        return fail(err, ERR_USAGE, "field %s: type must be whole, real, bool or text", name);
    if (which < 0) return fail(err, ERR_USAGE, "field %s: role must be model or training", name);
    return model_field_declare(name, kinds[type], which ? FIELD_TRAINING : FIELD_MODEL,
                               cJSON_IsTrue(json_get(row, "by_layer")), err);
}

enum status fields_declare(const cJSON *list, struct error *err)
{
    if (list && !cJSON_IsArray(list)) return fail(err, ERR_USAGE, "fields is not a list");
    for (const cJSON *i = list ? list->child : NULL; i; i = i->next)
        TRY(declare(i, err));
    return OK;
}

static cJSON *embedded; /* the tree of fields.json */

static void load(void)
{
    struct error err = {0};
    embedded = embedded_file_parse("fields.json");
    enum status st = fields_declare(embedded, &err);
    if (st) fprintf(stderr, "fields.json: %s\n", err.text);
    assert(!st);
}

void fields_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load);
}

const cJSON *fields_list(void)
{
    fields_load();
    return embedded;
}

void fields_add_rows(cJSON *rows)
{
    static const char *const files[] = {"args", "run_config"};
    for (const cJSON *i = fields_list()->child; i; i = i->next) {
        cJSON *row = cJSON_CreateObject();
        bool any = false;
        const char *when = json_as_text(json_get(i, "when"));
        json_add_text(row, "megatron", json_as_text(json_get(i, "name")));
        if (when) json_add_text(row, "when", when);
        for (size_t k = 0; k < COUNT(files); k++) {
            const char *name = json_as_text(json_get(i, files[k]));
            if (name) json_add_text(row, files[k], name);
            any |= name != NULL;
        }
        if (any)
            cJSON_AddItemToArray(rows, row);
        else
            cJSON_Delete(row);
    }
}
