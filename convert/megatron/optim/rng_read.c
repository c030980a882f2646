#include "convert/megatron/optim/rng_read.h"

#include <inttypes.h>
#include <string.h>

#include "common/file.h"
#include "convert/format.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/optim/param_groups_internal.h"
#include "formats/torch.h"

/* Each generator's state is some kilobytes, all of a rank less than 100 KB;
 * with --data-parallel-random-init a rank has those of each data parallel
 * rank. */
enum { MAX_STATE_BYTES = 1 << 16, MAX_RANK_BYTES = 1 << 22, MAX_DEPTH = 8 };
/* Counted for a tensor's name and place in `stored`. */
enum { TENSOR_BYTES = 1 << 10 };

struct reading {
    struct arena *arena;
    struct torch_file file;
    struct stored stored;
    uint64_t bytes_left; /* of MAX_RANK_BYTES */
    const char *why;     /* why they cannot be kept */
};

/* ---- values ---- */

/* Sets *why and returns NULL. */
static struct value *cannot_keep(struct reading *r, const struct value *v)
{
    r->why = arena_printf(r->arena, "a state has class %s", value_class(v, r->arena));
    return NULL;
}

/* Takes bytes of the rank's memory before they are allocated: a file of some
 * kilobytes may refer to one value many times, and each reference becomes a
 * copy. Sets r->why if too few are left. */
static bool take_bytes(struct reading *r, uint64_t bytes)
{
    if (bytes > r->bytes_left) {
        r->why =
            arena_printf(r->arena, "they take more than %d MiB per rank", MAX_RANK_BYTES >> 20);
        return false;
    }
    r->bytes_left -= bytes;
    return true;
}

/* Takes bytes for an array of `count` items, which is copied and grows by
 * doubling. */
static bool take_items(struct reading *r, uint64_t count)
{
    return take_bytes(r, 4 * (count + 2) * sizeof(struct value *));
}

static enum status read_bytes(struct reading *r, const struct value *tensor, struct value **out,
                              struct error *err)
{
    const struct value_tensor *t = tensor->tensor;
    if (t->dtype != DT_U8 || t->num_dims != 1 || t->shape[0] > MAX_STATE_BYTES ||
        (t->shape[0] > 1 && t->stride[0] != 1)) {
        *out = cannot_keep(r, tensor);
        return OK;
    }
    if (!take_bytes(r, TENSOR_BYTES + t->shape[0])) return OK;
    const char *name = arena_printf(r->arena, "%zu", r->stored.num_tensors);
    TRY(torch_add_tensor(&r->file, &r->stored, name, tensor, err));
    const struct stored_piece *p = stored_find(&r->stored, name)->pieces;
    char *bytes = arena_alloc(r->arena, t->shape[0] + 1);
    struct stored_reader *reader = stored_reader_create(&r->stored, 1);
    enum status st = stored_read(reader, p->file, p->offset_bytes, bytes, t->shape[0], err);
    stored_reader_free(reader);
    *out = value_bytes(r->arena, bytes, t->shape[0]);
    return st;
}

/* Bytes of a numpy.uint32 array in x86 order; NULL: another value. Its pickle
 * is _reconstruct(ndarray, (0,), b"b") with the state (1, shape, dtype,
 * is_fortran, bytes). */
static const struct value *words_of_array(const struct value *v)
{
    const struct value *state = v->kind == VALUE_OBJECT ? v->object->state : NULL;
    if (!value_is_instance(v, "numpy.core.multiarray", "_reconstruct") &&
        !value_is_instance(v, "numpy._core.multiarray", "_reconstruct"))
        return NULL;
    if (!state || state->kind != VALUE_TUPLE || state->count != 5) return NULL;
    const struct value *dtype = state->items[2], *bytes = state->items[4];
    if (!value_is_instance(dtype, "numpy", "dtype") || !dtype->object->args ||
        !dtype->object->args->count || bytes->kind != VALUE_BYTES || bytes->count % 4)
        return NULL;
    const char *code = value_as_text(dtype->object->args->items[0]);
    const struct value *order = dtype->object->state;
    const bool little = order && order->kind == VALUE_TUPLE && order->count > 1 &&
                        value_as_text(order->items[1]) &&
                        strcmp(value_as_text(order->items[1]), "<") == 0;
    return code && strcmp(code, "u4") == 0 && little ? bytes : NULL;
}

static struct value *keep_array(struct reading *r, const struct value *v)
{
    const struct value *bytes = words_of_array(v);
    if (!bytes || bytes->count > MAX_STATE_BYTES) return cannot_keep(r, v);
    const uint64_t count = bytes->count / 4;
    if (!take_items(r, count) || !take_bytes(r, count * sizeof *v)) return NULL;
    struct value *list = value_list(r->arena, VALUE_LIST, 0, NULL);
    for (uint32_t i = 0; i < bytes->count; i += 4) {
        int64_t word = 0;
        for (unsigned k = 4; k-- > 0;)
            word = word << 8 | (unsigned char)bytes->text[i + k];
        value_append(r->arena, list, value_int(r->arena, word));
    }
    return list;
}

static enum status keep_rng_value(struct reading *r, const struct value *v, unsigned depth,
                                  struct value **out, struct error *err);

/* Copies a list, tuple or dict. */
static enum status keep_items(struct reading *r, const struct value *v, unsigned depth,
                              struct value **out, struct error *err)
{
    const bool is_dict = v->kind == VALUE_DICT;
    const size_t count = is_dict ? 2 * (size_t)v->count : v->count;
    if (!take_items(r, count)) return OK;
    struct value **items = arena_array(r->arena, count + 1, sizeof *items);
    for (size_t i = 0; i < count && !r->why; i++)
        TRY(keep_rng_value(r, v->items[i], depth + 1, &items[i], err));
    if (r->why) return OK;
    *out = is_dict ? value_dict(r->arena) : value_list(r->arena, v->kind, count, items);
    for (size_t i = 0; is_dict && i < count; i += 2)
        value_dict_put(r->arena, *out, items[i], items[i + 1]);
    return OK;
}

/* Copies a value with bytes for tensors; *out is NULL if r->why is set. */
static enum status keep_rng_value(struct reading *r, const struct value *v, unsigned depth,
                                  struct value **out, struct error *err)
{
    *out = NULL;
    if (depth > MAX_DEPTH) {
        r->why = "their values are nested too deeply";
        return OK;
    }
    if (!take_bytes(r, sizeof *v + (v->kind == VALUE_TEXT ? v->count : 0))) return OK;
    switch (v->kind) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_FLOAT:
        *out = arena_copy(r->arena, v, sizeof *v);
        return OK;
    case VALUE_TEXT:
        *out = value_as_text(v) ? value_text(r->arena, v->text) : cannot_keep(r, v);
        return OK;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        return keep_items(r, v, depth, out, err);
    case VALUE_TENSOR:
        return read_bytes(r, v, out, err);
    default:
        *out = keep_array(r, v);
        return OK;
    }
}

/* ---- files ---- */

/* Place of a rank's states: an object of torch_dist, or a whole rank file. */
struct rng_file {
    const char *path;
    uint64_t offset, bytes;
};

static bool find_file(const struct checkpoint *c, uint64_t pp, uint64_t tp, struct arena *a,
                      struct rng_file *f)
{
    const struct layout *l = &c->layout;
    const struct stored *s = &c->catalog.stored;
    const char *name = arena_printf(
        a, "rng_state/shard_%" PRIu64 ".%" PRIu64 "_%" PRIu64 ".%" PRIu64, pp, tp, l->pp, l->tp);
    if (!(c->format->has & FORMAT_COMMON_OBJECT)) {
        const char *folder = path_join(a, c->folder, megatron_rank_folder(a, l, tp, pp, 0));
        *f = (struct rng_file){path_join(a, folder, "model_optim_rng.pt"), 0, UINT64_MAX};
        return path_exists(f->path);
    }
    for (size_t i = 0; i < s->num_objects; i++) {
        const struct stored_object *o = &s->objects[i];
        if (strcmp(o->name, name)) continue;
        *f = (struct rng_file){s->files[o->file].path, o->offset_bytes, o->size_bytes};
        return true;
    }
    return false;
}

/* The list of states in a file's value; an object is a list of it. */
static const struct value *list_in(const struct checkpoint *c, const struct value *root)
{
    const bool is_object = c->format->has & FORMAT_COMMON_OBJECT;
    const struct value *v = is_object ? root : value_get(root, "rng_state");
    if (is_object && v->kind == VALUE_LIST && v->count == 1) v = v->items[0];
    return v && v->kind == VALUE_LIST && v->count ? v : NULL;
}

static enum status read_rank(struct reading *r, const struct checkpoint *c, struct rng_kept *kept,
                             struct error *err)
{
    struct rng_file f;
    if (!find_file(c, kept->pp_rank, kept->tp_rank, r->arena, &f)) {
        r->why = "not every rank has them";
        return OK;
    }
    stored_init(&r->stored);
    enum status st = torch_open(&r->file, &r->stored, f.path, f.offset, f.bytes, err);
    if (!st) {
        const struct value *list = list_in(c, r->file.root);
        struct value *copy = NULL;
        if (!list) r->why = "not every rank has them";
        if (list) st = keep_rng_value(r, list, 0, &copy, err);
        kept->states = copy;
        torch_close(&r->file);
    }
    stored_release(&r->stored);
    return st;
}

enum status rng_states_read(const struct checkpoint *c, struct rng_kept **out, size_t *count,
                            const char **why, struct arena *a, struct error *err)
{
    const struct layout *l = &c->layout;
    *count = 0;
    *why = NULL;
    *out = arena_array(a, l->pp * l->tp, sizeof **out);
    for (uint64_t pp = 0; pp < l->pp && !*why; pp++)
        for (uint64_t tp = 0; tp < l->tp && !*why; tp++) {
            struct reading r = {.arena = a, .bytes_left = MAX_RANK_BYTES};
            struct rng_kept *kept = &(*out)[pp * l->tp + tp];
            *kept = (struct rng_kept){.pp_rank = pp, .tp_rank = tp};
            TRY(read_rank(&r, c, kept, err));
            *why = r.why;
        }
    if (!*why) *count = l->pp * l->tp;
    return OK;
}
