/* layout_fuzz.c - the bytes choose a small model, two layouts of it and a parameter. A layout is
 * refused by a message, or its stages have each layer once and its shards each element; and what
 * goes from the shards of one layout to those of the other and back is what it was. */
#include "ckpt/testing_layout.h"
#include "ckpt/testing_param.h"
#include "convert/map/params.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_RANKS = 16 };

static struct arena arena, kept;
static const struct param_table *megatron; /* of no config */

/* ---- models and layouts ---- */

static struct model_config choose_model(void)
{
    static const uint64_t heads[] = {1, 2, 3, 4, 6, 8, 12, 5};
    struct model_config c = {.num_layers = test_choose(17),
                             .hidden_size = 1 + test_choose(8),
                             .ffn_hidden_size = 1 + test_choose(48),
                             .moe_ffn_hidden_size = 1 + test_choose(48),
                             .num_experts = test_choose(9),
                             .num_attention_heads = heads[test_choose(8)],
                             .kv_channels = 1 + test_choose(4),
                             .vocab_size = 1 + test_choose(40),
                             .make_vocab_size_divisible_by = 1 + test_choose(8),
                             .max_position_embeddings = 1 + test_choose(8),
                             .gated_linear_unit = test_choose(2)};
    c.num_query_groups = random_divisor(NULL, c.num_attention_heads);
    return c;
}

/* Letters that a pipeline layout is made of, mostly between E and L. */
static const char *choose_text(void)
{
    static const char letters[] = "tttt||EL()**,,0123456789m";
    struct strbuf text = {0};
    if (test_choose(8)) strbuf_add_char(&text, 'E');
    for (uint64_t n = test_choose(40); n > 0; n--)
        strbuf_add_char(&text, letters[test_choose(sizeof letters - 1)]);
    if (test_choose(8)) strbuf_add_char(&text, 'L');
    const char *copy = arena_text(&arena, text.data, text.length);
    strbuf_release(&text);
    return copy;
}

static struct layout_options choose_layout(const struct model_config *c)
{
    struct layout_options o = random_layout(NULL, &arena, c);
    uint64_t *const numbers[] = {&o.tp,
                                 &o.pp,
                                 &o.ep,
                                 &o.etp,
                                 &o.virtual_stages,
                                 &o.layers_per_virtual_stage,
                                 &o.first_layers,
                                 &o.last_layers};
    uint64_t *number = numbers[test_choose(8)];
    switch (test_choose(12)) {
    case 1:
        *number = test_choose(20);
        break;
    case 2:
        *number = UINT64_C(1) << test_choose(64);
        break;
    case 3:
        *number = UINT64_MAX - test_choose(4);
        break;
    case 4:
    case 5:
        o.pipeline_layout = choose_text();
        break;
    default:
        break;
    }
    return o;
}

/* ---- stages ---- */

static void check_stages(const struct layout *l, uint64_t num_layers)
{
    uint64_t stages = l->pp * l->vpp, next = 0;
    for (uint64_t s = 0; s < stages; s++) {
        const struct stage *stage = layout_stage(l, s / l->pp, s % l->pp);
        assert_true(stage->first_layer == next);
        assert_true(stage->num_layers <= num_layers - next);
        assert_true(stage->embedding == (s == 0) && stage->loss == (s == stages - 1));
        next += stage->num_layers;
    }
    assert_true(next == num_layers);
}

static void check_layout(const struct layout *l, const struct model_config *c)
{
    check_stages(l, c->num_layers);
    assert_true(*layout_text(l, &arena));
    uint64_t dense = l->tp, sparse = l->ep * l->etp, fewest = dense > sparse ? dense : sparse;
    while (fewest < 4096 && (fewest % dense || fewest % sparse))
        fewest++;
    if (fewest < 4096) assert_true(layout_stage_ranks(l) == fewest);
}

static bool make_layout(struct layout *l, const struct model_config *c)
{
    struct error err = {0};
    struct layout_options o = choose_layout(c);
    enum status st = layout_make(l, &arena, &o, c, &err);
    if (st) {
        assert_true((st == ERR_UNSUPPORTED || st == ERR_USAGE) && *err.text);
        return false;
    }
    check_layout(l, c);
    return true;
}

/* ---- shards ---- */

/* A parameter on all ranks that share it; values say which element of the whole it is, from 1. */
struct shards {
    struct cut cut;
    uint64_t numel; /* of the whole */
    struct param_parts parts[MAX_RANKS];
    uint64_t counts[MAX_RANKS], *values[MAX_RANKS], *held[MAX_RANKS];
};

static struct cut cut_of(const struct param_spec *spec, const struct model_config *c,
                         const struct layout *l, enum param_use use)
{
    struct cut cut = {.spec = spec,
                      .num_dims = spec->num_dims,
                      .size = spec->group == PARAM_ETP ? l->etp : l->tp,
                      .use = use};
    uint64_t rows = padded_vocab_size(c->vocab_size, c->make_vocab_size_divisible_by, l->tp);
    param_padded_shape(spec, spec->num_dims, spec->shape, rows, cut.shape);
    return cut;
}

/* false where the ranks cannot share it, which only query groups that are fewer than the ranks
 * excuse. */
static bool make_shards(struct shards *s, const struct cut *c, const struct model_config *config)
{
    struct error err = {0};
    *s = (struct shards){.cut = *c};
    if (c->size > MAX_RANKS) return false;
    assert_true(shape_numel(c->shape, c->num_dims, &s->numel) && s->numel <= MAX_SHARD_ELEMENTS);
    for (uint64_t r = 0; r < c->size; r++) {
        enum status st = cut_shard(c, c->spec->name, r, &s->parts[r], &err);
        if (st) {
            assert_true(st == ERR_UNSUPPORTED && strstr(err.text, c->spec->name));
            assert_true(c->spec->num_sections > 2 && c->use == PARAM_STORED &&
                        c->size > config->num_query_groups);
            return false;
        }
        assert_true(shape_numel(s->parts[r].shape, c->num_dims, &s->counts[r]));
        s->values[r] = arena_array(&arena, s->counts[r] + 1, sizeof **s->values);
        s->held[r] = arena_array(&arena, s->counts[r] + 1, sizeof **s->held);
        assert_true(held_elements(c, r, s->held[r]) == s->counts[r]);
    }
    check_shards(c);
    return true;
}

/* Fills the expected shards of elements below `end`; zeros behind it. */
static void fill_shards(struct shards *s, uint64_t end)
{
    for (uint64_t r = 0; r < s->cut.size; r++)
        for (uint64_t i = 0; i < s->counts[r]; i++) {
            uint64_t whole = s->held[r][i];
            s->values[r][i] = whole < end ? 1 + whole : 0;
        }
}

struct copying {
    const uint64_t *from;
    uint64_t *to;
};

static enum status copy_block(void *context, const struct pair *p, struct error *err)
{
    const struct copying *c = context;
    (void)err;
    for (uint64_t n = 0, a, b; n < pair_count(p); n++) {
        pair_element(p, n, &a, &b);
        assert_true(!c->to[b]);
        c->to[b] = c->from[a];
    }
    return OK;
}

/* From the ranks of one layout to those of another, part by part. */
static void copy(const struct shards *from, struct shards *to)
{
    struct error err = {0};
    uint64_t sources = from->cut.spec->split < 0 ? 1 : from->cut.size;
    for (uint64_t j = 0; j < to->cut.size; j++) {
        memset(to->values[j], 0, to->counts[j] * sizeof **to->values);
        for (uint64_t i = 0; i < sources; i++)
            for (unsigned k = 0; k < from->parts[i].count * to->parts[j].count; k++) {
                struct copying c = {from->values[i], to->values[j]};
                assert_ok(pair_join(&from->parts[i].pairs[k % from->parts[i].count],
                                    &to->parts[j].pairs[k / from->parts[i].count], "w", copy_block,
                                    &c, &err));
            }
    }
}

static void check_same(const struct shards *a, const struct shards *b)
{
    for (uint64_t r = 0; r < a->cut.size; r++)
        for (uint64_t i = 0; i < a->counts[r]; i++)
            assert_true(a->values[r][i] == b->values[r][i]);
}

static void there_and_back(const struct cut *here, const struct cut *there,
                           const struct model_config *config)
{
    struct shards source, target, back, expected;
    if (!make_shards(&source, here, config) || !make_shards(&target, there, config)) return;
    (void)make_shards(&back, here, config);
    (void)make_shards(&expected, there, config);
    uint64_t shared = source.numel < target.numel ? source.numel : target.numel;
    fill_shards(&source, shared);
    fill_shards(&expected, shared);
    copy(&source, &target);
    check_same(&target, &expected);
    copy(&target, &back);
    check_same(&back, &source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct layout here, there;
    const struct param_table *params;
    struct error err = {0};
    test_choices = data;
    test_choices_end = data + size;
    arena_init(&arena);
    struct model_config c = choose_model();
    assert_ok(params_again(megatron, &c, &arena, &params, &err));
    if (make_layout(&here, &c) && make_layout(&there, &c))
        for (uint64_t n = 1 + test_choose(3); n > 0; n--) {
            const struct param_spec *spec = &params->specs[test_choose(params->count)];
            struct cut a = cut_of(spec, &c, &here, PARAM_STORED),
                       b = cut_of(spec, &c, &there, PARAM_STORED),
                       d = cut_of(spec, &c, &there, PARAM_COMPUTED);
            if (!spec->num_dims || (!c.num_experts && spec->group == PARAM_ETP)) continue;
            if (spec->mtp && !model_mtp_layers(&c)) continue;
            there_and_back(&a, &b, &c);
            if (d.size <= MAX_RANKS) check_shards(&d);
        }
    arena_release(&arena);
    return 0;
}

/* A failed check of cmocka's is to end the process, so that libFuzzer keeps the bytes. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const struct model_config none = {.num_layers = 0};
    struct error err;
    (void)argc, (void)argv;
    arena_init(&kept);
    if (params_make(NULL, &none, &kept, &megatron, &err)) return -1;
    return setenv("CMOCKA_TEST_ABORT", "1", 1);
}
