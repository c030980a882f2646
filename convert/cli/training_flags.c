#include "convert/cli/training_flags.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/cli/report.h"
#include "convert/format.h"
#include "convert/megatron/megatron_args.h"

// clang-format off
/* Settings of the written optimizer: option, placeholder, member of struct
 * training_given, unit of the value (the schedule counts samples), help. */
#define OPTIMIZER_FLAGS(X) \
    X("--lr", "X", lr, NUMBER, "largest learning rate") \
    X("--min-lr", "X", min_lr, NUMBER, "smallest learning rate") \
    X("--weight-decay", "X", weight_decay, NUMBER, "weight decay") \
    X("--adam-beta1", "X", adam_beta1, NUMBER, "beta1 of Adam") \
    X("--adam-beta2", "X", adam_beta2, NUMBER, "beta2 of Adam") \
    X("--adam-eps", "X", adam_eps, NUMBER, "epsilon of Adam") \
    X("--lr-decay-style", "NAME", lr_decay_style, NAME, "shape of the schedule, such as cosine") \
    X("--lr-warmup-samples", "N", lr_warmup, NUMBER, "warmup of the learning rate, in samples") \
    X("--lr-warmup-iters", "N", lr_warmup, ITERATIONS, "warmup in iterations; needs --global-batch-size") \
    X("--lr-decay-samples", "N", lr_decay, NUMBER, "decay of the learning rate, in samples from the start") \
    X("--lr-decay-iters", "N", lr_decay, ITERATIONS, "decay in iterations; needs --global-batch-size")

static const struct optimizer_flag {
    const char *names;
    size_t offset; /* in struct training_given */
    enum { NUMBER, NAME, ITERATIONS } counts;
} optimizer_flags[] = {
#define X(names, value, member, counts, help) \
    {names, offsetof(struct training_given, member), counts},
    OPTIMIZER_FLAGS(X)
#undef X
};

#define AT(field) offsetof(struct training_flags, field)
const struct arg training_args[] = {
    {"--bf16", ARG_NOTED, AT(dtypes), NULL, NULL, NULL},
    {"--fp16", ARG_NOTED, AT(dtypes), NULL, NULL, NULL},
    {"--params-dtype", ARG_NOTED, AT(dtypes), "DTYPE", NULL, NULL},
#define X(names, value, member, counts, help) \
    {names, ARG_NOTED, AT(optimizer), value, NULL, help},
    OPTIMIZER_FLAGS(X)
#undef X
    /* of Megatron-LM's tools/checkpoint/convert.py, which name what Ferry finds out */
    {"--loader", ARG_NOTED, AT(converter), "NAME", NULL, NULL},
    {"--saver", ARG_NOTED, AT(converter), "NAME", NULL, NULL},
    {"--model-type", ARG_NOTED, AT(converter), "NAME", NULL, NULL},
    {"--checkpoint-type", ARG_NOTED, AT(converter), "NAME", NULL, NULL},
};
// clang-format on
_Static_assert(COUNT(training_args) == NUM_TRAINING_ARGS, "training_flags.h");

bool training_flag_make(struct arg *to, const struct megatron_option *o, const char *title)
{
    (void)title;
    to->kind = ARG_NOTED;
    to->offset = o->field ? AT(model) : AT(unused);
    return o->field || (!o->why && (!o->group || o->is_of_training));
}

/* Pair i of a list: "--num-layers", "32"; length is that of the option's first
 * name. */
struct given {
    const char *names, *value;
    int length;
};

static struct given given_at(const struct arg_list *l, size_t i)
{
    const char *names = l->items[2 * i];
    return (struct given){names, l->items[2 * i + 1], (int)strcspn(names, " ")};
}

static void print_given(const struct arg_list *l, const char *what)
{
    for (size_t i = 0; 2 * i < l->count; i++) {
        const struct given g = given_at(l, i);
        fprintf(stderr, "%s%.*s%s%s", i ? ", " : "note: ", g.length, g.names, g.value ? " " : "",
                g.value ? g.value : "");
    }
    if (l->count) fprintf(stderr, ": %s\n", what);
}

/* ---- the model ---- */

/* A value of Megatron's args as text, else the field's. */
static const char *text_of(const cJSON *arg, const struct model_field *f,
                           const struct model_config *c, struct arena *a)
{
    static const struct scalar_style style = {10, "true", "false", "none"};
    struct scalar s = field_get(&f->field, c);
    double number;
    if (json_as_double(arg, &number)) s = (struct scalar){FIELD_REAL, {.real = number}};
    if (cJSON_IsBool(arg)) s = (struct scalar){FIELD_BOOL, {.truth = cJSON_IsTrue(arg)}};
    if (json_as_text(arg)) s = (struct scalar){FIELD_TEXT, {.text = json_as_text(arg)}};
    return scalar_text(s, &style, a);
}

/* args: the model's, as Ferry writes them. */
static enum status check_model(const struct given *g, const struct checkpoint *c, const cJSON *args,
                               struct error *err)
{
    const struct model_field *f = megatron_option_find(g->names)->field;
    struct arena a;
    bool unsets;
    arena_init(&a);
    const char *name = megatron_arg_name(g->names, &unsets, &a);
    const char *has = text_of(json_get(args, name), f, &c->config, &a);
    enum status st = OK;
    if (!megatron_value_equal(g->value ? g->value : unsets ? "false" : "true", has))
        st = fail(err, ERR_USAGE, "%.*s%s%s: the model has %s %s, read from %s", g->length,
                  g->names, g->value ? " " : "", g->value ? g->value : "",
                  json_get(args, name) ? name : f->field.name, has, c->path);
    arena_release(&a);
    return st;
}

static enum status check_all_model(const struct arg_list *l, const struct checkpoint *c,
                                   struct error *err)
{
    enum status st = OK;
    cJSON *args = l->count ? args_of_model(&c->config) : NULL;
    for (size_t i = 0; 2 * i < l->count && !st; i++) {
        const struct given g = given_at(l, i);
        st = check_model(&g, c, args, err);
    }
    cJSON_Delete(args);
    return st;
}

/* ---- dtypes ---- */

/* The dtype of all parameters; false if they have several. */
static bool only_dtype(const struct checkpoint *c, enum dtype *out)
{
    struct parameter_count n;
    count_parameters(c, &n);
    for (int d = 0; d < NUM_DTYPES; d++)
        if (n.bytes_by_dtype[d] && n.bytes_by_dtype[d] == n.bytes) {
            *out = (enum dtype)d;
            return true;
        }
    return false;
}

static enum status check_dtype(const struct given *g, const struct checkpoint *c, bool casts,
                               enum dtype dtype, struct error *err)
{
    enum dtype wanted;
    const char *name = g->value ? g->value : g->names + strlen("--");
    if (!dtype_from_user(name, &wanted) || !dtype_is_float(wanted))
        return fail(err, ERR_USAGE, "%.*s %s: not one of bfloat16, float16, float32, float64",
                    g->length, g->names, name);
    const bool one = casts || only_dtype(c, &dtype);
    if (one && dtype == wanted) return OK;
    return fail(err, ERR_USAGE,
                "%.*s%s%s: weights are %s; --torch-dtype %s casts them, otherwise they keep their "
                "stored dtype",
                g->length, g->names, g->value ? " " : "", g->value ? g->value : "",
                one ? dtype_infos[dtype].name : "stored in several dtypes",
                dtype_infos[wanted].torch);
}

/* ---- the optimizer ---- */

/* Sets *size to --global-batch-size; false if it is not given. */
static bool batch_size(const struct training_flags *f, double *size)
{
    for (size_t i = 0; 2 * i < f->unused.count; i++) {
        const struct given g = given_at(&f->unused, i);
        if (strcmp(g.names, "--global-batch-size") == 0 && sscanf(g.value, "%lf", size) == 1)
            return true;
    }
    return false;
}

static enum status set_given(const struct training_flags *f, const struct given *g,
                             struct training_given *out, struct error *err)
{
    const struct optimizer_flag *flag = optimizer_flags;
    char *end;
    double batch = 1;
    while (strcmp(flag->names, g->names))
        flag++;
    void *to = (char *)out + flag->offset;
    if (flag->counts == NAME) {
        *(const char **)to = g->value;
        return OK;
    }
    const double x = strtod(g->value, &end);
    if (end == g->value || *end || !isfinite(x) || x < 0)
        return fail(err, ERR_USAGE, "%.*s %s: not a number of 0 or more", g->length, g->names,
                    g->value);
    if (flag->counts == ITERATIONS && !batch_size(f, &batch))
        return fail(err, ERR_USAGE,
                    "%.*s %s: the schedule counts samples; --global-batch-size N gives the samples "
                    "of an iteration",
                    g->length, g->names, g->value);
    *(double *)to = x * batch;
    return OK;
}

enum status training_flags_given(const struct training_flags *f, struct training_given *out,
                                 struct error *err)
{
    training_given_init(out);
    for (size_t i = 0; 2 * i < f->optimizer.count; i++) {
        const struct given g = given_at(&f->optimizer, i);
        TRY(set_given(f, &g, out, err));
    }
    return OK;
}

/* ---- another converter's options ---- */

/* Whether a name of a loader or saver means Megatron's files, or Hugging
 * Face's; neither: an unknown one. */
static bool names_megatron(const char *name)
{
    static const char *const names[] = {"megatron", "core", "mcore", "legacy"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool names_hf(const char *name)
{
    return strstr(name, "hf") || text_starts_with(name, "llama") ||
           text_starts_with(name, "mistral") || text_starts_with(name, "mixtral");
}

static enum status check_format(const struct given *g, const char *side,
                                const struct format *format, struct error *err)
{
    const bool is_megatron = format->has & FORMAT_ARGS, is_hf = format->has & FORMAT_CONFIG_JSON;
    if (is_megatron ? names_megatron(g->value) : is_hf && names_hf(g->value)) return OK;
    return fail(err, ERR_USAGE, "%.*s %s: the format of the %s is %s", g->length, g->names,
                g->value, side, format->name);
}

static enum status check_converter(const struct given *g, const struct checkpoint *c,
                                   const struct format *target, struct error *err)
{
    if (strcmp(g->names, "--loader") == 0) return check_format(g, "source", c->format, err);
    if (strcmp(g->names, "--saver") == 0) return check_format(g, "destination (--to)", target, err);
    const char *only = strcmp(g->names, "--model-type") == 0 ? "GPT" : "hf";
    if (strcasecmp(g->value, only) == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s %s is not supported (%s)", g->names, g->value, only);
}

/* ---- all ---- */

enum status training_flags_check(const struct training_flags *f, const struct checkpoint *c,
                                 const struct format *target, bool casts, enum dtype dtype,
                                 bool optimizer, bool quiet, struct error *err)
{
    for (size_t i = 0; 2 * i < f->converter.count; i++) {
        const struct given g = given_at(&f->converter, i);
        TRY(check_converter(&g, c, target, err));
    }
    TRY(check_all_model(&f->model, c, err));
    for (size_t i = 0; 2 * i < f->dtypes.count; i++) {
        const struct given g = given_at(&f->dtypes, i);
        TRY(check_dtype(&g, c, casts, dtype, err));
    }
    if (quiet) return OK;
    print_given(&f->unused, "no effect on the weights");
    print_given(&f->converter, "ignored, as it is so");
    print_given(&f->optimizer,
                optimizer ? "set in the written optimizer" : "no effect on the written files");
    print_given(&f->model, "agrees with the model");
    print_given(&f->dtypes, "weights are written in that dtype");
    return OK;
}
