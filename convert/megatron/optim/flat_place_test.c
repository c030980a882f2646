/* Flat states of ranks, placed in a small model that is opened from files:
 * which are read, and what makes them unread. */
#include "convert/megatron/optim/flat_place.h"

#include <inttypes.h>

#include "convert/map/testing_models.h"
#include "convert/megatron/optim/testing_values.h"

/* Changes of a case in the states of a cell. */
struct changes {
    int without_cell;      /* tensor rank + 2 * pipeline rank; -1: none */
    int more_elements;     /* of a bucket */
    int fewer_masters;     /* elements of a bucket's masters alone */
    const char *dtypes;    /* in keys; NULL: the weights' */
    enum dtype of_states;  /* F32, unless it is changed */
    bool one_chunk;        /* a bucket is one chunk, as no file has it that Megatron writes */
    bool remainders;       /* masters are I16 */
    bool odd_chunk;        /* a chunk begins one element behind a parameter's beginning, too */
    const char *more_keys; /* a key of as many elements as the first one; NULL: none */
};
static const struct changes none = {.without_cell = -1, .of_states = DT_F32};

static struct checkpoint c;
static struct flat_states flat;
static struct param_buffer *buffers[4]; /* of each cell */
static struct trained_param *params;
static size_t num_params;

static int begin(void **state)
{
    flat = (struct flat_states){0};
    return scratch_begin(state);
}

static int end(void **state)
{
    checkpoint_release(&c);
    flat_states_release(&flat);
    return scratch_end(state);
}

/* Opens a model without an optimizer, written for two tensor and two pipeline
 * ranks. */
static void open_model(const char *members)
{
    const struct source_options o = {.true_vocab_size = 11};
    const char *folder = in_scratch("dist");
    assert_ok(CONVERT(make("hf", members, NULL), folder, "--to=torch_dist", "--tp=2", "--pp=2",
                      "--make-vocab-size-divisible-by=1"));
    assert_ok(source_open(&c, folder, &o, &maps, &err));
    assert_ok(trained_params(&c, &scratch, &params, &num_params, &err));
}

static struct bucket_cell cell_of(unsigned cell)
{
    return (struct bucket_cell){.tp_rank = cell % 2, .pp_rank = cell / 2};
}

/* Places the parameters of a cell, of one buffer, by the rules alone. */
static struct param_buffer *placed(unsigned cell)
{
    const struct bucket_rules rules =
        bucket_rules_of_args(value_get(c.training.common, "args"), c.transformer_engine_names);
    const struct bucket_cell of = cell_of(cell);
    size_t count;
    assert_ok(buckets_place(params, num_params, &c.layout, &c.config, &rules, &of, NULL, 0,
                            &scratch, &buffers[cell], &count, &err));
    assert_int_equal(count, 1);
    return buffers[cell];
}

/* ---- rules of args ---- */

/* Buffers are of the ranks that share them: of one instance of the distributed
 * optimizer. The usual size of buckets goes by all data parallel ranks
 * (megatron/training/training.py). */
static void rules_are_those_of_args(void **state)
{
    (void)state;
    static const struct {
        const char *args;
        uint64_t dp, expert_dp, bucket_size;
    } cases[] = {
        {"{}", 1, 1, 0},
        {"{'world_size': 8, 'tensor_model_parallel_size': 2}", 4, 4, 0},
        {"{'world_size': 16, 'tensor_model_parallel_size': 2, 'expert_model_parallel_size': 4, "
         "'expert_tensor_parallel_size': 1, 'pipeline_model_parallel_size': 2}",
         4, 2, 0},
        {"{'world_size': 16, 'num_distributed_optimizer_instances': 2}", 8, 8, 0},
        {"{'world_size': 16, 'num_distributed_optimizer_instances': 2, "
         "'expert_model_parallel_size': 4, 'overlap_grad_reduce': True}",
         8, 2, 40000000},
        {"{'world_size': 128, 'num_distributed_optimizer_instances': 4, "
         "'overlap_grad_reduce': True}",
         32, 32, 128000000},
        {"{'world_size': 2, 'overlap_grad_reduce': True, 'ddp_bucket_size': 7}", 2, 2, 7},
        {"{'world_size': 2, 'ddp_bucket_size': 7}", 2, 2, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct bucket_rules r = bucket_rules_of_args(python(cases[i].args), false);
        assert_int_equal(r.dp, cases[i].dp);
        assert_int_equal(r.expert_dp, cases[i].expert_dp);
        assert_int_equal(r.bucket_size, cases[i].bucket_size);
    }
}

/* ---- stored tensors ---- */

static void add_chunk(struct stored_tensor *t, uint64_t start, uint64_t end)
{
    uint64_t *box = arena_array(&scratch, 2, sizeof *box);
    struct stored_piece *pieces = arena_array(&scratch, t->num_pieces + 1, sizeof *pieces);
    box[0] = start;
    box[1] = end - start;
    if (t->num_pieces) memcpy(pieces, t->pieces, t->num_pieces * sizeof *pieces);
    pieces[t->num_pieces] =
        (struct stored_piece){.start = &box[0], .extent = &box[1], .offset_bytes = start};
    t->pieces = pieces;
    t->num_pieces++;
}

static struct stored_tensor *add_stored(const char *key, uint64_t numel, enum dtype dtype,
                                        const struct param_buffer *b, size_t bucket)
{
    struct stored_tensor *t;
    uint64_t start = 0;
    assert_ok(stored_add_tensor(&c.catalog.stored, key, strlen(key), dtype, 1, &numel, &t, &err));
    for (size_t i = 0; b && i < b->num_params; i++) {
        const uint64_t at = b->params[i].start - b->buckets[bucket].start;
        if (b->params[i].bucket != bucket || !at) continue;
        add_chunk(t, start, at);
        start = at;
    }
    add_chunk(t, start, numel);
    return t;
}

/* Cuts the tensor's last chunk behind its first element. */
static void cut_last_chunk(struct stored_tensor *t)
{
    struct stored_piece *last = &t->pieces[t->num_pieces - 1];
    const uint64_t start = last->start[0], end = start + last->extent[0];
    t->num_pieces--;
    add_chunk(t, start, start + 1);
    add_chunk(t, start + 1, end);
}

static const char *key_of(unsigned cell, size_t bucket, const char *dtypes, const char *state)
{
    return arena_printf(&scratch,
                        "optimizer.distributed.dp_group_idx_%u.gbuf_idx_0.dtype_(%s, "
                        "torch.float32).bucket_idx_%zu.%s",
                        cell, dtypes ? dtypes : "torch.bfloat16", bucket, state);
}

static void add_cell(unsigned cell, const struct changes *x)
{
    static const char *const states[] = {"exp_avg", "param"};
    const struct param_buffer *b = placed(cell);
    for (size_t bucket = 0; bucket < b->num_buckets; bucket++)
        for (unsigned i = 0; i < 2; i++) {
            struct stored_tensor *t = add_stored(
                key_of(cell, bucket, x->dtypes, states[i]),
                b->buckets[bucket].numel_unpadded + (uint64_t)x->more_elements -
                    (i ? (uint64_t)x->fewer_masters : 0),
                i && x->remainders ? DT_I16 : x->of_states, x->one_chunk ? NULL : b, bucket);
            if (x->odd_chunk) cut_last_chunk(t);
        }
}

static void place(const struct changes *x)
{
    for (unsigned cell = 0; cell < 4; cell++)
        if (x->without_cell != (int)cell) add_cell(cell, x);
    if (x->more_keys)
        add_stored(x->more_keys, buffers[0]->buckets[0].numel_unpadded, DT_F32, buffers[0], 0);
    assert_ok(flat_states_add_keys(&flat, &c, &err));
    assert_ok(flat_states_place(&flat, &c, &err));
}

/* ---- native tensors ---- */

struct place {
    const struct stored_tensor *stored;
    uint64_t at;
};

static void find_places(const struct native_part *part, const struct pair *p, unsigned axis,
                        uint64_t a, uint64_t b, struct place *out)
{
    if (axis == p->num_axes) {
        assert_null(out[a].stored);
        out[a] = (struct place){&c.catalog.stored.tensors[part->stored], b};
        return;
    }
    for (uint64_t i = 0; i < p->axes[axis].extent; i++)
        find_places(part, p, axis + 1, a + i * p->axes[axis].a_stride,
                    b + i * p->axes[axis].b_stride, out);
}

/* Where each element of a state lies: each lies in one place. */
static const struct place *places_of(const char *name, const char *state)
{
    const struct native_tensor *native = catalog_find_native(&c.catalog, name, state);
    if (!native) fail_msg("%s: no %s", name, state);
    struct place *out = arena_array(&scratch, native->numel, sizeof *out);
    for (size_t i = 0; i < native->num_parts; i++) {
        const struct pair pair = pair_unpack(&native->parts[i].pair);
        find_places(&native->parts[i], &pair, 0, pair.a_offset, pair.b_offset, out);
    }
    for (uint64_t i = 0; i < native->numel; i++)
        if (!out[i].stored) fail_msg("%s: element %" PRIu64 " lies nowhere", name, i);
    return out;
}

static const struct placed_param *find_placed(unsigned cell, const char *name)
{
    for (size_t i = 0; i < buffers[cell]->num_params; i++)
        if (strcmp(buffers[cell]->params[i].of->name, name) == 0) return &buffers[cell]->params[i];
    fail_msg("cell %u has no %s", cell, name);
    return NULL;
}

/* Checks that element `element` of a parameter is element `local` of a cell's
 * shard. */
static void check_place(const char *name, uint64_t element, unsigned cell, uint64_t local)
{
    static const char *const states[] = {"exp_avg", "param"};
    for (unsigned i = 0; i < 2; i++) {
        const struct placed_param *p = find_placed(cell, name);
        const struct place *at = &places_of(name, states[i])[element];
        assert_string_equal(at->stored->name, key_of(cell, p->bucket, NULL, states[i]));
        assert_int_equal(at->at, p->start - buffers[cell]->buckets[p->bucket].start + local);
    }
}

static size_t count_native_states(void)
{
    size_t n = 0;
    for (size_t i = 0; i < c.catalog.num_native; i++)
        n += c.catalog.native[i].state != NULL;
    return n;
}

static void check_unread(const struct changes *x, const char *why)
{
    open_model(LLAMA);
    place(x);
    if (!c.training.optimizer.unread || !strstr(c.training.optimizer.unread, why))
        fail_msg("\"%s\" is not said, but \"%s\"", why, c.training.optimizer.unread);
    assert_int_equal(count_native_states(), 0);
}

/* ---- tests ---- */

static void every_element_of_every_state_has_its_place(void **state)
{
    (void)state;
    open_model(LLAMA);
    place(&none);
    assert_null(c.training.optimizer.unread);
    assert_true(c.training.optimizer.inferred);
    assert_int_equal(count_native_states(), 2 * num_params);
    for (size_t i = 0; i < num_params; i++)
        places_of(params[i].name, "exp_avg");
    for (unsigned row = 0; row < 12; row++) /* of the embedding, [12, 8], 6 rows a rank */
        check_place("embedding.word_embeddings.weight", row * 8 + 5, row / 6, row % 6 * 8 + 5);
    for (unsigned column = 0; column < 6; column++) /* [8, 6], 3 columns a rank */
        check_place("decoder.layers.1.mlp.linear_fc2.weight", 7 * 6 + column, 2 + column / 3,
                    7 * 3 + column % 3);
    for (unsigned row = 0; row < 12; row++) /* gate and up, 6 rows each */
        check_place("decoder.layers.0.mlp.linear_fc1.weight", row * 8, row % 6 / 3,
                    (row / 6 * 3 + row % 3) * 8);
}

/* All tensor parallel ranks have a norm. */
static void of_copies_the_first_ranks_are_taken(void **state)
{
    (void)state;
    open_model(LLAMA);
    place(&none);
    check_place("decoder.final_layernorm.weight", 3, 2, 3);
    assert_int_equal(
        catalog_find_native(&c.catalog, "decoder.final_layernorm.weight", "param")->num_parts, 1);
    checkpoint_release(&c);
    flat_states_release(&flat);
    flat = (struct flat_states){0};
    assert_ok(path_remove(in_scratch("hf"), &err));
    assert_ok(path_remove(in_scratch("dist"), &err));
    open_model(LLAMA ",'tie_word_embeddings':true"); /* the last stage has a copy of it */
    place(&none);
    assert_null(c.training.optimizer.unread);
    assert_int_equal(buffers[2]->params[0].copy, COPY_AS_HEAD);
    check_place("embedding.word_embeddings.weight", 95, 1, 47);
}

static void sizes_are_a_witness(void **state)
{
    (void)state;
    struct changes x = none;
    x.more_elements = 1;
    check_unread(&x, "tensor rank 0, pipeline rank 0: buffer 0: bucket 0 of 1 has ");
    end(NULL);
    begin(NULL);
    x = none;
    x.fewer_masters = 1;
    check_unread(&x, "bucket_idx_0.param has ");
}

/* Remainders round to any weight: then chunks begin where parameters do, and
 * nowhere else, and no other order of parameters fits. In the small model all
 * have 64 elements with their gaps. */
static void chunks_prove_the_places_of_remainders(void **state)
{
    static const char larger[] =
        "'model_type':'llama','vocab_size':11,'hidden_size':64,'intermediate_size':96,"
        "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':16,"
        "'max_position_embeddings':16,'torch_dtype':'bfloat16'";
    static const struct {
        const char *model;
        bool odd_chunk, placed;
    } cases[] = {{larger, false, true}, {larger, true, false}, {LLAMA, false, false}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (i) end(NULL);
        if (i) begin(NULL);
        struct changes x = none;
        x.remainders = true;
        x.odd_chunk = cases[i].odd_chunk;
        open_model(cases[i].model);
        place(&x);
        assert_null(c.training.optimizer.unread);
        assert_int_equal(count_native_states(), 2 * num_params);
        assert_int_equal(c.training.optimizer.placed, cases[i].placed);
    }
}

static void moments_have_fractions(void **state)
{
    (void)state;
    struct changes x = none;
    x.of_states = DT_I16;
    check_unread(&x, "exp_avg has dtype I16; states must be F16, BF16, F32 or F64");
}

static void dtypes_are_a_witness(void **state)
{
    (void)state;
    struct changes x = none;
    x.dtypes = "torch.float16";
    check_unread(&x, "is for F16 weights, but the model's are BF16");
}

static void states_are_floats(void **state)
{
    (void)state;
    struct changes x = none;
    x.of_states = DT_I32;
    check_unread(&x, "has dtype I32; states must be F16, BF16, F32 or F64");
}

static void chunks_are_a_witness(void **state)
{
    (void)state;
    struct changes x = none;
    x.one_chunk = true;
    check_unread(&x, "but no chunk of .metadata begins there");
}

static void storages_are_a_witness(void **state)
{
    (void)state;
    for (unsigned wrong = 0; wrong < 2; wrong++) {
        open_model(LLAMA);
        const struct bucket_cell cell = cell_of(3);
        const struct param_buffer *b = placed(3);
        for (size_t i = 0; i < b->num_params; i++)
            flat_states_add_weight(&flat, &c, b->params[i].of->name, &cell, "storage",
                                   b->params[i].start + (i == 2 && wrong));
        place(&none);
        if (!wrong) {
            assert_null(c.training.optimizer.unread);
            end(NULL);
            begin(NULL);
            continue;
        }
        assert_string_equal(
            c.training.optimizer.unread,
            arena_printf(&scratch,
                         "tensor rank 1, pipeline rank 1: %s should be at element %" PRIu64
                         " of its buffer, but is at element %" PRIu64 " of its storage",
                         b->params[2].of->name, b->params[2].start, b->params[2].start + 1));
    }
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct changes x = none;
    x.without_cell = 3;
    check_unread(&x, "missing states of tensor rank 1, pipeline rank 1: those of "
                     "output_layer.weight and ");
}

static void keys_that_cannot_be_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key, *why;
    } cases[] = {
        {"optimizer.distributed.dp_group_idx_4.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_0.param",
         "the layout TP2 PP2 has no such ranks"},
        {"optimizer.distributed.dp_group_idx_99999999999999999999.gbuf_idx_0.dtype_(torch.bfloat16,"
         " torch.float32).bucket_idx_0.param",
         "is not a bucket's key"},
        {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_0.param.more",
         "is not a bucket's key"},
        {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_1.param",
         "tensor rank 0, pipeline rank 0 has no such buffer or bucket"},
        {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_1.exp_avg",
         "buffer 0: 2 buckets, but the model's parameters fill 1"},
        {"optimizer.distributed.dp_group_idx_0.gbuf_idx_1.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_0.exp_avg",
         "2 flat buffers, but the parameters need 1"},
        {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_00.param",
         ".bucket_idx_00.param have the same place"},
        {"chained_1.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_0.param",
         "tensor rank 0, pipeline rank 0: "},
        {"chained_16.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
         "torch.float32).bucket_idx_0.param",
         "is not a bucket's key"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct changes x = none;
        x.more_keys = cases[i].key;
        check_unread(&x, cases[i].why);
        end(NULL);
        begin(NULL);
    }
    open_model(LLAMA);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rules_are_those_of_args),
        TEST(every_element_of_every_state_has_its_place),
        TEST(of_copies_the_first_ranks_are_taken),
        TEST(sizes_are_a_witness),
        TEST(chunks_prove_the_places_of_remainders),
        TEST(moments_have_fractions),
        TEST(dtypes_are_a_witness),
        TEST(states_are_floats),
        TEST(chunks_are_a_witness),
        TEST(storages_are_a_witness),
        TEST(missing_ranks_are_named),
        TEST(keys_that_cannot_be_are_named),
    };
    return cmocka_run_group_tests_name("flat_place", tests, load_maps, release_maps);
}
