#include "convert/cli/record_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/command_line.h"
#include "common/file.h"
#include "common/json.h"
#include "common/version.h"
#include "convert/cli/contents.h"
#include "convert/cli/options.h"
#include "convert/states.h"

/* Adds the missing master of each weight with other states in the list that
 * readers take for its own master (weight_is_its_master). `all` has room
 * for twice *count. */
static void add_own_masters(struct tensor_digest *all, size_t *count, struct arena *a)
{
    struct map names = {0}, with_states = {0};
    const size_t listed = *count;
    for (size_t i = 0; i < listed; i++) {
        const char *parameter = name_of_state(all[i].name, NULL, NULL);
        (void)map_add(&names, all[i].name, i, NULL);
        if (parameter) (void)map_add(&with_states, parameter, i, NULL);
    }
    for (size_t i = 0; i < listed; i++) {
        if (!weight_is_its_master(all[i].dtype) || !map_get(&with_states, all[i].name, NULL))
            continue;
        struct tensor_digest master = all[i];
        master.name = state_name(a, master_state, all[i].name);
        if (!map_get(&names, master.name, NULL)) all[(*count)++] = master;
    }
    map_release(&names);
    map_release(&with_states);
}

void record_digests(const struct plan *p, const struct copy_result *results, bool written,
                    struct arena *a, struct tensor_digest **out, size_t *count)
{
    *out = arena_array(a, 2 * p->num_copies, sizeof **out);
    *count = 0;
    for (size_t i = 0; i < p->num_copies; i++) {
        const struct plan_copy *c = &p->copies[i];
        const struct tensor *t = c->source;
        if (name_is_padding(t->name)) continue;
        const enum dtype dtype = written ? plan_digest_dtype(p, c) : t->dtype;
        (*out)[(*count)++] =
            (struct tensor_digest){.name = t->name,
                                   .dtype = dtype,
                                   .num_dims = t->num_dims,
                                   .shape = t->shape,
                                   .sums = written ? results[i].written : results[i].read};
    }
    add_own_masters(*out, count, a);
}

static void add_time_and_place(cJSON *o)
{
    char when[32] = "", host[256] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    (void)gethostname(host, sizeof host - 1);
    cJSON_AddStringToObject(o, "written", when);
    cJSON_AddStringToObject(o, "host", host);
    cJSON_AddItemToObject(o, "command", command_line_words());
}

void record_add_digests(cJSON *o, const char *whole_name, const char *tensors_name,
                        struct tensor_digest *digests, size_t count)
{
    struct strbuf text = {0};
    char whole[2][SHA256_TEXT];
    digest_print_all(&text, digests, count, whole);
    bool has_weights = !count; /* files of ZeRO-3 have masters alone */
    for (size_t i = 0; i < count; i++)
        has_weights |= !name_is_optimizer(digests[i].name);
    cJSON *sums = cJSON_AddObjectToObject(o, whole_name);
    if (has_weights) cJSON_AddStringToObject(sums, "*", whole[0]);
    if (*whole[1]) cJSON_AddStringToObject(sums, "optimizer.*", whole[1]);
    cJSON *tensors = cJSON_AddObjectToObject(o, tensors_name);
    for (size_t i = 0; i < count; i++) {
        strbuf_clear(&text);
        digest_print(&text, &digests[i]);
        cJSON_AddItemToObject(tensors, digests[i].name, cJSON_CreateString(text.data));
    }
    strbuf_release(&text);
}

/* Adds the files of the folder, and `later`. */
static enum status add_files(cJSON *o, const char *folder, const char *later, struct arena *a,
                             struct error *err)
{
    struct name_list list;
    TRY(contents_list(folder, a, &list, err));
    cJSON *files = cJSON_AddArrayToObject(o, "files");
    for (size_t i = 0; i < list.count; i++)
        cJSON_AddItemToArray(files, cJSON_CreateString(list.names[i]));
    cJSON_AddItemToArray(files, cJSON_CreateString(record_name));
    if (later) cJSON_AddItemToArray(files, cJSON_CreateString(later));
    return OK;
}

enum status record_write(const struct conversion *c, const char *folder, const char *later,
                         bool durable, struct error *err)
{
    struct arena a;
    struct tensor_digest *digests;
    size_t count;
    struct strbuf text = {0};
    cJSON *o = cJSON_CreateObject();
    arena_init(&a);
    cJSON_AddStringToObject(o, "ferry", ferry_version);
    add_time_and_place(o);
    report_sides_json(o, c);
    report_lossy_json(o, c->target);
    enum status st = add_files(o, folder, later, &a, err);
    cJSON_AddStringToObject(o, "plan", c->fingerprint);
    cJSON_AddStringToObject(o, "run", c->run);
    report_counts_json(o, c);
    if (c->has_digests) {
        record_digests(&c->target->plan, c->copies, true, &a, &digests, &count);
        record_add_digests(o, "digest", "tensors", digests, count);
    }
    if (c->has_digests && c->target->facts.cast_tensors) {
        record_digests(&c->target->plan, c->copies, false, &a, &digests, &count);
        record_add_digests(o, "source_digest", "source_tensors", digests, count);
    }
    json_print(&text, o, 2);
    strbuf_add_char(&text, '\n');
    cJSON_Delete(o);
    if (!st)
        st = file_replace_all(path_join(&a, folder, record_name), text.data, text.length, durable,
                              err);
    strbuf_release(&text);
    arena_release(&a);
    return st;
}
