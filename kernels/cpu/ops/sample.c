/* sample.c - OP_SAMPLE: draws the next token of each row of logits. */
#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/random.h"

/* A row of logits and its ids' weights exp((logit - max) / temperature). */
struct draw {
    const real *logits;
    size_t num_ids;
    double max, temperature;
};

static double weight(const struct draw *d, size_t id)
{
    return exp(((double)d->logits[id] - d->max) / d->temperature);
}

/* Larger logits first; among equals the lower id. */
static bool precedes(const struct draw *d, int32_t a, int32_t b)
{
    return d->logits[a] > d->logits[b] || (d->logits[a] == d->logits[b] && a < b);
}

static void sift_down(const struct draw *d, int32_t *heap, size_t at, size_t count)
{
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && precedes(d, heap[child + 1], heap[child])) child++;
        if (!precedes(d, heap[child], heap[at])) return;
        const int32_t down = heap[at];
        heap[at] = heap[child], heap[child] = down;
    }
}

static void make_heap(const struct draw *d, int32_t *heap)
{
    for (size_t i = 0; i < d->num_ids; i++)
        heap[i] = (int32_t)i;
    for (size_t i = d->num_ids / 2; i-- > 0;)
        sift_down(d, heap, i, d->num_ids);
}

/* Takes the `most` largest off the heap, or fewer (at least one) if their
 * weights reach `enough`; they end up behind it in ascending order. Returns
 * their number; *sum is their weight. */
static size_t take_largest(const struct draw *d, int32_t *heap, size_t most, double enough,
                           double *sum)
{
    size_t taken = 0;
    for (*sum = 0; taken < most && (taken == 0 || *sum < enough); taken++) {
        const size_t last = d->num_ids - 1 - taken;
        const int32_t id = heap[0];
        heap[0] = heap[last], heap[last] = id;
        sift_down(d, heap, 0, last);
        *sum += weight(d, (size_t)id);
    }
    return taken;
}

/* How many of the `count` taken ids reach `enough`; *sum is their weight. */
static size_t cut_taken(const struct draw *d, const int32_t *heap, size_t count, double enough,
                        double *sum)
{
    size_t kept = 0;
    for (*sum = 0; kept < count && (kept == 0 || *sum < enough); kept++)
        *sum += weight(d, (size_t)heap[d->num_ids - 1 - kept]);
    return kept;
}

static double sum_all(const struct draw *d)
{
    double sum = 0;
    for (size_t i = 0; i < d->num_ids; i++)
        sum += weight(d, i);
    return sum;
}

/* The last id, in order of preference, that may be drawn; -1: all may. *sum is
 * their weight. */
static int32_t last_choice(const struct draw *d, const union op_params *p, int32_t *heap,
                           double *sum)
{
    const size_t top_k = p->sample.top_k;
    const double top_p = p->sample.top_p;
    const bool all = top_k == 0 || top_k >= d->num_ids;
    if (all) *sum = sum_all(d);
    if (all && top_p >= 1) return -1;
    make_heap(d, heap);
    size_t kept =
        take_largest(d, heap, all ? d->num_ids : top_k, all ? top_p * *sum : INFINITY, sum);
    if (!all && top_p < 1) kept = cut_taken(d, heap, kept, top_p * *sum, sum);
    return heap[d->num_ids - kept];
}

/* The first id at which the weight of drawable ids exceeds u of their sum. */
static int32_t draw_id(const struct draw *d, int32_t last, double target)
{
    double sum = 0;
    int32_t id = 0;
    for (size_t i = 0; i < d->num_ids; i++) {
        if (last >= 0 && precedes(d, last, (int32_t)i)) continue;
        const double w = weight(d, i);
        if (w > 0) id = (int32_t)i; /* rounding may put the target beyond the last one */
        sum += w;
        if (sum > target) break;
    }
    return id;
}

/* The largest; -1 if any is NaN. */
static int32_t largest_id(const real *logits, size_t num_ids)
{
    size_t best = 0;
    bool nan = false;
    for (size_t i = 0; i < num_ids; i++) {
        nan |= logits[i] != logits[i];
        if (logits[i] > logits[best]) best = i;
    }
    return nan ? -1 : (int32_t)best;
}

static int32_t sample_row(const union op_params *p, const real *logits, size_t num_ids,
                          uint64_t counter, int32_t *heap)
{
    const int32_t best = largest_id(logits, num_ids);
    if (best < 0 || p->sample.temperature == 0) return best;
    const struct draw d = {.logits = logits,
                           .num_ids = num_ids,
                           .max = (double)logits[best],
                           .temperature = p->sample.temperature};
    if (!isfinite(d.max)) return -1;
    double sum;
    const int32_t last = last_choice(&d, p, heap, &sum);
    return draw_id(&d, last, random_uniform(p->sample.seed, counter) * sum);
}

enum status NAME(sample)(const union op_params *p, const struct operand *in,
                         const struct operand *out, void *workspace, struct error *err)
{
    const real *logits = in[0].data;
    const int32_t *counter = in[1].data, *bad = in[2].data;
    int32_t *ids = out[0].data, *heaps = workspace;
    const size_t n = in[0].shape[0], num_ids = in[0].shape[1];
    (void)err;
#pragma omp parallel for num_threads(workers()) if (n * num_ids >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        ids[i] = bad && *bad ? -1
                             : sample_row(p, logits + i * num_ids, num_ids,
                                          (uint64_t)counter[0] + i, heaps + worker() * num_ids);
    return OK;
}

size_t NAME(sample_workspace)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    (void)p, (void)out;
    return most_workers() * in[0].shape[1] * sizeof(int32_t);
}
