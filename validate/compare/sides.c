#include "validate/compare/sides.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/numbers.h"
#include "convert/format.h"
#include "convert/hf_config.h"
#include "convert/open.h"
#include "convert/states.h"
#include "formats/hf_folder.h"
#include "validate/compare/optimizer.h"

void sides_init(struct side sides[2])
{
    for (unsigned i = 0; i < 2; i++) {
        sides[i] = (struct side){0};
        checkpoint_init(&sides[i].checkpoint, "");
    }
}

void sides_release(struct side sides[2])
{
    for (unsigned i = 0; i < 2; i++)
        checkpoint_release(&sides[i].checkpoint);
}

/* ---- opening ---- */

static bool has_own_config(const char *path)
{
    struct arena a;
    arena_init(&a);
    bool has = path_exists(path_join(&a, hf_folder_resolve(&a, path), "config.json"));
    arena_release(&a);
    return has;
}

static bool has_no_iterations(const char *path)
{
    const struct format *format = format_of_path(path, NULL, NULL);
    return format && !(format->has & FORMAT_ITERATIONS);
}

struct source_options side_source_options(const char *path, const struct source_options *o,
                                          uint64_t vocab_size)
{
    struct source_options out = *o;
    if (o->format && !o->format->source->matches(path, NULL)) out.format = NULL; /* the other's */
    const struct format *format = format_of_path(path, NULL, NULL);
    if (format && format->has & FORMAT_CONFIG_JSON && has_own_config(path)) out.hf_config = NULL;
    if (has_no_iterations(path)) out.has_ckpt_step = false;
    if (vocab_size) out.true_vocab_size = vocab_size;
    return out;
}

static enum status open_side(struct side *s, const char *path, const struct source_options *o,
                             uint64_t vocab_size, const struct model_maps *maps, struct error *err)
{
    struct source_options own = side_source_options(path, o, vocab_size);
    checkpoint_release(&s->checkpoint);
    enum status st = inspect_open(&s->checkpoint, path, &own, maps, &s->reading, err);
    s->stored_only = s->reading != AS_MODEL;
    s->maps = maps;
    return st;
}

/* Reopens a side without a vocabulary size, with that of the other side. */
static enum status share_vocabulary(struct side sides[2], const char *const paths[2],
                                    const struct source_options *o, const struct model_maps *maps,
                                    struct error *err)
{
    for (unsigned i = 0; i < 2; i++) {
        uint64_t known = sides[1 - i].checkpoint.config.vocab_size;
        if (sides[0].stored_only || sides[1].stored_only || !known ||
            sides[i].checkpoint.config.vocab_size)
            continue;
        TRY(open_side(&sides[i], paths[i], o, known, maps, err));
        checkpoint_note(&sides[i].checkpoint, "vocabulary size taken from %s: %" PRIu64,
                        paths[1 - i], known);
    }
    return OK;
}

/* ---- heads ---- */

static uint64_t config_uint(const cJSON *config, const char *const *names)
{
    uint64_t n;
    for (; *names; names++)
        if (json_as_u64(json_get(config, *names), &n)) return n;
    return 0;
}

static uint64_t rotary_dim(uint64_t head_dim, double part)
{
    uint64_t n = part > 0 && part < 1 ? (uint64_t)((double)head_dim * part) : head_dim;
    return n % 2 ? head_dim : n;
}

/* Heads by the config.json of a model without a map. Many nest the text model's
 * fields under text_config. */
static struct heads heads_of_json(const cJSON *config)
{
    static const char *const query_heads[] = {"num_attention_heads", "n_head", NULL};
    static const char *const groups[] = {"num_key_value_heads", "multi_query_group_num", NULL};
    static const char *const hidden[] = {"hidden_size", "n_embd", NULL};
    static const char *const dims[] = {"head_dim", NULL};
    uint64_t n = config_uint(config, query_heads), g = config_uint(config, groups);
    uint64_t d = config_uint(config, dims), h = config_uint(config, hidden);
    double part = 1;
    const cJSON *text = json_get(config, "text_config");
    if (!n && text) return heads_of_json(text);
    if (!g) g = n;
    if (!d && n && h % n == 0) d = h / n;
    if (!n || !d || n % g) return (struct heads){0};
    (void)json_as_double(json_get(config, "partial_rotary_factor"), &part);
    return (struct heads){g, n / g, d, rotary_dim(d, part)};
}

cJSON *side_config_json(const struct side *s)
{
    struct arena a;
    cJSON *config = NULL;
    arena_init(&a);
    const char *folder = path_is_folder(s->checkpoint.path)
                             ? hf_folder_resolve(&a, s->checkpoint.path)
                             : path_parent(&a, s->checkpoint.path);
    enum status st = hf_config_read(folder, &config, NULL);
    arena_release(&a);
    return st ? NULL : config;
}

static struct heads heads_of(const struct side *s)
{
    const struct model_config *c = &s->checkpoint.config;
    struct heads out = {0};
    if (!s->stored_only) {
        uint64_t n = c->num_attention_heads, g = c->num_query_groups;
        if (!n || !g || n % g || !c->kv_channels) return out;
        return (struct heads){g, n / g, c->kv_channels,
                              rotary_dim(c->kv_channels, c->rotary_percent)};
    }
    cJSON *config = side_config_json(s);
    if (!config) return out;
    out = heads_of_json(config);
    cJSON_Delete(config);
    return out;
}

/* ---- listing ---- */

static void add_side_tensor(struct side *s, const struct tensor *t)
{
    uint64_t bytes = 0;
    (void)dtype_size_bytes(t->dtype, t->numel, &bytes);
    s->bytes += bytes;
    *ARENA_PUSH(&s->checkpoint.arena, s->tensors, s->num_tensors, s->tensors_capacity) = t;
}

static enum status add_stored(struct side *s, const struct stored_tensor *stored, struct error *err)
{
    struct tensor *t;
    TRY(catalog_wrap_stored(&s->checkpoint.catalog, &s->checkpoint.arena, stored, &t, err));
    add_side_tensor(s, t);
    return OK;
}

static enum status list_stored(struct side *s, bool optimizer, struct error *err)
{
    const struct stored *all = &s->checkpoint.catalog.stored;
    for (size_t i = 0; i < all->num_tensors; i++)
        if (optimizer || !name_is_optimizer(all->tensors[i].name))
            TRY(add_stored(s, &all->tensors[i], err));
        else
            s->num_optimizer++;
    return OK;
}

static enum status list_logical(struct side *s, bool optimizer, struct error *err)
{
    const struct checkpoint *c = &s->checkpoint;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (name_is_padding(t->name))
            s->num_padding++;
        else if (!optimizer && name_is_optimizer(t->name))
            s->num_optimizer++;
        else
            add_side_tensor(s, t);
    }
    for (size_t i = 0; i < c->gaps.num_unexpected; i++) {
        const struct stored_tensor *stored = stored_find(&c->catalog.stored, c->gaps.unexpected[i]);
        if (stored) TRY(add_stored(s, stored, err));
    }
    return OK;
}

static bool have_a_name_in_common(const struct side sides[2])
{
    struct map names = {0};
    bool found = sides[0].num_tensors == 0 || sides[1].num_tensors == 0;
    for (size_t i = 0; i < sides[0].num_tensors; i++)
        (void)map_add(&names, sides[0].tensors[i]->name, i, NULL);
    for (size_t i = 0; i < sides[1].num_tensors && !found; i++)
        found = map_get(&names, sides[1].tensors[i]->name, NULL);
    map_release(&names);
    return found;
}

/* The reason to compare a side by stored names: its last note. */
static const char *reason(const struct side *s)
{
    const struct checkpoint *c = &s->checkpoint;
    return s->stored_only && c->notes.count ? c->notes.lines[c->notes.count - 1] : NULL;
}

/* Whether both sides have equal config.json files, or none. */
static bool same_configs(const struct side sides[2])
{
    cJSON *a = side_config_json(&sides[0]), *b = side_config_json(&sides[1]);
    bool same = a && b ? cJSON_Compare(a, b, true) : !a && !b;
    cJSON_Delete(a);
    cJSON_Delete(b);
    return same;
}

/* Whether stored names may be compared although side i was refused. Equal
 * stored names do not make two models equal, so a refused config is an error.
 * Exceptions: the other side is a single file, which has no config; or both
 * sides are refused with equal configs (an unknown kind of rope, say). Tensors
 * that contradict their config (AS_CONTRADICTS) have only the first exception. */
static bool may_go_by_stored_names(const struct side sides[2], unsigned i)
{
    const struct side *s = &sides[i], *other = &sides[1 - i];
    if ((s->reading != AS_REFUSED && s->reading != AS_CONTRADICTS) || other->reading == AS_FILE)
        return true;
    return s->reading == AS_REFUSED && other->reading == AS_REFUSED && same_configs(sides);
}

static enum status check_refused(const struct side sides[2], struct error *err)
{
    for (unsigned i = 0; i < 2; i++)
        if (!may_go_by_stored_names(sides, i))
            return fail(err, ERR_UNSUPPORTED,
                        "%c (%s) cannot be read as the model of its config: %s", i ? 'B' : 'A',
                        sides[i].checkpoint.path, reason(&sides[i]));
    return OK;
}

static enum status list_by_stored_names(struct side sides[2], bool optimizer, struct error *err)
{
    for (unsigned i = 0; i < 2; i++)
        TRY(list_stored(&sides[i], optimizer, err));
    if (have_a_name_in_common(sides)) return OK;
    const char *why = reason(&sides[0]) ? reason(&sides[0]) : reason(&sides[1]);
    return fail(err, ERR_UNSUPPORTED,
                "%s (%s) and %s (%s) have no tensor name in common, and cannot both be read as "
                "models that Ferry knows%s%s",
                sides[0].checkpoint.path, sides[0].checkpoint.format->name,
                sides[1].checkpoint.path, sides[1].checkpoint.format->name, why ? ": " : "",
                why ? why : "");
}

/* Refuses unreadable optimizer state of side i. */
static enum status check_optimizer(const struct side sides[2], unsigned i, struct error *err)
{
    const struct checkpoint *c = &sides[i].checkpoint;
    const struct optimizer_info *o = &c->training.optimizer;
    if (optimizer_is_read(c)) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "both sides have optimizer state, and that of %c (%s: %s; %s) cannot be read%s%s; "
                "use --no-optim to compare the weights alone",
                i ? 'B' : 'A', c->path, o->kind, bytes_text(o->size_bytes), o->unread ? ": " : "",
                o->unread ? o->unread : "");
}

/* Compares the optimizer if both sides have one; then both must be readable. */
static enum status choose_optimizer(const struct side sides[2], bool *optimizer, struct error *err)
{
    const struct checkpoint *a = &sides[0].checkpoint, *b = &sides[1].checkpoint;
    if (a->training.optimizer.present && b->training.optimizer.present)
        for (unsigned i = 0; i < 2; i++)
            TRY(check_optimizer(sides, i, err));
    *optimizer = optimizer_has_tensors(a) && optimizer_has_tensors(b);
    return OK;
}

/* Widens weights of a side to masters, since a conversion may have made the
 * other side's masters that way. */
static enum status make_masters(struct side sides[2], struct error *err)
{
    for (unsigned i = 0; i < 2; i++) {
        size_t made;
        struct checkpoint *c = &sides[i].checkpoint;
        TRY(states_widen(c, &sides[1 - i].checkpoint.catalog, &made, err));
        if (made)
            checkpoint_note(c,
                            "no master weights of %zu parameters: their widened weights are "
                            "compared with the master weights of %s",
                            made, sides[1 - i].checkpoint.path);
    }
    return OK;
}

static enum status list_tensors(struct side sides[2], bool no_optim, struct error *err)
{
    bool optimizer = false;
    TRY(check_refused(sides, err));
    if (sides[0].stored_only || sides[1].stored_only)
        return list_by_stored_names(sides, !no_optim, err);
    if (!no_optim) TRY(choose_optimizer(sides, &optimizer, err));
    if (optimizer) TRY(make_masters(sides, err));
    for (unsigned i = 0; i < 2; i++)
        TRY(list_logical(&sides[i], optimizer, err));
    return OK;
}

enum status sides_open(struct side sides[2], const char *const paths[2],
                       const struct sides_options *o, const struct model_maps *maps,
                       struct error *err)
{
    const struct source_options *source = &o->source;
    if (source->has_ckpt_step && has_no_iterations(paths[0]) && has_no_iterations(paths[1]))
        return fail(err, ERR_USAGE, "--ckpt-step: Hugging Face folders have no iterations");
    for (unsigned i = 0; i < 2; i++)
        TRY(open_side(&sides[i], paths[i], source, 0, maps, err));
    TRY(share_vocabulary(sides, paths, source, maps, err));
    TRY(list_tensors(sides, o->no_optim, err));
    for (unsigned i = 0; i < 2; i++)
        sides[i].heads = heads_of(&sides[i]);
    return OK;
}

/* ---- elements without whole bytes ---- */

static bool piece_in_bytes(struct piece *p, unsigned bits)
{
    struct packed_pair *q = &p->pair;
    if (q->num_axes) return false;
    if (q->a_offset * bits % 8 || q->b_offset * bits % 8 || q->count * bits % 8) return false;
    q->a_offset = q->a_offset * bits / 8;
    q->b_offset = q->b_offset * bits / 8;
    q->count = q->count * bits / 8;
    p->dtype = DT_U8;
    return true;
}

const struct tensor *tensor_in_bytes(struct arena *a, const struct tensor *t)
{
    unsigned bits = dtype_infos[t->dtype].bits;
    if (dtype_bytes(t->dtype)) return t;
    struct tensor *out = arena_copy(a, t, sizeof *t);
    uint64_t *shape = arena_alloc(a, sizeof *shape);
    out->pieces = arena_copy(a, t->pieces, t->num_pieces * sizeof *t->pieces);
    out->dtype = DT_U8;
    out->num_dims = 1;
    out->numel = shape[0] = t->numel * bits / 8;
    out->shape = shape;
    for (size_t i = 0; i < out->num_pieces; i++)
        if (!piece_in_bytes(&out->pieces[i], bits)) return NULL;
    return out;
}
