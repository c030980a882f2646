/* trainer_data.c - a run's data as micro-batches, and evaluations. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "common/text.h"
#include "convert/hf/end_tokens.h"
#include "train/data/packed.h"
#include "train/trainer/trainer_internal.h"

enum { READ_AHEAD = 4 };

static struct data_paths paths_of(const struct arg_list *l)
{
    return (struct data_paths){l->items, l->count};
}

/* ---- ends of documents ---- */

static enum status take_eod(const struct trainer *t, const char *option, uint64_t id, int64_t *eod,
                            struct error *err)
{
    const uint64_t vocab_size = t->model.config.vocab_size;
    *eod = (int64_t)id;
    if (id < vocab_size) return OK;
    return fail(err, ERR_USAGE, "%s %" PRIu64 " is not below the vocabulary size, %" PRIu64, option,
                id, vocab_size);
}

/* An unknown vocabulary has no last id. */
static enum status take_null_eod(const struct trainer *t, int64_t *eod, struct error *err)
{
    const struct train_options *o = t->o;
    const uint64_t size = o->vocab_size ? o->vocab_size : t->origin->config.vocab_size;
    if (o->null_tokenizer_eod_id != UINT64_MAX)
        return take_eod(t, "--null-tokenizer-eod-id", o->null_tokenizer_eod_id, eod, err);
    if (size) *eod = (int64_t)size - 1;
    return OK;
}

/* Ignores an end of text outside the vocabulary. */
static enum status take_folder_eod(const struct trainer *t, int64_t *eod, struct error *err)
{
    struct end_tokens ends;
    TRY(end_tokens_read(t->origin->hf_folder, &ends, err));
    const int64_t id = end_tokens_of_document(&ends);
    if (id >= 0 && (uint64_t)id < t->model.config.vocab_size) *eod = id;
    return OK;
}

/* --eod-id, else NullTokenizer's, else the end of text of the folder. -1: none. */
static enum status find_eod(const struct trainer *t, int64_t *eod, struct error *err)
{
    const struct train_options *o = t->o;
    *eod = -1;
    if (o->eod_id != UINT64_MAX) return take_eod(t, "--eod-id", o->eod_id, eod, err);
    if (text_equal(o->tokenizer_type, "NullTokenizer")) return take_null_eod(t, eod, err);
    return take_folder_eod(t, eod, err);
}

/* Checks that options that need ends of documents have them. Packed documents
 * have their own. */
static enum status check_eod(const struct trainer *t, const struct data_options *d,
                             struct error *err)
{
    const struct {
        const char *name;
        bool is_given;
    } options[] = {{"--reset-position-ids", d->reset_position_ids},
                   {"--reset-attention-mask", d->reset_attention_mask},
                   {"--eod-mask-loss", d->eod_mask_loss}};
    for (size_t i = 0; i < COUNT(options); i++) {
        if (!options[i].is_given || d->packed) continue;
        if (d->eod_id < 0)
            return fail(err, ERR_USAGE, "%s: no end-of-document id is known; give --eod-id",
                        options[i].name);
        if (d->mock)
            trainer_note(t, "%s has no effect: mock data have no documents", options[i].name);
    }
    return OK;
}

/* ---- the datasets ---- */

static bool evaluates(const struct train_options *o)
{
    return o->eval_iters && (!o->mock_data || o->is_eval_iters_given);
}

/* As many as Megatron-LM requests (training.py:
 * get_train_valid_test_num_samples). */
static void count_samples(const struct trainer *t, uint64_t samples[NUM_SPLITS])
{
    const struct train_options *o = t->o;
    const uint64_t times = o->eval_interval ? t->train_iters / o->eval_interval + 1 : 1;
    samples[SPLIT_TRAIN] =
        o->train_samples ? o->train_samples : batch_size_samples(&t->batch, t->train_iters);
    samples[SPLIT_VALID] = evaluates(o) ? times * o->eval_iters * o->eval_global_batch_size : 0;
    samples[SPLIT_TEST] = evaluates(o) ? o->eval_iters * o->eval_global_batch_size : 0;
}

static void note_data(void *context, const char *text)
{
    trainer_note(context, "%s", text);
}

/* True for a JSONL file, or a dataset of `ferry data` with loss masks. Also
 * among other paths: the mix is then refused, so that no mask is ignored. */
bool trainer_data_is_packed(const struct train_options *o)
{
    const struct arg_list *const lists[] = {&o->data_path, &o->train_data_path, &o->valid_data_path,
                                            &o->test_data_path};
    for (size_t i = 0; i < COUNT(lists); i++)
        for (size_t k = 0; k < lists[i]->count; k++)
            if (packed_source_matches(lists[i]->items[k])) return true;
    return false;
}

static enum status set_options(struct trainer *t, struct data_options *out, struct error *err)
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
        .note = note_data,
        .context = t};
    if (d.mock || !d.paths.count) d.split = NULL;
    if (d.mock) d.vocab_size = t->model.config.vocab_size;
    TRY(find_eod(t, &d.eod_id, err));
    TRY(check_eod(t, &d, err));
    if (evaluates(o) && o->eval_global_batch_size % (o->micro_batch_size * trainer_dp(t)))
        return fail(err, ERR_USAGE,
                    "the evaluation batch of %" PRIu64
                    " sequences is not a multiple of --micro-batch-size %" PRIu64 " times %" PRIu64
                    " data parallel rank%s",
                    o->eval_global_batch_size, o->micro_batch_size, trainer_dp(t),
                    trainer_dp(t) == 1 ? "" : "s");
    count_samples(t, d.samples);
    *out = d;
    return OK;
}

enum status trainer_plan_data(struct trainer *t, struct error *err)
{
    struct data_options d;
    struct strbuf text = {0};
    TRY(set_options(t, &d, err));
    d.only_counts = true;
    TRY(data_open(&t->data, &d, err));
    strbuf_printf(&text, "data:\n");
    data_describe(t->data, &text);
    if (!t->comm.rank)
        (void)fputs(text.data, t->o->json ? stderr : stdout); /* as the rest of the plan */
    strbuf_release(&text);
    return OK;
}

/* Rank 0 makes the indices that the others find. */
static enum status open_in_turn(struct trainer *t, const struct data_options *d, struct error *err)
{
    struct comm_group *world = &t->model.groups.of[GROUP_WORLD];
    if (t->comm.rank == 0) TRY(data_open(&t->data, d, err));
    if (world->size > 1) TRY(comm_barrier(world, err));
    return t->comm.rank ? data_open(&t->data, d, err) : OK;
}

/* Keeps as many micro-batches as a chunk of the model may request again. */
static void open_kept(struct trainer *t)
{
    const struct train_options *o = t->o;
    const struct step_options *so = &t->step.options;
    const uint64_t window =
        max_u64(step_window(&t->step, so->micro_batches, false),
                evaluates(o) ? step_window(&t->step, so->eval_micro_batches, true) : 1);
    t->num_kept = (unsigned)window;
    t->kept = must_calloc(window, sizeof *t->kept);
    for (unsigned i = 0; i < t->num_kept; i++) {
        t->kept[i].weights = must_calloc(o->micro_batch_size * o->seq_length, sizeof(double));
        t->kept[i].samples = must_calloc(o->micro_batch_size, sizeof(uint64_t));
    }
}

enum status trainer_open_data(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct data_options d;
    TRY(set_options(t, &d, err));
    /* As in Megatron-LM, only learned positions begin anew; rotary ones count
     * from the start of the sample (gpt_model.py:_preprocess). Packed documents
     * are Ferry's own. */
    t->has_own_positions = d.packed || model_learned_positions(&t->model.config);
    TRY(open_in_turn(t, &d, err));
    open_kept(t);
    return prefetch_open(&t->prefetch, t->data, SPLIT_TRAIN, o->seq_length, READ_AHEAD, t->num_kept,
                         err);
}

void trainer_close_data(struct trainer *t)
{
    prefetch_close(t->prefetch);
    data_close(t->data);
    for (unsigned i = 0; i < t->num_kept; i++) {
        free(t->kept[i].weights);
        free(t->kept[i].samples);
    }
    free(t->kept);
}

static enum status take_batch(struct trainer *t, struct batches *from, struct kept_batch *k,
                              struct error *err)
{
    struct sampler *s = from->sampler;
    const struct data_rows *rows;
    const uint64_t first = sampler_first(s), length = t->o->seq_length;
    TRY(prefetch_next(from->from, s, &rows, err));
    k->tokens = 0;
    for (uint64_t i = 0; i < s->micro_batch_size; i++)
        k->samples[i] = first + i;
    for (uint64_t i = 0; i < s->micro_batch_size * length; i++) {
        k->weights[i] = (double)rows->loss_mask[i];
        k->tokens += k->weights[i];
    }
    k->batch = (struct batch){.num_sequences = s->micro_batch_size,
                              .is_dealt = true,
                              .length = length,
                              .ids = rows->tokens,
                              .targets = rows->labels,
                              .positions = t->has_own_positions ? rows->positions : NULL,
                              .starts = rows->starts,
                              .any_starts = t->step.options.shape.any_starts,
                              .weights = k->weights,
                              .samples = k->samples};
    from->taken++;
    from->tokens += k->tokens;
    return OK;
}

enum status trainer_batch(struct trainer *t, struct batches *b, uint64_t number,
                          const struct kept_batch **out, struct error *err)
{
    struct kept_batch *k = &t->kept[number % t->num_kept];
    if (number > b->taken || number + t->num_kept < b->taken)
        return fail(err, ERR_OURS, "micro-batch %" PRIu64 " is not kept; %" PRIu64 " were read",
                    number, b->taken);
    *out = k;
    return number < b->taken ? OK : take_batch(t, b, k, err);
}

/* ---- evaluations ---- */

struct evaluation {
    struct trainer *t;
    struct batches batches;
};

static enum status next_eval_batch(void *context, uint64_t number, struct micro_batch *b,
                                   struct error *err)
{
    struct evaluation *x = context;
    const struct kept_batch *k;
    TRY(trainer_batch(x->t, &x->batches, number, &k, err));
    *b = (struct micro_batch){.batch = k->batch};
    return OK;
}

/* Adds the losses of one evaluation's steps to *total. */
static enum status sum_eval_losses(struct trainer *t, struct prefetch *p, struct sampler *s,
                                   struct loss_total *total, struct error *err)
{
    for (uint64_t i = 0; i < t->o->eval_iters; i++) {
        struct evaluation x = {t, {.from = p, .sampler = s}};
        double loss;
        TRY(step_run(&t->step, t->step.options.eval_micro_batches, true, next_eval_batch, &x, err));
        TRY(step_wait_loss(&t->step, &loss, err));
        total->sum += loss;
        total->tokens += x.batches.tokens;
    }
    return OK;
}

enum status trainer_evaluate(struct trainer *t, enum data_split split, double *loss, bool *there,
                             struct error *err)
{
    struct sampler s = {split == SPLIT_VALID ? t->consumed_valid : 0, t->o->micro_batch_size,
                        t->model.groups.place.dp, trainer_dp(t)};
    struct loss_total total = {0};
    struct prefetch *p;
    const uint64_t samples = t->o->eval_iters * t->o->eval_global_batch_size;
    *there = evaluates(t->o) && data_num_samples(t->data, split) >= s.consumed + samples;
    if (!*there) return OK;
    TRY(prefetch_open(&p, t->data, split, t->o->seq_length, READ_AHEAD, t->num_kept, err));
    enum status st = sum_eval_losses(t, p, &s, &total, err);
    prefetch_close(p);
    if (split == SPLIT_VALID) t->consumed_valid = s.consumed;
    if (!st) st = trainer_sum(t, &total.tokens, err);
    *loss = total.tokens > 0 ? total.sum / total.tokens : 0;
    return st;
}
