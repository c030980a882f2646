#include "convert/megatron/optim/buckets.h"

#include <glob.h>

#include "common/checked.h"
#include "common/count.h"
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
        .experts_apart_by_etp = cJSON_IsTrue(json_get(rules, "experts_apart_by_etp")),
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
    const char *ours = p->copy == COPY_AS_HEAD ? "output_layer.weight" : p->of->name;
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
    assert_true(bucket_cell_of_number(&r->layout, cell->experts, number, &back));
    assert_true(back.experts == cell->experts && back.pp_rank == cell->pp_rank &&
                back.tp_rank == cell->tp_rank && back.ep_rank == cell->ep_rank &&
                back.first_chunk == cell->first_chunk && back.num_chunks == cell->num_chunks);
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

/* ---- padding ---- */

static void check_padding(const struct param_buffer *b, uint64_t dp, uint64_t alignment)
{
    for (size_t i = 0; i < b->num_buckets; i++) {
        const struct param_bucket *k = &b->buckets[i];
        uint64_t end = ceil_div_u64(k->start + k->numel_unpadded, alignment) * alignment;
        while (end % dp)
            end += alignment;
        assert_int_equal(k->start + k->numel, end);
    }
}

/* With any number of ranks a bucket ends at the next multiple of it and of the
 * alignment. */
static void buckets_end_where_all_ranks_have_a_share(void **state)
{
    (void)state;
    struct run r = read_run("tests/golden/buckets/llama-buckets-dp3.json");
    const struct bucket_cell cell = {0};
    for (r.rules.dp = 1; r.rules.dp <= 600; r.rules.dp++) {
        struct param_buffer *b;
        size_t count;
        r.rules.high_bandwidth = r.rules.dp % 50 == 0;
        assert_ok(place(&r, &cell, NULL, 0, &b, &count));
        assert_true(b->num_buckets > 1);
        check_padding(b, r.rules.dp, r.rules.high_bandwidth ? 1 << 16 : 128);
    }
    cJSON_Delete(r.tree);
}

/* ---- several optimizers ---- */

/* With overlap_param_gather_with_optimizer_step the first chunk has an
 * optimizer of its own. */
static void chunks_may_have_optimizers_of_their_own(void **state)
{
    (void)state;
    struct run r = read_run("tests/golden/buckets/qwen-tied-vpp2-buckets.json");
    struct param_buffer *all, *some;
    size_t count;
    for (uint64_t pp = 0; pp < 2; pp++)
        for (uint64_t chunk = 0; chunk < 2; chunk++) {
            struct bucket_cell cell = {.pp_rank = pp};
            assert_ok(place(&r, &cell, NULL, 0, &all, &count));
            assert_int_equal(count, 2);
            cell.first_chunk = chunk;
            cell.num_chunks = chunk ? 0 : 1;
            assert_ok(place(&r, &cell, NULL, 0, &some, &count));
            assert_int_equal(count, 1);
            assert_int_equal(some->chunk, chunk);
            assert_int_equal(some->num_params, all[chunk].num_params);
            assert_int_equal(some->num_buckets, all[chunk].num_buckets);
            assert_int_equal(some->numel, all[chunk].numel);
        }
    cJSON_Delete(r.tree);
}

/* ---- numbers of cells ---- */

static void cells_have_numbers_without_gaps(void **state)
{
    (void)state;
    const struct layout l = {.tp = 3, .pp = 4, .vpp = 1, .ep = 5, .etp = 2};
    for (int experts = 0; experts < 2; experts++) {
        const uint64_t count = experts ? 2 * 5 * 4 : 3 * 4;
        struct bucket_cell cell;
        for (uint64_t n = 0; n < count; n++) {
            assert_true(bucket_cell_of_number(&l, experts, n, &cell));
            const uint64_t dense = cell.tp_rank + 3 * cell.pp_rank,
                           of_experts = cell.tp_rank + 2 * (cell.ep_rank + 5 * cell.pp_rank);
            assert_int_equal(experts ? of_experts : dense, n);
        }
        assert_false(bucket_cell_of_number(&l, experts, count, &cell));
        assert_false(bucket_cell_of_number(&l, experts, UINT64_MAX, &cell));
    }
}

/* ---- refusals ---- */

#define LLAMA "tests/golden/buckets/llama-tp2pp2.json"
#define TIED "tests/golden/buckets/qwen-tied-tp2pp2-dp2.json"

static enum status place_first(const struct run *r, const struct bucket_sizes *known, size_t count)
{
    const struct bucket_cell first = {0};
    struct param_buffer *buffers;
    size_t num_buffers;
    return place(r, &first, known, count, &buffers, &num_buffers);
}

struct sizes_case {
    const char *file;
    size_t num_buffers;
    struct bucket_sizes sizes;
    const char *message;
};

// clang-format off
/* Llama's first rank has one bucket, of 2272 elements; the last two parameters
 * end at 1752 and 2272. */
#define SIZES(...)                                                                                 \
    {(const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)}
static const struct sizes_case sizes_cases[] = {
    {LLAMA, 1, SIZES(2273), "buffer 0: bucket 0 of 1 has 2273 elements, but its last parameter, embedding.word_embeddings.weight, ends at 2272"},
    {LLAMA, 1, SIZES(2271), "buffer 0: bucket 0 of 1 has 2271 elements, but its last parameter, decoder.layers.0.self_attention.linear_qkv.layer_norm_weight, ends at 1752"},
    {LLAMA, 1, SIZES(1752), "buffer 0: its 1 buckets are too small for embedding.word_embeddings.weight of 480 elements"},
    {LLAMA, 2, SIZES(1792, 480), "2 flat buffers, but the parameters need 1"},
    {LLAMA, 1, SIZES(1792, 480), "has 1792 elements, but its last parameter"},
    {LLAMA, 1, SIZES(239, 2000), "bucket 0 of 2 has 239 elements, but begins with decoder.layers.0.mlp.linear_fc2.weight, which has 240"},
    {LLAMA, 1, SIZES(240, 0), "bucket 1 of 2 has 0 elements, but begins with"},
    {LLAMA, 1, SIZES(2272, 10), "2 buckets, but the model's parameters fill 1"},
    {LLAMA, 1, SIZES(UINT64_MAX), "bucket 0 of 1 has 18446744073709551615 elements"},
    {LLAMA, 0, SIZES(2272), "0 flat buffers, but the parameters need 1"},
    {LLAMA, 1, {NULL, 0}, "its 0 buckets are too small for"},
    {TIED, 1, SIZES(2316), "buffer 0: bucket 0 of 1 has 2316 elements"},
};
// clang-format on

static void sizes_that_do_not_add_up_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(sizes_cases); i++) {
        const struct sizes_case *c = &sizes_cases[i];
        const struct bucket_sizes known[] = {c->sizes, c->sizes};
        struct run r = read_run(c->file);
        assert_fails(place_first(&r, known, c->num_buffers), ERR_CORRUPT, c->message);
        cJSON_Delete(r.tree);
    }
}

static struct trained_param *param_named(struct run *r, const char *name)
{
    for (size_t i = 0; i < r->num_params; i++)
        if (strcmp(r->params[i].name, name) == 0) return &r->params[i];
    fail_msg("%s is not there", name);
    return NULL;
}

#define L0 "decoder.layers.0."

static void rename_param(struct run *r, const char *from, const char *to)
{
    struct trained_param *p = param_named(r, from);
    p->name = to;
    assert_true(param_find(r->table, to, &p->param));
}

static void parameters_without_a_place_are_refused(void **state)
{
    (void)state;
    struct run r = read_run(LLAMA);
    rename_param(&r, L0 "self_attention.linear_proj.weight", L0 "mlp.router.expert_bias");
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED,
                 L0 "mlp.router.expert_bias: it is never trained");
    struct param_spec unknown = {.name = L0 "mixer.weight", .place = PLACE_LAYER};
    struct trained_param *p = param_named(&r, L0 "mlp.router.expert_bias");
    p->name = unknown.name;
    p->param.spec = &unknown;
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED,
                 L0 "mixer.weight: its order of registration is unknown");
    cJSON_Delete(r.tree);
}

static void parameters_that_contradict_the_model_are_refused(void **state)
{
    (void)state;
    struct run r = read_run(LLAMA);
    rename_param(&r, L0 "self_attention.linear_proj.weight", L0 "input_layernorm.weight");
    assert_fails(place_first(&r, NULL, 0), ERR_CORRUPT, "name the same parameter");
    rename_param(&r, L0 "input_layernorm.weight", "decoder.layers.2.mlp.linear_fc2.weight");
    assert_fails(place_first(&r, NULL, 0), ERR_CORRUPT,
                 "decoder.layers.2.mlp.linear_fc2.weight: the model has 2 layers");
    rename_param(&r, "decoder.layers.2.mlp.linear_fc2.weight",
                 L0 "mlp.experts.experts.0.linear_fc2.weight");
    assert_fails(place_first(&r, NULL, 0), ERR_CORRUPT, "the model has 0 experts");
    cJSON_Delete(r.tree);
}

static void shapes_and_sizes_beyond_any_are_refused(void **state)
{
    (void)state;
    struct run r = read_run(LLAMA);
    struct trained_param *p = param_named(&r, L0 "self_attention.linear_proj.weight"),
                         *other = param_named(&r, L0 "mlp.linear_fc2.weight");
    const uint64_t odd[] = {24, 25}, none[] = {0, 24}, huge[] = {UINT64_C(1) << 57, 4},
                   most[] = {UINT64_C(1) << 57, 2};
    const uint64_t *const kept[] = {p->shape, other->shape};
    p->shape = odd;
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED, "25 columns are not divisible");
    p->shape = none;
    assert_fails(place_first(&r, NULL, 0), ERR_CORRUPT, "impossible shape");
    p->shape = huge;
    assert_fails(place_first(&r, NULL, 0), ERR_CORRUPT, "impossible shape");
    p->shape = other->shape = most;
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED, "its buffer is too large");
    p->shape = kept[0];
    other->shape = kept[1];
    r.rules.dp = 0;
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED, "data parallel size 0");
    r.rules.dp = UINT64_MAX;
    assert_fails(place_first(&r, NULL, 0), ERR_UNSUPPORTED, "data parallel size");
    cJSON_Delete(r.tree);
}

static void grouped_experts_of_the_local_spec_are_refused(void **state)
{
    (void)state;
    struct run r = read_run("tests/golden/buckets/moe-ep2-etp1-tp2.json");
    const struct bucket_cell experts = {.experts = true};
    struct param_buffer *buffers;
    size_t count;
    r.rules.grouped_gemm = true;
    assert_fails(place(&r, &experts, NULL, 0, &buffers, &count), ERR_UNSUPPORTED,
                 "moments of the local spec's grouped experts");
    cJSON_Delete(r.tree);
}

/* ---- large models ---- */

static void add_expert_weight(struct run *r, const char *name)
{
    struct trained_param *p = ARENA_PUSH(&scratch, r->params, r->num_params, r->capacity);
    *p = (struct trained_param){.name = name, .dtype = DT_BF16, .num_dims = 2};
    assert_true(param_find(r->table, p->name, &p->param));
    p->shape = p->param.spec->shape;
}

/* 48 layers of 512 experts. */
static struct run large_run(void)
{
    struct run r = {.config = {.num_layers = 48,
                               .hidden_size = 64,
                               .moe_ffn_hidden_size = 32,
                               .num_attention_heads = 4,
                               .num_query_groups = 4,
                               .num_experts = 512,
                               .gated_linear_unit = true},
                    .rules = {.dp = 8, .expert_dp = 1, .transformer_engine = true}};
    const struct layout_options o = {.pp = 4, .ep = 8};
    assert_ok(layout_make(&r.layout, &scratch, &o, &r.config, &err));
    assert_ok(params_make(NULL, &r.config, &scratch, &r.table, &err));
    for (unsigned i = 0; i < 48 * 512 * 2; i++)
        add_expert_weight(
            &r,
            arena_printf(&scratch, "decoder.layers.%u.mlp.experts.experts.%u.linear_fc%u.weight",
                         i / 2 / 512, i / 2 % 512, 1 + i % 2));
    return r;
}

/* Those of a cell follow one another without gaps, since sizes are multiples of
 * 64. */
static void many_parameters_are_placed_once_each(void **state)
{
    (void)state;
    struct run r = large_run();
    uint64_t seed = test_seed(), placed = 0;
    struct bucket_cell cell = {0};
    shuffle(r.params, r.num_params, &seed);
    for (uint64_t n = 0; bucket_cell_of_number(&r.layout, true, n, &cell); n++) {
        struct param_buffer *b;
        size_t count;
        assert_ok(place(&r, &cell, NULL, 0, &b, &count));
        assert_int_equal(count, 1);
        for (size_t i = 1; i < b->num_params; i++)
            assert_int_equal(b->params[i].start, b->params[i - 1].start + b->params[i - 1].numel);
        placed += b->num_params;
    }
    assert_int_equal(placed, r.num_params);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(every_parameter_lies_where_megatron_puts_it),
        TEST(buckets_end_where_all_ranks_have_a_share),
        TEST(chunks_may_have_optimizers_of_their_own),
        TEST(cells_have_numbers_without_gaps),
        TEST(sizes_that_do_not_add_up_are_refused),
        TEST(parameters_without_a_place_are_refused),
        TEST(parameters_that_contradict_the_model_are_refused),
        TEST(shapes_and_sizes_beyond_any_are_refused),
        TEST(grouped_experts_of_the_local_spec_are_refused),
        TEST(many_parameters_are_placed_once_each),
    };
    return cmocka_run_group_tests_name("buckets", tests, NULL, NULL);
}
