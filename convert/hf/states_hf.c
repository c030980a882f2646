#include "convert/hf/states_hf.h"

#include <inttypes.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "convert/record.h"
#include "convert/source_kind.h"
#include "convert/states.h"
#include "formats/hf_folder.h"

const char hf_step[] = "step", hf_training_file[] = "training.json";
static const char master[] = "fp32", older_master[] = "master";

const char *hf_state_name(struct arena *a, const char *state, const char *name)
{
    return arena_printf(a, "%s.%s", strcmp(state, master_state) ? state : master, name);
}

/* The parameter's name in a state's name; *state in arena a. NULL: no state's
 * name. */
static const char *parse_state_name(struct arena *a, const char *stored, const char **state)
{
    const char *dot = strchr(stored, '.');
    if (!dot || dot == stored || !dot[1]) return NULL;
    *state = arena_text(a, stored, (size_t)(dot - stored));
    if (strcmp(*state, master) == 0 || strcmp(*state, older_master) == 0) *state = master_state;
    return dot + 1;
}

const char *hf_place_of(struct checkpoint *c, const struct stored_tensor *s)
{
    const char *path = s->num_pieces ? c->catalog.stored.files[s->pieces[0].file].path : c->folder;
    return arena_printf(&c->arena, "%s: tensor %s", path, s->name);
}

/* ---- the state of the training ---- */

/* Notes steps of groups that differ from the optimizer's. */
static void compare_steps(struct checkpoint *c, const char *path)
{
    const struct training *t = &c->training.run;
    for (size_t i = 0; i < t->num_groups; i++)
        if (t->groups[i].step && t->step && t->groups[i].step != t->step)
            checkpoint_note(c,
                            "%s: groups[%zu] has made %" PRIu64 " steps, the optimizer %" PRIu64
                            ": Megatron has one number for all",
                            path, i, t->groups[i].step, t->step);
}

/* Reads training.json. If that fails, the weights are still read. */
static void read_training(struct checkpoint *c)
{
    const char *path = path_join(&c->arena, c->folder, hf_training_file), *unknown = NULL;
    struct error why;
    cJSON *tree = NULL;
    if (!path_exists(path)) return;
    enum status st = json_read_file(path, CONFIG_FILE_CAP, JSON_NAN, &tree, &why);
    if (!st) st = training_from_json(&c->training.run, tree, &c->arena, &unknown, &why);
    if (tree) cJSON_Delete(tree);
    if (st) states_unread(c, "%s: %s", hf_training_file, why.text);
    if (unknown) checkpoint_note(c, "%s: unknown members are not read: %s", path, unknown);
    compare_steps(c, path);
}

static enum status read_step_number(const struct stored *s, const struct stored_tensor *t,
                                    int64_t *out, struct error *err)
{
    struct stored_reader *r = stored_reader_create(s, 1);
    enum status st =
        stored_read(r, t->pieces[0].file, t->pieces[0].offset_bytes, out, sizeof *out, err);
    stored_reader_free(r);
    return st;
}

static enum status step_unread(struct checkpoint *c, const char *why)
{
    c->training.optimizer.present = true;
    states_unread(c, "%s", why);
    return OK;
}

/* The step of the states' file overrides that of training.json. */
static enum status read_step(struct checkpoint *c, const struct stored_tensor *s, struct error *err)
{
    struct arena *a = &c->arena;
    const char *place = hf_place_of(c, s);
    uint64_t *known = &c->training.run.step;
    int64_t step;
    if (s->dtype != DT_I64 || s->num_dims)
        return step_unread(c, arena_printf(a, "%s is %s %s, expected I64 []", place,
                                           dtype_infos[s->dtype].name,
                                           shape_text(a, s->num_dims, s->shape)));
    TRY(read_step_number(&c->catalog.stored, s, &step, err));
    if (step < 0) return step_unread(c, arena_printf(a, "%s is %" PRId64, place, step));
    if (*known && *known != (uint64_t)step)
        checkpoint_note(c, "%s is %" PRId64 " and overrides the step of %s, %" PRIu64, place, step,
                        hf_training_file, *known);
    *known = (uint64_t)step;
    return OK;
}

/* ---- files beside the folder ---- */

/* Whether a tensor of another file is the step, or a state of a parameter of c. */
static bool is_of_model(struct checkpoint *c, const struct stored_tensor *s)
{
    const char *state, *name = parse_state_name(&c->arena, s->name, &state);
    const struct native_tensor *native = name ? catalog_find_native(&c->catalog, name, NULL) : NULL;
    if (strcmp(s->name, hf_step) == 0) return true;
    return native && native->num_dims == s->num_dims &&
           memcmp(native->shape, s->shape, s->num_dims * sizeof *s->shape) == 0;
}

/* Whether a folder has files of states, all of this model; if some are not,
 * why. */
static bool has_our_states(struct checkpoint *c, const char *folder, const char **why)
{
    struct stored s;
    struct error e;
    size_t num_files = 0;
    stored_init(&s);
    if (hf_folder_open_optimizer(&s, folder, &num_files, &e))
        *why = arena_copy_text(&c->arena, e.text);
    for (size_t i = 0; i < s.num_tensors && !*why; i++)
        if (!is_of_model(c, &s.tensors[i]))
            *why =
                arena_printf(&c->arena, "%s: tensor %s is not a state of a parameter of this model",
                             s.files[0].path, s.tensors[i].name);
    stored_release(&s);
    return num_files && !*why;
}

/* Whether states beside a folder are not read: the folder is hidden (staging),
 * or Ferry wrote it; or they belong to a model in the folder above. */
static bool takes_none(struct arena *a, const char *folder, const char *beside)
{
    return path_base(a, folder)[0] == '.' || path_exists(path_join(a, folder, record_name)) ||
           hf_folder_has_weights(beside);
}

static enum status open_beside(struct checkpoint *c, size_t *num_files, struct error *err)
{
    struct arena *a = &c->arena;
    const char *folder = path_real(a, c->folder), *why = NULL;
    if (!folder) return OK;
    const char *beside = path_parent(a, folder);
    if (takes_none(a, folder, beside)) return OK;
    bool ours = has_our_states(c, beside, &why);
    if (why) checkpoint_note(c, "optimizer state beside the folder is not read: %s", why);
    if (!ours) return OK;
    checkpoint_note(c, "optimizer state is read from beside the folder, from %s", beside);
    c->training.optimizer.inferred = true;
    return hf_folder_open_optimizer(&c->catalog.stored, beside, num_files, err);
}

enum status hf_states_prove(struct checkpoint *c, struct error *err)
{
    const struct catalog *all = &c->catalog;
    bool has_master = false;
    for (size_t i = 0; i < all->num_tensors; i++)
        has_master |=
            text_starts_with(all->tensors[i].name, "optimizer.param.") && !all->tensors[i].same_as;
    if (!has_master)
        states_unread(c, "it lies beside the folder, and without master weights nothing shows that "
                         "it belongs to these weights: put it into the folder");
    return states_prove(c, err);
}

/* ---- all ---- */

static enum status add_state_tensor(struct checkpoint *c, size_t stored, struct error *err)
{
    const struct stored_tensor *s = &c->catalog.stored.tensors[stored];
    const char *state, *name = parse_state_name(&c->arena, s->name, &state);
    if (strcmp(s->name, hf_step) == 0) return read_step(c, s, err);
    c->training.optimizer.present = true;
    c->training.optimizer.size_bytes += stored_tensor_bytes(s);
    if (!name)
        states_unread(c, "%s is not named STATE.NAME", hf_place_of(c, s));
    else if (catalog_find_native(&c->catalog, name, state))
        states_unread(c, "%s is a second master weight of %s", hf_place_of(c, s), name);
    else
        return catalog_native_stored(&c->catalog, name, state, s, err);
    return OK;
}

/* Opens the folder's files of states. If that fails, leaves out what they
 * added: the weights are still read. */
static void open_files(struct checkpoint *c, size_t *num_files)
{
    struct stored *s = &c->catalog.stored;
    struct error why;
    const size_t first = s->num_tensors, first_file = s->num_files;
    if (!hf_folder_open_optimizer(s, c->folder, num_files, &why)) return;
    stored_cut(s, first, first_file);
    *num_files = 1;
    c->training.optimizer.present = true;
    c->training.optimizer.kind = "in optimizer.safetensors";
    states_unread(c, "%s", why.text);
}

enum status hf_states_open(struct checkpoint *c, struct error *err)
{
    struct stored *s = &c->catalog.stored;
    const size_t first = s->num_tensors, first_file = s->num_files;
    size_t num_files;
    open_files(c, &num_files);
    if (c->training.optimizer.unread) return OK;
    if (num_files)
        read_training(c);
    else
        TRY(open_beside(c, &num_files, err));
    for (size_t i = first; i < s->num_tensors; i++)
        TRY(add_state_tensor(c, i, err));
    if (num_files)
        c->training.optimizer.kind =
            arena_printf(&c->arena, "in %s%s", path_base(&c->arena, s->files[first_file].path),
                         num_files > 1 ? ", ..." : "");
    return OK;
}
