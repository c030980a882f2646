#include "convert/target.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/sha256.h"
#include "convert/format.h"
#include "convert/naming.h"

bool is_parameter(const struct tensor *x)
{
    return !name_is_optimizer(x->name) && !name_is_padding(x->name);
}

enum dtype target_dtype(const struct target *t, const struct tensor *x)
{
    return t->options.casts && dtype_is_float(x->dtype) ? t->options.dtype : x->dtype;
}

enum status target_plan(struct target *t, const struct target_options *o,
                        const struct checkpoint *source, const struct model_maps *maps,
                        struct error *err)
{
    *t = (struct target){.options = *o, .source = source, .format = o->format, .maps = maps};
    plan_init(&t->plan, &source->catalog);
    if (source->family) t->map = model_map_of_family(maps, source->family);
    TRY(t->format->target->plan(t, err));
    for (size_t i = 0; i < t->plan.num_carries; i++) {
        const struct tensor *x = t->plan.carries[i].source;
        t->facts.cast_tensors += target_dtype(t, x) != x->dtype;
    }
    return plan_finish(&t->plan, err);
}

/* ---- own tensors ---- */

size_t out_tensors_add(struct out_tensors *all, struct arena *a, const struct own_output *own)
{
    size_t at = all->count;
    if (map_get(&all->names, own->name, &at)) return at;
    struct out_tensor *o = ARENA_PUSH(a, all->items, all->count, all->capacity);
    *o = (struct out_tensor){
        .name = arena_copy_text(a, own->name),
        .dtype = own->dtype,
        .num_dims = own->num_dims,
        .shape = arena_copy(a, own->shape, own->num_dims * sizeof *own->shape),
        .numel = 1,
    };
    for (unsigned d = 0; d < own->num_dims; d++)
        o->numel *= own->shape[d];
    (void)map_add(&all->names, o->name, at, NULL);
    return at;
}

struct filling {
    struct target *t;
    const struct tensor *logical;
    uint32_t segment;
};

static enum status add_filling(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context; /* p.a: the tensor, p.b: the segment */
    (void)err;
    plan_add_piece(&f->t->plan, f->logical, f->segment, p);
    return OK;
}

enum status target_fill(struct target *t, const struct own_output *own, const struct pair *pair,
                        uint32_t segment, struct error *err)
{
    for (unsigned i = 0; i < own->num_parts; i++) {
        struct filling f = {t, own->parts[i].logical, segment};
        struct pair by_own = own->parts[i].pair;
        TRY(pair_turn(&by_own, f.logical->name, err));
        TRY(pair_join_nested(&by_own, pair, f.logical->name, add_filling, &f, err));
    }
    return OK;
}

void target_release(struct target *t)
{
    if (t->own && t->format->target->release) t->format->target->release(t);
    plan_release(&t->plan);
}

/* ---- config.json ---- */

void hf_config_set_dtype(cJSON *config, enum dtype dtype)
{
    const char *key = json_get(config, "dtype") ? "dtype" : "torch_dtype";
    json_put(config, key, cJSON_CreateString(dtype_infos[dtype].torch));
}

enum status write_config_of_dtype(const char *from, const char *to, enum dtype dtype, bool durable,
                                  struct error *err)
{
    cJSON *config;
    struct strbuf text = {0};
    TRY(hf_config_read(from, &config, err));
    hf_config_set_dtype(config, dtype);
    json_print(&text, config, 2);
    strbuf_add_char(&text, '\n');
    cJSON_Delete(config);
    enum status st = file_write_all(to, text.data, text.length, durable, err);
    strbuf_release(&text);
    return st;
}

/* ---- what travels with a Hugging Face model ---- */

bool is_companion(const char *name)
{
    static const char *const with[] = {"*.json", "*.model",  "*.txt",  "*.jinja",
                                       "*.py",   "LICENSE*", "README*"};
    static const char *const without[] = {"*.safetensors.index.json", "*.bin.index.json",
                                          "ferry.json", "integrity.json", ".*"};
    for (size_t i = 0; i < COUNT(without); i++)
        if (fnmatch(without[i], name, 0) == 0) return false;
    for (size_t i = 0; i < COUNT(with); i++)
        if (fnmatch(with[i], name, 0) == 0) return true;
    return false;
}

void companions_fingerprint(const char *folder, char fingerprint[SHA256_TEXT])
{
    struct arena a;
    struct name_list list;
    struct sha256 *s;
    arena_init(&a);
    bool found = folder && folder_list(folder, &a, &list, NULL) == OK;
    s = found ? sha256_start() : NULL;
    if (s) sha256_add(s, fingerprint, strlen(fingerprint));
    for (size_t i = 0; s && i < list.count; i++) {
        struct stat st;
        if (!is_companion(list.names[i]) || stat(path_join(&a, folder, list.names[i]), &st))
            continue;
        const int64_t n[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        sha256_add(s, list.names[i], strlen(list.names[i]) + 1);
        sha256_add(s, n, sizeof n);
    }
    if (s) sha256_finish(s, fingerprint);
    arena_release(&a);
}

enum status copy_companions(const char *from, const char *to, bool durable, struct error *err)
{
    struct arena a;
    struct name_list list;
    arena_init(&a);
    enum status st = folder_list(from, &a, &list, err);
    for (size_t i = 0; i < list.count && !st; i++) {
        const char *source = path_join(&a, from, list.names[i]);
        const char *copy = path_join(&a, to, list.names[i]);
        if (!is_companion(list.names[i]) || !path_is_file(source) || path_exists(copy)) continue;
        st = file_copy(source, copy, durable, err);
    }
    arena_release(&a);
    return st;
}
