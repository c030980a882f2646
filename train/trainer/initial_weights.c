#include "train/trainer/initial_weights.h"

#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/threads.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/random.h"

/* ---- which numbers ---- */

enum kind { KIND_ONE, KIND_ZERO, KIND_EMBEDDING, KIND_SCALED, KIND_NORMAL };

/* Rules by the end of a name; the first match counts. */
static const struct {
    const char *end;
    enum kind kind;
} rules[] = {
    {"bias", KIND_ZERO}, /* of norms, too */
    {"layer_norm_weight", KIND_ONE},
    {"layernorm.weight", KIND_ONE},
    {"embeddings.weight", KIND_EMBEDDING},
    {"linear_proj.weight", KIND_SCALED},
    {"linear_fc2.weight", KIND_SCALED},
    {"linear_qkv.weight", KIND_NORMAL},
    {"linear_fc1.weight", KIND_NORMAL},
    {"router.weight", KIND_NORMAL},
    {"output_layer.weight", KIND_NORMAL},
};

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* The normal numbers of a tensor are mean + std * z. */
struct distribution {
    double mean, std;
};

static enum status distribution_of(struct distribution *out, const char *name,
                                   const struct model_config *c, const struct initial_weights *w,
                                   struct error *err)
{
    const double embedding = isnan(w->embedding_std) ? w->std : w->embedding_std;
    const struct distribution of_kinds[] = {
        [KIND_ONE] = {1, 0},
        [KIND_ZERO] = {0, 0},
        [KIND_EMBEDDING] = {0, embedding},
        [KIND_SCALED] = {0, w->std / sqrt(2 * (double)c->num_layers)},
        [KIND_NORMAL] = {0, w->std},
    };
    for (size_t i = 0; i < COUNT(rules); i++)
        if (ends_in(name, rules[i].end)) {
            *out = of_kinds[rules[i].kind];
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "%s: no rule for its initial weights", name);
}

/* ---- filling ---- */

/* This rank's part of a tensor. */
struct filling {
    struct distribution distribution;
    uint64_t seed;  /* of the tensor */
    uint64_t numel; /* of the tensor without padding, which lies behind */
    double padding;
    bool padding_only;
    const struct pair *pair;
    char *to; /* where the rank's own part begins */
    enum dtype dtype;
};

static void find_element(const struct pair *p, uint64_t n, uint64_t *a, uint64_t *b)
{
    *a = p->a_offset;
    *b = p->b_offset;
    for (unsigned k = p->num_axes; k-- > 0; n /= p->axes[k].extent) {
        *a += n % p->axes[k].extent * p->axes[k].a_stride;
        *b += n % p->axes[k].extent * p->axes[k].b_stride;
    }
}

static double number_at(const struct filling *f, uint64_t a)
{
    const struct distribution *d = &f->distribution;
    if (a >= f->numel && !isnan(f->padding)) return f->padding;
    if (a < f->numel && f->padding_only) return 0;
    return d->std > 0 ? d->mean + d->std * random_normal(f->seed, a) : d->mean;
}

enum { BLOCK = 1024 };

/* Elements [first, first + count) of the pair. */
static void fill_block(const struct filling *f, uint64_t first, uint64_t count)
{
    const size_t size = dtype_bytes(f->dtype);
    double wide[BLOCK] = {0};
    char narrow[BLOCK * sizeof(double)];
    uint64_t at[BLOCK], a;
    for (uint64_t i = 0; i < count; i++) {
        find_element(f->pair, first + i, &a, &at[i]);
        wide[i] = number_at(f, a);
    }
    (void)cast_elements(narrow, f->dtype, wide, DT_F64, count);
    for (uint64_t i = 0; i < count; i++)
        memcpy(f->to + at[i] * size, narrow + i * size, size);
}

static void fill_pair(const struct filling *f)
{
    const uint64_t count = pair_count(f->pair);
#pragma omp parallel for
    for (uint64_t first = 0; first < count; first += BLOCK)
        fill_block(f, first, min_u64(count - first, BLOCK));
}

/* Tensor i of a parameter. */
static enum status fill_tensor(const struct parameters *p, const struct parameter *x, uint64_t i,
                               const struct model_config *c, const struct initial_weights *w,
                               char *region, struct error *err)
{
    const enum dtype dtype = parameter_dtype(p, x);
    struct filling f = {.seed = random_seed_of(w->seed, x->tensors[i]),
                        .numel = 1,
                        .padding = w->padding,
                        .padding_only = w->padding_only,
                        .dtype = dtype};
    TRY(distribution_of(&f.distribution, x->tensors[i], c, w, err));
    for (unsigned d = 0; d < x->spec->num_dims; d++)
        f.numel *= x->spec->shape[d];
    f.to = region + x->offset + i * (x->numel / x->num_tensors) * dtype_bytes(dtype);
    for (unsigned k = 0; k < x->cut->count; k++) {
        f.pair = &x->cut->pairs[k];
        fill_pair(&f);
    }
    return work_check(err);
}

static bool is_filled(const struct parameter *x, const struct initial_weights *w)
{
    return x->tensors && (x->spec->padded || !w->padding_only);
}

enum status initial_weights_make(const struct parameters *p, const struct model_config *c,
                                 const struct initial_weights *w, void *region, struct error *err)
{
    for (size_t i = 0; i < p->count; i++)
        for (uint64_t k = 0; is_filled(&p->items[i], w) && k < p->items[i].num_tensors; k++)
            TRY(fill_tensor(p, &p->items[i], k, c, w, region, err));
    return OK;
}
