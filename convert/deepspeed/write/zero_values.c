#include "convert/deepspeed/write/zero_values.h"

#include <math.h>

/* A hostile file may nest lists endlessly, or share them so that a walk never
 * ends. */
enum { MAX_PLAIN_DEPTH = 16, MAX_PLAIN_VALUES = 100000 };

/* An object made by calling the class. */
static struct value *call_class(struct arena *a, const char *module, const char *name,
                                struct value *args)
{
    struct value *v = value_instance(a, module, name, NULL);
    v->object->by_new = false;
    v->object->args = args;
    return v;
}

struct value *zero_ordered_dict(struct arena *a, struct value **pairs)
{
    struct value *v =
        call_class(a, "collections", "OrderedDict", value_list(a, VALUE_TUPLE, 0, NULL));
    v->object->pairs = *pairs = value_dict(a);
    return v;
}

struct value *zero_size(struct arena *a, unsigned num_dims, const uint64_t *shape)
{
    struct value **dims = arena_array(a, num_dims, sizeof *dims);
    for (unsigned d = 0; d < num_dims; d++)
        dims[d] = value_int(a, (int64_t)shape[d]);
    struct value *tuple = value_list(a, VALUE_TUPLE, num_dims, dims);
    return call_class(a, "torch", "Size", value_list(a, VALUE_TUPLE, 1, &tuple));
}

struct value *zero_stage_value(struct arena *a, unsigned stage)
{
    struct value *number = value_int(a, stage);
    return call_class(a, "deepspeed.runtime.zero.config", "ZeroStageEnum",
                      value_list(a, VALUE_TUPLE, 1, &number));
}

struct value *zero_fragment(struct arena *a, uint64_t start, uint64_t numel)
{
    struct value *fields = value_dict(a);
    value_dict_add(a, fields, "numel", value_int(a, (int64_t)numel));
    value_dict_add(a, fields, "start", value_int(a, (int64_t)start));
    return value_instance(a, "deepspeed.utils.tensor_fragment", "fragment_address", fields);
}

/* DeepSpeed's defaults: fp16.initial_scale_power 16, loss_scale_window 1000,
 * min_loss_scale 1, hysteresis 2. The scale grows when cur_iter -
 * last_overflow_iter is a multiple of the window; with the last overflow at -1,
 * cur_iter counts the good steps since. */
static void add_dynamic(struct arena *a, struct value *fields, const struct training *run)
{
    const int64_t hysteresis = run->hysteresis_tracker ? (int64_t)run->hysteresis_tracker : 2;
    value_dict_add(a, fields, "cur_iter", value_int(a, (int64_t)run->growth_tracker));
    value_dict_add(a, fields, "last_overflow_iter", value_int(a, -1));
    value_dict_add(a, fields, "scale_factor", value_float(a, 2));
    value_dict_add(a, fields, "scale_window", value_int(a, 1000));
    value_dict_add(a, fields, "min_scale", value_int(a, 1));
    value_dict_add(a, fields, "delayed_shift", value_int(a, 2));
    value_dict_add(a, fields, "cur_hysteresis", value_int(a, hysteresis));
    value_dict_add(a, fields, "consecutive_hysteresis", value_bool(a, false));
    value_dict_add(a, fields, "raise_error_at_min_scale", value_bool(a, true));
    value_dict_add(a, fields, "dtype", value_global(a, "torch", "float16"));
}

struct value *zero_loss_scaler(struct arena *a, bool is_dynamic, const struct training *run)
{
    struct value *fields = value_dict(a);
    const double scale = !is_dynamic ? 1 : isfinite(run->loss_scale) ? run->loss_scale : 65536;
    value_dict_add(a, fields, "cur_scale", value_float(a, scale));
    value_dict_add(a, fields, "dynamic", value_bool(a, is_dynamic));
    if (is_dynamic) add_dynamic(a, fields, run);
    return value_instance(a, "deepspeed.runtime.fp16.loss_scaler",
                          is_dynamic ? "DynamicLossScaler" : "LossScaler", fields);
}

static bool is_plain_value(const struct value *v, unsigned depth, size_t *visited)
{
    if (++*visited > MAX_PLAIN_VALUES) return false;
    switch (v->kind) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_FLOAT:
    case VALUE_TEXT:
        return true;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        break;
    default:
        return false;
    }
    const size_t count = v->kind == VALUE_DICT ? 2 * (size_t)v->count : v->count;
    bool plain = depth < MAX_PLAIN_DEPTH;
    for (size_t i = 0; i < count && plain; i++)
        plain = is_plain_value(v->items[i], depth + 1, visited);
    return plain;
}

const struct value *zero_plain(const struct value *v)
{
    size_t visited = 0;
    return v && is_plain_value(v, 0, &visited) ? v : NULL;
}
