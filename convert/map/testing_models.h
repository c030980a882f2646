/* testing_models.h - Hugging Face folders with small models of random weights,
 * for tests of whole conversions. */
#ifndef FERRY_CONVERT_MAP_TESTING_MODELS_H
#define FERRY_CONVERT_MAP_TESTING_MODELS_H

#include "convert/testing_hf.h"
#include "formats/torch.h"

static struct model_maps maps;

static inline int load_maps(void **state)
{
    (void)state;
    return model_maps_load(&maps, NULL, NULL) ? -1 : 0;
}

static inline int release_maps(void **state)
{
    (void)state;
    model_maps_release(&maps);
    return 0;
}

/* ---- small models ---- */

#define LLAMA                                                                                      \
    "'model_type':'llama','vocab_size':11,'hidden_size':8,'intermediate_size':6,"                  \
    "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':2,"          \
    "'max_position_embeddings':16,'torch_dtype':'bfloat16'"
#define MIXTRAL                                                                                    \
    "'model_type':'mixtral','vocab_size':11,'hidden_size':8,'intermediate_size':6,"                \
    "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':2,"          \
    "'num_local_experts':4,'torch_dtype':'bfloat16'"
#define QWEN2                                                                                      \
    "'model_type':'qwen2','vocab_size':11,'hidden_size':8,'intermediate_size':6,"                  \
    "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2"

static inline enum dtype all_bf16(void *context, const char *logical)
{
    (void)context, (void)logical;
    return DT_BF16;
}

/* Layer 1 is F32. */
static inline enum dtype by_layer(void *context, const char *logical)
{
    (void)context;
    return strstr(logical, "layers.1.") ? DT_F32 : DT_BF16;
}

/* Expert 1 is F16, which has as many bytes. */
static inline enum dtype by_expert(void *context, const char *logical)
{
    (void)context;
    return strstr(logical, "experts.experts.1.") ? DT_F16 : DT_BF16;
}

/* Makes a model folder NAME whose config.json has these members; returns its
 * path. */
static inline const char *make(const char *name, const char *members, dtype_choice *choose)
{
    uint64_t seed = 7;
    const struct model_map *map;
    const char *folder = in_scratch(name);
    cJSON *config = json_tree(arena_printf(&scratch, "{%s}", members));
    assert_ok(model_map_of_config(&maps, config, &map, &err));
    make_hf(folder, map, config, choose ? choose : all_bf16, NULL, false, &seed);
    cJSON_Delete(config);
    return folder;
}

/* Removes `prefix` from the names of a folder's tensors, as save_pretrained()
 * of a base model writes them. */
static inline void take_off(const char *folder, const char *prefix)
{
    struct strbuf text = {0};
    const char *path = path_join(&scratch, folder, "model.safetensors");
    const char *quoted = arena_printf(&scratch, "\"%s", prefix);
    assert_ok(file_read_all(path, 1 << 20, &text, &err));
    size_t length = (size_t)dtype_load(DT_I64, text.data, 0), n = 0, to = 8;
    for (size_t i = 8; i < 8 + length; n = to, to++) {
        bool here = strncmp(text.data + i, quoted, strlen(quoted)) == 0;
        text.data[to] = text.data[i];
        i += here ? strlen(quoted) : 1;
    }
    assert_true(n < 7 + length);
    memset(text.data + to, ' ', 8 + length - to);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, text.data, text.length, false, &err));
    strbuf_release(&text);
}

static inline void rewrite(const char *folder, const char *name, const char *text)
{
    const char *path = path_join(&scratch, folder, name);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, text, strlen(text), false, &err));
}

/* Makes an HF folder of a small model and its states; model and tied: options
 * of ferry synth. */
static inline const char *make_trained(const char *name, const char *model, const char *tied)
{
    const char *folder = in_scratch(name);
    assert_ok(RUN(command_synth, "-q", "--no-fsync", "--optim", model, tied, "--layers=2",
                  "--hidden=8", "--heads=4", "--kv-heads=2", "--ffn-hidden-size=6",
                  "--vocab-size=11", folder));
    return folder;
}

/* Sets a member of the dict in a folder's common.pt, or of its args. data: of a
 * tensor. */
static inline void set_common(const char *folder, bool in_args, const char *name, struct value *v,
                              const void *data)
{
    struct stored s;
    struct torch_file t;
    struct strbuf file = {0};
    const char *path = path_join(&scratch, folder, "common.pt");
    stored_init(&s);
    assert_ok(torch_open(&t, &s, path, 0, UINT64_MAX, &err));
    struct value *to = in_args ? value_get(t.root, "args")->object->state : t.root;
    value_dict_set(&scratch, to, name, v);
    assert_ok(torch_to_bytes(&file, "common", t.root, &data, &err));
    torch_close(&t);
    stored_release(&s);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, file.data, file.length, false, &err));
    strbuf_release(&file);
}

static inline const char *read_text(const char *path)
{
    struct strbuf text = {0};
    assert_ok(file_read_all(path, 1 << 20, &text, &err));
    const char *copy = arena_text(&scratch, text.data ? text.data : "", text.length);
    strbuf_release(&text);
    return copy;
}

/* A copy of an HF folder without the tensors whose names contain `without`. */
static inline const char *make_without(const char *name, const char *from, const char *without)
{
    const char *folder = in_scratch(name);
    struct checkpoint c;
    struct safetensors_out tensors[256];
    const void *data[256];
    struct strbuf file = {0};
    uint64_t bytes;
    size_t n = 0;
    open_hf_folder(&c, from);
    for (size_t i = 0; i < c.catalog.stored.num_tensors; i++) {
        const struct stored_tensor *s = &c.catalog.stored.tensors[i];
        if (strstr(s->name, without)) continue;
        tensors[n++] = (struct safetensors_out){
            .name = s->name, .dtype = s->dtype, .num_dims = s->num_dims, .shape = s->shape};
    }
    assert_ok(safetensors_layout(tensors, n, &file, &bytes, &err));
    for (size_t i = 0; i < n; i++) {
        const struct stored_tensor *s = stored_find(&c.catalog.stored, tensors[i].name);
        data[i] = stored_elements(&c, s);
        strbuf_add(&file, data[i], stored_tensor_bytes(s));
    }
    assert_ok(folder_create(folder, &err));
    assert_ok(file_write_all(path_join(&scratch, folder, "model.safetensors"), file.data,
                             file.length, false, &err));
    assert_ok(file_copy(path_join(&scratch, from, "config.json"),
                        path_join(&scratch, folder, "config.json"), false, &err));
    strbuf_release(&file);
    checkpoint_release(&c);
    return folder;
}

#endif
