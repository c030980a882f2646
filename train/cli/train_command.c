/* train_command.c - ferry train: pretraining and fine-tuning, with
 * Megatron-LM's options. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/ranks.h"
#include "common/result.h"
#include "train/cli/engine_commands.h"
#include "train/cli/train_names.h"
#include "train/cli/train_options.h"
#include "train/loop/engine.h"

static struct train_request request_of(const struct train_options *o)
{
    return (struct train_request){.options = o,
                                  .source = {.hf_config = NULL,
                                             .family = o->family,
                                             .true_vocab_size = o->true_vocab_size,
                                             .allow_config = &o->allow_config},
                                  .model_map = o->model_map,
                                  .threads = (unsigned)o->threads,
                                  .progress = progress_style_named(o->progress, o->quiet)};
}

/* Names the part in JSON: "first moments" is first_moments. */
static void add_memory_bytes(cJSON *o, const struct train_memory *m)
{
    char name[40];
    snprintf(name, sizeof name, "%s", m->name);
    for (char *blank; (blank = strchr(name, ' '));)
        *blank = '_';
    json_add_u64(o, name, m->bytes);
}

static cJSON *stage_json(const struct train_plan *p, const struct train_stage *s)
{
    cJSON *o = cJSON_CreateObject();
    json_add_u64(o, "first_rank", s->first_rank);
    json_add_u64(o, "ranks", s->num_ranks);
    cJSON *layers = cJSON_AddArrayToObject(o, "layers");
    for (size_t i = 0; i < s->num_layers; i++)
        cJSON_AddItemToArray(layers, json_new_u64(s->layers[i]));
    cJSON_AddBoolToObject(o, "embedding", s->embedding);
    cJSON_AddBoolToObject(o, "loss", s->loss);
    json_add_u64(o, "parameters", s->parameters);
    json_add_u64(o, "weights", s->weights);
    json_add_u64(o, "gradients", s->gradients);
    json_add_u64(o, "states", s->states);
    json_add_u64(o, "saved", s->saved);
    json_add_u64(o, "rest", s->rest);
    json_add_u64(o, "peak_device", s->device);
    json_add_u64(o, "peak_host_beside_device", s->host);
    cJSON *sent = cJSON_AddObjectToObject(o, "sent");
    for (unsigned i = 0; i < p->num_groups; i++)
        json_add_u64(sent, p->groups[i].name, s->sent[i]);
    return o;
}

static cJSON *group_json(const struct train_group *g)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "name", g->name);
    cJSON *ranks = cJSON_AddArrayToObject(o, "ranks");
    for (unsigned i = 0; i < g->num_ranks; i++)
        cJSON_AddItemToArray(ranks, json_new_u64(g->ranks[i]));
    return o;
}

static void add_ranks(cJSON *o, const struct train_plan *p)
{
    cJSON *stages = cJSON_AddArrayToObject(o, "stages");
    for (unsigned i = 0; i < p->num_stages; i++)
        cJSON_AddItemToArray(stages, stage_json(p, &p->stages[i]));
    cJSON *groups = cJSON_AddArrayToObject(o, "groups");
    for (unsigned i = 0; i < p->num_groups; i++)
        cJSON_AddItemToArray(groups, group_json(&p->groups[i]));
    cJSON *schedule = cJSON_AddObjectToObject(o, "schedule");
    json_add_text(schedule, "name", p->schedule);
    json_add_u64(schedule, "micro_batches", p->micro_batches);
    json_add_number(schedule, "bubble", p->bubble);
}

static void add_fit(cJSON *o, const struct train_plan *p)
{
    const bool is_known = p->fit != FIT_UNKNOWN;
    cJSON_AddItemToObject(o, "fits",
                          is_known ? cJSON_CreateBool(p->fit == FITS) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "needed_per_rank",
                          is_known ? json_new_u64(p->needed) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "available_per_rank",
                          is_known ? json_new_u64(p->available) : cJSON_CreateNull());
}

static void add_plan(cJSON *o, const struct train_options *options, const struct train_plan *p)
{
    const char *const folders[] = {options->save, options->save_hf};
    cJSON_AddTrueToObject(o, "dry_run");
    json_add_text(o, "dtype", options->dtype);
    add_fit(o, p);
    json_add_text(o, "device", p->on_gpu ? "cuda" : "cpu");
    json_add_u64(o, "ranks", p->ranks);
    json_add_u64(o, "parameters", p->parameters);
    json_add_u64(o, "iterations", p->iterations);
    json_add_u64(o, "global_batch_size", p->global_batch_size);
    json_add_u64(o, "micro_batch_size", options->micro_batch_size);
    json_add_u64(o, "length", options->seq_length);
    json_add_text(o, "reads", p->reads);
    cJSON *writes = cJSON_AddArrayToObject(o, "writes");
    for (size_t i = 0; i < COUNT(folders); i++)
        if (folders[i]) cJSON_AddItemToArray(writes, cJSON_CreateString(folders[i]));
    cJSON *rank = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "memory_bytes"), rank);
    json_add_u64(rank, "rank", 0);
    for (unsigned i = 0; i < p->num_memory; i++)
        add_memory_bytes(rank, &p->memory[i]);
    json_add_u64(rank, "peak_device", p->device);
    json_add_u64(rank, "peak_host_beside_device", p->host);
    add_ranks(o, p);
}

static void add_end(cJSON *o, const struct train_summary *s)
{
    json_add_u64(o, "iteration", s->iteration);
    json_add_u64(o, "consumed_samples", s->consumed_samples);
    json_add_u64(o, "skipped_iterations", s->skipped_iterations);
    json_add_number(o, "loss", s->loss);
    json_add_text(o, "saved", s->saved);
}

static void take_summary(void *context, const struct train_summary *s)
{
    if (!result_is_wanted()) return;
    cJSON *o = cJSON_CreateObject();
    if (s->plan)
        add_plan(o, context, s->plan);
    else
        add_end(o, s);
    result_set(o);
}

/* Another host may have another file under this name. */
static enum status agree_on_recipe(const struct engine *engine, const struct arg_config *c,
                                   struct error *err)
{
    char what[200];
    if (!c->path) return OK;
    snprintf(what, sizeof what, "--config %s", c->path);
    return engine_agree_on(engine, (const char *const *)c->words, c->num_words, what, err);
}

static enum status run_train_on_rank(void *context, const struct engine *engine, bool is_rank_0,
                                     struct error *err)
{
    const struct train_options *o = context;
    const struct train_request q = request_of(o);
    (void)is_rank_0;
    TRY(engine_agree_on_words(engine, err));
    TRY(agree_on_recipe(engine, &o->config, err));
    return engine->train(&q, take_summary, context, err);
}

/* The other ranks of a launcher would print the same notes. */
static bool is_first_rank(void)
{
    struct ranks ranks;
    struct error ignored;
    return ranks_from_environment(&ranks, &ignored) || !ranks.rank || !ranks.share_output;
}

static enum status run_train(void *options, const char *const *positional, size_t num_positional,
                             struct error *err)
{
    struct train_options *o = options;
    struct strbuf notes = {0};
    (void)positional, (void)num_positional;
    enum status st = train_options_finish(o, &notes, err);
    if (notes.length && is_first_rank()) (void)fputs(notes.data, stderr);
    strbuf_release(&notes);
    if (!st) st = engine_run(run_train_on_rank, o, err);
    train_options_release(o);
    return st;
}

const struct command command_train = {
    .name = "train",
    .summary = "pretrain, resume or fine-tune a model, with Megatron-LM's options",
    .positional = "",
    .text =
        "Accepts the command line of Megatron-LM's pretrain_gpt.py unchanged. --load is any "
        "checkpoint that convert reads: a Hugging Face folder to fine-tune, or a Megatron run of "
        "any layout to resume with its optimizer, schedule and position in the data. Prints "
        "Megatron-LM's lines on stdout, everything else on stderr.\n\n"
        "  ferry train --load Llama-3.2-1B --save ckpt --data-path text_document --split 969,30,1 "
        "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --train-iters 1000 "
        "--lr 1e-5 --lr-warmup-iters 20 --bf16\n\n"
        "ferry data writes datasets. With --num-layers the options describe the model, as in "
        "Megatron-LM; without it the folder does. A run resumes from the checkpoint in --save, if "
        "there is one. A signal ends the run after the current iteration, which is saved.",
    .groups = train_groups,
    .made = train_made_group,
    .num_groups = NUM_TRAIN_GROUPS,
    .options_bytes = sizeof(struct train_options),
    .defaults = train_options_defaults,
    .run = run_train,
};
