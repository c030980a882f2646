/* Random models through random layouts, formats and names and back: the tensors must be the same,
 * bit by bit. FERRY_TEST_SEED and FERRY_TEST_CASES vary it. */
#include "ckpt/testing_layout.h"
#include "convert/testing_hf.h"

enum { CASES = 300, MAX_WORDS = 40 };

static struct model_maps maps;

/* ---- models ---- */

struct random_case {
    uint64_t seed; /* what is drawn from */
    const struct model_map *map;
    cJSON *config;
    struct model_config c;
    enum dtype dtypes[2];
    int mixing; /* how dtypes are spread over the tensors */
    struct strbuf story;
};

static uint64_t draw(struct random_case *x, uint64_t below)
{
    return test_below(&x->seed, below);
}

static void set(struct random_case *x, const char *name, uint64_t n)
{
    cJSON_AddItemToObject(x->config, name, json_new_u64(n));
}

static void set_flag(struct random_case *x, const char *name, bool truth)
{
    cJSON_AddBoolToObject(x->config, name, truth);
}

/* Sizes that a layout may divide, or not. */
static uint64_t random_size(struct random_case *x)
{
    return draw(x, 3) ? 12 * (1 + draw(x, 2)) : 1 + draw(x, 30);
}

static void random_gpt2(struct random_case *x, uint64_t heads)
{
    set(x, "n_embd", heads * (1 + draw(x, 4)));
    set(x, "n_head", heads);
    set(x, "n_layer", 1 + draw(x, 6));
    set(x, "n_positions", 1 + draw(x, 9));
    if (draw(x, 2)) set(x, "n_inner", random_size(x));
}

static void random_experts(struct random_case *x, const char *family)
{
    bool mixtral = strcmp(family, "mixtral") == 0;
    uint64_t experts = draw(x, 3) ? 4 * (1 + draw(x, 2)) : 1 + draw(x, 6);
    set(x, mixtral ? "num_local_experts" : "num_experts", experts);
    set(x, "num_experts_per_tok", 1 + draw(x, experts));
    if (mixtral) return;
    set(x, "moe_intermediate_size", random_size(x));
    set(x, "decoder_sparse_step", 1 + draw(x, 2));
    if (draw(x, 2)) {
        cJSON *only = cJSON_AddArrayToObject(x->config, "mlp_only_layers");
        cJSON_AddItemToArray(only, json_new_u64(draw(x, 4)));
    }
}

static void random_llama(struct random_case *x, const char *family, uint64_t heads)
{
    set(x, "hidden_size", random_size(x));
    set(x, "intermediate_size", random_size(x));
    set(x, "num_hidden_layers", 1 + draw(x, 6));
    set(x, "num_attention_heads", heads);
    set(x, "num_key_value_heads", random_divisor(&x->seed, heads));
    set(x, "head_dim", 2 * (1 + draw(x, 3)));
    set(x, "max_position_embeddings", 1 + draw(x, 99));
    if (strcmp(family, "llama") == 0 && draw(x, 2)) {
        set_flag(x, "attention_bias", true);
        set_flag(x, "mlp_bias", true);
    }
    if (strcmp(family, "mistral") == 0 && draw(x, 2)) set(x, "sliding_window", 1 + draw(x, 9));
    if (strstr(family, "qwen") && draw(x, 2)) {
        set_flag(x, "use_sliding_window", true);
        set(x, "sliding_window", 1 + draw(x, 9));
        set(x, "max_window_layers", draw(x, 7));
    }
    if (draw(x, 3) == 0) {
        cJSON *rope = cJSON_AddObjectToObject(x->config, "rope_scaling");
        cJSON_AddStringToObject(rope, "rope_type", draw(x, 2) ? "linear" : "dynamic");
        cJSON_AddItemToObject(rope, "factor", json_new_double(2.5));
    }
    if (strcmp(family, "mixtral") == 0 || strcmp(family, "qwen3_moe") == 0)
        random_experts(x, family);
}

static void random_config(struct random_case *x)
{
    const char *family = model_map_family(x->map);
    static const uint64_t some[] = {1, 2, 3, 4, 4, 6, 8, 12};
    uint64_t heads = some[draw(x, 8)];
    x->config = cJSON_CreateObject();
    cJSON_AddStringToObject(x->config, "model_type", model_map_model_type(x->map));
    set(x, "vocab_size", 1 + draw(x, 50));
    if (draw(x, 3)) set_flag(x, "tie_word_embeddings", draw(x, 2));
    if (strcmp(family, "gpt2") == 0)
        random_gpt2(x, heads);
    else
        random_llama(x, family, heads);
    assert_ok(model_config_from_hf(x->map, x->config, &scratch, &x->c, &err));
}

/* Experts of a layer are one tensor in torch_dist, and so of one dtype. */
static enum dtype choose_dtype(void *context, const char *logical)
{
    struct random_case *x = context;
    const char *at = strstr(logical, "decoder.layers.");
    uint64_t layer = at ? strtoull(at + strlen("decoder.layers."), NULL, 10) : 0;
    switch (x->mixing) {
    case 0:
        return x->dtypes[strstr(logical, "norm") != NULL];
    case 1:
        return x->dtypes[layer % 2];
    default:
        return x->dtypes[0];
    }
}

/* ---- layouts ---- */

struct words {
    const char *items[MAX_WORDS];
    size_t count;
};

static void add_word(struct words *w, const char *word)
{
    assert_true(w->count < MAX_WORDS);
    w->items[w->count++] = word;
}

static void add_option(struct words *w, const char *name, uint64_t n)
{
    add_word(w, arena_printf(&scratch, "%s=%llu", name, (unsigned long long)n));
}

static void add_layout(struct words *w, const struct layout_options *o)
{
    add_option(w, "--tp", o->tp);
    add_option(w, "--pp", o->pp);
    add_option(w, "--ep", o->ep);
    if (o->etp) add_option(w, "--etp", o->etp);
    if (o->virtual_stages) add_option(w, "--vpp", o->virtual_stages);
    if (o->layers_per_virtual_stage)
        add_option(w, "--num-layers-per-virtual-pipeline-stage", o->layers_per_virtual_stage);
    if (o->first_layers) add_option(w, "--decoder-first-pipeline-num-layers", o->first_layers);
    if (o->last_layers) add_option(w, "--decoder-last-pipeline-num-layers", o->last_layers);
    if (o->pipeline_layout)
        add_word(w,
                 arena_printf(&scratch, "--pipeline-model-parallel-layout=%s", o->pipeline_layout));
    if (o->count_embedding) add_word(w, "--account-for-embedding-in-pipeline-split");
    if (o->count_loss) add_word(w, "--account-for-loss-in-pipeline-split");
}

/* Whether the layout fits the model and the format, by arithmetic of our own where layout_make()
 * does not say it already. */
static bool fits(const struct random_case *x, const struct layout_options *o, bool legacy)
{
    const struct model_config *c = &x->c;
    uint64_t etp = o->etp ? o->etp : o->tp;
    uint64_t qkv = (c->num_attention_heads + 2 * c->num_query_groups) * c->kv_channels;
    struct layout l;
    if (layout_make(&l, &scratch, o, c, &err)) return false;
    if (c->num_attention_heads % o->tp || c->ffn_hidden_size % o->tp || qkv % o->tp) return false;
    if (c->num_query_groups % o->tp && o->tp % c->num_query_groups) return false;
    if (c->num_experts && (c->num_experts % o->ep || c->moe_ffn_hidden_size % etp)) return false;
    return !legacy || o->tp % etp == 0;
}

/* ---- a chain of conversions ---- */

static void tell(struct random_case *x, const struct words *w)
{
    for (size_t i = 0; i < w->count; i++)
        strbuf_printf(&x->story, " %s", w->items[i]);
    strbuf_add_char(&x->story, '\n');
}

static enum status convert(struct random_case *x, const struct words *w)
{
    static const char *const always[] = {"--no-fsync", "-q", "--threads=1", "--max-memory=4GiB"};
    struct words all = *w;
    for (size_t i = 0; i < 4; i++)
        add_word(&all, always[i]);
    tell(x, w);
    return run_command(&command_convert, all.count, all.items);
}

static void fail_case(const struct random_case *x, enum status st)
{
    fputs(x->story.data, stderr); /* cmocka cuts long messages */
    fail_msg("status %d: %s", (int)st, err.text);
}

/* One step to Megatron; false where the layout does not fit, which must be refused. */
static bool step(struct random_case *x, const char *from, const char *to)
{
    struct words w = {.items = {from, to}, .count = 2};
    bool legacy = draw(x, 2), te = draw(x, 2);
    struct layout_options o = random_layout(&x->seed, &scratch, &x->c);
    for (int i = 0; i < 3 && !fits(x, &o, legacy); i++)
        o = random_layout(&x->seed, &scratch, &x->c);
    add_layout(&w, &o);
    add_word(&w, legacy ? "--to=torch" : "--to=torch_dist");
    add_word(&w, te ? "--transformer-impl=transformer_engine" : "--transformer-impl=local");
    if (te && draw(x, 2)) add_word(&w, "--moe-grouped-gemm");
    if (!legacy && draw(x, 2)) add_word(&w, "--common-state=object");
    if (draw(x, 2)) add_option(&w, "--make-vocab-size-divisible-by", 1 + draw(x, 20));
    if (draw(x, 2)) add_option(&w, "--iteration", draw(x, 99));
    enum status st = convert(x, &w);
    if (fits(x, &o, legacy)) {
        if (st) fail_case(x, st);
        return true;
    }
    if (st != ERR_UNSUPPORTED && st != ERR_USAGE) fail_case(x, st);
    assert_true(*err.text);
    assert_false(path_exists(to));
    return false;
}

/* Steps until one fits; every model fits a layout of one rank. */
static void step_that_fits(struct random_case *x, const char *from, const char *to,
                           unsigned *refused)
{
    for (int tries = 0; tries < 4; tries++) {
        if (step(x, from, to)) return;
        ++*refused;
    }
    enum status st;
    struct words w = {
        .items = {from, to, "--to=torch_dist", "--tp=1", "--pp=1", "--ep=1", "--etp=1"},
        .count = 7};
    if ((st = convert(x, &w))) fail_case(x, st);
}

static void run_case(uint64_t number, unsigned *refused)
{
    static const enum dtype floats[] = {DT_BF16, DT_F16, DT_F32, DT_F64};
    struct random_case x = {.seed = test_seed() * 1000003 + number};
    const char *folders[6];
    enum status st;
    unsigned steps = 1 + (unsigned)draw(&x, 3);
    for (int i = 0; i < 6; i++)
        folders[i] = in_scratch(arena_printf(&scratch, "%d", i));
    x.map = maps.maps[draw(&x, maps.num_maps)];
    x.mixing = (int)draw(&x, 4);
    x.dtypes[0] = floats[draw(&x, 4)];
    x.dtypes[1] = floats[draw(&x, 4)];
    random_config(&x);
    strbuf_printf(&x.story, "FERRY_TEST_SEED=%llu, case %llu: ", (unsigned long long)test_seed(),
                  (unsigned long long)number);
    json_print(&x.story, x.config, -1);
    strbuf_add_char(&x.story, '\n');
    make_hf(folders[0], x.map, x.config, choose_dtype, &x, &x.seed);
    for (unsigned i = 0; i < steps; i++)
        step_that_fits(&x, folders[i], folders[i + 1], refused);
    struct words back = {.items = {folders[steps], folders[5], "--to=hf"}, .count = 3};
    if (draw(&x, 2)) add_option(&back, "--max-shard-size", 200 + draw(&x, 2000));
    if ((st = convert(&x, &back))) fail_case(&x, st);
    check_same_weights(folders[5], folders[0]);
    check_same_file(path_join(&scratch, folders[5], "config.json"),
                    path_join(&scratch, folders[0], "config.json"));
    for (int i = 0; i < 6; i++)
        assert_ok(path_remove(folders[i], &err));
    cJSON_Delete(x.config);
    strbuf_release(&x.story);
}

static void random_models_survive_random_conversions(void **state)
{
    const char *text = getenv("FERRY_TEST_CASES"), *only = getenv("FERRY_TEST_CASE");
    uint64_t cases = text ? strtoull(text, NULL, 10) : CASES;
    unsigned refused = 0;
    for (uint64_t i = only ? strtoull(only, NULL, 10) : 0; i < cases; i++) {
        run_case(i, &refused);
        arena_release(&scratch);
        if (only) break;
    }
    (void)state;
    if (cases >= CASES) assert_in_range(refused, CASES / 10, cases);
}

static int load_maps(void **state)
{
    (void)state;
    return model_maps_load(&maps, NULL, NULL) ? -1 : 0;
}

static int release_maps(void **state)
{
    (void)state;
    model_maps_release(&maps);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_models_survive_random_conversions, scratch_begin,
                                        scratch_end),
    };
    return cmocka_run_group_tests_name("convert_property", tests, load_maps, release_maps);
}
