/* trainer_data.c - a run's data as micro-batches, and evaluations. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/memory.h"
#include "common/text.h"
#include "convert/hf/end_tokens.h"
#include "train/trainer/trainer_internal.h"

enum { READ_AHEAD = 4 };

static struct data_paths paths_of(const struct arg_list *l)
{
    return (struct data_paths){l->items, l->count};
}

/* --eod-id, else NullTokenizer's, else the end of text of the folder. -1: none. */
static enum status find_eod(const struct trainer *t, int64_t *eod, struct error *err)
{
    struct end_tokens ends = {0};
    *eod = -1;
    if (t->o->eod_id != UINT64_MAX)
        *eod = (int64_t)t->o->eod_id;
    else if (t->o->tokenizer_type && strcmp(t->o->tokenizer_type, "NullTokenizer") == 0)
        *eod = (int64_t)(t->o->null_tokenizer_eod_id != UINT64_MAX ? t->o->null_tokenizer_eod_id
                                                                   : t->o->vocab_size - 1);
    if (*eod >= 0 || !t->origin->hf_folder) return OK;
    TRY(end_tokens_read(t->origin->hf_folder, &ends, err));
    if (ends.count) *eod = ends.ids[0];
    return OK;
}

static bool evaluates(const struct train_options *o)
{
    return o->eval_iters && (!o->mock_data || o->is_eval_iters_given);
}

/* Megatron-LM asks for as many (training.py: get_train_valid_test_num_samples). */
static void count_samples(const struct trainer *t, uint64_t samples[NUM_SPLITS])
{
    const struct train_options *o = t->o;
    const uint64_t times = o->eval_interval ? t->train_iters / o->eval_interval + 1 : 1;
    samples[SPLIT_TRAIN] =
        o->train_samples ? o->train_samples : batch_size_samples(&t->batch, t->train_iters);
    samples[SPLIT_VALID] = evaluates(o) ? times * o->eval_iters * o->eval_global_batch_size : 0;
    samples[SPLIT_TEST] = evaluates(o) ? o->eval_iters * o->eval_global_batch_size : 0;
}

static void note(void *context, const char *text)
{
    trainer_say(context, "%s", text);
}

/* A JSONL file, or a dataset with loss masks that `ferry data` has written. */
bool trainer_data_is_packed(const struct train_options *o)
{
    const char *path = o->data_path.count == 1 ? o->data_path.items[0] : "";
    struct arena a;
    if (text_ends_with(path, ".jsonl")) return true;
    arena_init(&a);
    const bool masked = *path && path_exists(arena_printf(&a, "%s.mask.idx", path));
    arena_release(&a);
    return masked;
}

enum status trainer_open_data(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct data_options d = {
        .paths = paths_of(&o->data_path),
        .split_paths = {paths_of(&o->train_data_path), paths_of(&o->valid_data_path),
                        paths_of(&o->test_data_path)},
        .split = o->split,
        .seq_length = o->seq_length,
        .seed = o->seed,
        .reset_position_ids = o->reset_position_ids,
        .reset_attention_mask = o->reset_attention_mask && o->create_attention_mask_in_dataloader,
        .eod_mask_loss = o->eod_mask_loss,
        .pad_id = -1,
        .vocab_size = t->model.config.vocab_size,
        .packed = trainer_data_is_packed(o),
        .mock = o->mock_data,
        .mock_seed = o->is_seed_given ? o->seed : 1,
        .cache_path = o->data_cache_path,
        .null_vocab_size = o->vocab_size,
        .note = note,
        .context = t};
    if (d.mock || !d.paths.count) d.split = NULL;
    if (d.mock) d.vocab_size = t->model.config.vocab_size;
    TRY(find_eod(t, &d.eod_id, err));
    if (evaluates(o) && o->eval_global_batch_size % o->micro_batch_size)
        return fail(err, ERR_USAGE,
                    "--micro-batch-size %" PRIu64 " does not divide the %" PRIu64
                    " sequences of an evaluation's batch",
                    o->micro_batch_size, o->eval_global_batch_size);
    count_samples(t, d.samples);
    TRY(data_open(&t->data, &d, err));
    const uint64_t tokens = o->micro_batch_size * o->seq_length;
    t->weights = must_calloc(tokens, sizeof *t->weights);
    t->samples = must_calloc(o->micro_batch_size, sizeof *t->samples);
    return prefetch_open(&t->prefetch, t->data, SPLIT_TRAIN, o->seq_length, READ_AHEAD, err);
}

void trainer_close_data(struct trainer *t)
{
    prefetch_close(t->prefetch);
    data_close(t->data);
    free(t->weights);
    free(t->samples);
}

enum status trainer_next(struct trainer *t, struct prefetch *from, struct sampler *s,
                         struct batch *b, double *tokens, struct error *err)
{
    const struct data_rows *rows;
    const uint64_t first = sampler_first(s), length = t->o->seq_length;
    TRY(prefetch_next(from, s, &rows, err));
    *tokens = 0;
    for (uint64_t i = 0; i < s->micro_batch_size; i++)
        t->samples[i] = first + i;
    for (uint64_t i = 0; i < s->micro_batch_size * length; i++) {
        t->weights[i] = (double)rows->loss_mask[i];
        *tokens += t->weights[i];
    }
    *b = (struct batch){.num_sequences = s->micro_batch_size,
                        .length = length,
                        .ids = rows->tokens,
                        .targets = rows->labels,
                        .positions = rows->positions,
                        .starts = rows->starts,
                        .any_starts = t->step.options.shape.any_starts,
                        .weights = t->weights,
                        .samples = t->samples};
    return OK;
}

/* ---- evaluations ---- */

/* The losses of one evaluation's micro-batches. */
static enum status add_losses(struct trainer *t, struct prefetch *p, struct sampler *s,
                              struct loss_total *total, struct error *err)
{
    const uint64_t count = t->o->eval_iters * t->o->eval_global_batch_size / s->micro_batch_size;
    for (uint64_t i = 0; i < count; i++) {
        struct micro_batch m = {.loss_scale = 0, .first = true, .evaluates = true};
        double tokens, loss;
        TRY(trainer_next(t, p, s, &m.batch, &tokens, err));
        TRY(step_forward(&t->step, 0, &m, err));
        TRY(step_wait_loss(&t->step, &loss, err));
        total->sum += loss;
        total->tokens += tokens;
    }
    return OK;
}

enum status trainer_evaluate(struct trainer *t, enum data_split split, double *loss, bool *there,
                             struct error *err)
{
    struct sampler s = {split == SPLIT_VALID ? t->consumed_valid : 0, t->o->micro_batch_size, 0, 1};
    struct loss_total total = {0};
    struct prefetch *p;
    const uint64_t samples = t->o->eval_iters * t->o->eval_global_batch_size;
    *there = evaluates(t->o) && data_num_samples(t->data, split) >= s.consumed + samples;
    if (!*there) return OK;
    TRY(prefetch_open(&p, t->data, split, t->o->seq_length, READ_AHEAD, err));
    enum status st = add_losses(t, p, &s, &total, err);
    prefetch_close(p);
    if (split == SPLIT_VALID) t->consumed_valid = s.consumed;
    *loss = total.tokens > 0 ? total.sum / total.tokens : 0;
    return st;
}
