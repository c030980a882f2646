#include "convert/megatron/optim/rng_states.h"

#include <string.h>

/* Bytes of torch's states. */
enum { CPU_BYTES = 5056, GPU_BYTES = 16 };

/* ---- the generator that Python, numpy and torch share: MT19937 ---- */

enum { WORDS = 624 };

/* Seeds as numpy and torch. */
static void seed_by_number(uint32_t words[WORDS], uint32_t seed)
{
    words[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
}

/* Seeds as Python: by the number's 32-bit digits. */
static void seed_by_digits(uint32_t words[WORDS], uint64_t seed)
{
    const uint32_t digits[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const unsigned count = digits[1] ? 2 : 1;
    unsigned i = 1, j = 0;
    seed_by_number(words, 19650218u);
    for (unsigned k = 0; k < WORDS; k++) {
        words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1664525u)) + digits[j] + j;
        j = (j + 1) % count;
        if (++i == WORDS) words[0] = words[WORDS - 1], i = 1;
    }
    for (unsigned k = 0; k < WORDS - 1; k++) {
        words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i == WORDS) words[0] = words[WORDS - 1], i = 1;
    }
    words[0] = 0x80000000u;
}

static void put_bytes(unsigned char *to, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (unsigned char)(number >> 8 * i);
}

/* ---- values of Python ---- */

static struct value *python_state(struct arena *a, uint64_t seed)
{
    uint32_t words[WORDS];
    struct value *items[WORDS + 1], *parts[3] = {value_int(a, 3)};
    seed_by_digits(words, seed);
    for (unsigned i = 0; i < WORDS; i++)
        items[i] = value_int(a, words[i]);
    items[WORDS] = value_int(a, WORDS);
    parts[1] = value_list(a, VALUE_TUPLE, WORDS + 1, items);
    parts[2] = value_none(a);
    return value_list(a, VALUE_TUPLE, 3, parts);
}

/* numpy has its words in an array, whose class no pickle can name for all
 * releases: before 2 it has another module, and torch.load() refuses the other
 * name. set_state() takes numbers too. */
static struct value *numpy_state(struct arena *a, uint64_t seed)
{
    uint32_t words[WORDS];
    struct value *items[WORDS];
    seed_by_number(words, (uint32_t)seed);
    for (unsigned i = 0; i < WORDS; i++)
        items[i] = value_int(a, words[i]);
    struct value *parts[] = {value_text(a, "MT19937"), value_list(a, VALUE_LIST, WORDS, items),
                             value_int(a, WORDS), value_int(a, 0), value_float(a, 0)};
    return value_list(a, VALUE_TUPLE, 5, parts);
}

/* ---- torch's states, as bytes ---- */

struct making {
    const struct rng_made *made;
    rng_tensor *tensor;
    void *context;
    struct arena *arena;
};

/* at::CPUGeneratorImplState: seed, words left until the next twist (1), seeded,
 * next word (0), words in 64 bits each, and no kept normal number. */
static struct value *torch_state(const struct making *m, uint64_t seed)
{
    enum { SEED = 0, LEFT = 8, SEEDED = 12, STATE = 24 };
    unsigned char *bytes = arena_alloc(m->arena, CPU_BYTES);
    uint32_t words[WORDS];
    memset(bytes, 0, CPU_BYTES);
    seed_by_number(words, (uint32_t)seed);
    put_bytes(bytes + SEED, seed, 8);
    put_bytes(bytes + LEFT, 1, 4);
    put_bytes(bytes + SEEDED, 1, 4);
    for (unsigned i = 0; i < WORDS; i++)
        put_bytes(bytes + STATE + 8 * (size_t)i, words[i], 8);
    return m->tensor(m->context, bytes, CPU_BYTES);
}

/* at::CUDAGeneratorImpl: seed and Philox's offset. */
static struct value *device_state(const struct making *m, uint64_t seed)
{
    if (m->made->device_is_host) return torch_state(m, seed);
    unsigned char *bytes = arena_alloc(m->arena, GPU_BYTES);
    memset(bytes, 0, GPU_BYTES);
    put_bytes(bytes, seed, 8);
    return m->tensor(m->context, bytes, GPU_BYTES);
}

/* Copies kept states, with tensors again. */
static struct value *restore_tensors(const struct making *m, const struct value *v)
{
    if (v->kind == VALUE_BYTES) return m->tensor(m->context, v->text, v->count);
    struct value *out = arena_copy(m->arena, v, sizeof *v);
    if (v->kind == VALUE_DICT) {
        out = value_dict(m->arena);
        for (uint32_t i = 0; i < v->count; i++)
            value_dict_put(m->arena, out, restore_tensors(m, v->items[2 * i]),
                           restore_tensors(m, v->items[2 * i + 1]));
    } else if (v->kind == VALUE_LIST || v->kind == VALUE_TUPLE) {
        out = value_list(m->arena, v->kind, v->count, v->items);
        for (uint32_t i = 0; i < v->count; i++)
            out->items[i] = restore_tensors(m, v->items[i]);
    }
    return out;
}

/* ---- kept states ---- */

static bool is_state(const struct value *v, bool device_is_host)
{
    return v && v->kind == VALUE_BYTES && v->count == (device_is_host ? CPU_BYTES : GPU_BYTES);
}

static bool are_states(const struct value *dict, bool device_is_host)
{
    for (uint32_t i = 0; dict && dict->kind == VALUE_DICT && i < dict->count; i++)
        if (!is_state(dict->items[2 * (size_t)i + 1], device_is_host)) return false;
    return true;
}

bool rng_states_fit(const struct rng_kept *kept, bool device_is_host)
{
    for (uint32_t i = 0; i < kept->states->count; i++) {
        const struct value *d = kept->states->items[i];
        if (!is_state(value_get(d, "cuda_rng_state"), device_is_host) ||
            !are_states(value_get(d, "rng_tracker_states"), device_is_host))
            return false;
    }
    return true;
}

struct value *rng_states_value(const struct rng_made *made, const struct rng_place *at,
                               rng_tensor *tensor, void *context, struct arena *a)
{
    const struct making m = {made, tensor, context, a};
    const uint64_t seed = made->seed + 100 * at->pp_rank;
    for (size_t i = 0; i < made->num_kept; i++)
        if (made->kept[i].pp_rank == at->pp_rank && made->kept[i].tp_rank == at->tp_rank)
            return restore_tensors(&m, made->kept[i].states);
    struct value *d = value_dict(a), *tracked = value_dict(a);
    value_dict_add(a, d, "random_rng_state", python_state(a, seed));
    value_dict_add(a, d, "np_rng_state", numpy_state(a, seed));
    value_dict_add(a, d, "torch_rng_state", torch_state(&m, seed));
    value_dict_add(a, d, "cuda_rng_state", device_state(&m, seed));
    value_dict_add(a, tracked, "data-parallel-rng", device_state(&m, seed));
    value_dict_add(a, tracked, "model-parallel-rng", device_state(&m, seed + 2718 + at->tp_rank));
    value_dict_add(a, tracked, "expert-parallel-rng",
                   device_state(&m, seed + 1024 + 100 * at->ep_rank + at->etp_rank));
    value_dict_add(a, d, "rng_tracker_states", tracked);
    return value_list(a, VALUE_LIST, 1, &d);
}
