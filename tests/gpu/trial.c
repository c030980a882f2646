#include "tests/gpu/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "kernels/cpu/coded_testing.h"
#include "kernels/op_table.h"

static uint64_t random_state;

void random_start(uint64_t seed)
{
    random_state = seed;
}

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double random_double(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

uint64_t random_between(uint64_t low, uint64_t high)
{
    return low + random_bits() % (high - low + 1);
}

/* A number of variance 1, from four 16-bit numbers. */
static double random_normal(void)
{
    uint64_t z = random_bits();
    double sum = 0;
    for (int i = 0; i < 4; i++, z >>= 16)
        sum += (double)(z & 0xffff) / 65536 - 0.5;
    return sum * 1.7320508;
}

static size_t bytes_of(const struct trial *t, const struct operand *o)
{
    if (o->coding) return o->coding->bytes;
    return operand_numel(o) * operand_bytes_of(o->type, t->elem);
}

/* A NaN without payload stays a NaN. */
double operand_get(const struct trial *t, const struct operand *o, size_t i)
{
    if (o->type == OPERAND_INT) return ((const int32_t *)o->data)[i];
    switch (operand_bytes_of(o->type, t->elem)) {
    case 2:
        return (double)(t->elem == ELEM_F16 ? half_load : bf16_load)(((uint16_t *)o->data)[i]);
    case 4:
        return (double)((const float *)o->data)[i];
    default:
        return ((const double *)o->data)[i];
    }
}

void operand_set(const struct trial *t, struct operand *o, size_t i, double x)
{
    if (o->type == OPERAND_INT) {
        ((int32_t *)o->data)[i] = (int32_t)x;
        return;
    }
    switch (operand_bytes_of(o->type, t->elem)) {
    case 2:
        ((uint16_t *)o->data)[i] = (t->elem == ELEM_F16 ? half_store : bf16_store)((float)x);
        return;
    case 4:
        ((float *)o->data)[i] = (float)x;
        return;
    default:
        ((double *)o->data)[i] = x;
    }
}

void trial_make(struct trial *t, struct operand *o, enum operand_type type, unsigned num_dims,
                const uint64_t *shape)
{
    *o = (struct operand){.type = type, .num_dims = num_dims};
    memcpy(o->shape, shape, num_dims * sizeof *shape);
    o->data = aligned_alloc(256, bytes_of(t, o) / 256 * 256 + 256);
    if (!o->data) abort();
    for (size_t i = 0; i < operand_numel(o); i++)
        operand_set(t, o, i, type == OPERAND_INT ? (double)random_between(0, 9) : random_normal());
}

void trial_make_coded(struct trial *t, struct operand *o, unsigned num_dims, const uint64_t *shape)
{
    static const enum dtype dtypes[] = {DT_BF16, DT_F32, DT_F16};
    static const uint64_t groups[] = {32, 128, 7, 5000};
    const uint64_t cols = shape[num_dims - 1];
    struct weight_coding *c = &t->coding;
    *o = (struct operand){.type = OPERAND_ELEM, .num_dims = num_dims, .coding = c};
    memcpy(o->shape, shape, num_dims * sizeof *shape);
    c->code = cols % 2 ? QUANT_E4M3 : (enum quant_code)random_between(0, QUANT_TABLE - 1);
    c->dtype = dtypes[random_between(0, 2)];
    c->group = groups[random_between(0, 3)];
    c->scales_are_e8m0 = random_between(0, 1);
    if (!coding_place(c, operand_numel(o) / cols, cols)) abort();
    o->data = aligned_alloc(256, bytes_of(t, o) / 256 * 256 + 256);
    if (!o->data) abort();
    coded_fill_random(c, operand_numel(o) / cols, cols, &random_state, o->data);
}

/* The input that an output lies in; -1: none. */
static int input_of(const struct trial *t, unsigned output)
{
    for (int i = 0; i < MAX_INPUTS; i++)
        if (t->in[i].data && t->in[i].data == t->out[output].data) return i;
    return -1;
}

static enum status upload_operand(const struct trial *t, struct operand *to,
                                  const struct operand *from, const struct device *d,
                                  struct error *err)
{
    *to = *from;
    if (!from->data) return OK;
    TRY(d->allocate(&to->data, bytes_of(t, from), "an operand", err));
    return d->upload(to->data, from->data, bytes_of(t, from), err);
}

static const struct op_kernel *kernel_of(const struct trial *t, const struct device *d)
{
    return t->kernel ? t->kernel : &d->ops(t->elem)[t->op];
}

/* Fills the workspace with NaN, as another op may have. */
static enum status make_workspace(struct trial *t, size_t bytes, const struct device *d,
                                  struct error *err)
{
    TRY(d->allocate(&t->device_workspace, bytes, "workspace", err));
    void *contents = malloc(bytes + 1);
    if (!contents) return fail(err, ERR_MEMORY, "no memory for a workspace");
    memset(contents, 0xff, bytes);
    const enum status st = d->upload(t->device_workspace, contents, bytes, err);
    free(contents);
    return st;
}

enum status trial_upload(struct trial *t, const struct device *d, struct error *err)
{
    const struct op_kernel *kernel = kernel_of(t, d);
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        TRY(upload_operand(t, &t->device_in[i], &t->in[i], d, err));
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (input_of(t, i) >= 0)
            t->device_out[i] = t->device_in[input_of(t, i)];
        else
            TRY(upload_operand(t, &t->device_out[i], &t->out[i], d, err));
    if (!kernel->workspace) return OK;
    return make_workspace(t, kernel->workspace(&t->params, t->device_in, t->device_out), d, err);
}

bool trial_can_repeat(const struct trial *t)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (input_of(t, i) >= 0) return false;
    return true;
}

enum status trial_run(const struct trial *t, const struct device *d, struct error *err)
{
    return kernel_of(t, d)->run(&t->params, t->device_in, t->device_out, t->device_workspace, err);
}

enum status trial_run_host(struct trial *t, struct error *err)
{
    const struct op_kernel *kernel = &cpu_ops(t->elem)[t->op];
    struct op_sizes sizes = {0};
    TRY(op_check(t->op, &t->params, t->in, t->out, &sizes, err));
    const size_t bytes = kernel->workspace ? kernel->workspace(&t->params, t->in, t->out) : 0;
    t->host_workspace = aligned_alloc(256, bytes / 256 * 256 + 256);
    if (!t->host_workspace) return fail(err, ERR_MEMORY, "no memory for a workspace");
    return kernel->run(&t->params, t->in, t->out, t->host_workspace, err);
}

void trial_release_device(struct trial *t, const struct device *d)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (input_of(t, i) < 0) d->release(t->device_out[i].data);
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        d->release(t->device_in[i].data);
    d->release(t->device_workspace);
    memset(t->device_in, 0, sizeof t->device_in);
    memset(t->device_out, 0, sizeof t->device_out);
    t->device_workspace = NULL;
}

void trial_release(struct trial *t, const struct device *d)
{
    trial_release_device(t, d);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (input_of(t, i) < 0) free(t->out[i].data);
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        free(t->in[i].data);
    free(t->host_workspace);
}
