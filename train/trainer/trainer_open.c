/* trainer_open.c - a run's model, and its state at the start. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/megatron/config_difference.h"
#include "convert/megatron/megatron_args.h"
#include "convert/megatron/optim/rng_read.h"
#include "convert/megatron/optim/rng_states.h"
#include "train/model/builder.h"
#include "train/model/unused.h"
#include "train/schedule/schedule.h"
#include "train/trainer/initial_weights.h"
#include "train/trainer/trainer_internal.h"

static void print_line(const char *kind, const char *fmt, va_list args)
{
    (void)fprintf(stderr, "%s: ", kind);
    (void)vfprintf(stderr, fmt, args);
    (void)fputc('\n', stderr);
}

void trainer_note(const struct trainer *t, const char *fmt, ...)
{
    va_list args;
    if (t->o->quiet || t->comm.rank) return;
    progress_hide(t->progress);
    va_start(args, fmt);
    print_line("note", fmt, args);
    va_end(args);
}

void trainer_warn(const struct trainer *t, const char *fmt, ...)
{
    va_list args;
    if (t->comm.rank) return;
    progress_hide(t->progress);
    va_start(args, fmt);
    print_line("warning", fmt, args);
    va_end(args);
}

/* ---- which checkpoint ---- */

static bool loads_from_save(const struct train_options *o)
{
    return o->load && o->save && strcmp(o->load, o->save) == 0;
}

/* --finetune and --no-load-optim apply to --load; a run that resumes has
 * applied them already. */
static bool is_start(const struct trainer *t)
{
    return !t->resumes || loads_from_save(t->o);
}

/* Whether the optimizer of the checkpoint is left out. */
static bool starts_anew(const struct trainer *t)
{
    return is_start(t) && (t->o->finetune || t->o->no_load_optim);
}

/* --ckpt-step must match: a Hugging Face folder is one iteration, or none. */
static enum status check_step(const struct train_options *o, const struct checkpoint_found *f,
                              struct error *err)
{
    if (o->ckpt_step == UINT64_MAX || f->iteration == (int64_t)o->ckpt_step) return OK;
    return fail(err, ERR_USAGE, "--load %s: --ckpt-step %" PRIu64 " does not apply to %s", o->load,
                o->ckpt_step,
                f->iteration < 0 ? "a model without iterations" : "a single iteration");
}

/* Refuses to write iterations into a model or an iteration. */
static enum status check_save(struct trainer *t, const struct checkpoint_found *f,
                              struct error *err)
{
    const char *save = t->o->save;
    if (!f->found || !path_is_folder(save) ||
        !text_equal(path_real(&t->arena, f->path), path_real(&t->arena, save)))
        return OK;
    return fail(err, ERR_EXISTS, "--save %s is %s, not a folder of checkpoints", save,
                f->iteration < 0 ? "a model" : "an iteration");
}

/* Whether the run is the first of a script that names one folder for --load and
 * --save: it is absent or empty, and the line has a model. Megatron-LM then
 * begins with random weights, too (megatron/training/checkpointing.py). */
static bool is_first_run(struct trainer *t)
{
    const struct train_options *o = t->o;
    struct name_list list;
    struct error ignored;
    if (!loads_from_save(o) || o->exit_on_missing_checkpoint || o->ckpt_step != UINT64_MAX)
        return false;
    if (!o->has_model && !o->hf_config) return false;
    if (!path_exists(o->load)) return true;
    return path_is_folder(o->load) && !folder_list(o->load, &t->arena, &list, &ignored) &&
           !list.count;
}

/* A run resumes from its own checkpoint, else starts from --load. */
static enum status find_start(struct trainer *t, struct checkpoint_found *f, struct error *err)
{
    const struct train_options *o = t->o;
    const bool same = loads_from_save(o), has_step = o->ckpt_step != UINT64_MAX;
    *f = (struct checkpoint_found){0};
    if (o->save) TRY(checkpoint_find(f, o->save, false, 0, &t->arena, err));
    TRY(check_save(t, f, err));
    t->resumes = f->found && f->iteration >= 0 && !(same && o->finetune);
    if (t->resumes && !same)
        trainer_note(t, "the run resumes from %s, iteration %" PRId64, f->path, f->iteration);
    if (t->resumes && !(same && has_step)) return OK;
    f->found = false;
    if (!o->load) return OK;
    if (is_first_run(t)) {
        trainer_warn(t, "--load %s has no checkpoint: the run begins with random weights", o->load);
        return OK;
    }
    TRY(checkpoint_find_to_load(f, o->load, has_step, o->ckpt_step, &t->arena, err));
    return check_step(o, f, err);
}

static enum status open_found(struct trainer *t, const struct checkpoint_found *f,
                              struct error *err)
{
    struct source_options source = t->q->source;
    if (!source.hf_config) source.hf_config = t->o->hf_config;
    TRY(opened_open(&t->opened, f->path, &source, t->q->model_map, false,
                    t->o->quiet || t->comm.rank, err));
    t->is_open = true;
    t->origin = &t->opened.checkpoint;
    TRY(source_check_computes(t->origin, err));
    return unused_check(t->origin, err);
}

/* ---- a model without a checkpoint ---- */

/* Reads the model of a config.json; c has no tensors. */
static enum status read_hf_config(const struct trainer *t, const struct model_maps *maps,
                                  struct checkpoint *c, const struct model_map **map,
                                  struct error *err)
{
    cJSON *tree;
    TRY(hf_config_read(t->o->hf_config, &tree, err));
    enum status st = source_choose_map(&t->q->source, maps, tree, map, err);
    struct unknown_of unknown = {.c = c, .o = &t->q->source, .file = "config.json"};
    if (!st) source_settle_config(&unknown, *map, tree);
    if (!st) st = model_config_from_hf(*map, tree, &c->arena, &c->config, err);
    if (!st) model_config_unknown(*map, tree, source_list_unknown, &unknown);
    if (!st) st = source_check_listed(&unknown, err);
    if (!st) st = source_check_spellings(c, "trains", err);
    cJSON_Delete(tree);
    if (st) return fail_in(err, "%s", t->o->hf_config);
    c->config_origin = CONFIG_OF_JSON;
    return OK;
}

static enum status scratch_of_hf(struct trainer *t, struct error *err)
{
    struct checkpoint *c = &t->scratch;
    const struct model_map *map;
    c->path = t->o->hf_config;
    TRY(read_hf_config(t, &t->opened.maps, c, &map, err));
    TRY(source_check_computes(c, err));
    source_note_unused(c, &t->q->source);
    for (size_t i = 0; i < c->notes.count; i++)
        trainer_note(t, "%s", c->notes.lines[i]);
    c->family = model_map_family(map);
    c->hf_folder = t->o->hf_config;
    params_use(c, &t->opened.maps, map);
    return OK;
}

static enum status scratch_of_line(struct trainer *t, struct error *err)
{
    struct checkpoint *c = &t->scratch;
    c->config = t->o->model;
    if (!c->config.vocab_size) c->config.vocab_size = t->o->vocab_size;
    if (!c->config.vocab_size)
        return fail(err, ERR_USAGE, "--vocab-size is needed to train a model from scratch");
    const struct model_map *map = model_fit(&t->opened.maps, &c->config);
    c->family = map ? model_map_family(map) : NULL;
    c->config_origin = CONFIG_OF_ARGS;
    params_use(c, &t->opened.maps, map);
    return OK;
}

static enum status make_scratch(struct trainer *t, struct error *err)
{
    TRY(model_maps_load(&t->opened.maps, t->q->model_map, err));
    t->is_open = true;
    checkpoint_init(&t->opened.checkpoint, "");
    checkpoint_init(&t->scratch, "");
    t->origin = &t->scratch;
    if (t->o->hf_config) return scratch_of_hf(t, err);
    return scratch_of_line(t, err);
}

/* ---- a run that resumes, and the model of its line ---- */

static bool has_learned_positions(const struct model_config *c)
{
    return text_equal(c->position_embedding_type, "learned_absolute");
}

/* Whether a checkpoint's config says a field: a config.json has no words for
 * most options of routers. */
static bool is_said(const struct checkpoint *c, const struct config_difference *d)
{
    const bool of_router =
        text_starts_with(d->field, "moe_router_") && strcmp(d->field, "moe_router_topk") != 0;
    return strcmp(d->values[0], "not given") && !(c->config_origin == CONFIG_OF_JSON && of_router);
}

/* Finds the first field in which two models compute differently, or differ in
 * shape. allowed: not those whose names match, or that a does not say; may be
 * NULL. */
static bool find_difference(const struct checkpoint *a, const struct checkpoint *b,
                            const struct arg_list *allowed, struct arena *arena,
                            struct config_difference *out)
{
    const struct checkpoint x = {.config = a->config, .config_origin = a->config_origin},
                            y = {.config = b->config, .config_origin = b->config_origin};
    struct config_difference *all;
    *out = (struct config_difference){.field = NULL};
    const size_t count = config_differences(&x, &y, arena, &all);
    for (size_t i = 0; i < count && all[i].effect == EFFECT_COMPUTES; i++)
        if (!allowed || (is_said(a, &all[i]) && !globs_match(allowed, all[i].field))) {
            *out = all[i];
            return true;
        }
    if (x.config.vocab_size && y.config.vocab_size && x.config.vocab_size != y.config.vocab_size)
        out->field = "vocab_size";
    else if (has_learned_positions(&x.config) && x.config.max_position_embeddings &&
             y.config.max_position_embeddings &&
             x.config.max_position_embeddings != y.config.max_position_embeddings)
        out->field = "max_position_embeddings";
    if (!out->field) return false;
    out->values[0] = model_config_text(&x.config, out->field, arena);
    out->values[1] = model_config_text(&y.config, out->field, arena);
    return true;
}

/* start: the words of the line that name the model. */
static enum status check_same(struct trainer *t, const struct checkpoint *own,
                              const struct checkpoint *named, const char *start, struct error *err)
{
    struct config_difference d;
    if (!find_difference(own, named, NULL, &t->arena, &d)) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "--save %s has a run of another model than %s: %s is %s in --save, %s in %s",
                t->o->save, start, d.field, d.values[0], d.values[1], start);
}

/* Checks the model of --load by its headers. A removed --load is ignored; so is
 * its model if the line has one. */
static enum status check_load(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct source_options source = t->q->source;
    struct checkpoint_found f;
    struct opened start;
    const bool has_step = o->ckpt_step != UINT64_MAX;
    if (!source.hf_config) source.hf_config = o->hf_config;
    enum status st = checkpoint_find(&f, o->load, has_step, o->ckpt_step, &t->arena, err);
    if (st == ERR_IO || (!st && !f.found)) {
        trainer_note(t, "--load %s no longer has a model; the run resumes from --save %s", o->load,
                     o->save);
        return OK;
    }
    if (st) return st;
    st = opened_open(&start, f.path, &source, t->q->model_map, false, true, err);
    if (!st && !o->has_model)
        st = check_same(t, t->origin, &start.checkpoint,
                        arena_printf(&t->arena, "--load %s", o->load), err);
    opened_close(&start);
    return st;
}

/* Opens the checkpoint without --hf-config, which would replace its own config. */
static enum status check_hf_config(struct trainer *t, const char *path, struct error *err)
{
    struct error without;
    struct opened own;
    struct checkpoint named;
    const struct model_map *map;
    enum status st = opened_open(&own, path, &t->q->source, t->q->model_map, false, true, &without);
    if (st) { /* it needs --hf-config, or open_found() reports the failure */
        opened_close(&own);
        return OK;
    }
    checkpoint_init(&named, "");
    st = read_hf_config(t, &own.maps, &named, &map, err);
    if (!st)
        st = check_same(t, &own.checkpoint, &named,
                        arena_printf(&t->arena, "--hf-config %s", t->o->hf_config), err);
    checkpoint_release(&named);
    opened_close(&own);
    return st;
}

static enum status check_line(struct trainer *t, struct error *err)
{
    const struct checkpoint line = {.config = t->o->model, .config_origin = CONFIG_OF_ARGS};
    return check_same(t, t->origin, &line, "the command line", err);
}

/* Opens the run's own checkpoint. The line must have the same model. */
static enum status open_own(struct trainer *t, const struct checkpoint_found *f, struct error *err)
{
    const struct train_options *o = t->o;
    if (o->hf_config) TRY(check_hf_config(t, f->path, err));
    TRY(open_found(t, f, err));
    if (o->load && !loads_from_save(o)) TRY(check_load(t, err));
    return o->has_model ? check_line(t, err) : OK;
}

/* ---- the model ---- */

/* Padding stored in a Megatron checkpoint, or added by the line, is trained. */
static void count_vocabulary(struct trainer *t, struct model_config *c)
{
    static const char name[] = "embedding.word_embeddings.weight";
    const struct tensor *words = catalog_find(&t->origin->catalog, name);
    const struct tensor *padding =
        catalog_find(&t->origin->catalog, arena_printf(&t->arena, "%s.padding", name));
    if (words) c->vocab_size = words->shape[0];
    if (t->q->watch) return;
    if (padding) t->vocab_rows = c->vocab_size + padding->shape[0];
    if (padding || !t->o->has_model) return;
    const uint64_t tp = t->o->layout.tp ? t->o->layout.tp : 1;
    const uint64_t given = t->o->model.padded_vocab_size;
    const uint64_t by = t->o->make_vocab_size_divisible_by;
    t->vocab_rows = given ? given : padded_vocab_size(c->vocab_size, by ? by : 128, tp);
}

static struct model_options model_options_of(struct trainer *t, struct model_config *config)
{
    *config = t->o->has_model ? t->o->model : t->origin->config;
    config->vocab_size = t->origin->config.vocab_size;
    count_vocabulary(t, config);
    return (struct model_options){.layout = t->o->layout,
                                  .sequence_parallel = t->o->sequence_parallel,
                                  .config = config,
                                  .elem = elem_of(t->o->dtype)};
}

/* All rows of a Megatron checkpoint may be vocabulary if its true size is not
 * known. */
static enum status check_vocabulary(const struct trainer *t, const struct model_config *config,
                                    struct error *err)
{
    const struct train_options *o = t->o;
    const uint64_t known = t->origin->config.vocab_size, rows = config->vocab_size;
    if (o->vocab_size && (known ? o->vocab_size != known : o->vocab_size > rows))
        return fail(err, ERR_UNSUPPORTED,
                    "--vocab-size %" PRIu64 ": the vocabulary of %s has %" PRIu64 " tokens",
                    o->vocab_size, t->origin->path, known ? known : rows);
    if (t->vocab_rows && t->vocab_rows < rows)
        return fail(err, ERR_UNSUPPORTED,
                    "--padded-vocab-size %" PRIu64 ": the vocabulary of %s has %" PRIu64 " tokens",
                    t->vocab_rows, t->origin->path, rows);
    return OK;
}

enum status trainer_check_line(const struct trainer *t, struct error *err)
{
    if (!t->o->has_model || t->origin == &t->scratch) return OK;
    return unused_check_line(t->origin, &t->model.config, err);
}

static void note_dropout(const struct trainer *t)
{
    const struct train_options *o = t->o;
    if (o->has_model || (o->is_hidden_dropout_given && o->is_attention_dropout_given)) return;
    trainer_note(t, "the folder describes the model: %s 0 unless given",
                 o->is_hidden_dropout_given      ? "--attention-dropout is"
                 : o->is_attention_dropout_given ? "--hidden-dropout is"
                                                 : "--hidden-dropout and --attention-dropout are");
}

static void note_vocabulary(const struct trainer *t)
{
    if (trainer_saves_layout(t) || !(t->o->save || t->o->save_hf)) return;
    trainer_note(t,
                 "saving checkpoints as TP1: TP%u does not divide the %" PRIu64
                 " rows of the vocabulary, and stored padding rows would count in the softmax",
                 t->model.groups.sizes.tp,
                 t->vocab_rows ? t->vocab_rows : t->model.config.vocab_size);
}

/* Whether --device or --distributed-backend selects the CPU. */
static bool wants_cpu(const struct train_options *o)
{
    if (o->device) return strcmp(o->device, "cpu") == 0;
    return o->distributed_backend && strcmp(o->distributed_backend, "gloo") == 0;
}

/* Assigns the GPUs of a host to its ranks in turn. */
static enum status open_gpu(struct trainer *t, const struct device **device, struct error *err)
{
    TRY(cuda_device_load(device, err));
    TRY((*device)->open(t->comm.host_rank, err));
    t->on_gpu = true;
    return OK;
}

/* Without --device all ranks use CPUs if one has no GPU. */
static enum status choose_gpu(struct trainer *t, const struct device **device, bool *chosen,
                              struct error *err)
{
    struct error why;
    enum status st = open_gpu(t, device, &why);
    bool lacks = st != OK;
    *chosen = false;
    if (st && t->o->device) {
        *err = why;
        return st;
    }
    if (t->comm.size > 1) TRY(trainer_any_rank(t, &lacks, err));
    *chosen = !lacks;
    if (lacks && !st) {
        (*device)->close();
        t->on_gpu = false;
    }
    return OK;
}

static enum status open_device(struct trainer *t, const struct device **device, struct error *err)
{
    bool on_gpu = false;
    if (!wants_cpu(t->o)) TRY(choose_gpu(t, device, &on_gpu, err));
    if (!on_gpu) {
        *device = &cpu_device;
        TRY((*device)->open(t->comm.host_rank, err));
    }
    t->has_device = true;
    return OK;
}

static bool has_states(const struct checkpoint *c, const char *kind)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        if (text_starts_with(c->catalog.tensors[i].name, kind)) return true;
    return false;
}

/* The optimizer of the checkpoint's states, or of hidden matrices': "adam",
 * "muon"; NULL: not known. */
static const char *stored_optimizer(const struct checkpoint *c)
{
    const struct training *run = &c->training.run;
    if (!c->training.optimizer.present || c->training.optimizer.unread) return NULL;
    if (text_equal(run->optimizer, "adam") || text_equal(run->optimizer, "sgd") ||
        training_is_split(run))
        return run->optimizer;
    if (has_states(c, "optimizer.exp_avg_sq.")) return "adam";
    return has_states(c, "optimizer.exp_avg.") ? "lion" : NULL;
}

/* Megatron-LM's own check compares a few sizes only
 * (megatron/training/checkpointing.py:check_checkpoint_args). */
static enum status check_start(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct checkpoint line = {.config = o->model, .config_origin = CONFIG_OF_ARGS};
    line.config.vocab_size = 0; /* check_vocabulary() does that */
    const char *optimizer = starts_anew(t) ? NULL : stored_optimizer(t->origin);
    struct config_difference d;
    if (o->has_model && find_difference(t->origin, &line, &o->allow_mismatch, &t->arena, &d))
        return fail(err, ERR_UNSUPPORTED,
                    "--load %s has another model than the command line: %s is %s in --load, %s in "
                    "the command line; --allow-mismatch %s goes on with the command line's",
                    o->load, d.field, d.values[0], d.values[1], d.field);
    if (optimizer && strcmp(optimizer, o->optimizer) &&
        !globs_match(&o->allow_mismatch, "optimizer"))
        return fail(
            err, ERR_UNSUPPORTED,
            "--load %s has states of %s, but --optimizer is %s: --no-load-optim leaves them "
            "out, --allow-mismatch optimizer takes what fits",
            o->load, optimizer, o->optimizer);
    return OK;
}

static enum status open_start(struct trainer *t, const struct checkpoint_found *f,
                              struct error *err)
{
    if (!f->found) return make_scratch(t, err);
    if (t->resumes) return open_own(t, f, err);
    TRY(open_found(t, f, err));
    return check_start(t, err);
}

/* Checks what one process can tell of a run of several ranks before it forks
 * them: else each rank fails, and the first to do so is named. */
static enum status check_before_ranks(struct trainer *t, const struct model_options *m,
                                      struct error *err)
{
    const struct train_options *o = t->o;
    const struct group_sizes sizes = model_group_sizes(m);
    const uint64_t batch = o->micro_batch_size * trainer_dp(t);
    struct layout layout;
    TRY(layout_make(&layout, &t->arena, &m->layout, m->config, err));
    TRY(builder_check_model(m->config, &sizes, true, err));
    if (layout.vpp < 2 || o->num_batch_size_steps || !batch || o->global_batch_size % batch ||
        text_equal(o->pipeline_schedule, schedule_name(SCHEDULE_ONE_BY_ONE)))
        return OK;
    const struct schedule_shape shape = {.kind = SCHEDULE_INTERLEAVED,
                                         .ranks = (unsigned)layout.pp,
                                         .chunks = (unsigned)layout.vpp,
                                         .micro_batches = o->global_batch_size / batch,
                                         .group = (unsigned)o->microbatch_group_size};
    return schedule_check(&shape, err);
}

enum status trainer_open_model(struct trainer *t, struct error *err)
{
    struct checkpoint_found f;
    TRY(find_start(t, &f, err));
    if (f.note) trainer_note(t, "%s", f.note);
    TRY(open_start(t, &f, err));
    struct model_config *config = arena_array(&t->arena, 1, sizeof *config);
    struct model_options options = model_options_of(t, config);
    if (f.found) TRY(check_vocabulary(t, config, err));
    TRY(check_before_ranks(t, &options, err));
    TRY(trainer_open_ranks(t, err));
    TRY(open_device(t, &options.device, err));
    const struct checkpoint *c = f.found ? t->origin : NULL;
    if (t->comm.backend)
        TRY(model_open(&t->model, c, &options, &t->comm, err));
    else
        TRY(model_simulate(&t->model, c, &options, 0, err));
    note_dropout(t);
    note_vocabulary(t);
    return OK;
}

/* ---- weights and states ---- */

static enum dtype real_dtype(const struct trainer *t)
{
    return t->model.options.elem == ELEM_F64 ? DT_F64 : DT_F32;
}

/* The class of values in each region. */
static const enum value_class classes[NUM_HELD] = {
    [HELD_WEIGHT] = VALUE_PARAMETER,
    [HELD_MASTER] = VALUE_MASTER,
    [HELD_EXP_AVG] = VALUE_MOMENT_1,
    [HELD_EXP_AVG_SQ] = VALUE_MOMENT_2,
};

uint64_t trainer_region_bytes(const struct step *s, enum held_kind kind)
{
    return s->region_bytes[classes[kind]];
}

/* Region k on the host: the CPU's own region, or memory for a copy of the
 * device's. */
static void *host_region(const struct trainer *t, unsigned k)
{
    if (t->model.device->is_host) return t->step.regions[classes[k]];
    return t->copies[k] ? t->copies[k] : calloc(1, t->step.region_bytes[classes[k]]);
}

static enum status host_regions(struct trainer *t, struct train_state *s, struct error *err)
{
    for (unsigned k = 0; k < NUM_HELD; k++) {
        const uint64_t bytes = t->step.region_bytes[classes[k]];
        s->dtype[k] = k == HELD_WEIGHT ? elem_dtype(t->model.options.elem) : real_dtype(t);
        if (!bytes) continue;
        s->data[k] = host_region(t, k);
        if (!s->data[k])
            return fail(err, ERR_MEMORY, "no memory for a copy of the run's state (%.2f GB)",
                        (double)bytes / 1e9);
    }
    return OK;
}

enum status trainer_state_begin(struct trainer *t, struct train_state *s, bool download,
                                struct error *err)
{
    *s = (struct train_state){.parameters = &t->model.parameters,
                              .padded_rows = t->vocab_rows,
                              .config = &t->model.config,
                              .origin = t->origin,
                              .rng = t->rng,
                              .num_rng = t->num_rng,
                              .seed = t->o->seed,
                              .no_rng = t->o->no_save_rng,
                              .on_host = text_equal(t->o->distributed_backend, "gloo"),
                              .distributed_optimizer = t->o->use_distributed_optimizer};
    if (t->step.shard.is_sharded) s->shard = &t->step.shard;
    if (t->ranks) {
        s->layout = t->model.layout.options;
        if (!trainer_saves_layout(t)) s->layout.tp = s->layout.etp = 1;
        s->ranks = t->ranks;
        s->world = &t->model.groups.of[GROUP_WORLD];
    }
    const char *spec = t->o->transformer_impl;
    s->local_spec = spec ? strcmp(spec, "local") == 0
                         : t->origin->format && t->origin->format != &format_hf &&
                               !t->origin->transformer_engine_names;
    s->grouped_gemm =
        !s->local_spec && (t->o->moe_grouped_gemm ||
                           args_have_grouped_gemm(value_get(t->origin->training.common, "args")));
    TRY(host_regions(t, s, err));
    for (unsigned k = 0; k < NUM_HELD && download && !t->model.device->is_host; k++)
        if (s->data[k])
            TRY(t->model.device->download(s->data[k], t->step.regions[classes[k]],
                                          t->step.region_bytes[classes[k]], err));
    return OK;
}

enum status trainer_state_end(struct trainer *t, struct train_state *s, bool upload,
                              struct error *err)
{
    enum status st = OK;
    for (unsigned k = 0; k < NUM_HELD && !t->model.device->is_host; k++) {
        if (upload && s->data[k] && !st)
            st = t->model.device->upload(t->step.regions[classes[k]], s->data[k],
                                         t->step.region_bytes[classes[k]], err);
        if (s->data[k] != t->copies[k]) free(s->data[k]);
    }
    return st;
}

static enum status fill_regions(struct trainer *t, const struct train_state *s,
                                struct checkpoint_loaded *loaded, struct error *err)
{
    const struct train_options *o = t->o;
    const struct initial_weights initial = {
        .std = o->init_method_std,
        .embedding_std = o->embedding_init_method_std,
        .padding = t->origin == &t->scratch ? NAN : o->padding_rows_value,
        .seed = o->seed,
        .padding_only = t->origin != &t->scratch};
    training_init(&loaded->training);
    /* Padding rows that a checkpoint lacks keep these values. */
    if (t->origin == &t->scratch || t->vocab_rows > t->model.config.vocab_size)
        TRY(initial_weights_make(&t->model.parameters, &t->model.config, &initial,
                                 s->data[HELD_WEIGHT], err));
    if (t->origin == &t->scratch) return OK;
    const struct checkpoint_load_options options = {
        .load = {.threads = trainer_threads(t),
                 .progress = t->comm.rank ? PROGRESS_NONE : t->q->progress},
        .no_optimizer = starts_anew(t),
        .allow_shifted = t->o->allow_shifted};
    return checkpoint_load(s, t->origin, &options, loaded, &t->arena, err);
}

/* Why states of random number generators start anew; NULL: they are kept, if
 * any. */
static const char *why_new_rng(struct trainer *t)
{
    const struct layout *from = &t->origin->layout;
    const struct layout_options *to = &t->o->layout;
    const struct value *args = value_get(t->origin->training.common, "args");
    int64_t dp = 1;
    (void)value_as_int(value_get(args, "data_parallel_size"), &dp);
    const uint64_t had[] = {from->tp, from->pp, (uint64_t)dp}, has[] = {to->tp, to->pp, to->dp};
    for (size_t i = 0; i < COUNT(had); i++)
        if (had[i] != (has[i] ? has[i] : 1))
            return arena_printf(&t->arena,
                                "the checkpoint has TP%" PRIu64 " PP%" PRIu64 " DP%" PRIu64, had[0],
                                had[1], had[2]);
    return NULL;
}

/* Why states that were read are not kept; NULL: they are. */
static const char *why_other_rng(const struct trainer *t, bool on_host)
{
    for (size_t i = 0; i < t->num_rng; i++)
        if (!rng_states_fit(&t->rng[i], on_host))
            return on_host ? "the checkpoint's are not from a host without GPUs "
                             "(--distributed-backend gloo)"
                           : "the checkpoint's are not from a GPU (--distributed-backend nccl)";
    return NULL;
}

/* Keeps the states for Megatron-LM; this program draws none of these numbers. */
static enum status keep_rng(struct trainer *t, bool on_host, struct error *err)
{
    const struct train_options *o = t->o;
    const bool starts = is_start(t) && (o->finetune || o->no_load_rng);
    if (!t->origin->training.run.has_rng || starts || o->no_save_rng) return OK;
    const char *why = why_new_rng(t);
    if (!why) TRY(rng_states_read(t->origin, &t->rng, &t->num_rng, &why, &t->arena, err));
    if (!why) why = why_other_rng(t, on_host);
    if (!why) return OK;
    t->num_rng = 0;
    trainer_note(t, "states of random number generators are made from --seed: %s", why);
    return OK;
}

enum status trainer_load(struct trainer *t, struct checkpoint_loaded *loaded, struct error *err)
{
    struct train_state s;
    struct error ignored;
    *loaded = (struct checkpoint_loaded){0};
    enum status st = trainer_state_begin(t, &s, false, err);
    if (!st) st = fill_regions(t, &s, loaded, err);
    if (st)
        (void)!trainer_state_end(t, &s, false, &ignored);
    else
        st = trainer_state_end(t, &s, true, err);
    if (st) return st;
    TRY(keep_rng(t, s.on_host, err));
    if (loaded->note && !starts_anew(t)) trainer_note(t, "%s", loaded->note);
    if (loaded->num_left)
        trainer_note(t,
                     "%" PRIu64 " scales and the like of encoded weights are not saved with the "
                     "run: `ferry convert --export-weight-dtype` encodes its weights anew",
                     loaded->num_left);
    return step_begin(&t->step, t->origin != &t->scratch, err);
}

/* ---- weights for a watching caller ---- */

/* There is one rank, so its part of a tensor is the whole tensor. */
static enum status show_parameter(const struct trainer *t, const struct parameter *x,
                                  const struct train_state *s, bool trained, struct error *err)
{
    const struct train_watch *watch = t->q->watch;
    const unsigned k = s->data[HELD_MASTER] ? HELD_MASTER : HELD_WEIGHT;
    const uint64_t bytes = dtype_bytes(s->dtype[k]), numel = x->numel / x->num_tensors,
                   first = x->offset / dtype_bytes(s->dtype[HELD_WEIGHT]);
    for (uint64_t i = 0; i < x->num_tensors; i++) {
        const struct watched_weight w = {.name = x->tensors[i],
                                         .dtype = s->dtype[k],
                                         .numel = numel,
                                         .elements = (const char *)s->data[k] +
                                                     (first + i * numel) * bytes};
        TRY(watch->weight(watch->context, &w, trained, err));
    }
    return OK;
}

enum status trainer_show_weights(struct trainer *t, bool trained, struct error *err)
{
    struct train_state s;
    struct error ignored;
    enum status st = trainer_state_begin(t, &s, true, err);
    for (size_t i = 0; !st && i < t->model.parameters.count; i++)
        if (parameter_is_trained(&t->model.parameters.items[i]))
            st = show_parameter(t, &t->model.parameters.items[i], &s, trained, err);
    (void)!trainer_state_end(t, &s, false, &ignored);
    return st;
}

/* ---- constants of the optimizer ---- */

/* Sets one constant to the parameter groups' value, which must be in [0,
 * limit), if they have it. at: its offset in struct param_group. */
static enum status find_constant(const struct trainer *t, const char *option, size_t at,
                                 double limit, double *value, struct error *err)
{
    const struct training *run = &t->origin->training.run;
    double own = NAN;
    for (size_t i = 0; i < run->num_groups; i++) {
        const double x = *(const double *)((const char *)&run->groups[i] + at);
        if (isnan(x)) continue;
        if (!isnan(own) && own != x)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: parameter groups have different values of %s, %g and %g",
                        t->origin->path, option, own, x);
        own = x;
    }
    if (isnan(own) || own == *value) return OK;
    if (!(own >= 0 && own < limit))
        return fail(err, ERR_CORRUPT, "%s: a parameter group has %g as %s, out of range",
                    t->origin->path, own, option);
    trainer_note(t, "%s is %g, from the checkpoint whose optimizer resumes, not %g", option, own,
                 *value);
    *value = own;
    return OK;
}

enum status trainer_find_constants(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct optimizer_constants *c = &t->constants;
    *c = (struct optimizer_constants){o->adam_beta1, o->adam_beta2, o->adam_eps, o->sgd_momentum};
    if (t->origin == &t->scratch || !t->origin->training.optimizer.present || starts_anew(t))
        return OK;
    if (strcmp(o->optimizer, "sgd") == 0)
        return find_constant(t, "--sgd-momentum", offsetof(struct param_group, momentum), INFINITY,
                             &c->momentum, err);
    TRY(find_constant(t, "--adam-beta1", offsetof(struct param_group, beta1), 1, &c->beta1, err));
    TRY(find_constant(t, "--adam-beta2", offsetof(struct param_group, beta2), 1, &c->beta2, err));
    return find_constant(t, "--adam-eps", offsetof(struct param_group, eps), INFINITY, &c->eps,
                         err);
}

/* ---- schedules and counters ---- */

static enum status start_schedule(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    const struct lr_lengths lengths = {
        .train_iters = o->train_samples ? 0 : o->train_iters,
        .train_samples = o->train_samples,
        .decay_iters = o->lr_decay_iters,
        .decay_samples = o->lr_decay_samples,
        .warmup_iters = o->lr_warmup_iters,
        .warmup_samples = o->lr_warmup_samples,
        .warmup_fraction = o->lr_warmup_fraction,
        .wsd_decay_iters = o->lr_wsd_decay_iters,
        .wsd_decay_samples = o->lr_wsd_decay_samples,
    };
    t->schedule = (struct lr_schedule){.init_lr = o->lr_warmup_init,
                                       .max_lr = o->lr,
                                       .min_lr = o->min_lr,
                                       .decay_style = o->lr_decay_style,
                                       .wsd_style = o->lr_wsd_decay_style,
                                       .start_wd = o->start_weight_decay,
                                       .end_wd = o->end_weight_decay,
                                       .wd_incr_style = o->weight_decay_incr_style};
    TRY(lr_schedule_set_lengths(&t->schedule, &lengths, batch_size_last(&t->batch), err));
    return lr_schedule_start(&t->schedule, err);
}

static enum status start_scale(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    if (!o->fp16 || !isnan(o->loss_scale))
        return loss_scale_start_constant(&t->scale, isnan(o->loss_scale) ? 1 : o->loss_scale, err);
    return loss_scale_start_dynamic(&t->scale, o->initial_loss_scale, o->min_loss_scale,
                                    o->loss_scale_window, o->hysteresis, err);
}

static enum status start_batches(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    if (o->num_batch_size_steps)
        batch_size_schedule(&t->batch, o->batch_size_steps, o->num_batch_size_steps);
    else
        TRY(batch_size_constant(&t->batch, o->global_batch_size, o->micro_batch_size, trainer_dp(t),
                                &t->arena, err));
    t->train_iters = o->train_iters;
    if (o->train_samples)
        TRY(batch_size_iterations(&t->batch, o->train_samples, &t->train_iters, err));
    return OK;
}

/* Infers counters that other programs do not save: the iteration from the
 * optimizer's steps, consumed samples from the iteration, as Megatron-LM does
 * (megatron/training/training.py). */
static void infer_counters(struct trainer *t, const struct checkpoint_loaded *loaded)
{
    const struct training *s = &loaded->training;
    if (!t->iteration && loaded->has_optimizer && s->step) {
        t->iteration = s->step;
        trainer_note(t, "%s has no iteration: it is %" PRIu64 ", the optimizer's number of steps",
                     t->origin->path, t->iteration);
    }
    if (t->consumed || !t->iteration) return;
    t->consumed = batch_size_samples(&t->batch, t->iteration);
    trainer_note(t,
                 "%s has no consumed samples: %" PRIu64 " are taken, of %" PRIu64
                 " iterations with this run's batch size",
                 t->origin->path, t->consumed, t->iteration);
}

/* A schedule that the checkpoint lacks stands at the consumed samples. */
static void infer_schedule(struct trainer *t, const struct training *s)
{
    if (training_has(s, TRAINING_SCHEDULE) || !t->consumed) return;
    lr_schedule_step(&t->schedule, t->consumed);
    trainer_note(t, "%s has no schedule of Megatron's: this run's stands at sample %" PRIu64,
                 t->origin->path, t->consumed);
}

static enum status resume_counters(struct trainer *t, const struct checkpoint_loaded *loaded,
                                   struct error *err)
{
    const struct training *s = &loaded->training;
    const struct train_options *o = t->o;
    t->iteration = training_field_given(&training_fields[0].field, s) ? s->iteration : 0;
    t->consumed = s->consumed_train_samples;
    t->skipped_samples = s->skipped_train_samples;
    t->consumed_valid = s->consumed_valid_samples;
    t->flops_so_far = isnan(s->floating_point_operations) ? 0 : s->floating_point_operations;
    infer_counters(t, loaded);
    if (!loaded->has_optimizer && !loaded->has_schedule) {
        if (t->iteration) trainer_note(t, "the learning rate schedule starts anew");
        return OK;
    }
    t->updates = s->step;
    TRY(loss_scale_load(&t->scale, s, err));
    TRY(lr_schedule_load(&t->schedule, s,
                         o->override_opt_param_scheduler         ? LR_CONFLICT_USES_GIVEN
                         : o->use_checkpoint_opt_param_scheduler ? LR_CONFLICT_USES_CHECKPOINT
                                                                 : LR_CONFLICT_FAILS,
                         err));
    infer_schedule(t, s);
    return OK;
}

/* Samples that the whole run consumes. */
static uint64_t end_samples(const struct trainer *t)
{
    return t->o->train_samples ? t->o->train_samples
                               : batch_size_samples(&t->batch, t->train_iters);
}

enum status trainer_set_up(struct trainer *t, const struct checkpoint_loaded *loaded,
                           struct error *err)
{
    if (!loaded) { /* before anything is loaded */
        TRY(start_batches(t, err));
        TRY(start_schedule(t, err));
        return start_scale(t, err);
    }
    const bool goes_on = t->origin != &t->scratch && !(t->o->finetune && is_start(t));
    if (t->q->watch)
        t->updates = loaded->has_optimizer ? loaded->training.step : 0;
    else if (goes_on)
        TRY(resume_counters(t, loaded, err));
    t->start_iteration = t->iteration;
    t->sampler = (struct sampler){t->consumed, t->o->micro_batch_size, t->model.groups.place.dp,
                                  trainer_dp(t)};
    return batch_size_check(&t->batch, t->consumed, end_samples(t), t->o->micro_batch_size,
                            trainer_dp(t), err);
}
