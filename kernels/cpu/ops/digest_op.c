/* digest_op.c - OP_DIGEST: the sums of digest_sums.h over a part of
 * a tensor. */
#include "kernels/cpu/digest_sums.h"
#include "kernels/cpu/ops/ops_internal.h"

enum { CHUNK = 1 << 16, GATHERED = 256 };

static uint64_t count_of(const union op_params *p)
{
    uint64_t count = 1;
    for (unsigned k = 0; k < p->digest.num_axes; k++)
        count *= p->digest.axes[k].extent;
    return count;
}

static struct digest_axis last_axis(const union op_params *p)
{
    const unsigned n = p->digest.num_axes;
    return n ? p->digest.axes[n - 1] : (struct digest_axis){1, 1, 1};
}

/* A run of elements along the last axis. */
struct run {
    const elem *x;
    uint64_t index, count; /* index: of the first element, in the tensor */
};

/* The rest of the last axis, from the part's element i on. */
static struct run run_from(const union op_params *p, const elem *x, uint64_t i)
{
    const struct digest_axis last = last_axis(p);
    const uint64_t behind = i % last.extent;
    struct run r = {x + p->digest.at + behind * last.stride,
                    p->digest.first + behind * last.index_stride, last.extent - behind};
    i /= last.extent;
    for (unsigned k = p->digest.num_axes; k > 1; k--) {
        const struct digest_axis *axis = &p->digest.axes[k - 2];
        r.x += i % axis->extent * axis->stride;
        r.index += i % axis->extent * axis->index_stride;
        i /= axis->extent;
    }
    return r;
}

/* Elements adjacent in the tensor but not in x. */
static void add_gathered(struct digest *d, const struct run *r, uint64_t stride)
{
    elem gathered[GATHERED];
    for (uint64_t done = 0, n; done < r->count; done += n) {
        n = min_size(r->count - done, GATHERED);
        for (uint64_t i = 0; i < n; i++)
            gathered[i] = r->x[(done + i) * stride];
        digest_add(d, gathered, 8 * sizeof(elem), n, r->index + done);
    }
}

static void digest_run(struct digest *d, const struct run *r, const struct digest_axis *axis)
{
    if (axis->index_stride != 1)
        for (uint64_t i = 0; i < r->count; i++)
            digest_add(d, r->x + i * axis->stride, 8 * sizeof(elem), 1,
                       r->index + i * axis->index_stride);
    else if (axis->stride != 1)
        add_gathered(d, r, axis->stride);
    else
        digest_add(d, r->x, 8 * sizeof(elem), r->count, r->index);
}

static void add_elements(struct digest *d, const union op_params *p, const elem *x, uint64_t begin,
                         uint64_t end)
{
    const struct digest_axis last = last_axis(p);
    for (uint64_t i = begin; i < end;) {
        struct run r = run_from(p, x, i);
        r.count = min_size(r.count, end - i);
        digest_run(d, &r, &last);
        i += r.count;
    }
}

void NAME(digest)(const union op_params *p, const struct operand *in, const struct operand *out)
{
    const uint64_t count = count_of(p);
    struct digest sums = {{0}};
#pragma omp parallel if (count >= WORTH_THREADS)
    {
        struct digest own = {{0}};
#pragma omp for nowait
        for (uint64_t begin = 0; begin < count; begin += CHUNK)
            add_elements(&own, p, in[0].data, begin, min_size(count, begin + CHUNK));
#pragma omp critical
        digest_join(&sums, &own);
    }
    memcpy(out[0].data, sums.d, sizeof sums.d);
}
