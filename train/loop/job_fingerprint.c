#include "train/loop/job_fingerprint.h"

#include <inttypes.h>

#include "train/model/fingerprint.h"

static void add_numbers(struct sha256 *s, const uint64_t *numbers, size_t count)
{
    sha256_add(s, numbers, count * sizeof *numbers);
}

#define ADD(s, ...)                                                                                \
    add_numbers(s, (const uint64_t[]){__VA_ARGS__},                                                \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void add_options(struct sha256 *s, const struct engine_model *m)
{
    const struct model_options *o = &m->options;
    for (size_t i = 0; i < NUM_LAYOUT_FIELDS; i++)
        fingerprint_field(s, &o->layout, &layout_fields[i]);
    ADD(s, o->sequence_parallel, o->cp_kind, o->elem, o->collectives, o->keeps_codes, m->on_gpu);
}

static void add_pass(struct sha256 *s, const struct pass_options *o)
{
    ADD(s, o->logits, o->loss, o->hidden, (uint64_t)(int64_t)o->trace_layer, o->cache_rows,
        o->last_only, o->graphs, o->logits_dtype);
}

/* Data parallel ranks draw independently. */
static void add_sampling(struct sha256 *s, const struct sampling *o)
{
    sha256_add(s, &o->temperature, sizeof o->temperature);
    sha256_add(s, &o->top_p, sizeof o->top_p);
    ADD(s, o->top_k, o->seed);
}

static void add_batch(struct sha256 *s, const struct batch *b)
{
    const uint64_t count = b->num_sequences * b->length;
    ADD(s, b->num_sequences, b->length);
    if (b->ids) sha256_add(s, b->ids, count * sizeof *b->ids);
    if (b->lengths) add_numbers(s, b->lengths, b->num_sequences);
    if (b->past) add_numbers(s, b->past, b->num_sequences);
}

void fingerprint_forward(const struct forward_request *q, char text[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    add_options(s, &q->model);
    add_pass(s, &q->pass);
    add_batch(s, &q->shape);
    ADD(s, q->dry_run, q->visit_plan != NULL, q->visit_weights != NULL);
    sha256_finish(s, text);
}

void fingerprint_generate(const struct generate_request *q, char text[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    add_options(s, &q->model);
    add_batch(s, &q->prompts);
    add_sampling(s, &q->sampling);
    ADD(s, q->max_new_tokens, q->dry_run, q->visit_plan != NULL);
    for (size_t i = 0; i < q->num_end_tokens; i++)
        ADD(s, (uint64_t)q->end_tokens[i]);
    sha256_finish(s, text);
}

void fingerprint_bench(const struct bench_request *q, char text[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    add_options(s, &q->model);
    add_pass(s, &q->pass);
    add_batch(s, &q->batch);
    ADD(s, q->warmups, q->repeats);
    sha256_finish(s, text);
}
