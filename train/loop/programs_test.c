/* The programs of the engine, as text, beside recorded sums: the nine golden
 * models at seven layouts, every rank. What a change of the engine's structure
 * must not change.
 *
 * FERRY_TEST_LIST=FOLDER writes each listing to a file there;
 * FERRY_TEST_RECORD=1 writes the sums anew. Workspaces are left out: they
 * depend on the machine. */
#include <inttypes.h>
#include <openssl/sha.h>

#include "common/count.h"
#include "common/strbuf.h"
#include "convert/open.h"
#include "tests/testing.h"
#include "train/model/model.h"

#define SUMS "tests/golden/programs.sha256"

/* ---- what may have another home one day ---- */

static const char *op_name(const struct call *c)
{
    return op_row(c->op)->name;
}

/* Members of op_params. */
enum kind { FLAG, U32, U64, NUMBER, HEADS };
static const struct {
    unsigned op;
    const char *name;
    size_t at;
    enum kind kind;
} params[] = {
#define P(op, of, member, kind)                                                                    \
    {                                                                                              \
        op, #member, offsetof(union op_params, of.member), kind                                    \
    }
    P(OP_EMBEDDING, embedding, first_row, U64),
    P(OP_EMBEDDING, embedding, scale, NUMBER),
    P(OP_NORM, norm, layer_norm, FLAG),
    P(OP_NORM, norm, epsilon, NUMBER),
    P(OP_NORM, norm, shift, NUMBER),
    P(OP_ADD_NORM, norm, layer_norm, FLAG),
    P(OP_ADD_NORM, norm, epsilon, NUMBER),
    P(OP_ADD_NORM, norm, shift, NUMBER),
    P(OP_NORM_MATMUL, norm, layer_norm, FLAG),
    P(OP_NORM_MATMUL, norm, epsilon, NUMBER),
    P(OP_NORM_MATMUL, norm, shift, NUMBER),
    P(OP_MATMUL, matmul, transpose_a, FLAG),
    P(OP_MATMUL, matmul, transpose_b, FLAG),
    P(OP_MATMUL, matmul, alpha, NUMBER),
    P(OP_HEAD_NORM, head_norm, heads, HEADS),
    P(OP_HEAD_NORM, head_norm, epsilon, NUMBER),
    P(OP_HEAD_NORM, head_norm, shift, NUMBER),
    P(OP_ROTARY, rotary, heads, HEADS),
    P(OP_ROTARY, rotary, rotary_dim, U32),
    P(OP_ROTARY, rotary, interleaved, FLAG),
    P(OP_ROTARY, rotary, inverse, FLAG),
    P(OP_ROTARY_CACHE, rotary, heads, HEADS),
    P(OP_ROTARY_CACHE, rotary, rotary_dim, U32),
    P(OP_ROTARY_CACHE, rotary, interleaved, FLAG),
    P(OP_ROTARY_CACHE, rotary, inverse, FLAG),
    P(OP_ATTENTION, attention, heads, HEADS),
    P(OP_ATTENTION, attention, q_stride, U32),
    P(OP_ATTENTION, attention, kv_stride, U32),
    P(OP_ATTENTION, attention, k_at, U32),
    P(OP_ATTENTION, attention, v_at, U32),
    P(OP_ATTENTION, attention, scale, NUMBER),
    P(OP_ATTENTION, attention, softcap, NUMBER),
    P(OP_ATTENTION, attention, window, U32),
    P(OP_ATTENTION, attention, causal, FLAG),
    P(OP_ATTENTION, attention, uniform_sequences, U32),
    P(OP_ATTENTION_MERGE, attention_merge, head_dim, U32),
    P(OP_CACHE_WRITE, cache_write, heads, HEADS),
    P(OP_ACTIVATION, activation, kind, U32),
    P(OP_ACTIVATION, activation, gated, FLAG),
    P(OP_ACTIVATION_MATMUL, activation, kind, U32),
    P(OP_ACTIVATION_MATMUL, activation, gated, FLAG),
    P(OP_ROUTE, route, topk, U32),
    P(OP_ROUTE, route, num_groups, U32),
    P(OP_ROUTE, route, topk_groups, U32),
    P(OP_ROUTE, route, sigmoid, FLAG),
    P(OP_ROUTE, route, after_choice, FLAG),
    P(OP_ROUTE, route, normalize, FLAG),
    P(OP_ROUTE, route, scaling, NUMBER),
    P(OP_SORT_RECEIVED, sort_received, senders_per_block, U64),
    P(OP_SORT_RECEIVED, sort_received, rows_per_block, U64),
    P(OP_VOCAB_MAX, vocab, first_column, U64),
    P(OP_VOCAB_MAX, vocab, valid, U64),
    P(OP_VOCAB_SUM, vocab, first_column, U64),
    P(OP_VOCAB_SUM, vocab, valid, U64),
    P(OP_SAMPLE, sample, temperature, NUMBER),
    P(OP_SAMPLE, sample, top_p, NUMBER),
    P(OP_SAMPLE, sample, top_k, U32),
#undef P
};

/* ---- the listing ---- */

static void list_param(struct strbuf *out, const char *name, const void *at, enum kind kind)
{
    const struct head_shape *h = at;
    uint32_t u32;
    uint64_t u64;
    double number;
    memcpy(&u32, at, sizeof u32);
    memcpy(&u64, at, sizeof u64);
    memcpy(&number, at, sizeof number);
    strbuf_printf(out, " %s=", name);
    if (kind == FLAG) strbuf_printf(out, "%d", *(const bool *)at);
    if (kind == U32) strbuf_printf(out, "%" PRIu32, u32);
    if (kind == U64) strbuf_printf(out, "%" PRIu64, u64);
    if (kind == NUMBER) strbuf_printf(out, "%.17g", number);
    if (kind == HEADS) strbuf_printf(out, "%ux%ux%u", h->groups, h->queries, h->head_dim);
}

static void list_shape(struct strbuf *out, unsigned num_dims, const uint64_t *shape)
{
    for (unsigned d = 0; d < num_dims; d++)
        strbuf_printf(out, "%c%" PRIu64, d ? ',' : '[', shape[d]);
    strbuf_add_char(out, ']');
}

static void list_operands(struct strbuf *out, const struct program *p, const value_id *ids,
                          unsigned most)
{
    while (most && ids[most - 1] == NO_VALUE)
        most--;
    for (unsigned i = 0; i < most; i++) {
        if (ids[i] == NO_VALUE) {
            strbuf_printf(out, " -");
            continue;
        }
        const struct program_value *v = &p->values[ids[i]];
        strbuf_printf(out, " %c",
                      "pioxs"[v->class == VALUE_PARAMETER ? 0
                              : v->class == VALUE_INPUT   ? 1
                              : v->class == VALUE_OUTPUT  ? 2
                              : v->class == VALUE_STATE   ? 3
                                                          : 4]);
        if (v->class != VALUE_SCRATCH && v->class != VALUE_OUTPUT)
            strbuf_printf(out, "(%s)", v->name);
        strbuf_printf(out, ":%c", "eri"[v->type]);
        list_shape(out, v->num_dims, v->shape);
        strbuf_printf(out, "@%" PRIu64, v->offset);
    }
}

static const char *group_name(enum group_kind kind)
{
    return kind == GROUP_TP    ? "tp"
           : kind == GROUP_CP  ? "cp"
           : kind == GROUP_PP  ? "pp"
           : kind == GROUP_EP  ? "ep"
           : kind == GROUP_ETP ? "etp"
                               : "other";
}

static void list_call(struct strbuf *out, const struct program *p, const struct call *c)
{
    strbuf_printf(out, "%s %s %d", op_name(c), c->label, c->layer);
    if (c->op >= NUM_OPS)
        strbuf_printf(out, " group=%s max=%d", group_name(c->collective.group),
                      c->collective.reduction == COMM_MAX);
    for (size_t i = 0; i < COUNT(params); i++)
        if (params[i].op == c->op)
            list_param(out, params[i].name, (const char *)&c->params + params[i].at,
                       params[i].kind);
    strbuf_printf(out, " <-");
    list_operands(out, p, c->in, MAX_INPUTS);
    strbuf_printf(out, " ->");
    list_operands(out, p, c->out, MAX_OUTPUTS);
    strbuf_add_char(out, '\n');
}

static void list_chunk(struct strbuf *out, const struct built *b)
{
    const struct program *p = &b->program;
    for (size_t i = 0; i < p->num_calls; i++)
        list_call(out, p, &p->calls[i]);
    for (size_t i = 0; i < b->num_outputs; i++) {
        const struct output *o = &b->outputs[i];
        strbuf_printf(out,
                      "output %s slice=%d last=%d shard=%d copied=%" PRIu64
                      " sharers=%u columns=%" PRIu64,
                      o->name, o->slice, o->last, o->shard, o->copied, o->sharers, o->columns);
        list_operands(out, p, &o->value, 1);
        strbuf_add_char(out, '\n');
    }
    strbuf_printf(out, "inputs %" PRIu64 " outputs %" PRIu64 " scratch %" PRIu64 "\n",
                  p->bytes[VALUE_INPUT], p->bytes[VALUE_OUTPUT], p->bytes[VALUE_SCRATCH]);
}

/* A part: which elements of which tensor, from which element of the parameter
 * on. */
static void list_part(struct strbuf *out, const char *tensor, const struct pair *part)
{
    strbuf_printf(out, " %s %" PRIu64 "->%" PRIu64, tensor, part->a_offset, part->b_offset);
    for (unsigned i = 0; i < part->num_axes; i++)
        strbuf_printf(out, " %" PRIu64 "*(%" PRIu64 ",%" PRIu64 ")", part->axes[i].extent,
                      part->axes[i].a_stride, part->axes[i].b_stride);
    strbuf_add_char(out, ';');
}

/* parts: with what fills them. */
static void list_parameters(struct strbuf *out, const struct parameters *p, bool parts)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        strbuf_printf(out, "%s ", x->name);
        list_shape(out, x->num_dims, x->shape);
        strbuf_printf(out, "@%" PRIu64 " =", x->offset);
        for (size_t k = 0; k < x->num_parts && parts; k++)
            list_part(out, x->parts[k].tensor->name, &x->parts[k].part);
        strbuf_add_char(out, '\n');
    }
    strbuf_printf(out, "parameters and states %" PRIu64 "\n", p->bytes);
}

/* ---- models, layouts, passes ---- */

static const char *const models[] = {"gpt2",    "llama2",  "llama3.1", "llama3.2", "mistral",
                                     "mixtral", "qwen2.5", "qwen3",    "qwen3-moe"};

static const struct {
    const char *name;
    struct layout_options layout;
    bool sequence_parallel;
    enum cp_kind cp_kind;
} layouts[] = {
    {.name = "tp1", .layout = {.tp = 1}},
    {.name = "tp2-sp", .layout = {.tp = 2}, .sequence_parallel = true},
    {.name = "tp4", .layout = {.tp = 4}},
    {.name = "tp2pp2ep2etp1", .layout = {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .first_layers = 2}},
    {.name = "pp2vpp2", .layout = {.pp = 2, .pipeline_layout = "Et|t|t|L"}},
    {.name = "cp2-ring", .layout = {.cp = 2}, .cp_kind = CP_RING},
    {.name = "tp2cp2-ep2etp2", .layout = {.tp = 2, .ep = 2, .etp = 2, .cp = 2}},
};

enum { NUM_PASSES = 2 };
static const struct {
    const char *name;
    struct batch batch;
    struct pass_options options;
} passes[NUM_PASSES] = {
    {"whole",
     {.num_sequences = 2, .length = 16},
     {.logits = true, .loss = true, .hidden = true}}, /* trace_layer 0 */
    {"step",
     {.num_sequences = 2, .length = 1},
     {.trace_layer = -1,
      .cache_rows = 24,
      .last_only = true,
      .sampling = &(const struct sampling){.temperature = 0.5, .top_p = 0.9, .top_k = 7}}},
};

/* c: NULL where there is no checkpoint. */
static enum status list_rank(struct strbuf *out, struct checkpoint *c,
                             const struct model_options *o, unsigned rank, unsigned pass,
                             bool parts, struct error *err)
{
    static const struct op_kernel none[NUM_OPS];
    struct model m;
    struct pass p = {0};
    enum status st = model_simulate(&m, c, o, rank, err);
    m.kernels = none;
    if (!st) st = pass_make(&p, &m, &passes[pass].batch, &passes[pass].options, err);
    for (size_t i = 0; i < p.num_chunks && !st; i++)
        list_chunk(out, &p.chunks[i]);
    if (!st) list_parameters(out, &m.parameters, parts);
    if (p.model) pass_release(&p);
    model_close(&m);
    return st;
}

static struct model_options options_of(const struct model_config *c, unsigned layout, unsigned pass)
{
    struct model_options o = {.layout = layouts[layout].layout,
                              .sequence_parallel = layouts[layout].sequence_parallel,
                              .cp_kind = layouts[layout].cp_kind,
                              .elem = pass ? ELEM_BF16 : ELEM_F32};
    if (!c->num_experts) o.layout.ep = o.layout.etp = 0; /* there are none to deal */
    if (o.layout.pipeline_layout && c->num_layers == 2) o.layout.pipeline_layout = "E|t|t|L";
    return o;
}

static void list_all_ranks(struct strbuf *out, struct checkpoint *c, const struct model_options *o,
                           unsigned pass, bool parts)
{
    struct group_sizes s = model_group_sizes(o);
    for (unsigned rank = 0; rank < s.tp * s.cp * s.dp * s.pp; rank++) {
        struct error err = {0};
        strbuf_printf(out, "rank %u\n", rank);
        if (list_rank(out, c, o, rank, pass, parts, &err))
            strbuf_printf(out, "refused: %s\n", err.text);
    }
}

/* ---- sums ---- */

static void keep_listing(const char *name, const struct strbuf *text)
{
    const char *folder = getenv("FERRY_TEST_LIST");
    char path[512];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text->data, 1, text->length, f), text->length);
    assert_int_equal(fclose(f), 0);
}

static void add_sum(struct strbuf *sums, const char *name, const struct strbuf *text)
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)text->data, text->length, sum);
    for (size_t i = 0; i < sizeof sum; i++)
        strbuf_printf(sums, "%02x", sum[i]);
    strbuf_printf(sums, "  %s\n", name);
}

static void list_model(struct strbuf *sums, const char *model)
{
    const struct source_options none = {0};
    struct opened opened;
    struct error err = {0};
    char path[128], name[128];
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    assert_ok(opened_open(&opened, path, &none, NULL, true, true, &err));
    for (unsigned l = 0; l < COUNT(layouts); l++)
        for (unsigned pass = 0; pass < NUM_PASSES; pass++) {
            struct strbuf text = {0};
            const struct model_options o = options_of(&opened.checkpoint.config, l, pass);
            list_all_ranks(&text, &opened.checkpoint, &o, pass, true);
            snprintf(name, sizeof name, "%s.%s.%s", model, layouts[l].name, passes[pass].name);
            keep_listing(name, &text);
            add_sum(sums, name, &text);
            strbuf_release(&text);
        }
    opened_close(&opened);
}

/* The first line that is another names what has changed. */
static void compare_sums(const char *now, const char *recorded)
{
    while (*now || *recorded) {
        size_t n = strcspn(now, "\n"), m = strcspn(recorded, "\n");
        if (n != m || memcmp(now, recorded, n) != 0)
            fail_msg("the programs of %.*s are not those that were recorded in " SUMS
                     "; FERRY_TEST_LIST=FOLDER writes the listings",
                     n > 66 ? (int)n - 66 : 0, now + (n > 66 ? 66 : 0));
        now += n + (now[n] != 0);
        recorded += m + (recorded[m] != 0);
    }
}

static void programs_are_those_that_were_recorded(void **state)
{
    struct strbuf sums = {0};
    char recorded[32768] = "";
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        list_model(&sums, models[i]);
    FILE *f = fopen(SUMS, getenv("FERRY_TEST_RECORD") ? "w" : "r");
    assert_non_null(f);
    if (getenv("FERRY_TEST_RECORD"))
        assert_int_equal(fwrite(sums.data, 1, sums.length, f), sums.length);
    else {
        recorded[fread(recorded, 1, sizeof recorded - 1, f)] = '\0';
        compare_sums(sums.data, recorded);
    }
    assert_int_equal(fclose(f), 0);
    strbuf_release(&sums);
}

/* Programs and parameters follow from config and layout alone. */
static void programs_need_no_checkpoint(void **state)
{
    const struct source_options none = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        struct opened opened;
        struct error err = {0};
        char path[128];
        snprintf(path, sizeof path, "tests/golden/hf/%s", models[i]);
        assert_ok(opened_open(&opened, path, &none, NULL, true, true, &err));
        for (unsigned l = 0; l < COUNT(layouts); l++) {
            struct strbuf with = {0}, without = {0};
            struct model_options o = options_of(&opened.checkpoint.config, l, 0);
            list_all_ranks(&with, &opened.checkpoint, &o, 0, false);
            o.config = &opened.checkpoint.config;
            list_all_ranks(&without, NULL, &o, 0, false);
            assert_string_equal(with.data, without.data);
            strbuf_release(&with);
            strbuf_release(&without);
        }
        opened_close(&opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_are_those_that_were_recorded),
        cmocka_unit_test(programs_need_no_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
