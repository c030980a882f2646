#include "train/ops.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- floating-point operations ---- */

static double elements(const struct program *p, value_id id)
{
    double n = 1;
    if (id == NO_VALUE) return 0;
    for (unsigned d = 0; d < p->values[id].num_dims; d++)
        n *= (double)p->values[id].shape[d];
    return n;
}

static double matmul_flops(const struct program *p, const struct call *c)
{
    const struct program_value *a = &p->values[c->in[0]];
    uint64_t k = a->shape[c->params.matmul.transpose_a ? 0 : 1];
    return 2 * (double)k * elements(p, c->out[0]);
}

static double grouped_flops(const struct program *p, const struct call *c)
{
    return 2 * (double)p->values[c->in[0]].shape[1] * elements(p, c->out[0]);
}

static double attention_flops(const struct program *p, const struct call *c)
{
    struct head_shape h = c->params.attention.heads;
    (void)p;
    return 4 * c->pairs * h.groups * h.queries * h.head_dim;
}

// clang-format off
static const struct op_row rows[] = {
    /* op                 name               shapes                                   in place  flops, tolerance */
    {OP_EMBEDDING,        "embedding",        "iT eRh -> eTh",                        {-1, -1}, NULL, 0.5},
    {OP_POSITIONS,        "positions",        "eTh ePh iT -> eTh",                    {0, 0},   NULL, 1},
    {OP_NORM,             "norm",             "eTh eh eh? -> eTh rT2?",               {-1, -1}, NULL, 2},
    {OP_ADD_NORM,         "add_norm",         "eTh eTh eh? eh eh? -> eTh eTh rT2?",   {0, 0},   NULL, 2},
    {OP_ADD,              "add",              "eTh eTh eh? -> eTh",                   {0, 0},   NULL, 1},
    {OP_MATMUL,           "matmul",           "e** e** en? -> xmn",                   {-1, -1}, matmul_flops, 2},
    {OP_HEAD_NORM,        "head_norm",        "eTw ed ed -> eTw",                     {0, 0},   NULL, 2},
    {OP_ROTARY,           "rotary",           "eTw rPd iT -> eTw",                    {0, 0},   NULL, 2},
    {OP_ATTENTION,        "attention",        "eTq eKk iS6 eH? -> eTc rTh?",          {-1, -1}, attention_flops, 4},
    {OP_ATTENTION_MERGE,  "attention_merge",  "eTc rTh eTc rTh -> eTc rTh",           {0, 0},   NULL, 2},
    {OP_CACHE_WRITE,      "cache_write",      "eTw iT -> eRc",                        {-1, -1}, NULL, 0},
    {OP_ACTIVATION,       "activation",       "eT* iE? -> eTn",                           {-1, -1}, NULL, 2},
    {OP_ROUTE,            "route",            "rTE rE? -> rTk iTk",                   {-1, -1}, NULL, 2},
    {OP_SORT_BY_EXPERT,   "sort_by_expert",   "iTk -> iTk iE",                        {-1, -1}, NULL, 0},
    {OP_SORT_RECEIVED,    "sort_received",    "iS -> iR1 iE",                        {-1, -1}, NULL, 0},
    {OP_PERMUTE,          "permute",          "eTh iTk -> eRh",                   {-1, -1}, NULL, 0},
    {OP_UNPERMUTE,        "unpermute",        "eRh iTk rTk? -> eTh",              {-1, -1}, NULL, 2},
    {OP_GROUPED_MATMUL,   "grouped_matmul",   "eRk eEnk iE -> eRn",                   {-1, -1}, grouped_flops, 2},
    {OP_SIGMOID_SCALE,    "sigmoid_scale",    "eTn eT1 -> eTn",                       {0, 0},   NULL, 2},
    {OP_GATHER_ROWS,      "gather_rows",      "eTh in -> enh",                        {-1, -1}, NULL, 0},
    {OP_VOCAB_MAX,        "vocab_max",        "rTV -> rT",                            {-1, -1}, NULL, 0},
    {OP_VOCAB_SUM,        "vocab_sum",        "rTV rT iT -> rT2",                     {-1, -1}, NULL, 4},
    {OP_TOKEN_LOSS,       "token_loss",       "rT2 iT -> rT",                         {-1, -1}, NULL, 2},
    {OP_SAMPLE,           "sample",           "rnV i1 -> in",                         {-1, -1}, NULL, 0},
    {OP_DIGEST,           "digest",           "en -> i4",                             {-1, -1}, NULL, 0},
    {OP_ALL_REDUCE,       "all_reduce",       "x -> x",                               {0, 0},   NULL, 0},
    {OP_ALL_GATHER,       "all_gather",       "x -> x",                               {-1, -1}, NULL, 0},
    {OP_REDUCE_SCATTER,   "reduce_scatter",   "x -> x",                               {-1, -1}, NULL, 0},
    {OP_ALL_TO_ALL,       "all_to_all",       "eRh iS -> eQh iU",                   {-1, -1}, NULL, 0},
    {OP_SHIFT,            "shift",            "x -> x",                               {-1, -1}, NULL, 0},
    {OP_SEND,             "send",             "x ->",                                 {-1, -1}, NULL, 0},
    {OP_RECEIVE,          "receive",          "-> x",                                 {-1, -1}, NULL, 0},
    {OP_SLICE,            "slice",            "x -> x",                               {-1, -1}, NULL, 0},
};
// clang-format on

const struct op_row *op_row(unsigned op)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].op == op) return &rows[i];
    return NULL;
}

/* ---- the shapes of operands ---- */

struct letters {
    uint64_t size[128];
    bool known[128];
};

static enum status mismatch(const struct program *p, const struct call *c, value_id id,
                            const char *pattern, size_t length, struct error *err)
{
    char shape[128] = "absent";
    if (id != NO_VALUE) {
        const struct program_value *v = &p->values[id];
        int n = snprintf(shape, sizeof shape, "%s %c[", v->name, "eri"[v->type]);
        for (unsigned d = 0; d < v->num_dims && n < 100; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, " %" PRIu64, v->shape[d]);
    }
    return fail(err, ERR_OURS, "%s (%s): operand %s] is not %.*s", c->label, op_row(c->op)->name,
                shape, (int)length, pattern);
}

static bool type_fits(char letter, enum operand_type type)
{
    return letter == 'x' ? type != OPERAND_INT : "eri"[type] == letter;
}

static bool dim_fits(struct letters *l, char letter, uint64_t size)
{
    if (letter == '*') return true;
    if (isdigit((unsigned char)letter)) return size == (uint64_t)(letter - '0');
    unsigned char at = (unsigned char)letter;
    if (!l->known[at]) {
        l->known[at] = true;
        l->size[at] = size;
    }
    return l->size[at] == size;
}

/* One operand against its pattern, as "eTh?". A lone "x" is any shape. */
static bool operand_fits(const struct program *p, struct letters *l, value_id id,
                         const char *pattern, size_t length)
{
    bool optional = pattern[length - 1] == '?';
    if (id == NO_VALUE) return optional;
    const struct program_value *v = &p->values[id];
    if (length == 1) return true;
    if (v->num_dims != length - 1 - optional || !type_fits(pattern[0], v->type)) return false;
    for (unsigned d = 0; d < v->num_dims; d++)
        if (!dim_fits(l, pattern[1 + d], v->shape[d])) return false;
    return true;
}

static enum status check_side(const struct program *p, const struct call *c, struct letters *l,
                              const char *side, const value_id *ids, unsigned count,
                              struct error *err)
{
    unsigned i = 0;
    for (; *side && strncmp(side, "->", 2) != 0; i++) {
        size_t length = strcspn(side, " ");
        value_id id = i < count ? ids[i] : NO_VALUE;
        if (!operand_fits(p, l, id, side, length)) return mismatch(p, c, id, side, length, err);
        side += length + strspn(side + length, " ");
    }
    for (; i < count; i++)
        if (ids[i] != NO_VALUE) return mismatch(p, c, ids[i], "there", 5, err);
    return OK;
}

/* What the letters cannot say of a product. */
static enum status check_matmul(const struct program *p, const struct call *c, struct error *err)
{
    const struct program_value *a = &p->values[c->in[0]], *b = &p->values[c->in[1]];
    const struct program_value *y = &p->values[c->out[0]];
    bool ta = c->params.matmul.transpose_a, tb = c->params.matmul.transpose_b;
    if (a->shape[ta] == y->shape[0] && b->shape[!tb] == y->shape[1] &&
        a->shape[!ta] == b->shape[tb])
        return OK;
    return fail(err, ERR_OURS,
                "%s: [%" PRIu64 ", %" PRIu64 "]%s times [%" PRIu64 ", %" PRIu64
                "]%s is not [%" PRIu64 ", %" PRIu64 "]",
                c->label, a->shape[0], a->shape[1], ta ? "^T" : "", b->shape[0], b->shape[1],
                tb ? "^T" : "", y->shape[0], y->shape[1]);
}

/* Rows of collectives: y has factor / divisor times those of x, and all else is alike. */
static enum status check_rows(const struct program *p, const struct call *c, struct error *err)
{
    unsigned size = p->groups->of[c->collective.group].size;
    bool more = c->op == OP_ALL_GATHER, less = c->op == OP_REDUCE_SCATTER || c->op == OP_SLICE;
    if (c->op == OP_SEND || c->op == OP_RECEIVE) return OK;
    const struct program_value *x = &p->values[c->in[0]], *y = &p->values[c->out[0]];
    bool same = x->num_dims == y->num_dims && x->type == y->type;
    for (unsigned d = 1; d < x->num_dims && same; d++)
        same = x->shape[d] == y->shape[d];
    if (same && x->shape[0] * (more ? size : 1) == y->shape[0] * (less ? size : 1)) return OK;
    return fail(err, ERR_OURS, "%s: %" PRIu64 " rows of %s and %" PRIu64 " of %s, in a group of %u",
                c->label, x->shape[0], x->name, y->shape[0], y->name, size);
}

enum status op_check(const struct program *p, const struct call *c, struct error *err)
{
    const struct op_row *row = op_row(c->op);
    struct letters letters = {0};
    if (!row) return fail(err, ERR_OURS, "%s: no op %u", c->label, c->op);
    const char *arrow = strstr(row->shapes, "->");
    TRY(check_side(p, c, &letters, row->shapes, c->in, MOST_INPUTS, err));
    TRY(check_side(p, c, &letters, arrow + 2 + strspn(arrow + 2, " "), c->out, MOST_OUTPUTS, err));
    if (c->op == OP_MATMUL) return check_matmul(p, c, err);
    if (c->op >= NUM_OPS && c->op != OP_ALL_TO_ALL) return check_rows(p, c, err);
    return OK;
}

/* ---- cost ---- */

struct op_cost op_cost(const struct program *p, const struct call *c)
{
    const struct op_row *row = op_row(c->op);
    struct op_cost cost = {0};
    for (unsigned i = 0; i < MOST_INPUTS + MOST_OUTPUTS; i++) {
        value_id id = i < MOST_INPUTS ? c->in[i] : c->out[i - MOST_INPUTS];
        if (id == NO_VALUE) continue;
        cost.bytes += (double)p->values[id].bytes;
        if (i >= MOST_INPUTS) cost.flops += elements(p, id);
    }
    if (c->op == OP_EMBEDDING || c->op == OP_GATHER_ROWS) /* a few rows of what may be large */
        cost.bytes = 2 * (double)p->values[c->out[0]].bytes;
    if (row->flops) cost.flops = row->flops(p, c);
    return cost;
}
