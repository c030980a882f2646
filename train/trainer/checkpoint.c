/* checkpoint.c - finds checkpoints; places and names of a run's states. */
#include "train/trainer/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/file.h"
#include "common/text.h"
#include "convert/megatron/find_iteration.h"
#include "convert/states.h"
#include "train/trainer/checkpoint_internal.h"

/* ---- states of a run ---- */

enum dtype held_dtype(const struct train_state *s, const struct held_tensor *t, enum held_kind kind)
{
    return kind == HELD_WEIGHT ? parameter_dtype(s->parameters, t->of) : s->dtype[kind];
}

void *held_at(const struct train_state *s, enum held_kind kind, enum dtype dtype, uint64_t at)
{
    return (char *)s->data[kind] + dtype_run_bytes(dtype, at);
}

static struct held_tensor held_tensor_of(const struct train_state *s, const struct parameter *x,
                                         uint64_t i)
{
    struct held_tensor t = {
        .of = x, .name = x->tensors[i], .own_numel = x->numel / x->num_tensors, .numel = 1};
    for (unsigned d = 0; d < x->spec->num_dims; d++)
        t.numel *= x->spec->shape[d];
    t.first = x->offset / dtype_bytes(parameter_dtype(s->parameters, x)) + i * t.own_numel;
    if (x->spec->padded && s->padded_rows > x->spec->shape[0])
        t.padding_numel = (s->padded_rows - x->spec->shape[0]) * (t.numel / x->spec->shape[0]);
    return t;
}

enum status held_each(const struct train_state *s, held_visit *visit, void *context,
                      struct error *err)
{
    for (size_t i = 0; i < s->parameters->count; i++)
        for (uint64_t k = 0; k < s->parameters->items[i].num_tensors; k++) {
            const struct held_tensor t = held_tensor_of(s, &s->parameters->items[i], k);
            TRY(visit(context, &t, err));
        }
    return OK;
}

enum status held_each_run(const struct train_state *s, const struct held_tensor *t,
                          enum held_kind kind, held_run_visit *visit, void *context,
                          struct error *err)
{
    const struct held_run whole = {0, t->own_numel, t->first};
    if (!s->shard || kind == HELD_WEIGHT) return visit(context, &whole, err);
    for (size_t i = 0; i < s->shard->num_buckets; i++) {
        const struct shard_bucket *b = &s->shard->buckets[i];
        const uint64_t first = max_u64(b->own, t->first),
                       end = min_u64(b->own_end, t->first + t->own_numel);
        const struct held_run run = {first - t->first, end - first, b->at + (first - b->own)};
        if (first < end) TRY(visit(context, &run, err));
    }
    return OK;
}

struct clipping {
    const struct held_tensor *t;
    uint64_t first, count; /* of the padded tensor */
    const struct held_run *run;
    held_part_visit *visit;
    void *context;
};

static enum status visit_part(void *context, const struct pair *p, struct error *err)
{
    const struct clipping *c = context;
    const struct held_part part = {*p, c->run->at};
    return c->visit(c->context, &part, err);
}

/* own: pairs elements of the run with the padded tensor's */
static enum status clip_own(void *context, const struct pair *own, struct error *err)
{
    struct clipping *c = context;
    struct pair p = *own;
    TRY(pair_turn(&p, c->t->name, err));
    return pair_clip(&p, c->first, c->count, c->t->name, visit_part, c, err);
}

/* A run is a window of the rank's own elements, so its border is clipped first. */
static enum status clip_run(void *context, const struct held_run *r, struct error *err)
{
    struct clipping *c = context;
    c->run = r;
    for (unsigned k = 0; k < c->t->of->cut->count; k++) {
        struct pair p = c->t->of->cut->pairs[k];
        TRY(pair_turn(&p, c->t->name, err));
        TRY(pair_clip(&p, r->first, r->count, c->t->name, clip_own, c, err));
    }
    return OK;
}

enum status held_each_part(const struct train_state *s, const struct held_tensor *t,
                           enum held_kind kind, uint64_t first, uint64_t count,
                           held_part_visit *visit, void *context, struct error *err)
{
    struct clipping c = {
        .t = t, .first = first, .count = count, .visit = visit, .context = context};
    return held_each_run(s, t, kind, clip_run, &c, err);
}

bool held_is_trained(const struct held_tensor *t)
{
    return !t->of->spec->buffer;
}

const char *held_state(enum held_kind kind, bool sgd)
{
    const char *const names[NUM_HELD] = {[HELD_MASTER] = master_state,
                                         [HELD_EXP_AVG] = sgd ? "momentum_buffer" : "exp_avg",
                                         [HELD_EXP_AVG_SQ] = "exp_avg_sq"};
    return names[kind];
}

bool held_is_sgd(const struct training *t)
{
    return text_equal(t->optimizer, "sgd");
}

const char *held_name(const struct held_tensor *t, const char *state, bool padding, struct arena *a)
{
    const char *name = state ? state_name(a, state, t->name) : t->name;
    return padding ? arena_printf(a, "%s.padding", name) : name;
}

/* ---- which checkpoint ---- */

static const char iterations[] = "iter_";

/* The iteration of a folder's name; -1: none. */
static int64_t iteration_of(const char *name)
{
    char *end;
    if (!text_starts_with(name, iterations)) return -1;
    const char *digits = name + strlen(iterations);
    const long long n = strtoll(digits, &end, 10);
    return *digits >= '0' && *digits <= '9' && !*end ? (int64_t)n : -1;
}

/* Finds the newest folder iter_N of a Hugging Face model, or the one of the
 * step. */
static enum status find_hf_iteration(struct checkpoint_found *out, const char *root, bool has_step,
                                     uint64_t step, struct arena *a, struct error *err)
{
    struct name_list list;
    TRY(folder_list(root, a, &list, err));
    for (size_t i = 0; i < list.count; i++) {
        const int64_t n = iteration_of(list.names[i]);
        const char *path = path_join(a, root, list.names[i]);
        if (n < 0 || n <= out->iteration || (has_step && n != (int64_t)step)) continue;
        if (format_of_path(path, NULL, NULL) != &format_hf) continue;
        *out = (struct checkpoint_found){true, path, n, &format_hf, NULL};
    }
    return OK;
}

static enum status find_megatron(struct checkpoint_found *out, const char *path,
                                 const struct source_options *o, const struct format *format,
                                 struct arena *a, struct error *err)
{
    struct iteration at;
    TRY(iteration_find(a, path, o, &at, err));
    *out = (struct checkpoint_found){true, at.folder, at.release ? 0 : at.number, format, at.note};
    return OK;
}

/* Finds ORG/NAME in the hub's cache. */
static void find_in_hub(struct checkpoint_found *out, const char *path, struct arena *a)
{
    struct checkpoint c;
    checkpoint_init(&c, path);
    source_find_in_hub_cache(&c);
    const struct format *format = c.path == path ? NULL : format_of_path(c.path, NULL, NULL);
    if (format)
        *out = (struct checkpoint_found){true, arena_copy_text(a, c.path), -1, format, NULL};
    checkpoint_release(&c);
}

enum status checkpoint_find(struct checkpoint_found *out, const char *path, bool has_step,
                            uint64_t step, struct arena *a, struct error *err)
{
    const struct source_options o = {.has_ckpt_step = has_step, .ckpt_step = step};
    *out = (struct checkpoint_found){.iteration = -1};
    if (!path_is_folder(path)) {
        find_in_hub(out, path, a);
        return OK;
    }
    if (iteration_is_below(path)) {
        const struct format *format = format_of_path(path, &o, NULL);
        return find_megatron(out, path, &o, format, a, err);
    }
    const struct format *format = format_of_path(path, &o, NULL);
    if (!format) return find_hf_iteration(out, path, has_step, step, a, err);
    *out = (struct checkpoint_found){true, path, iteration_of(path_base(a, path)), format, NULL};
    return OK;
}

enum status checkpoint_find_to_load(struct checkpoint_found *out, const char *path, bool has_step,
                                    uint64_t step, struct arena *a, struct error *err)
{
    TRY(checkpoint_find(out, path, has_step, step, a, err));
    if (out->found) return OK;
    if (!path_is_folder(path)) return fail(err, ERR_IO, "--load %s: no such folder", path);
    if (has_step) return fail(err, ERR_IO, "--load %s has no iteration %" PRIu64, path, step);
    return fail(err, ERR_IO, "--load %s has no model: no config.json, no tracker, no iteration",
                path);
}
