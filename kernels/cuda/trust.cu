#include "kernels/cuda/trust.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"

struct op_call op_call_of(enum elem_type elem, WORKSPACE_ARGUMENTS)
{
    struct op_call c = {};
    c.elem = elem;
    c.p = *p;
    std::copy(in, in + MAX_INPUTS, c.in);
    std::copy(out, out + MAX_OUTPUTS, c.out);
    return c;
}

/* GPU memory and the host's copy of it. */
struct mirror {
    void *host, *device;
    size_t bytes;
};

struct comparison {
    struct op_call call; /* with the mirrors' data */
    struct mirror in[MAX_INPUTS], out[2][MAX_OUTPUTS];
    void *workspace;
};

static enum status gpu_status(cudaError_t code, struct error *err)
{
    if (code != cudaErrorMemoryAllocation) return cuda_status("comparing kernels", code, err);
    (void)cudaGetLastError();
    return fail(err, ERR_MEMORY, "no memory on the GPU for a comparison");
}

/* Equal for bf16 and f16. */
static size_t element_bytes(enum operand_type type)
{
    return operand_bytes_of(type, ELEM_BF16);
}

static size_t mirror_bytes(const struct operand *o)
{
    return o->data ? operand_numel(o) * element_bytes(o->type) : 0;
}

/* Unwritten elements are NaN. */
static enum status mirror_init(struct mirror *m, const struct operand *o, struct error *err)
{
    m->bytes = mirror_bytes(o);
    m->host = malloc(m->bytes + 1);
    if (!m->host) return fail(err, ERR_MEMORY, "no memory for a comparison");
    TRY(gpu_status(cudaMalloc(&m->device, m->bytes + 1), err));
    return gpu_status(cudaMemsetAsync(m->device, 0xff, m->bytes, cuda_stream), err);
}

static void mirror_release(struct mirror *m)
{
    free(m->host);
    (void)cudaFree(m->device);
}

static enum status mirror_upload(const struct mirror *m, struct error *err)
{
    return gpu_status(
        cudaMemcpyAsync(m->device, m->host, m->bytes, cudaMemcpyHostToDevice, cuda_stream), err);
}

static enum status mirror_download(const struct mirror *m, struct error *err)
{
    TRY(gpu_status(
        cudaMemcpyAsync(m->host, m->device, m->bytes, cudaMemcpyDeviceToHost, cuda_stream), err));
    return gpu_status(cudaStreamSynchronize(cuda_stream), err);
}

/* ---- operands ---- */

static uint16_t elem_bits(enum elem_type elem, float x)
{
    const bf16 rounded = __float2bfloat16_rn(x);
    uint16_t bits;
    if (elem == ELEM_F16) return half_store(x);
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

/* Uniform in [-3, 3): products that differ by more than rounding, of
 * both signs. */
static void fill_random(const struct mirror *m, enum operand_type type, enum elem_type elem,
                        uint64_t seed)
{
    const size_t count = m->bytes / element_bytes(type);
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float x = (float)(state >> 40) / (1 << 24) * 6 - 3;
        if (type == OPERAND_REAL)
            static_cast<float *>(m->host)[i] = x;
        else
            static_cast<uint16_t *>(m->host)[i] = elem_bits(elem, x);
    }
}

static enum status make_inputs(struct comparison *c, const struct op_call *shapes,
                               void (*set_ints)(const struct op_call *, int32_t *),
                               struct error *err)
{
    for (unsigned i = 0; i < MAX_INPUTS; i++) {
        const struct operand *o = &shapes->in[i];
        if (!o->data) continue;
        TRY(mirror_init(&c->in[i], o, err));
        if (o->type == OPERAND_INT)
            set_ints(shapes, static_cast<int32_t *>(c->in[i].host));
        else
            fill_random(&c->in[i], o->type, shapes->elem, i + 1);
        TRY(mirror_upload(&c->in[i], err));
        c->call.in[i].data = c->in[i].device;
    }
    return OK;
}

static enum status run_contender(struct comparison *c, const struct op_call *shapes,
                                 struct mirror (&out)[MAX_OUTPUTS], const struct contender *who,
                                 struct error *err)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        if (!shapes->out[i].data) continue;
        TRY(mirror_init(&out[i], &shapes->out[i], err));
        c->call.out[i].data = out[i].device;
    }
    TRY(who->run(&c->call, who->context, c->workspace, err));
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (shapes->out[i].data) TRY(mirror_download(&out[i], err));
    return OK;
}

/* ---- differences ---- */

static float value_of(const struct mirror *m, enum operand_type type, enum elem_type elem, size_t i)
{
    if (type == OPERAND_REAL) return static_cast<const float *>(m->host)[i];
    const uint16_t bits = static_cast<const uint16_t *>(m->host)[i];
    return elem == ELEM_F16 ? half_load(bits) : half_float_of((uint32_t)bits << 16);
}

/* As a share of the largest number: for ELEM four roundings, since attention's
 * weights are rounded, too; for REAL the effect of another order of sums and of
 * approximate exp and log. */
static float allowed(enum operand_type type, enum elem_type elem)
{
    return type == OPERAND_REAL ? 0x1p-12f : elem == ELEM_F16 ? 0x1p-9f : 0x1p-6f;
}

/* A NaN is a difference. */
static enum status check_output(const struct mirror *plain, const struct mirror *faster,
                                const struct operand *o, enum elem_type elem, unsigned number,
                                const char *who, struct error *err)
{
    const size_t count = plain->bytes / element_bytes(o->type);
    float largest = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        const float x = value_of(plain, o->type, elem, i), y = value_of(faster, o->type, elem, i);
        largest = fmaxf(largest, fabsf(x));
        if (!(fabsf(x - y) <= off)) off = fabsf(x - y);
        if (off != off) break;
    }
    const float most = largest * allowed(o->type, elem);
    if (off <= most) return OK;
    return fail(err, ERR_NUMERIC, "%s: output %u is off by %g; at most %g is allowed", who, number,
                (double)off, (double)most);
}

static enum status compare_outputs(struct comparison *c, const struct op_call *shapes,
                                   void (*set_ints)(const struct op_call *, int32_t *),
                                   const struct contender *plain, const struct contender *faster,
                                   struct error *err)
{
    const size_t bytes = std::max(plain->workspace_bytes, faster->workspace_bytes);
    TRY(gpu_status(cudaMalloc(&c->workspace, bytes + 1), err));
    TRY(make_inputs(c, shapes, set_ints, err));
    TRY(run_contender(c, shapes, c->out[0], plain, err));
    TRY(run_contender(c, shapes, c->out[1], faster, err));
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (shapes->out[i].data)
            TRY(check_output(&c->out[0][i], &c->out[1][i], &shapes->out[i], shapes->elem, i,
                             faster->name, err));
    return OK;
}

enum status check_agreement(const struct op_call *shapes,
                            void (*set_ints)(const struct op_call *shapes, int32_t *to),
                            const struct contender *plain, const struct contender *faster,
                            struct error *err)
{
    struct comparison c = {};
    c.call = *shapes;
    if (cuda_is_capturing())
        return fail(err, ERR_UNSUPPORTED, "%s: cannot be checked while a graph is recorded",
                    faster->name);
    const enum status st = compare_outputs(&c, shapes, set_ints, plain, faster, err);
    for (struct mirror &m : c.in)
        mirror_release(&m);
    for (struct mirror(&out)[MAX_OUTPUTS] : c.out)
        for (struct mirror &m : out)
            mirror_release(&m);
    (void)cudaFree(c.workspace);
    return st;
}

enum verdict try_sm90(const char *what, const struct op_call *shapes,
                      void (*set_ints)(const struct op_call *shapes, int32_t *to),
                      const struct contender *plain, const struct contender *faster)
{
    struct error err;
    const enum status st = check_agreement(shapes, set_ints, plain, faster, &err);
    if (st == ERR_DEVICE || sm90_has_word("say"))
        (void)fprintf(stderr, "%s: %s: %s\n", faster->name, what, st ? err.text : "agrees");
    if (st == ERR_NUMERIC || st == ERR_DEVICE) return REFUSED;
    return st ? NOT_TRIED : TRUSTED;
}
