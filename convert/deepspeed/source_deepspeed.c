/* source_deepspeed.c - opens a DeepSpeed checkpoint: own tensors are the parameters under the names
 * that the model has, from the model's file or (stage 3) from the masters of all ranks, and the
 * states of the optimizer from the ranks' flat vectors, or from the files of a universal folder. */
#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "convert/deepspeed/model_states.h"
#include "convert/deepspeed/universal_states.h"
#include "convert/hf/hf_model.h"

/* ---- what is not read ---- */

static enum status check_kinds(struct deepspeed *d, struct error *err)
{
    const struct checkpoint *c = d->c;
    size_t count;
    const struct ds_file *f = ds_files_of(&d->files, DS_EXPERT, &count);
    if (f)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s and %zu others: experts of DeepSpeed's MoE are not read", c->folder,
                    f->name, count - 1);
    f = ds_files_of(&d->files, DS_LAYER, &count);
    if (f)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: the layers of a pipeline are not read",
                    c->folder, f->name);
    for (size_t i = 0; i < d->files.count; i++)
        if (d->files.items[i].mp)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: %s: parameters that tensor parallel ranks have split are not read: "
                        "nothing says how they are joined",
                        c->folder, d->files.items[i].name);
    if (path_exists(path_join(&d->c->arena, c->folder, "offloaded_tensors")))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: offloaded_tensors: the optimizer was offloaded to NVMe swap files, which "
                    "are not read",
                    c->folder);
    return OK;
}

/* ---- the model ---- */

static enum status check_rank_models(const struct deepspeed *d, const struct ds_file *files,
                                     size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (files[i].dp != i)
            return fail(err, ERR_CORRUPT,
                        "%s: zero_pp_rank_%zu_mp_rank_00_model_states.pt is missing (%zu are "
                        "there): it held parts of frozen parameters, and shapes",
                        d->c->folder, i, count);
    return OK;
}

/* universal: the states are elsewhere. */
static enum status read_models(struct deepspeed *d, bool universal, struct error *err)
{
    size_t count, num_optim;
    const struct ds_file *files = ds_files_of(&d->files, DS_RANK_MODEL, &count);
    (void)ds_files_of(&d->files, DS_OPTIM, &num_optim);
    d->partitioned = files != NULL;
    if (!files) files = ds_files_of(&d->files, DS_MODEL, &count);
    if (!files && universal) return OK;
    if (!files)
        return fail(err, ERR_CORRUPT,
                    "%s: no *model_states.pt, which has the names of the parameters", d->c->folder);
    if (d->partitioned) TRY(check_rank_models(d, files, count, err));
    if (d->partitioned && !num_optim && !universal)
        return fail(err, ERR_CORRUPT,
                    "%s: %s is of stage 3 and holds no weights: the *_optim_states.pt files are "
                    "needed",
                    d->c->folder, files[0].name);
    if (d->partitioned && num_optim != count && !universal)
        return fail(err, ERR_CORRUPT,
                    "%s: %zu *_model_states.pt and %zu *_optim_states.pt; a rank has one of each",
                    d->c->folder, count, num_optim);
    d->num_ranks = count;
    for (size_t i = 0; i < count; i++)
        TRY(model_states_read(d, &files[i], err));
    return d->partitioned ? model_states_add_frozen(d, err) : OK;
}

/* ---- the optimizer ---- */

static enum status read_zero(struct deepspeed *d, struct error *err)
{
    struct checkpoint *c = d->c;
    struct optimizer_info *o = &c->training.optimizer;
    size_t count;
    const struct ds_file *files = ds_files_of(&d->files, DS_OPTIM, &count);
    struct zero_read z = {.c = c,
                          .folder = c->folder,
                          .params = &d->params,
                          .only_states = !d->partitioned};
    if (!files) return OK;
    if (!d->params.count)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s has no param_shapes, without which the optimizer's vectors cannot be "
                    "cut into parameters",
                    c->folder, d->first);
    o->present = true;
    TRY(zero_read_files(&z, files, count, err));
    if ((z.stage == 3) != d->partitioned)
        return fail(err, ERR_CORRUPT,
                    "%s: %s is of stage %" PRId64 " of ZeRO, and %s is not: files of different runs",
                    c->folder, files[0].name, z.stage, d->first);
    o->kind = z.has_stage ? arena_printf(&c->arena, "DeepSpeed ZeRO stage %" PRId64 ", %" PRIu64
                                                    " rank%s", z.stage, z.num_ranks,
                                         z.num_ranks == 1 ? "" : "s")
                          : arena_printf(&c->arena, "DeepSpeed's BF16_Optimizer, %" PRIu64
                                                    " rank%s", z.num_ranks,
                                         z.num_ranks == 1 ? "" : "s");
    o->inferred = z.stage != 3 && (z.aligned || z.other_mappings);
    return zero_read_finish(&z, err);
}

/* ---- all ---- */

static enum status read_checkpoint(struct deepspeed *d, const struct model_maps *maps,
                                   bool universal, struct error *err)
{
    struct checkpoint *c = d->c;
    struct naming_import import;
    TRY(ds_folder_find(&c->arena, c->path, d->o, universal, &c->folder, err));
    TRY(ds_files_list(&c->arena, c->folder, &d->files, err));
    TRY(check_kinds(d, err));
    TRY(read_models(d, universal, err));
    TRY(universal ? universal_states_read(d, err) : read_zero(d, err));
    const char *const folders[] = {c->folder, c->path, path_parent(&c->arena, c->folder), NULL};
    TRY(hf_model_describe(c, d->o, maps, folders, false, &import, err));
    TRY(hf_model_import(&import, err));
    return states_prove(c, err);
}

static enum status open_either(struct checkpoint *c, const struct source_options *o,
                               const struct model_maps *maps, bool universal, struct error *err)
{
    struct deepspeed d = {.c = c, .o = o};
    enum status st = read_checkpoint(&d, maps, universal, err);
    ds_params_release(&d.params);
    ds_params_release(&d.frozen);
    return st;
}

static bool matches_deepspeed(const char *path, const struct source_options *o)
{
    (void)o;
    return ds_folder_matches(path, false);
}

static bool matches_universal(const char *path, const struct source_options *o)
{
    (void)o;
    return ds_folder_matches(path, true);
}

static enum status open_deepspeed(struct checkpoint *c, const struct source_options *o,
                                  const struct model_maps *maps, struct error *err)
{
    return open_either(c, o, maps, false, err);
}

static enum status open_universal(struct checkpoint *c, const struct source_options *o,
                                  const struct model_maps *maps, struct error *err)
{
    return open_either(c, o, maps, true, err);
}

const struct source_kind source_deepspeed = {matches_deepspeed, open_deepspeed},
                         source_deepspeed_universal = {matches_universal, open_universal};
