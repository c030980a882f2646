#include "train/loop/job_fingerprint.h"

#include <inttypes.h>
#include <string.h>

#include "convert/target.h"

static void add_numbers(struct sha256 *s, const uint64_t *numbers, size_t count)
{
    sha256_add(s, numbers, count * sizeof *numbers);
}

#define ADD(s, ...)                                                                                \
    add_numbers(s, (const uint64_t[]){__VA_ARGS__},                                                \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* With its end, so that two texts are not one longer one. */
static void add_text(struct sha256 *s, const char *text)
{
    sha256_add(s, text ? text : "", text ? strlen(text) + 1 : 1);
}

/* ---- the model ---- */

static void add_field(struct sha256 *s, const void *of, const struct field *f)
{
    const struct scalar x = field_get(f, of);
    if (x.kind == FIELD_TEXT)
        add_text(s, x.text);
    else
        sha256_add(s, &x.number, sizeof x.number);
}

static void add_config(struct sha256 *s, const struct model_config *c)
{
    for (size_t i = 0; i < num_model_fields; i++)
        add_field(s, c, &model_fields[i].field);
    for (uint64_t l = 0; l < c->num_layers; l++)
        ADD(s, model_layer_is_moe(c, l), model_layer_slides(c, l));
}

void fingerprint_model(const struct checkpoint *c, char text[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    add_config(s, &c->config);
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (!is_parameter(t)) continue;
        add_text(s, t->name);
        add_numbers(s, t->shape, t->num_dims);
    }
    sha256_finish(s, text);
}

/* ---- requests ---- */

static void add_options(struct sha256 *s, const struct engine_model *m)
{
    const struct model_options *o = &m->options;
    for (size_t i = 0; i < NUM_LAYOUT_FIELDS; i++)
        add_field(s, &o->layout, &layout_fields[i]);
    ADD(s, o->sequence_parallel, o->cp_kind, o->elem, o->collectives, m->on_gpu);
}

static void add_pass(struct sha256 *s, const struct pass_options *o)
{
    ADD(s, o->logits, o->loss, o->hidden, (uint64_t)(int64_t)o->trace_layer, o->cache_rows,
        o->last_only, o->graphs);
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
