#include "ckpt/param.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/catalog.h"
#include "common/checked.h"
#include "common/strbuf.h"

/* ---- names ---- */

/* The end of the number at text (digits before a dot, or {l} or {e}); text
 * itself if there is none. */
static const char *behind_number(const char *text)
{
    const char *end = text;
    if (*text == '{') return strncmp(text, "{l}.", 4) && strncmp(text, "{e}.", 4) ? text : text + 3;
    while (*end >= '0' && *end <= '9')
        end++;
    return *end == '.' ? end : text;
}

int param_name_compare(const char *a, const char *b)
{
    for (;; a++, b++) { /* from dot to dot */
        const char *x = behind_number(a), *y = behind_number(b);
        if ((x > a) != (y > b)) return x > a ? -1 : 1;
        for (a = x, b = y; *a == *b && *a && *a != '.'; a++)
            b++;
        if (*a != *b) return *a < *b ? -1 : 1;
        if (!*a) return 0;
    }
}

static int by_param_name(const void *a, const void *b)
{
    const struct param_spec *const *x = a, *const *y = b;
    return param_name_compare((*x)->name, (*y)->name);
}

void param_table_sort(struct param_table *t)
{
    for (size_t i = 0; i < t->count; i++)
        t->by_name[i] = &t->specs[i];
    qsort(t->by_name, t->count, sizeof *t->by_name, by_param_name);
}

/* Takes a number without leading zeros, as in "17.rest". */
static bool take_name_number(const char **text, uint64_t *number)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 19 || (**text == '0' && digits > 1)) return false;
    *number = strtoull(*text, NULL, 10);
    *text += digits;
    return true;
}

/* Whether a name matches the spec. */
static bool name_matches(const struct param_spec *s, const char *name, struct param *out)
{
    *out = (struct param){.spec = s, .rest = name};
    for (const char *p = s->name; *p;) {
        if (*p == '{' && (strncmp(p, "{l}", 3) == 0 || strncmp(p, "{e}", 3) == 0)) {
            if (!take_name_number(&name, p[1] == 'l' ? &out->layer : &out->expert)) return false;
            p += 3;
            if (p[-2] == 'l' && *name) out->rest = name + 1;
        } else if (*p++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

bool param_find(const struct param_table *t, const char *name, struct param *out)
{
    const char *of = name_of_state(name, NULL, NULL);
    if (of) name = of;
    size_t low = 0, high = t ? t->count : 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (param_name_compare(t->by_name[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; t && low < t->count; low++) { /* names that differ only in numbers are neighbours */
        const struct param_spec *s = t->by_name[low];
        if (name_matches(s, name, out)) return true;
        if (param_name_compare(s->name, name)) return false;
    }
    return false;
}

static int compare_numbers(uint64_t x, uint64_t y)
{
    return x < y ? -1 : x > y;
}

int param_registered_compare(const struct param *x, const struct param *y, enum param_order order,
                             bool grouped)
{
    const struct param_registered *p = &x->spec->registered[order],
                                  *q = &y->spec->registered[order];
    const bool both_of_experts = param_of_expert(x->spec) && param_of_expert(y->spec);
    int by = compare_numbers(x->spec->place, y->spec->place);
    if (!by && x->spec->mtp == y->spec->mtp) by = compare_numbers(x->layer, y->layer);
    if (!by && both_of_experts && !grouped) by = compare_numbers(x->expert, y->expert);
    /* 0, not known, comes last */
    if (!by) by = compare_numbers(p->module - 1u, q->module - 1u);
    if (!by && both_of_experts) by = compare_numbers(x->expert, y->expert);
    if (!by) by = compare_numbers(p->number, q->number);
    return by || p->module ? by : compare_numbers((uintptr_t)x->spec, (uintptr_t)y->spec);
}

bool param_of_expert(const struct param_spec *s)
{
    return strstr(s->name, "{e}") != NULL;
}

/* ---- sections ---- */

/* A parameter, and the rank whose part is wanted. */
struct split {
    const struct param_spec *spec;
    const char *name;
    const uint64_t *shape;
    unsigned num_dims;
    uint64_t rank, size;
};

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static const char *lines_of(const struct split *x)
{
    return x->spec->split ? "columns" : "rows";
}

static enum status not_divisible(const struct split *x, uint64_t n, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED,
                "%s: %" PRIu64 " %s are not divisible by tensor parallel size %" PRIu64, x->name, n,
                lines_of(x), x->size);
}

/* "9 rows do not split into gate and up of equal size", "9 rows do not split
 * into z, x and dt as 4 : 4 : 1" */
static enum status not_of_sections(const struct split *x, struct error *err)
{
    const struct param_spec *s = x->spec;
    struct strbuf text = {0};
    for (unsigned k = 0; k < s->num_sections; k++)
        strbuf_printf(&text, "%s%s",
                      !k                        ? ""
                      : k + 1 < s->num_sections ? ", "
                                                : " and ",
                      s->sections[k].name);
    for (unsigned k = 0; k < s->num_sections && !s->even; k++)
        strbuf_printf(&text, "%s%" PRIu64, k ? " : " : " as ", s->sections[k].size);
    if (s->even) strbuf_add_text(&text, " of equal size");
    if (s->repeat != 1) strbuf_printf(&text, ", %" PRIu64 " times", s->repeat);
    enum status st = fail(err, ERR_UNSUPPORTED, "%s: %" PRIu64 " %s do not split into %s", x->name,
                          x->shape[s->split], lines_of(x), text.data);
    strbuf_release(&text);
    return st;
}

/* Sizes of the sections of one repeat, in elements of the dimension. */
static enum status size_sections(const struct split *x, uint64_t sizes[MAX_SECTIONS],
                                 struct error *err)
{
    const struct param_spec *s = x->spec;
    uint64_t divisor = 0, sum = 0, n = x->shape[s->split];
    for (unsigned k = 0; k < s->num_sections; k++) {
        sizes[k] = s->even ? 1 : s->sections[k].size;
        divisor = greatest_divisor(divisor, sizes[k]);
        if (!sizes[k])
            return fail(err, ERR_UNSUPPORTED, "%s: the config does not give the size of its %s",
                        x->name, s->sections[k].name);
    }
    for (unsigned k = 0; k < s->num_sections; k++)
        if (!add_u64(sum, sizes[k] / divisor, &sum)) return not_of_sections(x, err);
    if (!s->repeat || !mul_u64(sum, s->repeat, &sum) || n % sum) return not_of_sections(x, err);
    for (unsigned k = 0; k < s->num_sections; k++)
        sizes[k] = sizes[k] / divisor * (n / sum);
    return OK;
}

/* ---- shards ---- */

/* Pairs each part, [start, start + extent) of the split dimension, with its
 * place in the rank's tensor, whose shape follows from the parts. */
static enum status make_pairs(const struct split *x, struct param_parts *out, struct error *err)
{
    const unsigned d = (unsigned)x->spec->split;
    uint64_t stride[MAX_AXES], local = 0, inner = 1;
    for (unsigned i = 0; i < out->count; i++)
        local += x->spec->split < 0 ? 0 : out->extent[i][d];
    if (x->spec->split >= 0) out->shape[d] = local;
    for (unsigned k = x->num_dims; k-- > 0; inner *= out->shape[k])
        stride[k] = inner;
    local = 0;
    for (unsigned i = 0; i < out->count; i++) {
        if (!pair_of_box(&out->pairs[i], x->num_dims, x->shape, out->start[i], out->extent[i],
                         local, stride))
            return fail(err, ERR_OURS, "%s: a shard of it is not a view", x->name);
        if (x->spec->split >= 0) local += out->extent[i][d] * stride[d];
    }
    return OK;
}

/* Adds a part of the split dimension, or extends the previous part if it
 * continues that. */
static void add_shard_part(const struct split *x, struct param_parts *out, uint64_t start,
                           uint64_t extent, bool continues)
{
    const int split = x->spec->split;
    if (continues) {
        out->extent[out->count - 1][split] += extent;
        return;
    }
    for (unsigned d = 0; d < x->num_dims; d++) {
        out->start[out->count][d] = 0;
        out->extent[out->count][d] = x->shape[d];
    }
    if (split >= 0) {
        out->start[out->count][split] = start;
        out->extent[out->count][split] = extent;
    }
    out->count++;
}

static enum status split_evenly(const struct split *x, struct param_parts *out, struct error *err)
{
    uint64_t n = x->shape[x->spec->split], share = n / x->size;
    if (n % x->size) return not_divisible(x, n, err);
    add_shard_part(x, out, x->rank * share, share, false);
    return OK;
}

static enum status split_sections(const struct split *x, struct param_parts *out, struct error *err)
{
    uint64_t sizes[MAX_SECTIONS], at = 0;
    TRY(size_sections(x, sizes, err));
    for (unsigned k = 0; k < x->spec->num_sections; at += sizes[k++]) {
        uint64_t share = sizes[k] / x->size;
        if (sizes[k] % x->size) return not_divisible(x, sizes[k], err);
        add_shard_part(x, out, at + x->rank * share, share, false);
    }
    return OK;
}

/* The part of one rank in a repeat that several ranks share. */
static enum status share_repeat(const struct split *x, struct param_parts *out, struct error *err)
{
    const struct param_spec *s = x->spec;
    const uint64_t sharing = s->repeat ? x->size / s->repeat : 0;
    uint64_t sizes[MAX_SECTIONS], at = 0;
    TRY(size_sections(x, sizes, err));
    if (x->size % s->repeat)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: tensor parallel size %" PRIu64 " is not divisible by its %" PRIu64
                    " groups of %s",
                    x->name, x->size, s->repeat, lines_of(x));
    at = x->rank / sharing * (x->shape[s->split] / s->repeat);
    for (unsigned k = 0; k < s->num_sections; at += sizes[k++]) {
        bool shared = s->sections[k].shared, before = k > 0 && s->sections[k - 1].shared;
        uint64_t share = shared ? sizes[k] : sizes[k] / sharing;
        if (!shared && sizes[k] % sharing) return not_divisible(x, sizes[k] * s->repeat, err);
        add_shard_part(x, out, at + (shared ? 0 : x->rank % sharing * share), share,
                       shared && before);
    }
    return OK;
}

/* Whether ranks take whole repeats, or share one if there are more ranks than
 * repeats: if there are several repeats, or shared sections. */
static bool goes_by_repeats(const struct param_spec *s)
{
    bool shares = false;
    for (unsigned k = 0; k < s->num_sections; k++)
        shares |= s->sections[k].shared;
    return shares || s->repeat != 1;
}

static enum status whole_repeats(const struct split *x, struct param_parts *out, struct error *err)
{
    if (x->spec->repeat % x->size)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %" PRIu64
                    " groups of %s are not divisible by tensor parallel size %" PRIu64,
                    x->name, x->spec->repeat, lines_of(x), x->size);
    return split_evenly(x, out, err);
}

static enum status split_parts(const struct split *x, enum param_use use, struct param_parts *out,
                               struct error *err)
{
    const struct param_spec *s = x->spec;
    if (s->split < 0 || x->size == 1) {
        add_shard_part(x, out, 0, s->split < 0 ? 0 : x->shape[s->split], false);
        return OK;
    }
    if (!s->num_sections) return split_evenly(x, out, err);
    if (!goes_by_repeats(s)) return split_sections(x, out, err);
    if (use == PARAM_STORED) return split_evenly(x, out, err);
    return x->size <= s->repeat ? whole_repeats(x, out, err) : share_repeat(x, out, err);
}

static enum status check_dims(const struct param_spec *s, const char *name, unsigned num_dims,
                              struct error *err)
{
    if (num_dims <= MAX_AXES && s->split < (int)num_dims) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: has %u dimensions, expected %d to %d", name, num_dims,
                s->split + 1, MAX_AXES);
}

enum status param_shard(const struct param_spec *s, const char *name, unsigned num_dims,
                        const uint64_t *shape, uint64_t rank, uint64_t size, enum param_use use,
                        struct param_parts *out, struct error *err)
{
    const struct split x = {s, name, shape, num_dims, rank, size};
    out->count = 0;
    TRY(check_dims(s, name, num_dims, err));
    for (unsigned d = 0; d < num_dims; d++)
        out->shape[d] = shape[d];
    TRY(split_parts(&x, use, out, err));
    return make_pairs(&x, out, err);
}

enum status param_whole_shape(const struct param_spec *s, const char *name, unsigned num_dims,
                              const uint64_t *local, uint64_t size, uint64_t *shape,
                              struct error *err)
{
    TRY(check_dims(s, name, num_dims, err));
    for (unsigned d = 0; d < num_dims; d++)
        shape[d] = local[d] * ((int)d == s->split ? size : 1);
    return OK;
}

/* ---- padding of the vocabulary ---- */

uint64_t padded_vocab_size(uint64_t vocab_size, uint64_t divisible_by, uint64_t tp)
{
    uint64_t multiple = divisible_by * tp;
    return ceil_div_u64(vocab_size, multiple) * multiple;
}

void param_padded_shape(const struct param_spec *s, unsigned num_dims, const uint64_t *shape,
                        uint64_t rows, uint64_t *out)
{
    for (unsigned d = 0; d < num_dims; d++)
        out[d] = s->padded && d == 0 ? rows : shape[d];
}
