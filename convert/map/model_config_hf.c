/* model_config_hf.c - reads and writes a whole config.json by a map's rows,
 * refuses models that the map marks as unsupported, and checks conditions of
 * all models. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "convert/map/model_map_internal.h"

/* Adds the value of an expression to the message. */
static enum status show_value(const struct map_names *names, const char *text, struct error *err)
{
    struct map_names inner = *names;
    struct strbuf value = {0};
    struct arena lists;
    struct error why;
    struct term t;
    arena_init(&lists);
    inner.arena = &lists;
    if (map_value(&inner, text, &t, &why)) t = (struct term){.kind = TERM_NONE};
    cJSON *item = term_json(&t, &lists);
    json_print(&value, item, -1);
    const char *shown = arena_printf(&lists, "%s: %.200s", err->text, value.data);
    enum status st = fail(err, ERR_UNSUPPORTED, "%s", shown);
    cJSON_Delete(item);
    strbuf_release(&value);
    arena_release(&lists);
    return st;
}

static enum status refuse_unsupported(const struct model_map *map, const cJSON *hf,
                                      const struct model_config *c, struct error *err)
{
    for (size_t i = 0; i < map->num_unsupported; i++) {
        const struct map_names names = {
            .map = map, .config = c, .file = hf, .member = "hf", .layer = -1, .expert = -1};
        const struct unsupported *u = &map->unsupported[i];
        bool holds;
        TRY(map_condition(&names, u->when, &holds, err));
        if (!holds) continue;
        (void)!fail(err, ERR_UNSUPPORTED, "config.json: %s", u->why);
        return u->value ? show_value(&names, u->value, err) : ERR_UNSUPPORTED;
    }
    return OK;
}

/* ---- the object with the model's fields ---- */

cJSON *model_config_joined(const struct model_map *map, const cJSON *hf)
{
    const cJSON *own = map->config_in ? json_get(hf, map->config_in) : NULL;
    if (!cJSON_IsObject(own)) return NULL;
    cJSON *joined = cJSON_Duplicate(own, true);
    for (const cJSON *i = hf->child; i; i = i->next)
        if (i != own && !json_get(own, i->string))
            cJSON_AddItemToObject(joined, i->string, cJSON_Duplicate(i, true));
    return joined;
}

/* Puts changed fields where they were; new ones into the model's object. */
static void split_config(const struct model_map *map, const cJSON *joined, cJSON *hf)
{
    cJSON *own = json_get(hf, map->config_in);
    for (const cJSON *i = joined->child; i; i = i->next) {
        cJSON *to = !json_get(own, i->string) && json_get(hf, i->string) ? hf : own;
        const cJSON *old = json_get(to, i->string);
        if (!old || !cJSON_Compare(old, i, true)) json_put(to, i->string, cJSON_Duplicate(i, true));
    }
}

static enum status read_config(const struct model_map *map, const cJSON *hf_config, struct arena *a,
                               struct model_config *c, struct error *err)
{
    *c = (struct model_config){.rotary_percent = 1, .rope_type = "default"};
    TRY(config_refuse_clash(&map->config, hf_config, a, err));
    TRY(config_rows_read(&map->config, hf_config, a, c, err));
    model_config_join_biases(c);
    TRY(refuse_unsupported(map, hf_config, c, err));
    return model_config_check(c, err);
}

enum status model_config_from_hf(const struct model_map *map, const cJSON *hf_config,
                                 struct arena *a, struct model_config *c, struct error *err)
{
    cJSON *joined = model_config_joined(map, hf_config);
    enum status st = read_config(map, joined ? joined : hf_config, a, c, err);
    cJSON_Delete(joined);
    return st;
}

/* ---- writing ---- */

/* Checks that the written config.json reads as the same model. */
static enum status check_written(const struct model_map *map, const struct model_config *c,
                                 const cJSON *hf_config, struct arena *a, struct error *err)
{
    struct model_config back;
    if (model_config_from_hf(map, hf_config, a, &back, err))
        return fail_in(err, "a config.json of family %s cannot describe this model", map->family);
    struct model_config own = model_config_with_unused(c, &back);
    const char *name = model_config_difference(&own, &back);
    if (!name) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "a config.json of family %s cannot express %s %s: it would be read as %s",
                map->family, name, model_config_text(c, name, a),
                model_config_text(&back, name, a));
}

enum status model_config_to_hf(const struct model_map *map, const struct model_config *c,
                               cJSON *hf_config, struct error *err)
{
    struct arena a;
    arena_init(&a);
    cJSON *joined = model_config_joined(map, hf_config);
    enum status st = config_rows_write(&map->config, c, joined ? joined : hf_config, err);
    if (joined) split_config(map, joined, hf_config);
    cJSON_Delete(joined);
    if (!st) st = check_written(map, c, hf_config, &a, err);
    arena_release(&a);
    return st;
}

/* Whether the row's member is 0 or NULL, and config.json cannot say that. */
static bool is_not_given(const struct config_row *row, const struct model_config *c)
{
    const struct scalar s = field_get(row->field, c);
    const bool zero_is_a_value = s.kind == FIELD_REAL && row->zero != ZERO_UNKNOWN;
    if (row->zero == ZERO_UNUSED) return false;
    return !scalar_is_given(s) && !zero_is_a_value && !config_null_is_zero(row);
}

/* A visit of unknown fields: names get the object before them. */
struct unknown_in {
    const char *object;
    const cJSON *fields; /* of that object */
    void (*visit)(void *context, const char *name, const char *value);
    void *context;
};

static void visit_in_object(void *context, const char *name, const char *value)
{
    const struct unknown_in *in = context;
    char field[128];
    struct strbuf path = {0};
    snprintf(field, sizeof field, "%.*s", (int)strcspn(name, "."), name);
    if (json_get(in->fields, field)) strbuf_printf(&path, "%s.", in->object);
    strbuf_add_text(&path, name);
    in->visit(in->context, path.data, value);
    strbuf_release(&path);
}

void model_config_unknown(const struct model_map *map, const cJSON *hf_config,
                          void (*visit)(void *context, const char *name, const char *value),
                          void *context)
{
    struct model_config c;
    struct error why;
    struct arena a;
    cJSON *joined = model_config_joined(map, hf_config);
    struct unknown_in in = {map->config_in, joined ? json_get(hf_config, map->config_in) : NULL,
                            visit, context};
    arena_init(&a);
    const bool is_read = model_config_from_hf(map, hf_config, &a, &c, &why) == OK;
    const struct config_read read = {&map->config, is_read ? &c : NULL};
    config_unknown(&read, 1, joined ? joined : hf_config, visit_in_object, &in);
    cJSON_Delete(joined);
    arena_release(&a);
}

const char *model_config_lacks(const struct model_map *map, const struct model_config *c,
                               struct arena *a)
{
    struct strbuf list = {0};
    strbuf_add_text(&list, "");
    for (size_t i = 0; i < map->config.num_rows; i++) {
        const struct config_row *row = &map->config.rows[i];
        bool rope = row->how->to_file == rope_to_file && !(c->rotary_base > 0);
        if (!(row->directions & EXPORT) || row->value || row->num_writes) continue;
        if (!rope && (!row->field || !is_not_given(row, c))) continue;
        strbuf_printf(&list, "%s%s", list.length ? ", " : "", rope ? "rotary_base" : row->megatron);
    }
    const char *text = list.length ? arena_text(a, list.data, list.length) : NULL;
    strbuf_release(&list);
    return text;
}

static enum status in_range(const char *name, uint64_t n, uint64_t most, struct error *err)
{
    if (n >= 1 && n <= most) return OK;
    return fail(err, ERR_CORRUPT, "%s is %" PRIu64 ", expected 1 to %" PRIu64, name, n, most);
}

static enum status check_attention(const struct model_config *c, uint64_t most, struct error *err)
{
    const struct model_field *f = model_field_find("attention_free");
    if (f && !model_field_is_zero(f, c)) return OK;
    TRY(in_range("ffn_hidden_size", c->ffn_hidden_size, most, err));
    TRY(in_range("num_attention_heads", c->num_attention_heads, most, err));
    TRY(in_range("num_query_groups (key/value heads)", c->num_query_groups, most, err));
    TRY(in_range("kv_channels (head_dim)", c->kv_channels, most, err));
    if (c->num_attention_heads % c->num_query_groups == 0) return OK;
    return fail(err, ERR_CORRUPT,
                "%" PRIu64 " attention heads cannot share %" PRIu64 " key/value heads",
                c->num_attention_heads, c->num_query_groups);
}

enum status model_config_check(const struct model_config *c, struct error *err)
{
    const uint64_t most = (uint64_t)1 << 40;
    TRY(in_range("num_layers", c->num_layers, MAX_LAYERS, err));
    TRY(in_range("hidden_size", c->hidden_size, most, err));
    TRY(check_attention(c, most, err));
    TRY(in_range("max_position_embeddings", c->max_position_embeddings, most, err));
    if (c->vocab_size) TRY(in_range("vocab_size", c->vocab_size, most, err));
    if (!isfinite(c->layernorm_epsilon) || c->layernorm_epsilon <= 0)
        return fail(err, ERR_CORRUPT, "layernorm_epsilon is %g, expected a finite number above 0",
                    c->layernorm_epsilon);
    if (c->position_embedding_type && strcmp(c->position_embedding_type, "rope") == 0 &&
        (c->kv_channels % 2 || !(c->rotary_base > 0)))
        return fail(err, ERR_CORRUPT,
                    "rotary positions need an even head size (%" PRIu64 ") and a base above 0 (%g)",
                    c->kv_channels, c->rotary_base);
    if (!(c->rotary_percent <= 1))
        return fail(err, ERR_CORRUPT, "rotary_percent is %g, expected at most 1",
                    c->rotary_percent);
    if (!c->num_experts) return OK;
    TRY(in_range("num_experts", c->num_experts, MAX_EXPERTS, err));
    TRY(in_range("num_layers * num_experts", c->num_layers * c->num_experts, MAX_LAYER_EXPERTS,
                 err));
    TRY(in_range("moe_ffn_hidden_size", c->moe_ffn_hidden_size, most, err));
    return in_range("moe_router_topk", c->moe_router_topk, c->num_experts, err);
}
