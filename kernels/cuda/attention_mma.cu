/* Attention of bf16 and f16 heads on tensor cores, after FlashAttention-2 (Dao
 * 2023). For ranges of few queries attention_decode.cu is faster.
 *
 * 1. Rows, tiles and blocks of keys are those of attention_tiles.h, the softmax
 *    that of attention_rows.h. A block's values arrive while its scores are
 *    made; the next block's keys arrive while they are weighed.
 * 2. Blocks launched without a tile clear rows without spans. */
#include "kernels/cuda/attention_rows.h"

template <int D, int M> struct tile_shape {
    static const int ROWS = 16 * M * TILE_WARPS, KEYS = D > 128 ? 32 : 64, STRIDE = D + 8;
    static const size_t BYTES = (ROWS + 2 * KEYS) * STRIDE * MMA_ELEM_BYTES;
};

/* ---- the kernel ---- */

/* Blocks are tiles of all groups; those of one tile are neighbours. */
template <int D, int M, typename E>
__global__ void __launch_bounds__(TILE_THREADS) attend_tiles(const attention_args<E> a)
{
    typedef tile_shape<D, M> shape;
    const int ROWS = shape::ROWS, KEYS = shape::KEYS;
    DYNAMIC_SHARED(shared);
    E *q = reinterpret_cast<E *>(shared);
    E *k = q + ROWS * shape::STRIDE, *v = k + KEYS * shape::STRIDE;
    const unsigned group = blockIdx.x % a.groups;
    const struct tile t =
        find_tile<ROWS>(a, (int)(blockIdx.x / a.groups), (int)(gridDim.x / a.groups));
    if (t.num_spans == 0) {
        clear_uncovered(a, t, group);
        return;
    }
    const int warp_row = (int)warp_id() * 16 * M, num_blocks = count_blocks<KEYS>(a, t);
    const bool has_rows = warp_row < t.num_rows;
    const float log2_e = 1.44269504f, factor = a.softcap != 0 ? log2_e : a.scale * log2_e;
    struct rows_state<D, M> r;
    struct place p = {};
    start_rows(r);
    load_queries<D, ROWS>(q, a.q + group * a.q_stride, a.q_columns, a, t);
    if (num_blocks > 0) {
        p = seek_block<KEYS>(a, t, 0);
        load_heads<D, KEYS>(k, a, t, p, group, a.k_at);
    }
    copies_commit();
    for (int block = 0; block < num_blocks; block++) {
        float scores[M][KEYS / 8][4];
        const struct place now = p;
        copies_wait<0>();
        __syncthreads(); /* keys have arrived, the previous values are free */
        load_heads<D, KEYS>(v, a, t, now, group, a.v_at);
        copies_commit();
        if (has_rows) make_scores<D, M, KEYS>(scores, q + warp_row * shape::STRIDE, k);
        copies_wait<0>();
        __syncthreads(); /* values have arrived, the keys are free */
        if (block + 1 < num_blocks) {
            p = next_block<KEYS>(a, t, now);
            load_heads<D, KEYS>(k, a, t, p, group, a.k_at);
        }
        copies_commit();
        if (!has_rows) continue;
        if (a.softcap != 0) cap_scores<M, KEYS>(scores, a.scale, a.softcap);
        if (!needs_no_mask<KEYS>(a, t, now))
            mask_scores<M, KEYS>(scores, a, span_of(a, t, now), now.at,
                                 t.first_row + warp_row + (int)lane_id() / 4);
        update_softmax<D, M, KEYS>(scores, r, factor);
        add_values<D, D, M, KEYS>(r.o, scores, v);
    }
    copies_wait<0>();
    if (has_rows) finish_rows<D, M>(a, t, r, warp_row, group);
}

/* ---- the launch ---- */

bool attention_fits_mma(const union op_params *p, const struct operand *in)
{
    const struct head_shape s = p->attention.heads;
    const uint64_t runs = s.head_dim | in[0].shape[1] | in[1].shape[1] | p->attention.q_stride |
                          p->attention.kv_stride | p->attention.k_at | p->attention.v_at;
    return s.head_dim <= 256 && runs % 8 == 0 && p->attention.scale > 0 &&
           p->attention.dropout.probability == 0;
}

template <int D, int M, typename E>
static enum status launch_tiles(const attention_args<E> &a, struct error *err)
{
    typedef tile_shape<D, M> shape;
    static bool is_set; /* shared memory has been allowed */
    if (!is_set) TRY(allow_shared("attention", attend_tiles<D, M, E>, shape::BYTES, err));
    is_set = true;
    return launch("attention", err, attend_tiles<D, M, E>,
                  dim3(tiles_of<shape::ROWS>(a) * a.groups), TILE_THREADS, shape::BYTES, a);
}

template <typename E>
using launch_function = enum status(const attention_args<E> &a, struct error *err);

/* Takes the smallest D that head_dim fits into. */
template <typename E> enum status attention_mma(const attention_args<E> &a, struct error *err)
{
    static const struct {
        unsigned head_dim;
        launch_function<E> *launch;
    } variants[] = {{64, launch_tiles<64, 2>},
                    {80, launch_tiles<80, 2>},
                    {96, launch_tiles<96, 2>},
                    {128, launch_tiles<128, 2>},
                    {256, launch_tiles<256, 1>}};
    unsigned i = 0;
    if (a.num_queries == 0) return OK;
    while (variants[i].head_dim < a.head_dim)
        i++;
    return variants[i].launch(a, err);
}

template enum status attention_mma(const attention_args<bf16> &a, struct error *err);
template enum status attention_mma(const attention_args<f16> &a, struct error *err);
