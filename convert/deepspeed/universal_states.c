#include "convert/deepspeed/universal_states.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/text.h"
#include "convert/torch_groups.h"

struct universal {
    struct deepspeed *d;
    const char *folder;      /* zero */
    struct map names;        /* of parameters -> steps */
    bool *listed;            /* [params] in a group; tensor parallel ranks repeat them */
    struct ds_number *steps; /* [params] */
    const char **params;     /* folder names */
    const char **native_names;
    size_t num_params, params_capacity;
};

/* ---- one file ---- */

struct state_file {
    struct universal *u;
    const char *folder;       /* the parameter's */
    const char *name, *state; /* of the native tensor */
    const char *place;        /* NAME/STATE.pt */
    struct torch_file t;
};

/* A parameter's entry in param_shapes; NULL: none. */
static const struct ds_param *shape_of(const struct deepspeed *d, const char *name)
{
    for (size_t k = 0; k < d->num_stages; k++) {
        size_t i;
        if (map_get(&d->stages[k].names, name, &i)) return &d->stages[k].items[i];
    }
    return NULL;
}

static enum status check_flat(const struct state_file *f, const struct value_tensor *v,
                              const struct ds_param *p, struct error *err)
{
    if (!p)
        return fail(err, ERR_UNSUPPORTED,
                    "a flat tensor of unknown shape: missing *model_states.pt with param_shapes");
    if (v->num_dims == 1 && v->shape[0] == p->numel) return OK;
    return fail(err, ERR_CORRUPT, "its shape is %s, but %s has %" PRIu64 " elements",
                shape_text(&f->u->d->c->arena, v->num_dims, v->shape), f->name, p->numel);
}

static enum status add_state_native(struct state_file *f, const char *state, enum dtype dtype,
                                    const struct stored_tensor *stored, const struct ds_param *flat,
                                    struct error *err)
{
    struct catalog *all = &f->u->d->c->catalog;
    struct native_tensor *native;
    TRY(catalog_add_native(all, f->name, state, dtype, flat ? flat->num_dims : stored->num_dims,
                           flat ? flat->shape : stored->shape, &native, err));
    const struct pair whole = pair_whole(0, 0, native->numel);
    return catalog_add_native_part(all, native, stored, &whole, err);
}

static enum status add_state_tensor(struct state_file *f, const struct value *v,
                                    const struct ds_param *flat, struct error *err)
{
    struct checkpoint *c = f->u->d->c;
    struct stored *s = &c->catalog.stored;
    TRY(torch_add_tensor(&f->t, s, arena_printf(&c->arena, "zero/%s", f->place), v, err));
    const struct stored_tensor *stored = &s->tensors[s->num_tensors - 1];
    c->training.optimizer.size_bytes += stored_tensor_bytes(stored);
    const enum dtype dtype = f->u->d->first ? f->u->d->dtype : stored->dtype;
    const bool is_master = strcmp(f->state, master_state) == 0,
               makes_weight = is_master && !catalog_find_native(&c->catalog, f->name, NULL);
    if (makes_weight) TRY(add_state_native(f, NULL, dtype, stored, flat, err));
    if (makes_weight && dtype == stored->dtype) return OK; /* its own master */
    return add_state_native(f, f->state, stored->dtype, stored, flat, err);
}

static enum status read_state(struct state_file *f, struct error *err)
{
    const struct value *v = value_get(f->t.root, "param");
    const struct ds_param *p = NULL;
    if (v && v->kind == VALUE_TENSOR) return add_state_tensor(f, v, NULL, err);
    v = f->t.root;
    if (v->kind != VALUE_TENSOR) {
        states_unread(f->u->d->c, "zero/%s is not a tensor", f->place);
        return OK;
    }
    p = shape_of(f->u->d, f->folder);
    TRY(check_flat(f, v->tensor, p, err));
    return add_state_tensor(f, v, p, err);
}

static enum status read_state_file(struct universal *u, size_t param, const char *file,
                                   struct error *err)
{
    struct arena *a = &u->d->c->arena;
    struct state_file f = {.u = u,
                           .folder = u->params[param],
                           .name = u->native_names[param],
                           .place = arena_printf(a, "%s/%s", u->params[param], file)};
    const char *path = path_join(a, u->folder, f.place);
    f.state = arena_text(a, file, strlen(file) - strlen(".pt"));
    if (strcmp(f.state, "fp32") == 0) f.state = master_state;
    TRY(torch_open(&f.t, &u->d->c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = OK;
    if (strcmp(f.state, "step") == 0)
        st = ds_number_of(&f.t, &u->d->c->catalog.stored, f.t.root,
                          arena_printf(a, "zero/%s", f.place), &u->steps[param], err);
    else if (state_is_valid(f.state))
        st = read_state(&f, err);
    else
        states_unread(u->d->c, "zero/%s: invalid state name", f.place);
    if (st && !text_starts_with(err->text, path)) st = fail_in(err, "%s", path);
    torch_close(&f.t);
    return st;
}

/* ---- folders ---- */

static void name_params(struct universal *u)
{
    struct deepspeed *d = u->d;
    uint64_t index;
    const char *local;
    u->native_names = arena_array(&d->c->arena, u->num_params, sizeof *u->native_names);
    for (size_t i = 0; i < u->num_params && d->pipeline; i++)
        if (pipeline_name_parse(u->params[i], &index, &local))
            pipeline_names_note(&d->names, &d->c->arena, index, local);
    pipeline_names_end(&d->names);
    for (size_t i = 0; i < u->num_params; i++)
        u->native_names[i] = ds_native_name(d, u->params[i]);
}

static enum status list_param_folders(struct universal *u, struct error *err)
{
    struct arena *a = &u->d->c->arena;
    struct name_list names;
    TRY(folder_list(u->folder, a, &names, err));
    for (size_t i = 0; i < names.count; i++) {
        if (!path_is_folder(path_join(a, u->folder, names.names[i]))) continue;
        (void)map_add(&u->names, names.names[i], u->num_params, NULL);
        *ARENA_PUSH(a, u->params, u->num_params, u->params_capacity) = names.names[i];
    }
    if (!u->num_params) return fail(err, ERR_CORRUPT, "%s: no parameter folders", u->folder);
    name_params(u);
    u->listed = arena_array(a, u->num_params, sizeof *u->listed);
    u->steps = arena_array(a, u->num_params, sizeof *u->steps);
    for (size_t i = 0; i < u->num_params; i++)
        u->steps[i] = (struct ds_number){NAN, SIZE_MAX};
    return OK;
}

/* Checks that every parameter listed in the model's files has a folder. */
static enum status check_params(const struct universal *u, struct error *err)
{
    size_t missing = 0;
    const char *first = NULL;
    for (size_t k = 0; k < u->d->num_stages; k++)
        for (size_t i = 0; i < u->d->stages[k].count; i++)
            if (!map_get(&u->names, u->d->stages[k].items[i].name, &(size_t){0}))
                if (!missing++) first = u->d->stages[k].items[i].name;
    if (!missing) return OK;
    return fail(err, ERR_CORRUPT, "%s: missing folders of %zu parameters listed in %s: %s%s",
                u->folder, missing, u->d->first, first, missing > 1 ? ", ..." : "");
}

static bool has_name(const struct name_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->names[i], name) == 0) return true;
    return false;
}

/* Checks that a folder has the first folder's files: a missing one was lost. */
static enum status check_files_of(const struct universal *u, size_t param,
                                  const struct name_list *files, size_t first,
                                  const struct name_list *of_first, struct error *err)
{
    for (size_t i = 0; i < of_first->count; i++)
        if (text_ends_with(of_first->names[i], ".pt") && !has_name(files, of_first->names[i]))
            return fail(err, ERR_CORRUPT, "%s/%s/%s is missing, but %s has this file", u->folder,
                        u->params[param], of_first->names[i], u->params[first]);
    return OK;
}

static enum status read_params(struct universal *u, struct error *err)
{
    struct arena *a = &u->d->c->arena;
    struct name_list of_first = {0};
    for (size_t i = 0; i < u->num_params; i++) {
        struct name_list files;
        TRY(folder_list(path_join(a, u->folder, u->params[i]), a, &files, err));
        if (i == 0) of_first = files;
        TRY(check_files_of(u, i, &files, 0, &of_first, err));
        TRY(check_files_of(u, 0, &of_first, i, &files, err));
        for (size_t k = 0; k < files.count; k++)
            if (text_ends_with(files.names[k], ".pt") && strlen(files.names[k]) > strlen(".pt"))
                TRY(read_state_file(u, i, files.names[k], err));
        if (!catalog_find_native(&u->d->c->catalog, u->native_names[i], NULL))
            return fail(err, ERR_CORRUPT, "%s/%s: missing fp32.pt with the weight", u->folder,
                        u->params[i]);
    }
    return OK;
}

/* ---- groups ---- */

/* Whether group `number` has list `list` of param_shapes, which is a group, or
 * (stage 3) a sub-group. */
static bool group_has(const struct universal *u, const struct value *group, size_t number,
                      size_t list)
{
    struct value *const *members;
    uint64_t member;
    if (!u->d->partitioned) return list == number;
    for (uint32_t i = 0, n = ds_list(value_get(group, "params"), &members); i < n; i++)
        if (ds_as_count(members[i], &member) && member == list) return true;
    return false;
}

/* Reads the step of a stage 3 universal folder, in rank 0's states. */
static enum status step_of_all(struct universal *u, struct torch_file *t, const struct value *torch,
                               struct error *err)
{
    const struct value *state = value_get(torch, "state");
    struct ds_number step;
    TRY(ds_number_of(t, &u->d->c->catalog.stored, value_get(ds_get_int(state, 0), "step"),
                     "zero/optimizer_state.pt/step", &step, err));
    for (size_t i = 0; i < u->num_params; i++)
        if (u->steps[i].stored == SIZE_MAX && isnan(u->steps[i].value)) u->steps[i] = step;
    return OK;
}

static void add_params_of_group(struct universal *u, const struct ds_params *p,
                                const struct value *group, size_t number)
{
    size_t at;
    for (size_t list = 0; list < p->num_lists; list++)
        for (size_t i = list ? p->ends[list - 1] : 0; i < p->ends[list]; i++) {
            if (!group_has(u, group, number, list) || !map_get(&u->names, p->items[i].name, &at) ||
                u->listed[at])
                continue;
            u->listed[at] = true;
            torch_groups_add_param(u->d->c, u->native_names[at], u->steps[at].value);
        }
}

static enum status add_universal_group(struct universal *u, const struct value *group,
                                       size_t number, struct error *err)
{
    struct value *copy;
    TRY(value_copy(&u->d->c->arena, group, &copy, err));
    TRY(torch_groups_add(u->d->c, copy, NULL, NULL, err));
    for (size_t k = 0; k < u->d->num_stages; k++)
        add_params_of_group(u, &u->d->stages[k], group, number);
    return OK;
}

static enum status read_groups(struct universal *u, struct torch_file *t, struct error *err)
{
    const struct value *torch = value_get(t->root, "optimizer_state_dict");
    struct value *const *groups;
    bool dynamic = false;
    (void)value_as_bool(value_get(t->root, "dynamic_loss_scale"), &dynamic);
    ds_read_loss_scale(u->d->c, value_get(t->root, "loss_scaler"), dynamic);
    if (torch) TRY(step_of_all(u, t, torch, err));
    TRY(ds_numbers_read(&u->d->c->catalog.stored, u->steps, u->num_params, err));
    const struct value *list = value_get(torch, "param_groups");
    const uint32_t n = ds_list(list ? list : value_get(t->root, "param_groups"), &groups);
    for (uint32_t g = 0; g < n; g++)
        TRY(add_universal_group(u, groups[g], g, err));
    return OK;
}

static enum status read_optimizer(struct universal *u, struct error *err)
{
    struct torch_file t;
    const char *path = path_join(&u->d->c->arena, u->folder, "optimizer_state.pt");
    TRY(torch_open(&t, &u->d->c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = read_groups(u, &t, err);
    if (st && !text_starts_with(err->text, path)) st = fail_in(err, "%s", path);
    torch_close(&t);
    return st;
}

static enum status read_universal(struct universal *u, struct error *err)
{
    TRY(list_param_folders(u, err));
    TRY(check_params(u, err));
    TRY(read_params(u, err));
    return read_optimizer(u, err);
}

enum status universal_states_read(struct deepspeed *d, struct error *err)
{
    struct universal u = {.d = d, .folder = path_join(&d->c->arena, d->c->folder, "zero")};
    d->c->training.optimizer.present = true;
    d->c->training.optimizer.kind = "DeepSpeed, universal";
    d->c->training.optimizer.inferred = !d->partitioned;
    enum status st = read_universal(&u, err);
    map_release(&u.names);
    return st;
}
