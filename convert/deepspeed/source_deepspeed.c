/* source_deepspeed.c - opens a DeepSpeed checkpoint. Native tensors are the
 * parameters under the model's names, from the model's file or (stage 3) from
 * all ranks' masters; optimizer states come from the ranks' flat vectors, or
 * from a universal folder's files. */
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "convert/deepspeed/pipeline.h"
#include "convert/deepspeed/universal_states.h"
#include "convert/hf/hf_model.h"

/* ---- what is not read ---- */

/* Whether a universal checkpoint's folders have pipeline names. */
static bool has_pipeline_names(struct deepspeed *d)
{
    struct name_list names = {0};
    uint64_t index;
    const char *local;
    if (folder_list(path_join(&d->c->arena, d->c->folder, "zero"), &d->c->arena, &names, NULL))
        return false;
    for (size_t i = 0; i < names.count; i++)
        if (pipeline_name_parse(names.names[i], &index, &local)) return true;
    return false;
}

/* Counts the ranks that split parameters, without a pipeline. */
static enum status count_ranks(struct deepspeed *d, struct error *err)
{
    size_t count;
    d->tp = 1;
    for (size_t i = 0; i < d->files.count && !d->pipeline; i++) {
        const struct ds_file *f = &d->files.items[i];
        if (!f->mp) continue;
        if (f->kind == DS_RANK_MODEL)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: %s: tensor parallel ranks with ZeRO stage 3 are not supported",
                        d->c->folder, f->name);
        (void)ds_files_of(&d->files, DS_MODEL, &count);
        d->tp = max_u64(count, f->mp + 1);
    }
    d->split = (struct tp_params){.all = &d->c->catalog, .num_ranks = d->tp};
    return OK;
}

static enum status check_kinds(struct deepspeed *d, struct error *err)
{
    const struct checkpoint *c = d->c;
    size_t count;
    const struct ds_file *f = ds_files_of(&d->files, DS_EXPERT, &count);
    if (f)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s and %zu others: experts of DeepSpeed's MoE are not supported",
                    c->folder, f->name, count - 1);
    if (path_exists(path_join(&d->c->arena, c->folder, "offloaded_tensors")))
        return fail(
            err, ERR_UNSUPPORTED,
            "%s: offloaded_tensors: an optimizer offloaded to NVMe swap files is not supported",
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
                        "%s: zero_pp_rank_%zu_mp_rank_00_model_states.pt is missing (%zu exist): "
                        "it held parts of frozen parameters, and shapes",
                        d->c->folder, i, count);
    return OK;
}

static enum status check_stages(const struct deepspeed *d, const struct ds_file *files,
                                size_t count, struct error *err)
{
    const size_t expected = max_u64(count, d->pipeline ? 0 : d->tp);
    for (size_t i = 0; i < expected; i++)
        if (i == count || files[i].mp != i)
            return fail(err, ERR_CORRUPT, "%s: mp_rank_%02zu_model_states.pt is missing",
                        d->c->folder, i);
    return OK;
}

/* Joins the parts of all ranks, and names what is left out of them. */
static enum status join_split(struct deepspeed *d, struct error *err)
{
    TRY(tp_params_join(&d->split, err));
    for (size_t i = 0; i < d->split.count; i++)
        if (d->split.items[i].padding)
            checkpoint_note(d->c, "%s: %" PRIu64 " rows of padding past original_vocab_size",
                            d->split.items[i].name, d->split.items[i].padding);
    return OK;
}

/* Reads the files of mp_ranks, each with its parameters' shapes. */
static enum status read_stages(struct deepspeed *d, const struct ds_file *files, size_t count,
                               struct error *err)
{
    TRY(check_stages(d, files, count, err));
    d->stages = arena_array(&d->c->arena, count, sizeof *d->stages);
    for (; d->num_stages < count; d->num_stages++) {
        TRY(model_states_read(d, &files[d->num_stages], err));
        d->stages[d->num_stages] = d->params;
        d->params = (struct ds_params){0};
    }
    if (ds_is_split(d)) TRY(join_split(d, err));
    for (size_t i = 0; i < (d->pipeline ? 1 : count); i++)
        TRY(model_states_read_optimizer(d, &files[i], err));
    return OK;
}

/* Reads a file per rank, or one for all. */
static enum status read_files(struct deepspeed *d, const struct ds_file *files, size_t count,
                              struct error *err)
{
    d->num_ranks = count;
    d->stages = &d->params;
    d->num_stages = 1;
    for (size_t i = 0; i < count; i++)
        TRY(model_states_read(d, &files[i], err));
    return d->partitioned ? model_states_add_frozen(d, err)
                          : model_states_read_optimizer(d, files, err);
}

/* universal: states are in other files. */
static enum status read_models(struct deepspeed *d, bool universal, struct error *err)
{
    size_t count, num_optim;
    const struct ds_file *files = ds_files_of(&d->files, DS_RANK_MODEL, &count);
    (void)ds_files_of(&d->files, DS_OPTIM, &num_optim);
    d->partitioned = files != NULL;
    if (!files) files = ds_files_of(&d->files, DS_MODEL, &count);
    if (!files && universal) return OK;
    if (!files)
        return fail(err, ERR_CORRUPT, "%s: missing *model_states.pt with the parameters' names",
                    d->c->folder);
    if (d->partitioned && d->pipeline)
        return fail(err, ERR_UNSUPPORTED, "%s: ZeRO stage 3 in a pipeline is not supported",
                    d->c->folder);
    if (d->pipeline || ds_is_split(d)) return read_stages(d, files, count, err);
    if (d->partitioned) TRY(check_rank_models(d, files, count, err));
    if (d->partitioned && !num_optim && !universal)
        return fail(err, ERR_CORRUPT,
                    "%s: %s is of stage 3 and holds no weights; missing *_optim_states.pt files",
                    d->c->folder, files[0].name);
    if (d->partitioned && num_optim != count && !universal)
        return fail(
            err, ERR_CORRUPT,
            "%s: %zu *_model_states.pt and %zu *_optim_states.pt, expected one of each per rank",
            d->c->folder, count, num_optim);
    return read_files(d, files, count, err);
}

/* ---- the optimizer ---- */

static const char *kind_of(struct arena *a, const struct zero_read *z, uint64_t tp)
{
    const char *ranks =
        arena_printf(a, "%" PRIu64 " rank%s", z->num_ranks, z->num_ranks == 1 ? "" : "s");
    if (tp > 1) ranks = arena_printf(a, "%s for each of %" PRIu64 " tensor parallel", ranks, tp);
    return z->has_stage ? arena_printf(a, "DeepSpeed ZeRO stage %" PRId64 ", %s", z->stage, ranks)
                        : arena_printf(a, "DeepSpeed's BF16_Optimizer, %s", ranks);
}

/* Reads the files of one pipeline stage; without a pipeline, of all. */
static enum status read_zero_stage(struct deepspeed *d, size_t stage, const struct ds_file *files,
                                   size_t count, struct zero_read *z, struct error *err)
{
    struct checkpoint *c = d->c;
    struct ds_params *params = &d->stages[stage];
    *z = (struct zero_read){
        .c = c, .folder = c->folder, .params = params, .only_states = !d->partitioned};
    if (!count)
        return fail(err, ERR_CORRUPT, "%s: missing *mp_rank_%02zu_optim_states.pt", c->folder,
                    stage);
    if (!params->count)
        return fail(
            err, ERR_UNSUPPORTED,
            "%s: %s lacks param_shapes, needed to split the optimizer's vectors into parameters",
            c->folder, d->first);
    if (d->pipeline) {
        struct pipeline_rank rank = {d, stage % d->tp};
        z->context = arena_copy(&c->arena, &rank, sizeof rank);
        z->add_run = pipeline_add_run;
    }
    if (ds_is_split(d)) {
        const struct tp_rank rank = {&d->split, stage};
        z->context = arena_copy(&c->arena, &rank, sizeof rank);
        z->add_run = tp_add_run;
    }
    for (size_t i = 0; i < params->count; i++)
        params->items[i].native_name = ds_native_name(d, params->items[i].name);
    TRY(zero_read_files(z, files, count, err));
    if ((z->stage == 3) != d->partitioned)
        return fail(err, ERR_CORRUPT,
                    "%s: %s is of ZeRO stage %" PRId64 ", but %s is not: files of different runs",
                    c->folder, files[0].name, z->stage, d->first);
    c->training.optimizer.kind = kind_of(&c->arena, z, d->tp);
    c->dp = z->num_ranks;
    c->has_zero = z->has_stage;
    c->zero = (unsigned)z->stage;
    /* the model computes with rounded masters; stage 3 has only masters */
    c->training.optimizer.inferred |= z->stage != 3;
    return zero_read_finish(z, err);
}

static enum status read_zero(struct deepspeed *d, struct error *err)
{
    size_t count, at = 0;
    const struct ds_file *files = ds_files_of(&d->files, DS_OPTIM, &count);
    struct zero_read *all = arena_array(&d->c->arena, d->num_stages, sizeof *all);
    if (!files && d->params.count)
        checkpoint_note(d->c,
                        "%s: no *_optim_states.pt: only the weights are read; the optimizer was "
                        "not saved, or its files are missing",
                        d->c->folder);
    if (!files) return OK;
    d->c->training.optimizer.present = true;
    for (size_t k = 0; k < d->num_stages; k++) {
        const size_t first = at;
        while (at < count && files[at].mp == k)
            at++;
        TRY(read_zero_stage(d, k, &files[first], at - first, &all[k], err));
    }
    if (at < count)
        return fail(err, ERR_CORRUPT, "%s: %s without its mp_rank_%02" PRIu64 "_model_states.pt",
                    d->c->folder, files[at].name, files[at].mp);
    return zero_read_add_groups(all, d->num_stages, d->tp, err);
}

/* ---- all ---- */

/* Reads the config first, which says how a pipeline's parameters are split. */
static enum status read_pipeline(struct deepspeed *d, const struct model_maps *maps,
                                 const char *const *folders, bool universal, struct error *err)
{
    struct naming_import import;
    TRY(hf_model_describe(d->c, d->o, maps, folders, true, &import, err));
    TRY(pipeline_count_ranks(d, err));
    TRY(read_models(d, universal, err));
    if (!universal) TRY(pipeline_read_layers(d, err));
    TRY(universal ? universal_states_read(d, err) : read_zero(d, err));
    return pipeline_import(d, &import, err);
}

static enum status read_model(struct deepspeed *d, const struct model_maps *maps,
                              const char *const *folders, bool universal, struct error *err)
{
    struct naming_import import;
    TRY(read_models(d, universal, err));
    TRY(universal ? universal_states_read(d, err) : read_zero(d, err));
    TRY(hf_model_describe(d->c, d->o, maps, folders, false, &import, err));
    return hf_model_import(&import, err);
}

/* universal: parameters have separate files. */
static enum status read_checkpoint(struct deepspeed *d, const struct model_maps *maps,
                                   bool universal, struct error *err)
{
    struct checkpoint *c = d->c;
    size_t num_layers;
    TRY(ds_folder_find(&c->arena, c->path, d->o, universal, &c->folder, err));
    TRY(ds_files_list(&c->arena, c->folder, &d->files, err));
    const char *const folders[] = {c->folder, c->path, path_parent(&c->arena, c->folder), NULL};
    d->pipeline =
        ds_files_of(&d->files, DS_LAYER, &num_layers) || (universal && has_pipeline_names(d));
    TRY(check_kinds(d, err));
    TRY(count_ranks(d, err));
    if (universal && !ds_files_of(&d->files, DS_MODEL, &num_layers) &&
        !ds_files_of(&d->files, DS_RANK_MODEL, &num_layers))
        return fail(
            err, ERR_CORRUPT,
            "%s: missing *_model_states.pt with the parameters' order and the weights' dtype",
            c->folder);
    TRY(d->pipeline ? read_pipeline(d, maps, folders, universal, err)
                    : read_model(d, maps, folders, universal, err));
    return states_prove(c, err);
}

static enum status open_either(struct checkpoint *c, const struct source_options *o,
                               const struct model_maps *maps, bool universal, struct error *err)
{
    struct deepspeed d = {.c = c, .o = o};
    enum status st = read_checkpoint(&d, maps, universal, err);
    for (size_t k = 0; k < d.num_stages && d.stages != &d.params; k++)
        ds_params_release(&d.stages[k]);
    ds_params_release(&d.params);
    ds_params_release(&d.frozen);
    tp_params_release(&d.split);
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
