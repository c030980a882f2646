/* embedding_backward.c - OP_EMBEDDING_BACKWARD: a row of the table gets the sum
 * over the tokens that read it.
 *
 * `order` places the tokens of one row side by side: a run. The thread with the
 * first token of a run sums all of it, in blocks, so that a row read by many
 * tokens stays exact. */
#include "kernels/cpu/ops/ops_internal.h"

/* Columns and tokens (of order) a thread takes at once; tokens of a block;
 * elements set at once. */
enum { COLUMNS = 1024, TURN = 64, BLOCK = 64, CHUNK = 1 << 16 };

struct embedding_backward {
    const elem *dx;             /* [T, h] */
    const int32_t *ids, *order; /* [T] */
    struct gradient table;      /* [R, h] */
    size_t num_tokens, h, num_rows;
    uint64_t first_row;
    real scale;
};

static uint64_t table_row_of(const struct embedding_backward *e, size_t i)
{
    return (uint64_t)(int64_t)e->ids[e->order[i]] - e->first_row; /* wraps: no such row */
}

static bool begins_run(const struct embedding_backward *e, size_t i)
{
    return i == 0 || table_row_of(e, i) != table_row_of(e, i - 1);
}

static size_t run_end(const struct embedding_backward *e, size_t first)
{
    size_t end = first + 1;
    while (end < e->num_tokens && !begins_run(e, end))
        end++;
    return end;
}

static void sum_tokens(const struct embedding_backward *e, const int32_t *tokens, size_t count,
                       size_t column, size_t n, real *restrict sum)
{
    memset(sum, 0, n * sizeof *sum);
    for (size_t k = 0; k < count; k++) {
        const elem *restrict dx = e->dx + (size_t)tokens[k] * e->h + column;
        for (size_t i = 0; i < n; i++)
            sum[i] += load(dx[i]);
    }
}

/* Sums a run of many tokens block by block. */
static void sum_blocks(const struct embedding_backward *e, const int32_t *tokens, size_t count,
                       size_t column, size_t n, real *restrict sum)
{
    double total[COLUMNS] = {0};
    for (size_t k = 0; k < count; k += BLOCK) {
        sum_tokens(e, tokens + k, min_size(count - k, BLOCK), column, n, sum);
        for (size_t i = 0; i < n; i++)
            total[i] += (double)sum[i];
    }
    for (size_t i = 0; i < n; i++)
        sum[i] = (real)total[i];
}

/* Adds columns [column, column + n) of the run [first, end) of order to
 * its row. */
static void add_token_run(const struct embedding_backward *e, size_t first, size_t end,
                          size_t column, size_t n)
{
    const int32_t *tokens = e->order + first;
    const size_t count = end - first;
    real sum[COLUMNS];
    if (count <= BLOCK)
        sum_tokens(e, tokens, count, column, n, sum);
    else
        sum_blocks(e, tokens, count, column, n, sum);
    for (size_t i = 0; i < n; i++)
        sum[i] *= e->scale;
    gradient_store(&e->table, table_row_of(e, first) * e->h + column, sum, n);
}

static void add_token_runs(const struct embedding_backward *e, size_t first, size_t end,
                           size_t column)
{
    for (size_t i = first; i < end; i++)
        if (begins_run(e, i) && table_row_of(e, i) < e->num_rows)
            add_token_run(e, i, run_end(e, i), column, min_size(e->h - column, COLUMNS));
}

/* Rows that no token reads become dtable_sum, or 0. */
static void start_table(const struct gradient *table, size_t bytes)
{
    if (table->to == table->sum) return;
#pragma omp parallel for if (bytes > CHUNK)
    for (size_t at = 0; at < bytes; at += CHUNK) {
        const size_t n = min_size(bytes - at, CHUNK);
        if (table->sum)
            memcpy((char *)table->to + at, (const char *)table->sum + at, n);
        else
            memset((char *)table->to + at, 0, n);
    }
}

void NAME(embedding_backward)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    struct embedding_backward e = {.dx = in[0].data,
                                   .ids = in[1].data,
                                   .order = in[2].data,
                                   .table = gradient_of(&out[0], &in[3]),
                                   .num_tokens = in[0].shape[0],
                                   .h = in[0].shape[1],
                                   .num_rows = out[0].shape[0],
                                   .first_row = p->embedding.first_row,
                                   .scale = (real)p->embedding.scale};
    const size_t turns = (e.num_tokens + TURN - 1) / TURN;
    const size_t strips = (e.h + COLUMNS - 1) / COLUMNS;
    start_table(&e.table, e.num_rows * e.h * (e.table.is_real ? sizeof(real) : sizeof(elem)));
    e.table.sum = e.table.to;
#pragma omp parallel for schedule(dynamic) if (e.num_tokens * e.h >= WORTH_THREADS)
    for (size_t k = 0; k < turns * strips; k++) {
        const size_t first = k / strips * TURN;
        add_token_runs(&e, first, min_size(first + TURN, e.num_tokens), k % strips * COLUMNS);
    }
}
