/* ops.h - operations on buffers, for every device: operands and kernels.
 * op_list.h lists and defines the ops and their parameters.
 *
 * An op takes *operands*: dense row-major arrays of one of three types.
 *
 *   ELEM  type of parameters and activations, one for each program: f32, f64,
 *         bf16 or f16
 *   REAL  type of arithmetic: f64 if ELEM is f64, else f32
 *   INT   int32_t
 *
 * A weight may be *coded*: codes with scales, which products decode.
 *
 * Every op computes in REAL and rounds once, when it stores an ELEM. An absent
 * operand has no data (NULL). Operands do not overlap, unless the list lets two
 * share a buffer. A size that depends on data is an upper bound: an INT operand
 * has the number of valid rows, and the rows behind them are neither read nor
 * written. Ops allocate nothing: extra memory is their workspace.
 *
 * Query, key and value of a token lie as in Megatron: each of `groups` groups
 * has `queries` query heads, a key head and a value head of head_dim elements:
 * [T, groups * (queries + 2) * head_dim]. A cache of keys and values is [rows,
 * groups * 2 * head_dim]: for each group key, then value. */
#ifndef FERRY_KERNELS_OPS_H
#define FERRY_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/status.h"
#include "kernels/cpu/quant.h"
#include "kernels/op_list.h"

enum operand_type { OPERAND_ELEM, OPERAND_REAL, OPERAND_INT };

enum { OPERAND_DIMS = 4, MAX_INPUTS = 10, MAX_OUTPUTS = 5 };

/* The data of a coded weight [.., rows, cols] (kernels/cpu/coded.h):
 *
 *   1. codes, cols * bits / 8 bytes a row;
 *   2. at scales_at: for each row, a scale for each `group` elements;
 *   3. at numbers_at: the number of each code, F32.
 *
 * An element is number * scale in F32, rounded to `dtype`, then to ELEM. */
struct weight_coding {
    enum quant_code code;
    unsigned bits; /* of a code: 4, the lower half of a byte first, or 8 */
    enum dtype dtype;
    bool scales_are_e8m0; /* F8_E8M0, else F32 */
    uint64_t group;
    uint64_t scales_at, numbers_at, bytes; /* bytes: of all data */
};

struct operand {
    void *data; /* NULL: absent */
    enum operand_type type;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    const struct weight_coding *coding; /* NULL: elements are not coded */
};

enum op {
#define X(id, ...) id,
    OPS(X)
#undef X
        NUM_OPS,
    OP_BEFORE_COLLECTIVES = NUM_OPS - 1,
#define X(id, ...) id,
    COLLECTIVES(X)
#undef X
        NUM_ALL_OPS
};

/* One op on one device, for one type of ELEM. */
struct op_kernel {
    /* ERR_NUMERIC, ERR_DEVICE, ERR_UNSUPPORTED or ERR_OURS. workspace has the
     * bytes that workspace() returns. */
    enum status (*run)(const union op_params *p, const struct operand *in,
                       const struct operand *out, void *workspace, struct error *err);
    /* Bytes of workspace, from shapes and from which operands are absent; data
     * is not read. NULL: 0 */
    size_t (*workspace)(const union op_params *p, const struct operand *in,
                        const struct operand *out);
};

enum elem_type { ELEM_F32, ELEM_F64, ELEM_BF16, ELEM_F16, NUM_ELEM_TYPES };

static inline size_t operand_bytes_of(enum operand_type type, enum elem_type program)
{
    if (type == OPERAND_INT) return 4;
    if (program == ELEM_F64) return 8;
    return type == OPERAND_ELEM && program != ELEM_F32 ? 2 : 4;
}

static inline uint64_t operand_numel(const struct operand *o)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < o->num_dims; d++)
        n *= o->shape[d];
    return n;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The CPU's kernels, [NUM_OPS], for this machine's instructions. */
const struct op_kernel *cpu_ops(enum elem_type elem);
/* Names of these instructions: "CPU, AVX2, AVX-512 BF16 for bf16". */
const char *cpu_instructions(void);
/* Names of FERRY_CPU, from the lowest; NULL: no more. *is_here: this CPU has
 * them. */
const char *cpu_level_name(size_t number, bool *is_here);
const char *cpu_level_in_use(void);

#ifdef __cplusplus
}
#endif

#endif
