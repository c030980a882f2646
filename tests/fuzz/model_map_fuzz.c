/* model_map_fuzz.c - any JSON as a model map (where it has a "family") or as a config.json: read,
 * expanded to tensors, and the config written back. */
#include "common/json.h"
#include "convert/map/model_map.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TENSORS = 2000 };

/* Has what the families ask for, in all their spellings. */
static const char some_config[] =
    "{\"hidden_size\": 64, \"n_embd\": 64, \"intermediate_size\": 128, \"n_inner\": 128,"
    "\"num_hidden_layers\": 2, \"n_layer\": 2, \"num_attention_heads\": 8, \"n_head\": 8,"
    "\"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": 100, \"n_positions\": 64,"
    "\"max_position_embeddings\": 64, \"num_local_experts\": 4, \"num_experts\": 4,"
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"rms_norm_eps\": 1e-05,"
    "\"layer_norm_epsilon\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\"}";

static struct model_maps built_in;

/* A model may be described that is larger than any; its first tensors will do. */
static enum status count(void *context, const struct mapped_tensor *t, struct error *err)
{
    size_t *num_tensors = context;
    if (!t->num_parts || !t->name[0]) abort();
    if (++*num_tensors < MAX_TENSORS) return OK;
    return fail(err, ERR_MEMORY, "enough");
}

/* An unknown field has a name and a value. */
static void unknown(void *context, const char *name, const char *value)
{
    (void)context;
    if (!name || !value) abort();
}

static void use(const struct model_map *map, const cJSON *config)
{
    struct model_config c = {0};
    struct arena a;
    struct error err;
    size_t num_tensors = 0;
    arena_init(&a);
    if (!model_config_from_hf(map, config, &a, &c, &err) && !model_config_check(&c, &err)) {
        cJSON *back = cJSON_CreateObject();
        model_config_unknown(map, config, unknown, NULL);
        (void)!model_map_expand(map, &c, NULL, count, &num_tensors, &err);
        (void)!model_config_to_hf(map, &c, back, &err);
        cJSON_Delete(back);
    }
    arena_release(&a);
}

static void as_map(const uint8_t *data, size_t size, const char *family)
{
    struct model_maps maps;
    struct error err;
    char path[64];
    cJSON *config;
    int fd = file_of_bytes(data, size, path);
    if (!model_maps_load(&maps, path, &err)) {
        struct strbuf text = {0};
        const struct model_map *map = model_map_of_family(&maps, family);
        if (!map) abort();
        model_map_print(&text, map);
        if (json_parse(some_config, sizeof some_config - 1, JSON_STRICT, &config, &err)) abort();
        use(map, config);
        cJSON_Delete(config);
        strbuf_release(&text);
    }
    model_maps_release(&maps);
    close(fd);
}

static void as_config(const cJSON *config)
{
    struct error err;
    const struct model_map *map;
    if (!built_in.num_maps && model_maps_load(&built_in, NULL, &err)) abort();
    if (!model_map_of_config(&built_in, config, &map, &err)) use(map, config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    cJSON *json;
    if (json_parse((const char *)data, size, JSON_NAN, &json, &err)) return 0;
    const char *family = json_as_text(json_get(json, "family"));
    if (family)
        as_map(data, size, family);
    else
        as_config(json);
    cJSON_Delete(json);
    return 0;
}
