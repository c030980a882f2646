#include "ckpt/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/strbuf.h"

/* ---- options ---- */

#define ROW(kind, name) FIELD_ROW(struct layout_options, name),
const struct field layout_fields[NUM_LAYOUT_FIELDS] = {LAYOUT_FIELDS(ROW)};

bool layout_is_given(const struct layout_options *o)
{
    for (size_t i = 0; i < NUM_LAYOUT_FIELDS; i++)
        if (!scalar_is_zero(field_get(&layout_fields[i], o))) return true;
    return false;
}

void layout_options_complete(struct layout_options *o, const struct layout *l)
{
    struct layout_options stages = *o;
    stages.tp = stages.ep = stages.etp = stages.cp = stages.dp = 0;
    struct layout_options all = layout_is_given(&stages) ? *o : l->options;
    all.tp = o->tp ? o->tp : l->tp;
    all.pp = o->pp ? o->pp : l->pp;
    all.ep = o->ep ? o->ep : l->ep;
    all.cp = o->cp ? o->cp : l->options.cp;
    all.dp = o->dp ? o->dp : l->options.dp;
    all.etp = o->tp || o->etp ? o->etp : l->etp;
    *o = all;
}

/* ---- divisibility ---- */

static enum status check_divides(const char *what, uint64_t n, const char *size_name, uint64_t size,
                                 struct error *err)
{
    if (n % size == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s %" PRIu64 " is not divisible by %s %" PRIu64, what, n,
                size_name, size);
}

/* ---- pipeline stages ---- */

/* Layers of each stage in model order, before offsets are summed. */
struct deal {
    uint64_t num_stages;
    uint64_t *layers;               /* [num_stages] */
    uint64_t embedding_at, loss_at; /* stages */
};

enum { LONGEST_LAYOUT = 1 << 20 }; /* letters of a pipeline layout once it is unrolled */

/* Megatron's two rewritings of a pipeline layout: first (..)*n becomes n times
 * the content, then x*n becomes n times x. */
static enum status unroll_groups(struct strbuf *out, const char *text, struct error *err)
{
    for (const char *p = text; *p; p++) {
        if (*p != '(') {
            strbuf_add_char(out, *p);
            continue;
        }
        const char *end = strchr(p, ')');
        char *rest;
        if (!end || end == p + 1 || end[1] != '*' || end[2] < '0' || end[2] > '9')
            return fail(err, ERR_USAGE, "pipeline layout \"%s\": a group is written (...)*N", text);
        size_t inner = (size_t)(end - p) - 1;
        uint64_t times = strtoull(end + 2, &rest, 10);
        if (times > (LONGEST_LAYOUT - min_u64(out->length, LONGEST_LAYOUT)) / inner)
            return fail(err, ERR_USAGE, "pipeline layout: more than %d letters when unrolled",
                        LONGEST_LAYOUT);
        for (uint64_t i = 0; i < times; i++)
            strbuf_add(out, p + 1, inner);
        p = rest - 1;
    }
    return OK;
}

static enum status unroll_repeats(struct strbuf *out, const char *text, struct error *err)
{
    for (const char *p = text; *p; p++) {
        char *rest = NULL;
        uint64_t times = 1;
        if (p[1] == '*') {
            if (p[2] < '0' || p[2] > '9')
                return fail(err, ERR_USAGE, "pipeline layout: no number after \"%c*\"", *p);
            times = strtoull(p + 2, &rest, 10);
        }
        if (times > LONGEST_LAYOUT - out->length)
            return fail(err, ERR_USAGE, "pipeline layout: more than %d letters when unrolled",
                        LONGEST_LAYOUT);
        strbuf_add_repeated(out, *p, times);
        if (rest) p = rest - 1;
    }
    return OK;
}

/* E embedding, t transformer layer, L loss, | between stages. */
static enum status count_stages(struct deal *d, struct arena *a, const char *unrolled,
                                struct error *err)
{
    unsigned embeddings = 0, losses = 0;
    size_t capacity = strlen(unrolled) + 1;
    d->layers = arena_array(a, capacity, sizeof *d->layers);
    d->num_stages = 1;
    for (const char *p = unrolled; *p; p++) {
        uint64_t s = d->num_stages - 1;
        switch (*p) {
        case '|':
            d->num_stages++;
            break;
        case 't':
            d->layers[s]++;
            break;
        case 'E':
            d->embedding_at = s, embeddings++;
            break;
        case 'L':
            d->loss_at = s, losses++;
            break;
        default:
            return fail(err, ERR_USAGE, "pipeline layout: \"%c\" is not one of E t L | ( ) * ,",
                        *p);
        }
    }
    if (embeddings != 1 || losses != 1 || unrolled[0] != 'E' ||
        unrolled[strlen(unrolled) - 1] != 'L')
        return fail(err, ERR_USAGE,
                    "pipeline layout: expected one E, at the beginning, and one L, at the end");
    return OK;
}

/* Commas have no meaning. */
static void add_without_commas(struct strbuf *out, const char *text)
{
    strbuf_add_text(out, "");
    for (; *text; text++)
        if (*text != ',') strbuf_add_char(out, *text);
}

static enum status deal_as_written(struct deal *d, struct arena *a, const char *text,
                                   struct error *err)
{
    struct strbuf plain = {0}, groups = {0}, unrolled = {0};
    add_without_commas(&plain, text);
    strbuf_add_text(&groups, "");
    strbuf_add_text(&unrolled, "");
    enum status st = unroll_groups(&groups, plain.data, err);
    if (!st) st = unroll_repeats(&unrolled, groups.data, err);
    if (!st) st = count_stages(d, a, unrolled.data, err);
    strbuf_release(&plain);
    strbuf_release(&groups);
    strbuf_release(&unrolled);
    return st;
}

/* Deals layers to pipeline ranks, then to their chunks. The first and last rank
 * may have a given number. */
static enum status deal_by_number(struct deal *d, const struct layout *l, uint64_t num_layers,
                                  struct error *err)
{
    uint64_t first = l->options.first_layers, last = l->options.last_layers;
    uint64_t ends = (uint64_t)(first > 0) + (last > 0), middle = l->pp - ends;
    if (l->pp < ends || first > num_layers || last > num_layers - first ||
        (!middle && first + last < num_layers))
        return fail(err, ERR_UNSUPPORTED,
                    "%" PRIu64 " layers cannot be distributed over %" PRIu64
                    " pipeline ranks with %" PRIu64 " in the first and %" PRIu64 " in the last",
                    num_layers, l->pp, first, last);
    uint64_t rest = num_layers - first - last + l->options.count_embedding + l->options.count_loss;
    if (middle)
        TRY(check_divides(ends ? "number of remaining layers" : "number of layers", rest,
                          ends ? "the number of remaining pipeline ranks," : "pipeline size",
                          middle, err));
    uint64_t each = middle ? rest / middle : 0;
    for (uint64_t p = 0; p < l->pp; p++) {
        uint64_t n = p == 0 && first ? first : p == l->pp - 1 && last ? last : each;
        TRY(check_divides("number of layers per rank", n, "the number of virtual stages,", l->vpp,
                          err));
        for (uint64_t v = 0; v < l->vpp; v++)
            d->layers[v * l->pp + p] = n / l->vpp;
    }
    uint64_t end = d->num_stages - 1;
    if ((l->options.count_embedding && !d->layers[0]) || (l->options.count_loss && !d->layers[end]))
        return fail(
            err, ERR_UNSUPPORTED,
            "the first or last stage has no layer to replace with the embedding or the loss");
    d->layers[0] -= l->options.count_embedding;
    d->layers[end] -= l->options.count_loss;
    return OK;
}

static enum status make_stages(struct layout *l, struct arena *a, const struct deal *d,
                               uint64_t num_layers, struct error *err)
{
    uint64_t sum = 0;
    l->stages = arena_array(a, d->num_stages, sizeof *l->stages);
    for (uint64_t s = 0; s < d->num_stages; s++) {
        l->stages[s] = (struct stage){.first_layer = sum,
                                      .num_layers = d->layers[s],
                                      .embedding = s == d->embedding_at,
                                      .loss = s == d->loss_at};
        sum += d->layers[s];
    }
    if (sum != num_layers)
        return fail(err, ERR_UNSUPPORTED,
                    "the pipeline layout has %" PRIu64 " layers, the model %" PRIu64, sum,
                    num_layers);
    return OK;
}

static enum status deal_layers(struct layout *l, struct arena *a, const struct layout_options *o,
                               uint64_t num_layers, struct error *err)
{
    struct deal d = {0};
    bool numbers = o->first_layers || o->last_layers, counted = o->count_embedding || o->count_loss;
    if (o->pipeline_layout && (numbers || counted))
        return fail(err, ERR_USAGE,
                    "a pipeline layout cannot be combined with layers of the first or last rank, "
                    "or with counting the embedding or the loss");
    if (numbers && counted)
        return fail(err, ERR_USAGE,
                    "layers of the first or last rank cannot be combined with counting the "
                    "embedding or the loss");
    if (o->pipeline_layout) {
        TRY(deal_as_written(&d, a, o->pipeline_layout, err));
        if (d.num_stages % l->pp ||
            (o->virtual_stages && d.num_stages != l->pp * o->virtual_stages))
            return fail(err, ERR_UNSUPPORTED,
                        "the pipeline layout has %" PRIu64 " stages, pipeline size is %" PRIu64,
                        d.num_stages, l->pp);
        l->vpp = d.num_stages / l->pp;
    } else {
        d.num_stages = l->pp * l->vpp;
        d.layers = arena_array(a, d.num_stages, sizeof *d.layers);
        d.loss_at = d.num_stages - 1;
        TRY(deal_by_number(&d, l, num_layers, err));
    }
    return make_stages(l, a, &d, num_layers, err);
}

/* ---- sizes ---- */

static enum status check_parallel_sizes(const struct layout *l, const struct model_config *c,
                                        struct error *err)
{
    TRY(check_divides("num_attention_heads", c->num_attention_heads, "tensor parallel size", l->tp,
                      err));
    if (c->num_query_groups % l->tp && l->tp % c->num_query_groups)
        return fail(err, ERR_UNSUPPORTED,
                    "num_query_groups %" PRIu64 " and tensor parallel size %" PRIu64
                    ": neither divides the other",
                    c->num_query_groups, l->tp);
    TRY(check_divides("ffn_hidden_size", c->ffn_hidden_size, "tensor parallel size", l->tp, err));
    if (!c->num_experts && l->ep > 1)
        return fail(err, ERR_UNSUPPORTED,
                    "expert parallel size %" PRIu64 ": the model has no experts", l->ep);
    if (!c->num_experts && l->etp != l->tp)
        return fail(err, ERR_UNSUPPORTED,
                    "expert tensor parallel size %" PRIu64
                    ": the model has no experts, and tensor parallel size is %" PRIu64,
                    l->etp, l->tp);
    if (!c->num_experts) return OK;
    TRY(check_divides("num_experts", c->num_experts, "expert parallel size", l->ep, err));
    return check_divides("moe_ffn_hidden_size", c->moe_ffn_hidden_size,
                         "expert tensor parallel size", l->etp, err);
}

static uint64_t or_one(uint64_t n)
{
    return n ? n : 1;
}

/* Computes vpp from the layers of a chunk, like Megatron's arguments.py. */
static enum status count_virtual_stages(struct layout *l, const struct layout_options *o,
                                        uint64_t num_layers, struct error *err)
{
    uint64_t each = o->layers_per_virtual_stage;
    uint64_t layers = num_layers + o->count_embedding + o->count_loss;
    if (!each) return OK;
    if (o->virtual_stages || o->pipeline_layout || o->first_layers || o->last_layers)
        return fail(err, ERR_USAGE,
                    "layers per virtual stage cannot be combined with a number of virtual stages, "
                    "a pipeline layout, or layers of the first or last rank");
    if (!layers || layers % l->pp || layers / l->pp % each)
        return fail(err, ERR_UNSUPPORTED,
                    "%" PRIu64 " layers on %" PRIu64
                    " pipeline ranks cannot be split into virtual stages of %" PRIu64,
                    layers, l->pp, each);
    l->vpp = layers / l->pp / each;
    return OK;
}

static void set_options(struct layout *l)
{
    l->options.tp = l->tp;
    l->options.pp = l->pp;
    l->options.ep = l->ep;
    l->options.etp = l->etp;
    l->options.virtual_stages = l->vpp > 1 ? l->vpp : 0;
    l->options.layers_per_virtual_stage = 0;
}

enum status layout_make(struct layout *l, struct arena *a, const struct layout_options *o,
                        const struct model_config *config, struct error *err)
{
    enum { MAX_SIZE = 1 << 20 }; /* limit of sizes and stages: more is a typing error */
    *l = (struct layout){.tp = or_one(o->tp),
                         .pp = or_one(o->pp),
                         .ep = or_one(o->ep),
                         .vpp = or_one(o->virtual_stages),
                         .options = *o};
    l->etp = o->etp ? o->etp : l->tp;
    TRY(count_virtual_stages(l, o, config->num_layers, err));
    if (l->tp > MAX_SIZE || l->pp > MAX_SIZE || l->ep > MAX_SIZE || l->etp > MAX_SIZE ||
        l->vpp > MAX_SIZE / l->pp)
        return fail(err, ERR_USAGE, "a parallel size or the number of stages is above %d",
                    MAX_SIZE);
    TRY(check_parallel_sizes(l, config, err));
    TRY(deal_layers(l, a, o, config->num_layers, err));
    if (l->vpp > 1 && l->pp == 1)
        return fail(err, ERR_UNSUPPORTED, "virtual pipeline stages need a pipeline size above 1");
    set_options(l);
    return OK;
}

const struct stage *layout_stage(const struct layout *l, uint64_t chunk, uint64_t pp_rank)
{
    return &l->stages[chunk * l->pp + pp_rank];
}

const char *layout_text(const struct layout *l, struct arena *a)
{
    struct strbuf s = {0};
    strbuf_printf(&s, "TP%" PRIu64, l->tp);
    if (l->pp > 1) strbuf_printf(&s, " PP%" PRIu64, l->pp);
    if (l->vpp > 1) strbuf_printf(&s, " VPP%" PRIu64, l->vpp);
    if (l->ep > 1) strbuf_printf(&s, " EP%" PRIu64, l->ep);
    if (l->etp != l->tp) strbuf_printf(&s, " ETP%" PRIu64, l->etp);
    const char *text = arena_text(a, s.data, s.length);
    strbuf_release(&s);
    return text;
}

uint64_t layout_stage_ranks(const struct layout *l)
{
    const uint64_t experts = l->ep * l->etp;
    return l->tp / gcd_u64(l->tp, experts) * experts;
}

bool layout_has_rank(const struct layout *l, uint64_t tp, uint64_t ep)
{
    uint64_t ranks = layout_stage_ranks(l);
    for (uint64_t r = 0; r < ranks; r++)
        if (r % l->tp == tp && r / l->etp % l->ep == ep) return true;
    return false;
}
