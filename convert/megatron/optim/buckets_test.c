#include "convert/megatron/optim/buckets.h"

#include <glob.h>

#include "common/map.h"
#include "convert/map/params.h"
#include "convert/testing_convert.h"

/* ---- runs of Megatron-Core: tests/golden/make/buckets.py ---- */

struct run {
    cJSON *tree;
    struct model_config config;
    struct layout layout;
    struct bucket_rules rules;
    const struct param_table *table;
    struct trained_param *params;
    size_t num_params, capacity;
};

static void fill(const struct field *f, void *to, const cJSON *from)
{
    const cJSON *item = json_get(from, f->name);
    if (item && !field_set_json(f, to, item, &scratch)) fail_msg("%s has another kind", f->name);
}

static uint64_t number_of(const cJSON *item)
{
    uint64_t n = 0;
    if (item && !json_as_u64(item, &n)) fail_msg("%s is no number", item->string);
    return n;
}

static void read_head(struct run *r)
{
    struct layout_options o = {0};
    const cJSON *rules = json_get(r->tree, "rules");
    for (size_t i = 0; i < num_model_fields; i++)
        fill(&model_fields[i].field, &r->config, json_get(r->tree, "config"));
    for (size_t i = 0; i < NUM_LAYOUT_FIELDS; i++)
        fill(&layout_fields[i], &o, json_get(r->tree, "layout"));
    assert_ok(layout_make(&r->layout, &scratch, &o, &r->config, &err));
    assert_ok(params_make(NULL, &r->config, &scratch, &r->table, &err));
    r->rules = (struct bucket_rules){
        .dp = number_of(json_get(rules, "dp")),
        .expert_dp = number_of(json_get(rules, "expert_dp")),
        .transformer_engine = cJSON_IsTrue(json_get(rules, "transformer_engine")),
        .grouped_gemm = cJSON_IsTrue(json_get(rules, "grouped_gemm")),
        .bucket_size = number_of(json_get(rules, "bucket_size")),
        .high_bandwidth = cJSON_IsTrue(json_get(rules, "high_bandwidth"))};
}

/* Shapes of shared experts are not those of any field of the config. */
static void set_shape(const struct run *r, struct trained_param *p)
{
    const struct param_spec *s = p->param.spec;
    const uint64_t i = number_of(json_get(json_get(r->tree, "config"),
                                          "moe_shared_expert_intermediate_size")),
                   h = r->config.hidden_size;
    uint64_t *shape = arena_copy(&scratch, s->shape, sizeof s->shape);
    p->num_dims = s->num_dims ? s->num_dims : 2;
    if (strstr(p->name, "shared_experts.linear_fc1")) shape[0] = 2 * i, shape[1] = h;
    if (strstr(p->name, "shared_experts.linear_fc2")) shape[0] = h, shape[1] = i;
    if (strstr(p->name, "shared_experts.gate_weight")) shape[0] = 1, shape[1] = h;
    p->shape = shape;
}

static bool is_copy(const struct run *r, const char *name)
{
    return !r->config.untie_embeddings_and_output_weights &&
           strcmp(name, "output_layer.weight") == 0;
}

static void add_params(struct run *r, const cJSON *buffer, struct map *seen)
{
    const cJSON *item;
    enum dtype dtype;
    assert_true(dtype_from_torch(json_as_text(json_get(buffer, "dtype")), &dtype));
    cJSON_ArrayForEach(item, json_get(buffer, "params"))
    {
        const char *name = json_as_text(cJSON_GetArrayItem(item, 0));
        if (is_copy(r, name) || !map_add(seen, name, 0, NULL)) continue;
        struct trained_param *p = ARENA_PUSH(&scratch, r->params, r->num_params, r->capacity);
        *p = (struct trained_param){.name = name, .dtype = dtype};
        if (!param_find(r->table, name, &p->param)) fail_msg("%s is not found", name);
        assert_false(p->param.spec->buffer);
        set_shape(r, p);
    }
}

static void shuffle(struct trained_param *params, size_t count, uint64_t *seed)
{
    for (size_t i = count; i > 1; i--) {
        size_t k = test_below(seed, i);
        struct trained_param kept = params[k];
        params[k] = params[i - 1];
        params[i - 1] = kept;
    }
}

/* The parameters of the model: all that any cell has, in a random order. */
static void read_params(struct run *r)
{
    struct map seen = {0};
    uint64_t seed = test_seed();
    const cJSON *cell, *buffer;
    cJSON_ArrayForEach(cell, json_get(r->tree, "cells"))
    {
        cJSON_ArrayForEach(buffer, json_get(cell, "buffers"))
        {
            add_params(r, buffer, &seen);
        }
    }
    map_release(&seen);
    shuffle(r->params, r->num_params, &seed);
}

static struct run read_run(const char *path)
{
    struct run r = {0};
    assert_ok(json_read_file(path, 1 << 20, JSON_STRICT, &r.tree, &err));
    read_head(&r);
    read_params(&r);
    return r;
}

static struct bucket_cell read_cell(const cJSON *from)
{
    return (struct bucket_cell){.experts = cJSON_IsTrue(json_get(from, "experts")),
                                .pp_rank = number_of(json_get(from, "pp_rank")),
                                .tp_rank = number_of(json_get(from, "tp_rank")),
                                .ep_rank = number_of(json_get(from, "ep_rank"))};
}

static enum status place(const struct run *r, const struct bucket_cell *cell,
                         const struct bucket_sizes *known, size_t num_known,
                         struct param_buffer **out, size_t *count)
{
    return buckets_place(r->params, r->num_params, &r->layout, &r->config, &r->rules, cell, known,
                         num_known, &scratch, out, count, &err);
}

/* ---- comparing ---- */

static void check_buckets(const struct param_buffer *b, const cJSON *list)
{
    const cJSON *item;
    size_t i = 0;
    uint64_t unpadded = 0;
    assert_int_equal(b->num_buckets, cJSON_GetArraySize(list));
    cJSON_ArrayForEach(item, list)
    {
        const struct param_bucket *k = &b->buckets[i++];
        assert_int_equal(k->start, number_of(cJSON_GetArrayItem(item, 0)));
        assert_int_equal(k->start + k->numel, number_of(cJSON_GetArrayItem(item, 1)));
        assert_int_equal(k->numel_unpadded, number_of(cJSON_GetArrayItem(item, 2)));
        assert_int_equal(k->start_unpadded, unpadded);
        unpadded += k->numel_unpadded;
    }
    assert_int_equal(b->numel_unpadded, unpadded);
}

static void check_param(const struct param_buffer *b, size_t i, const cJSON *item)
{
    const struct placed_param *p = &b->params[i];
    const char *name = json_as_text(cJSON_GetArrayItem(item, 0));
    const char *ours = p->is_tied_head ? "output_layer.weight" : p->of->name;
    if (strcmp(ours, name)) fail_msg("parameter %zu is %s, not %s", i, name, ours);
    if (p->start != number_of(cJSON_GetArrayItem(item, 1)))
        fail_msg("%s is at %llu, not %llu", name,
                 (unsigned long long)number_of(cJSON_GetArrayItem(item, 1)),
                 (unsigned long long)p->start);
    assert_int_equal(p->start + p->numel, number_of(cJSON_GetArrayItem(item, 2)));
    assert_int_equal(p->bucket, number_of(cJSON_GetArrayItem(item, 3)));
    const struct param_bucket *k = &b->buckets[p->bucket];
    assert_int_equal(p->start_unpadded - k->start_unpadded, p->start - k->start);
}

static void check_buffers(const struct param_buffer *b, size_t count, const cJSON *list)
{
    const cJSON *from, *item;
    assert_int_equal(count, cJSON_GetArraySize(list));
    cJSON_ArrayForEach(from, list)
    {
        size_t i = 0;
        assert_int_equal(b->chunk, number_of(json_get(from, "chunk")));
        assert_string_equal(dtype_infos[b->dtype].torch, json_as_text(json_get(from, "dtype")));
        assert_int_equal(b->numel, number_of(json_get(from, "numel")));
        assert_int_equal(b->numel_unpadded, number_of(json_get(from, "numel_unpadded")));
        check_buckets(b, json_get(from, "buckets"));
        assert_int_equal(b->num_params, cJSON_GetArraySize(json_get(from, "params")));
        cJSON_ArrayForEach(item, json_get(from, "params"))
        {
            check_param(b, i++, item);
        }
        b++;
    }
}

/* The sizes of buckets that a file of these buffers has. */
static struct bucket_sizes *sizes_of(const struct param_buffer *b, size_t count)
{
    struct bucket_sizes *sizes = arena_array(&scratch, count, sizeof *sizes);
    for (size_t i = 0; i < count; i++) {
        uint64_t *numel = arena_array(&scratch, b[i].num_buckets, sizeof *numel);
        for (size_t k = 0; k < b[i].num_buckets; k++)
            numel[k] = b[i].buckets[k].numel_unpadded;
        sizes[i] = (struct bucket_sizes){numel, b[i].num_buckets};
    }
    return sizes;
}

static void check_number(const struct run *r, const struct bucket_cell *cell, const cJSON *from)
{
    struct bucket_cell back = {0};
    const uint64_t number = number_of(json_get(from, "number"));
    assert_int_equal(bucket_cell_number(&r->layout, cell), number);
    assert_true(bucket_cell_of_number(&r->layout, cell->experts, number, &back));
    assert_memory_equal(&back, cell, sizeof back);
}

/* By the rules, and by the sizes of buckets alone. */
static void check_cell(struct run *r, const cJSON *from)
{
    const struct bucket_cell cell = read_cell(from);
    const struct bucket_rules rules = r->rules;
    struct param_buffer *buffers;
    size_t count;
    check_number(r, &cell, from);
    assert_ok(place(r, &cell, NULL, 0, &buffers, &count));
    check_buffers(buffers, count, json_get(from, "buffers"));
    r->rules.bucket_size = 0;
    assert_ok(place(r, &cell, sizes_of(buffers, count), count, &buffers, &count));
    check_buffers(buffers, count, json_get(from, "buffers"));
    r->rules = rules;
}

static void every_parameter_lies_where_megatron_puts_it(void **state)
{
    (void)state;
    glob_t files;
    assert_int_equal(glob("tests/golden/buckets/*.json", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 25);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const cJSON *cell;
        print_message("%s\n", files.gl_pathv[i]);
        struct run r = read_run(files.gl_pathv[i]);
        cJSON_ArrayForEach(cell, json_get(r.tree, "cells"))
        {
            check_cell(&r, cell);
        }
        cJSON_Delete(r.tree);
    }
    globfree(&files);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(every_parameter_lies_where_megatron_puts_it),
    };
    return cmocka_run_group_tests_name("buckets", tests, NULL, NULL);
}
