/* Converts random models through random formats, layouts and names and back,
 * from every format to every other. The digests are the same all the way, and
 * the files at the end equal those at the start, byte by byte. FERRY_TEST_SEED
 * and FERRY_TEST_CASES vary the cases, FERRY_TEST_CASE picks one. */
#include "ckpt/digest.h"
#include "ckpt/testing_layout.h"
#include "common/count.h"
#include "convert/cli/record_write.h"
#include "convert/testing_hf.h"

enum { CASES = 500, STEPS = 4, MAX_WORDS = 40 };

static struct model_maps maps;

/* ---- models ---- */

/* Families whose configs random_config() makes. */
static const char *const families[] = {"gpt2",  "llama", "mistral",  "mixtral",
                                       "qwen2", "qwen3", "qwen3_moe"};
enum { NUM_FAMILIES = COUNT(families) };

struct random_case {
    uint64_t seed; /* state of the random numbers */
    size_t family;
    const struct model_map *map;
    cJSON *config;
    struct model_config c;
    enum dtype dtypes[2];
    int mixing;   /* how the dtypes of tensors are chosen */
    bool trained; /* there are states of an optimizer */
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

/* A size that the sizes of a layout may or may not divide. */
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

/* Whether the layout fits the model and the format, by arithmetic of our own
 * where layout_make() does not say it already. */
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

/* ---- steps ---- */

enum tried_format {
    HF,
    TORCH_DIST,
    TORCH,
    DCP,
    TORCHTITAN,
    FSDP,
    DEEPSPEED,
    UNIVERSAL,
    NUM_FORMATS
};
static const char *const format_names[] = {
    "hf", "torch_dist", "torch", "dcp", "torchtitan", "fsdp", "deepspeed", "deepspeed_universal"};

static bool is_megatron(enum tried_format f)
{
    return f == TORCH_DIST || f == TORCH;
}

/* The weights in files of torch's own trainers are the masters of the
 * optimizer; those of a universal checkpoint are made of them. */
static bool weights_are_masters(enum tried_format f)
{
    return f == DCP || f == TORCHTITAN || f == FSDP;
}

static bool one_dtype(const struct random_case *x)
{
    return x->dtypes[0] == x->dtypes[1] || x->mixing > 1;
}

static bool all_f32(const struct random_case *x)
{
    return one_dtype(x) && x->dtypes[0] == DT_F32;
}

/* Whether digests stay the same in that format: it has the dtypes of the case. */
static bool keeps_dtypes(const struct random_case *x, enum tried_format f)
{
    if (weights_are_masters(f) || f == UNIVERSAL) return !x->trained || all_f32(x);
    return f != DEEPSPEED || one_dtype(x);
}

/* One conversion: the target, with all its options. */
struct step {
    enum tried_format format;
    struct layout_options layout;
    bool te, grouped, object;
    uint64_t divisible_by, iteration, max_shard; /* 0: not given */
    const char *optim_format;                    /* NULL: not given */
    uint64_t dp, zero;
    bool flatten, split_qkv, split_decay;
};

static struct step random_step(struct random_case *x)
{
    struct step s = {.format = (enum tried_format)draw(x, NUM_FORMATS)};
    while (!keeps_dtypes(x, s.format))
        s.format = (enum tried_format)draw(x, NUM_FORMATS);
    s.layout = random_layout(&x->seed, &scratch, &x->c);
    for (int i = 0; i < 3 && !fits(x, &s.layout, s.format == TORCH); i++)
        s.layout = random_layout(&x->seed, &scratch, &x->c);
    s.te = draw(x, 2);
    s.grouped = s.te && draw(x, 2);
    s.object = draw(x, 2);
    if (draw(x, 2)) s.divisible_by = 1 + draw(x, 20);
    if (draw(x, 2)) s.iteration = 1 + draw(x, 99);
    if (draw(x, 2)) s.max_shard = 200 + draw(x, 2000);
    static const char *const optim_formats[NUM_FORMATS][2] = {
        [TORCH_DIST] = {"fully_reshardable", "fully_sharded_model_space"},
        [TORCH] = {"distributed", "not_distributed"}};
    if (draw(x, 3)) s.optim_format = optim_formats[s.format][draw(x, 2)];
    s.dp = 1 + draw(x, 5);
    s.zero = x->trained ? draw(x, 4) : 0;
    /* without ZeRO there are no masters, and stage 3 has nothing else: here
     * weights are not their masters rounded */
    if (x->trained && !all_f32(x)) s.zero = 1 + draw(x, 2);
    s.flatten = draw(x, 2);
    s.split_qkv = draw(x, 2);
    return s;
}

/* Sets the options that a repeated step must give, so that its result does not
 * depend on where the step starts. */
static void say_all(struct step *s)
{
    if (!s->divisible_by) s->divisible_by = 8;
    if (!s->iteration) s->iteration = 7;
    if (!s->optim_format && s->format == TORCH) s->optim_format = "distributed";
    if (!s->optim_format && s->format == TORCH_DIST) s->optim_format = "fully_reshardable";
    s->grouped = s->te;
}

/* torchtitan has names for Llama 3, Qwen 3 and its MoE, without biases. */
static bool step_fits(const struct random_case *x, const struct step *s)
{
    const char *family = model_map_family(x->map);
    if (s->format == TORCHTITAN)
        return (strcmp(family, "llama") == 0 || strcmp(family, "qwen3") == 0 ||
                strcmp(family, "qwen3_moe") == 0) &&
               !x->c.add_bias_linear && !x->c.add_qkv_bias;
    if (s->format == UNIVERSAL) return x->trained; /* it is made of the optimizer's tensors */
    return !is_megatron(s->format) || fits(x, &s->layout, s->format == TORCH);
}

static void add_trainer_options(struct words *w, const struct step *s, bool trained)
{
    if (s->format != FSDP && s->format != UNIVERSAL) add_option(w, "--dp", s->dp);
    if (s->format == DEEPSPEED) add_option(w, "--zero", s->zero);
    if (s->format == DCP && s->flatten) add_word(w, "--flatten-optim");
    if (s->format == TORCHTITAN && s->split_qkv) add_word(w, "--split-qkv");
    if (s->format != DCP && s->format != FSDP && s->iteration)
        add_option(w, "--iteration", s->iteration);
    (void)trained;
}

static struct words words_of(const struct step *s, bool trained, const char *from, const char *to)
{
    struct words w = {.items = {from, to}, .count = 2};
    add_word(&w, arena_printf(&scratch, "--to=%s", format_names[s->format]));
    if (s->format == HF) {
        if (s->max_shard) add_option(&w, "--max-shard-size", s->max_shard);
        if (trained) add_word(&w, "--optim");
        return w;
    }
    if (!is_megatron(s->format)) {
        add_trainer_options(&w, s, trained);
        return w;
    }
    add_layout(&w, &s->layout);
    add_word(&w, s->te ? "--transformer-impl=transformer_engine" : "--transformer-impl=local");
    if (s->grouped) add_word(&w, "--moe-grouped-gemm");
    if (s->format == TORCH_DIST && s->object) add_word(&w, "--common-state=object");
    if (s->divisible_by) add_option(&w, "--make-vocab-size-divisible-by", s->divisible_by);
    if (s->iteration) add_option(&w, "--iteration", s->iteration);
    if (s->optim_format) add_word(&w, arena_printf(&scratch, "--optim-format=%s", s->optim_format));
    return w;
}

static void tell(struct random_case *x, const struct words *w)
{
    for (size_t i = 0; i < w->count; i++)
        strbuf_printf(&x->story, " %s", w->items[i]);
    strbuf_add_char(&x->story, '\n');
}

static enum status convert(struct random_case *x, const struct step *s, const char *from,
                           const char *to)
{
    struct words w = words_of(s, x->trained, from, to);
    add_word(&w, draw(x, 4) ? "--threads=1" : "--threads=3");
    tell(x, &w);
    add_word(&w, "--max-memory=4GiB");
    add_word(&w, "--no-fsync");
    add_word(&w, "-q");
    return run_command(&command_convert, w.count, w.items);
}

/* ---- what must be the same ---- */

/* The digests of a checkpoint, a line a tensor. */
static const char *digests_of(const char *path)
{
    const struct source_options none = {0};
    const struct digest_options options = {.threads = 1, .progress = PROGRESS_NONE};
    struct checkpoint c;
    struct tensor_digest *digests;
    struct strbuf text = {0};
    size_t count;
    assert_ok(source_open(&c, path, &none, &maps, &err));
    assert_ok(catalog_check(&c.catalog, &err));
    assert_ok(digest_catalog(&c.catalog, &options, &scratch, &digests, &count, &err));
    digest_print_all(&text, digests, count, NULL);
    checkpoint_release(&c);
    const char *copy = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return copy;
}

static void check_same_file_of(const char *a, const char *b, const char *name)
{
    check_same_file(path_join(&scratch, a, name), path_join(&scratch, b, name));
}

/* Checks that two folders hold the same files with the same bytes, except
 * ferry.json, and training.json, which has what Megatron's formats had to make
 * on the way. */
static void check_same_folder(const char *a, const char *b)
{
    struct name_list ours, theirs;
    assert_ok(folder_list(a, &scratch, &ours, &err));
    assert_ok(folder_list(b, &scratch, &theirs, &err));
    assert_int_equal(ours.count, theirs.count);
    for (size_t i = 0; i < ours.count; i++) {
        const char *name = ours.names[i], *x = path_join(&scratch, a, name);
        assert_string_equal(name, theirs.names[i]);
        if (path_is_folder(x))
            check_same_folder(x, path_join(&scratch, b, name));
        else if (strcmp(name, record_name) != 0 && strcmp(name, "training.json") != 0)
            check_same_file_of(a, b, name);
    }
}

/* ---- a chain of conversions ---- */

/* Coverage of the cases: 500 cases that never met some format would prove
 * nothing about it. */
struct tally {
    unsigned refused, formats[NUM_FORMATS][NUM_FORMATS], families[NUM_FAMILIES];
    unsigned trained[NUM_FORMATS][NUM_FORMATS];
};

static void fail_step(enum status st)
{
    fail_msg("status %d: %s", (int)st, err.text);
}

/* Makes random steps until one fits; those that do not fit must be refused. */
static struct step take_step(struct random_case *x, const char *from, const char *to, bool again,
                             struct tally *tally)
{
    struct step s = random_step(x);
    for (int tries = 0; tries < 4 && !step_fits(x, &s); tries++) {
        enum status st = convert(x, &s, from, to);
        if (st != ERR_UNSUPPORTED && st != ERR_USAGE) fail_step(st);
        assert_true(*err.text);
        assert_false(path_exists(to));
        tally->refused++;
        s = random_step(x);
    }
    if (!step_fits(x, &s)) /* a step that leaves the layout open fits every model */
        s = (struct step){.format = TORCH_DIST, .layout = {.tp = 1, .pp = 1, .ep = 1, .etp = 1}};
    if (again) say_all(&s);
    enum status st = convert(x, &s, from, to);
    if (st) fail_step(st);
    return s;
}

static void begin_case(struct random_case *x, uint64_t number)
{
    static const enum dtype floats[] = {DT_BF16, DT_F16, DT_F32, DT_F64};
    x->family = draw(x, NUM_FAMILIES);
    x->map = model_map_of_family(&maps, families[x->family]);
    x->mixing = (int)draw(x, 4);
    x->dtypes[0] = floats[draw(x, 4)];
    x->dtypes[1] = floats[draw(x, 4)];
    x->trained = x->dtypes[0] != DT_F64 && x->dtypes[1] != DT_F64 && draw(x, 4);
    random_config(x);
    strbuf_printf(&x->story,
                  "FERRY_TEST_SEED=%llu FERRY_TEST_CASE=%llu: ", (unsigned long long)test_seed(),
                  (unsigned long long)number);
    json_print(&x->story, x->config, -1);
    strbuf_add_char(&x->story, '\n');
}

/* The case that is running, printed if it fails. */
static struct random_case current;

/* From Hugging Face to a source, there, to two more, back to the source, and to
 * Hugging Face. */
static void run_case(uint64_t number, struct tally *tally)
{
    struct random_case *x = &current;
    const char *folders[STEPS + 3];
    struct step steps[STEPS];
    enum status st;
    *x = (struct random_case){.seed = test_seed() * 1000003 + number};
    for (int i = 0; i < STEPS + 3; i++)
        folders[i] = in_scratch(arena_printf(&scratch, "%d", i));
    begin_case(x, number);
    make_hf(folders[0], x->map, x->config, choose_dtype, x, x->trained, &x->seed);
    const char *digests = digests_of(folders[0]);
    for (int i = 0; i < STEPS; i++) {
        steps[i] = take_step(x, folders[i], folders[i + 1], i == 0, tally);
        assert_string_equal(digests_of(folders[i + 1]), digests);
        tally->formats[i ? steps[i - 1].format : HF][steps[i].format]++;
        tally->trained[i ? steps[i - 1].format : HF][steps[i].format] += x->trained;
    }
    if ((st = convert(x, &steps[0], folders[STEPS], folders[STEPS + 1]))) fail_step(st);
    bool same_training = true; /* other trainers have groups, and fields of them, of their own */
    for (int i = 0; i < STEPS; i++)
        same_training &= is_megatron(steps[i].format) || steps[i].format == HF;
    if (same_training || (!x->trained && is_megatron(steps[0].format)))
        check_same_folder(folders[STEPS + 1], folders[1]);
    else
        assert_string_equal(digests_of(folders[STEPS + 1]), digests);
    struct step last = {.format = HF, .max_shard = draw(x, 2) ? 200 + draw(x, 2000) : 0};
    if ((st = convert(x, &last, folders[STEPS + 1], folders[STEPS + 2]))) fail_step(st);
    check_same_weights(folders[STEPS + 2], folders[0]);
    check_same_file_of(folders[STEPS + 2], folders[0], "config.json");
    if (!last.max_shard) check_same_file_of(folders[STEPS + 2], folders[0], "model.safetensors");
    for (int i = 0; i < STEPS + 3; i++)
        assert_ok(path_remove(folders[i], &err));
    tally->families[x->family]++;
    cJSON_Delete(x->config);
    strbuf_release(&x->story);
}

static void random_models_survive_random_conversions(void **state)
{
    const char *text = getenv("FERRY_TEST_CASES"), *only = getenv("FERRY_TEST_CASE");
    uint64_t cases = text ? strtoull(text, NULL, 10) : CASES;
    struct tally tally = {0};
    (void)state;
    for (uint64_t i = 0; i < cases && !only; i++) {
        if (!test_takes(i, cases)) continue;
        run_case(i, &tally);
        arena_release(&scratch);
    }
    if (only) run_case(strtoull(only, NULL, 10), &tally);
    if (only || cases < CASES || test_is_share()) return;
    assert_in_range(tally.refused, CASES / 10, STEPS * cases);
    for (size_t i = 0; i < NUM_FAMILIES; i++)
        assert_true(tally.families[i]);
    for (int from = HF; from <= TORCH; from++)
        for (int to = HF; to <= TORCH; to++)
            assert_true(tally.formats[from][to] && tally.trained[from][to]);
    for (int to = 0; to < NUM_FORMATS; to++)
        assert_true(tally.formats[HF][to]);
}

/* A Llama in F32 with the states of an optimizer, which all formats have room
 * for. */
static void begin_pairs(struct random_case *x)
{
    *x = (struct random_case){.seed = test_seed(), .map = model_map_of_family(&maps, "llama")};
    x->dtypes[0] = x->dtypes[1] = DT_F32;
    x->mixing = 3;
    x->trained = true;
    x->config = cJSON_CreateObject();
    cJSON_AddStringToObject(x->config, "model_type", "llama");
    set(x, "vocab_size", 31);
    set(x, "hidden_size", 24);
    set(x, "intermediate_size", 20);
    set(x, "num_hidden_layers", 3);
    set(x, "num_attention_heads", 4);
    set(x, "num_key_value_heads", 2);
    set_flag(x, "tie_word_embeddings", draw(x, 2));
    assert_ok(model_config_from_hf(x->map, x->config, &scratch, &x->c, &err));
    strbuf_printf(&x->story, "FERRY_TEST_SEED=%llu:\n", (unsigned long long)test_seed());
}

static struct step step_to(struct random_case *x, enum tried_format format)
{
    struct step s = {.format = format, .layout = {.tp = 2, .pp = 3, .ep = 1}, .te = true};
    s.dp = 1 + draw(x, 5);
    s.zero = draw(x, 4);
    s.flatten = draw(x, 2);
    s.split_qkv = draw(x, 2);
    return s;
}

static void every_format_becomes_every_other(void **state)
{
    struct random_case *x = &current;
    (void)state;
    begin_pairs(x);
    const char *hf = in_scratch("hf");
    make_hf(hf, x->map, x->config, choose_dtype, x, x->trained, &x->seed);
    const char *digests = digests_of(hf);
    for (int from = 0; from < NUM_FORMATS; from++) {
        const struct step first = step_to(x, (enum tried_format)from);
        const char *source = in_scratch(arena_printf(&scratch, "from-%d", from));
        enum status st = convert(x, &first, hf, source);
        if (st) fail_step(st);
        assert_string_equal(digests_of(source), digests);
        for (int to = 0; to < NUM_FORMATS; to++) {
            const struct step second = step_to(x, (enum tried_format)to);
            const char *target = in_scratch(arena_printf(&scratch, "%d-%d", from, to));
            if ((st = convert(x, &second, source, target))) fail_step(st);
            assert_string_equal(digests_of(target), digests);
        }
    }
    cJSON_Delete(x->config);
    strbuf_release(&x->story);
}

/* A failed check does not return, so the steps of its case can still be printed
 * here. */
static int end_cases(void **state)
{
    if (current.story.data) fputs(current.story.data, stderr);
    return scratch_end(state);
}

/* Thousands of small files are made: in memory (/dev/shm), if it is there. */
static int load_maps(void **state)
{
    (void)state;
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
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
        cmocka_unit_test_setup_teardown(every_format_becomes_every_other, scratch_begin, end_cases),
        cmocka_unit_test_setup_teardown(random_models_survive_random_conversions, scratch_begin,
                                        end_cases),
    };
    return cmocka_run_group_tests_name("convert_property", tests, load_maps, release_maps);
}
