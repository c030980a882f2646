/* sort.cu - rows sorted by expert: this rank's slots, and rows received from
 * other ranks. */
#include "kernels/cuda/cuda.h"

/* One expert's part of a stable sort, a block each. Its threads own
 * consecutive runs of slots, count slots of lower experts and of this one, and
 * number the latter. */
__global__ void sort_slots(const int32_t *experts, size_t num_slots, int32_t *rows, int32_t *counts)
{
    const int32_t expert = (int32_t)blockIdx.x;
    const size_t run = (num_slots + blockDim.x - 1) / blockDim.x;
    const size_t begin = min(threadIdx.x * run, num_slots), end = min(begin + run, num_slots);
    int lower = 0, equal = 0, total;
    for (size_t i = begin; i < end; i++) {
        lower += experts[i] < expert;
        equal += experts[i] == expert;
    }
    int row = block_sum_before(equal, &total) + block_sum(lower);
    for (size_t i = begin; i < end; i++)
        if (experts[i] == expert) rows[i] = row++;
    if (threadIdx.x == 0) counts[expert] = total;
}

template <typename E> enum status op_sort_by_expert(OP_ARGUMENTS)
{
    (void)p, (void)workspace;
    const size_t num_slots = in[0].shape[0] * in[0].shape[1];
    return launch("sort_by_expert", err, sort_slots, dim3((unsigned)out[1].shape[0]),
                  threads_for(num_slots, MAX_THREADS), 0, data_of<int32_t>(in[0]), num_slots,
                  data_of<int32_t>(out[0]), data_of<int32_t>(out[1]));
}

struct received {
    const int32_t *counts; /* [senders, experts] */
    int32_t *rows, *totals;
    unsigned num_senders, num_experts;
    size_t senders_per_block, rows_per_block;
};

/* A block for each sender and expert: place and destination of its rows. */
__global__ void sort_received_rows(const struct received a)
{
    const unsigned sender = blockIdx.x / a.num_experts, expert = blockIdx.x % a.num_experts;
    const size_t block = sender / a.senders_per_block;
    const unsigned first = (unsigned)(block * a.senders_per_block) * a.num_experts;
    int from = 0, to = 0, total = 0;
    for (unsigned i = threadIdx.x; i < a.num_senders * a.num_experts; i += blockDim.x) {
        const unsigned s = i / a.num_experts, e = i % a.num_experts;
        if (i >= first && i < blockIdx.x) from += a.counts[i];
        if (e < expert || (e == expert && s < sender)) to += a.counts[i];
        if (e == expert) total += a.counts[i];
    }
    from = block_sum(from), to = block_sum(to), total = block_sum(total);
    int32_t *rows = a.rows + block * a.rows_per_block + from;
    for (int i = (int)threadIdx.x; i < a.counts[blockIdx.x]; i += (int)blockDim.x)
        rows[i] = to + i;
    if (sender == 0 && threadIdx.x == 0) a.totals[expert] = total;
}

template <typename E> enum status op_sort_received(OP_ARGUMENTS)
{
    (void)workspace;
    struct received a = {};
    a.counts = data_of<int32_t>(in[0]);
    a.rows = data_of<int32_t>(out[0]);
    a.totals = data_of<int32_t>(out[1]);
    a.num_experts = (unsigned)out[1].shape[0];
    a.num_senders = (unsigned)(in[0].shape[0] / out[1].shape[0]);
    a.senders_per_block = p->sort_received.senders_per_block;
    a.rows_per_block = p->sort_received.rows_per_block;
    TRY(cuda_status("sort_received", /* -1 everywhere */
                    cudaMemsetAsync(a.rows, 0xff, out[0].shape[0] * sizeof *a.rows, cuda_stream),
                    err));
    return launch("sort_received", err, sort_received_rows, dim3(a.num_senders * a.num_experts),
                  128, 0, a);
}

FOR_ALL_TYPES(op_sort_by_expert)
FOR_ALL_TYPES(op_sort_received)
