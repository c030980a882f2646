#include "kernels/op_table.h"
#include "common/count.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes from parameters ---- */

bool op_size_set(struct op_sizes *s, char letter, uint64_t size)
{
    unsigned char at = (unsigned char)letter;
    if (s->known[at]) return s->of[at] == size;
    s->known[at] = true;
    s->of[at] = size;
    return true;
}

static uint64_t size_of(const struct op_sizes *s, char letter)
{
    return s->of[(unsigned char)letter];
}

static bool matmul_sizes(const union op_params *p, struct op_sizes *s)
{
    bool ta = p->matmul.transpose_a, tb = p->matmul.transpose_b;
    return size_of(s, ta ? 'i' : 'j') == size_of(s, tb ? 'l' : 'k') &&
           op_size_set(s, 'm', size_of(s, ta ? 'j' : 'i')) &&
           op_size_set(s, 'n', size_of(s, tb ? 'k' : 'l'));
}

static bool qkv_sizes(const struct head_shape *h, struct op_sizes *s)
{
    return op_size_set(s, 'w', (uint64_t)h->groups * (h->queries + 2) * h->head_dim);
}

static bool head_norm_sizes(const union op_params *p, struct op_sizes *s)
{
    return qkv_sizes(&p->head_norm.heads, s) && op_size_set(s, 'd', p->head_norm.heads.head_dim);
}

static bool rotary_sizes(const union op_params *p, struct op_sizes *s)
{
    return qkv_sizes(&p->rotary.heads, s) && op_size_set(s, 'd', p->rotary.rotary_dim);
}

static bool attention_sizes(const union op_params *p, struct op_sizes *s)
{
    struct head_shape h = p->attention.heads;
    uint64_t heads = (uint64_t)h.groups * h.queries;
    return op_size_set(s, 'n', heads) && op_size_set(s, 'c', heads * h.head_dim);
}

static bool attention_merge_sizes(const union op_params *p, struct op_sizes *s)
{
    return op_size_set(s, 'c', size_of(s, 'n') * p->attention_merge.head_dim);
}

static bool cache_write_sizes(const union op_params *p, struct op_sizes *s)
{
    const struct head_shape *h = &p->cache_write.heads;
    return qkv_sizes(h, s) && op_size_set(s, 'c', (uint64_t)h->groups * 2 * h->head_dim);
}

static bool rotary_cache_sizes(const union op_params *p, struct op_sizes *s)
{
    const union op_params write = {.cache_write.heads = p->rotary.heads};
    return rotary_sizes(p, s) && cache_write_sizes(&write, s);
}

static bool activation_sizes(const union op_params *p, struct op_sizes *s)
{
    uint64_t parts = p->activation.gated ? 2 : 1;
    return size_of(s, 'w') % parts == 0 && op_size_set(s, 'n', size_of(s, 'w') / parts);
}

static bool route_sizes(const union op_params *p, struct op_sizes *s)
{
    return op_size_set(s, 'k', p->route.topk);
}

static bool gathered_sizes(const union op_params *p, struct op_sizes *s)
{
    (void)p;
    return op_size_set(s, 'S', size_of(s, 'R') * size_of(s, 'G'));
}

static bool scattered_sizes(const union op_params *p, struct op_sizes *s)
{
    uint64_t members = size_of(s, 'G');
    (void)p;
    return members && size_of(s, 'S') % members == 0 &&
           op_size_set(s, 'R', size_of(s, 'S') / members);
}

/* ---- floating-point operations ---- */

static double matmul_flops(const union op_params *p, const struct operand *in,
                           const struct operand *out)
{
    uint64_t k = in[0].shape[p->matmul.transpose_a ? 0 : 1];
    return 2 * (double)k * (double)operand_numel(&out[0]);
}

static double norm_matmul_flops(const union op_params *p, const struct operand *in,
                                const struct operand *out)
{
    (void)p;
    return 2 * (double)in[0].shape[1] * (double)operand_numel(&out[0]);
}

static double activation_matmul_flops(const union op_params *p, const struct operand *in,
                                      const struct operand *out)
{
    (void)p;
    return 2 * (double)in[1].shape[1] * (double)operand_numel(&out[0]);
}

static double grouped_matmul_flops(const union op_params *p, const struct operand *in,
                                   const struct operand *out)
{
    (void)p;
    return 2 * (double)in[0].shape[1] * (double)operand_numel(&out[0]);
}

static double attention_flops(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    struct head_shape h = p->attention.heads;
    (void)in, (void)out;
    return 4 * p->attention.pairs * h.groups * h.queries * h.head_dim;
}

static double norm_backward_flops(const union op_params *p, const struct operand *in,
                                  const struct operand *out)
{
    (void)p, (void)out;
    return 10 * (double)operand_numel(&in[0]);
}

/* Five products, where the forward pass has two. */
static double attention_backward_flops(const union op_params *p, const struct operand *in,
                                       const struct operand *out)
{
    return 2.5 * attention_flops(p, in, out);
}

static double grouped_dgrad_flops(const union op_params *p, const struct operand *in,
                                  const struct operand *out)
{
    (void)p, (void)out;
    return 2 * (double)operand_numel(&in[0]) * (double)in[1].shape[2];
}

static double grouped_wgrad_flops(const union op_params *p, const struct operand *in,
                                  const struct operand *out)
{
    (void)p, (void)out;
    return 2 * (double)operand_numel(&in[0]) * (double)in[1].shape[1];
}

/* ---- the table ---- */

static struct op_row rows[NUM_ALL_OPS] = {
#define X(id, called, params, operands, find, count, bits, roundings, cpu, cuda)                   \
    [id] = {.name = #called,                                                                       \
            .signature = operands,                                                                 \
            .sizes = find,                                                                         \
            .flops = count,                                                                        \
            .flags = bits,                                                                         \
            .tolerance = roundings},
    OPS(X) COLLECTIVES(X)
#undef X
};

static const char *const type_names[] = {
    [TYPE_ELEM] = "elem",   [TYPE_REAL] = "real", [TYPE_INT] = "int",
    [TYPE_FLOAT] = "float", [TYPE_ANY] = "any",   [TYPE_WEIGHT] = "weight",
};

/* Aborts: op_list.h has an invalid signature. */
static void reject_signature(const char *signature, const char *at)
{
    fprintf(stderr, "op_list.h: invalid signature \"%s\", at \"%s\"\n", signature, at);
    abort();
}

static bool skip_text(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0) return false;
    *at += n;
    return true;
}

static bool take_name(const char **at, char *to, size_t room)
{
    size_t n = 0;
    while (isalnum((unsigned char)(*at)[n]) || (*at)[n] == '_')
        n++;
    if (n == 0 || n >= room) return false;
    memcpy(to, *at, n);
    to[n] = '\0';
    *at += n;
    return true;
}

static bool take_type(const char **at, enum signature_type *type)
{
    char name[16];
    *type = TYPE_ELEM;
    if (!skip_text(at, ":")) return true;
    if (!take_name(at, name, sizeof name)) return false;
    for (unsigned t = 0; t < COUNT(type_names); t++)
        if (strcmp(name, type_names[t]) == 0) {
            *type = (enum signature_type)t;
            return true;
        }
    return false;
}

static bool take_dims(const char **at, struct op_operand *o)
{
    if (!skip_text(at, "[")) return false;
    do {
        if (skip_text(at, "..")) {
            o->has_tail = true;
            break;
        }
        if (o->num_dims == OPERAND_DIMS || !isalnum((unsigned char)**at)) return false;
        o->dims[o->num_dims++] = *(*at)++;
    } while (skip_text(at, ","));
    return skip_text(at, "]");
}

static bool take_place(const char **at, const struct op_row *row, struct op_operand *o)
{
    char name[16];
    o->in_place = -1;
    if (!skip_text(at, "=")) return true;
    if (!take_name(at, name, sizeof name)) return false;
    for (unsigned i = 0; i < row->num_in; i++)
        if (strcmp(row->in[i].name, name) == 0) o->in_place = (int)i;
    return o->in_place >= 0;
}

static bool take_operand(const char **at, const struct op_row *row, struct op_operand *o)
{
    bool good =
        take_name(at, o->name, sizeof o->name) && take_type(at, &o->type) && take_dims(at, o);
    o->optional = good && skip_text(at, "?");
    good = good && take_place(at, row, o);
    o->may_be_infinite = good && skip_text(at, "-inf");
    return good && (**at == ' ' || **at == '\0');
}

static unsigned take_side(const char **at, const struct op_row *row, struct op_operand *to,
                          unsigned most)
{
    unsigned n = 0;
    for (skip_text(at, " "); **at && strncmp(*at, "->", 2) != 0; skip_text(at, " "))
        if (n == most || !take_operand(at, row, &to[n++])) reject_signature(row->signature, *at);
    return n;
}

static void read_signatures(void)
{
    for (unsigned i = 0; i < NUM_ALL_OPS; i++) {
        struct op_row *row = &rows[i];
        const char *at = row->signature;
        row->num_in = take_side(&at, row, row->in, MAX_INPUTS);
        if (!skip_text(&at, "->")) reject_signature(row->signature, at);
        row->num_out = take_side(&at, row, row->out, MAX_OUTPUTS);
    }
}

const struct op_row *op_row(unsigned op)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_signatures);
    return &rows[op];
}

/* ---- operands against their signature ---- */

static void print_operand(char *to, size_t room, const struct operand *o)
{
    const char *coded = o->coding ? "coded " : "";
    int n = snprintf(to, room, o->num_dims ? "%s%s[" : "absent", coded, type_names[o->type]);
    for (unsigned d = 0; d < o->num_dims && (size_t)n < room; d++)
        n += snprintf(to + n, room - (size_t)n, "%s%" PRIu64, d ? "," : "", o->shape[d]);
    if (o->num_dims && (size_t)n < room) (void)snprintf(to + n, room - (size_t)n, "]");
}

static enum status mismatch(const struct op_row *row, const struct op_operand *pattern,
                            const struct operand *o, const struct op_sizes *s, struct error *err)
{
    char is[128], sizes[128] = "";
    size_t n = 0;
    print_operand(is, sizeof is, o);
    for (unsigned d = 0; d < pattern->num_dims && n + 32 < sizeof sizes; d++)
        if (s->known[(unsigned char)pattern->dims[d]])
            n += (size_t)snprintf(sizes + n, sizeof sizes - n, ", %c is %" PRIu64, pattern->dims[d],
                                  size_of(s, pattern->dims[d]));
    return fail(err, ERR_OURS, "%s: %s is %s in %s%s", row->name, pattern->name, is, row->signature,
                sizes);
}

static bool type_fits(enum signature_type wanted, enum operand_type is, struct op_sizes *s)
{
    if (wanted == TYPE_ANY) s->any = is;
    if (wanted == TYPE_FLOAT) return is != OPERAND_INT;
    if (wanted == TYPE_WEIGHT) return is == OPERAND_ELEM;
    return wanted == TYPE_ANY || (unsigned)wanted == (unsigned)is;
}

static bool tail_fits(const struct operand *o, unsigned from, struct op_sizes *s)
{
    unsigned n = o->num_dims - from;
    if (!s->tail_known) {
        s->tail_known = true;
        s->num_tail = n;
        memcpy(s->tail, o->shape + from, n * sizeof *s->tail);
    }
    return n == s->num_tail && memcmp(s->tail, o->shape + from, n * sizeof *s->tail) == 0;
}

static bool dim_fits(char letter, uint64_t size, struct op_sizes *s)
{
    if (isdigit((unsigned char)letter)) return size == (uint64_t)(letter - '0');
    return op_size_set(s, letter, size);
}

static bool operand_fits(const struct op_operand *pattern, const struct operand *o,
                         struct op_sizes *s)
{
    if (!o->num_dims) return pattern->optional;
    if (pattern->has_tail ? o->num_dims < pattern->num_dims : o->num_dims != pattern->num_dims)
        return false;
    if (!type_fits(pattern->type, o->type, s)) return false;
    if (o->coding && pattern->type != TYPE_WEIGHT) return false;
    for (unsigned d = 0; d < pattern->num_dims; d++)
        if (!dim_fits(pattern->dims[d], o->shape[d], s)) return false;
    return !pattern->has_tail || tail_fits(o, pattern->num_dims, s);
}

static enum status check_side(const struct op_row *row, const struct op_operand *patterns,
                              unsigned count, const struct operand *operands, unsigned most,
                              struct op_sizes *s, struct error *err)
{
    for (unsigned i = 0; i < count; i++)
        if (!operand_fits(&patterns[i], &operands[i], s))
            return mismatch(row, &patterns[i], &operands[i], s, err);
    for (unsigned i = count; i < most; i++)
        if (operands[i].num_dims)
            return fail(err, ERR_OURS, "%s: more operands than in %s", row->name, row->signature);
    return OK;
}

static enum status check_inputs(const struct op_row *row, const union op_params *p,
                                const struct operand *in, struct op_sizes *s, struct error *err)
{
    char shapes[2][128];
    TRY(check_side(row, row->in, row->num_in, in, MAX_INPUTS, s, err));
    if (!row->sizes || row->sizes(p, s)) return OK;
    for (unsigned i = 0; i < 2; i++)
        print_operand(shapes[i], sizeof shapes[i], &in[i]);
    return fail(err, ERR_OURS, "%s: %s, %s do not fit its parameters in %s", row->name, shapes[0],
                shapes[1], row->signature);
}

enum status op_check(unsigned op, const union op_params *p, const struct operand *in,
                     const struct operand *out, struct op_sizes *s, struct error *err)
{
    const struct op_row *row = op_row(op);
    TRY(check_inputs(row, p, in, s, err));
    return check_side(row, row->out, row->num_out, out, MAX_OUTPUTS, s, err);
}

/* ---- outputs ---- */

static enum status infer_output(const struct op_row *row, const struct op_operand *pattern,
                                const struct op_sizes *s, struct operand *out, struct error *err)
{
    if (pattern->type <= TYPE_INT) out->type = (enum operand_type)pattern->type;
    if (pattern->type == TYPE_ANY) out->type = s->any;
    for (unsigned d = 0; d < pattern->num_dims; d++) {
        char letter = pattern->dims[d];
        if (!isdigit((unsigned char)letter) && !s->known[(unsigned char)letter])
            return fail(err, ERR_OURS, "%s: the size %c of %s does not follow from the inputs",
                        row->name, letter, row->signature);
        out->shape[d] =
            isdigit((unsigned char)letter) ? (uint64_t)(letter - '0') : size_of(s, letter);
    }
    out->num_dims = pattern->num_dims;
    for (unsigned d = 0; pattern->has_tail && d < s->num_tail; d++)
        out->shape[out->num_dims++] = s->tail[d];
    return OK;
}

enum status op_infer(unsigned op, const union op_params *p, const struct operand *in,
                     unsigned wanted, struct op_sizes *s, struct operand *out, struct error *err)
{
    const struct op_row *row = op_row(op);
    TRY(check_inputs(row, p, in, s, err));
    for (unsigned i = 0; i < row->num_out; i++)
        if (!row->out[i].optional || (wanted >> i & 1))
            TRY(infer_output(row, &row->out[i], s, &out[i], err));
    return OK;
}

/* ---- cost ---- */

double op_moved(unsigned op, const struct operand *in, const struct operand *o)
{
    const struct op_row *row = op_row(op);
    uint64_t most = UINT64_MAX;
    if (!o->num_dims) return 0;
    for (unsigned i = 0; i < row->num_in && (row->flags & OP_FEW_ROWS); i++)
        if (row->in[i].type == TYPE_INT) most = in[i].shape[0];
    const double numel = (double)operand_numel(o);
    return o->shape[0] > most ? numel / (double)o->shape[0] * (double)most : numel;
}

double op_flops(unsigned op, const union op_params *p, const struct operand *in,
                const struct operand *out)
{
    const struct op_row *row = op_row(op);
    double flops = 0;
    if (row->flops) return row->flops(p, in, out);
    for (unsigned i = 0; i < row->num_out; i++)
        flops += op_moved(op, in, &out[i]);
    return flops;
}

/* ---- what is read ---- */

/* The share of input i that is read, 0 to 1. in_place: the output takes input
 * 0's place. */
typedef double share(const union op_params *p, const struct operand *in, unsigned i, bool in_place);

static double share_up_to_1(double of, double whole)
{
    return of < whole ? of / whole : 1;
}

/* Value heads stay in place. */
static double share_of_queries_and_keys(const struct head_shape *h)
{
    return (h->queries + 1.0) / (h->queries + 2.0);
}

static double share_of_rotary(const union op_params *p, const struct operand *in, unsigned i,
                              bool in_place)
{
    const struct head_shape *h = &p->rotary.heads;
    (void)in;
    return i == 0 && in_place ? share_of_queries_and_keys(h) * p->rotary.rotary_dim / h->head_dim
                              : 1;
}

static double share_of_head_norm(const union op_params *p, const struct operand *in, unsigned i,
                                 bool in_place)
{
    (void)in;
    return i == 0 && in_place ? share_of_queries_and_keys(&p->head_norm.heads) : 1;
}

/* kv is read where some query attends: at most as many rows as pairs. kv may
 * be q. */
static double share_of_attention(const union op_params *p, const struct operand *in, unsigned i,
                                 bool in_place)
{
    const struct head_shape *h = &p->attention.heads;
    const double heads = (double)h->groups * h->queries * h->head_dim;
    (void)in_place;
    if (i == 0 && in[1].num_dims) return share_up_to_1(heads, (double)in[0].shape[1]);
    return i == 1 && in[1].num_dims ? share_up_to_1(p->attention.pairs, (double)in[1].shape[0]) : 1;
}

/* Weights of at most as many experts as rows. */
static double share_of_experts(const union op_params *p, const struct operand *in, unsigned i,
                               bool in_place)
{
    (void)p, (void)in_place;
    return i == 1 ? share_up_to_1((double)in[0].shape[0], (double)in[1].shape[0]) : 1;
}

static share *const shares[NUM_ALL_OPS] = {
    [OP_ROTARY] = share_of_rotary,         [OP_HEAD_NORM] = share_of_head_norm,
    [OP_ATTENTION] = share_of_attention,   [OP_GROUPED_MATMUL] = share_of_experts,
    [OP_GROUPED_DGRAD] = share_of_experts,
};

double op_share_read(unsigned op, const union op_params *p, const struct operand *in, unsigned i,
                     bool in_place)
{
    return shares[op] ? shares[op](p, in, i, in_place) : 1;
}
