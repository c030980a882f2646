#include "convert/deepspeed/ds_values.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"

uint32_t ds_list(const struct value *v, struct value *const **items)
{
    if (!v || (v->kind != VALUE_LIST && v->kind != VALUE_TUPLE)) return 0;
    *items = v->items;
    return v->count;
}

const struct value *ds_get_int(const struct value *dict, int64_t key)
{
    int64_t here;
    if (!dict || dict->kind != VALUE_DICT) return NULL;
    for (uint32_t i = dict->count; i-- > 0;)
        if (value_as_int(dict->items[2 * i], &here) && here == key) return dict->items[2 * i + 1];
    return NULL;
}

bool ds_as_stage(const struct value *v, int64_t *out)
{
    static const char *const members[] = {"disabled", "optimizer_states", "gradients", "weights"};
    struct value *const *args;
    if (value_as_int(v, out)) return true;
    if (!v || v->kind != VALUE_OBJECT) return false;
    const uint32_t n = ds_list(v->object->args, &args);
    if (n == 1) return value_as_int(args[0], out);
    const char *name = n == 2 ? value_as_text(args[1]) : NULL; /* getattr(class, name) */
    for (size_t i = 0; name && i < COUNT(members); i++) {
        *out = (int64_t)i;
        if (strcmp(name, members[i]) == 0) return true;
    }
    return false;
}

bool ds_as_count(const struct value *v, uint64_t *out)
{
    int64_t n;
    if (!value_as_int(v, &n) || n < 0) return false;
    *out = (uint64_t)n;
    return true;
}

bool ds_as_shape(struct arena *a, const struct value *v, unsigned *num_dims, uint64_t **shape)
{
    struct value *const *items;
    const uint32_t n = ds_list(v, &items);
    if (!v || (v->kind != VALUE_LIST && v->kind != VALUE_TUPLE) || n > DS_MAX_DIMS) return false;
    *num_dims = n;
    *shape = arena_array(a, n, sizeof **shape);
    for (uint32_t d = 0; d < n; d++)
        if (!ds_as_count(items[d], &(*shape)[d])) return false;
    return true;
}

/* ---- numbers ---- */

enum status ds_number_of(struct torch_file *t, struct stored *s, const struct value *v,
                         const char *name, struct ds_number *out, struct error *err)
{
    *out = (struct ds_number){NAN, SIZE_MAX};
    if (value_as_float(v, &out->value)) return OK;
    out->value = NAN;
    if (!v || v->kind != VALUE_TENSOR) return OK;
    TRY(torch_add_tensor(t, s, name, v, err));
    out->stored = s->num_tensors - 1;
    return OK;
}

static enum status read_stored_number(const struct stored *s, struct stored_reader *r,
                                      struct ds_number *number, struct error *err)
{
    char bytes[8];
    const struct stored_tensor *x = &s->tensors[number->stored];
    const size_t size = dtype_bytes(x->dtype);
    if (stored_numel(x) != 1 || !size || size > sizeof bytes)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " elements of dtype %s, expected one number",
                    x->name, stored_numel(x), dtype_infos[x->dtype].name);
    TRY(stored_read(r, x->pieces->file, x->pieces->offset_bytes, bytes, size, err));
    for (size_t i = 0; x->pieces->byte_swapped && i < size / 2; i++) {
        const char byte = bytes[i];
        bytes[i] = bytes[size - 1 - i];
        bytes[size - 1 - i] = byte;
    }
    number->value = dtype_load(x->dtype, bytes, 0);
    return OK;
}

enum status ds_numbers_read(const struct stored *s, struct ds_number *numbers, size_t count,
                            struct error *err)
{
    struct stored_reader *r = stored_reader_create(s, 4);
    enum status st = OK;
    for (size_t i = 0; i < count && !st; i++)
        if (numbers[i].stored != SIZE_MAX) st = read_stored_number(s, r, &numbers[i], err);
    stored_reader_free(r);
    return st;
}
