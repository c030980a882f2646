/* train_checks.c - contradictions of a command line, by train_rules.json. Most
 * rules are Megatron-LM's: validate_args of arguments.py, and
 * core/optimizer_param_scheduler.py.
 *
 * A rule has
 *
 * - `when`, an expression over options (seq_length), `names`, and `own` below;
 * - `why`, `note` with {EXPR}, or `rules`;
 * - `of` or `each`: it is for x, an option or an item of a list;
 * - `try` and `without`, for its test: options added to a good line, and one left out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/ranks.h"
#include "common/text.h"
#include "common/threads.h"
#include "convert/map/embedded.h"
#include "convert/map/expr.h"
#include "train/cli/train_finish.h"

/* ---- values ---- */

struct named_value {
    const char *name;
    struct term value;
};

struct rules {
    struct train_finish *x;
    struct arena arena;
    const cJSON *names;
    struct named_value own[13]; /* up to one without a name */
};
enum { OWN_OPTION, OWN_X };

static struct term text_or_none(const char *text)
{
    return text ? term_text(text, strlen(text)) : (struct term){.kind = TERM_NONE};
}

static struct term list_of(struct arena *a, const struct arg_list *l)
{
    struct term *items = arena_array(a, l->count + 1, sizeof *items);
    for (size_t i = 0; i < l->count; i++)
        items[i] = text_or_none(l->items[i]);
    return (struct term){.kind = TERM_LIST, .items = items, .length = l->count};
}

/* Nothing if not given; an ARG_UINT is 0. */
static struct term option_value(struct arena *a, const struct arg *arg, const void *field)
{
    switch (arg->kind) {
    case ARG_FLAG:
        return term_bool(*(const bool *)field);
    case ARG_FLAG_OFF:
        return term_bool(!*(const bool *)field);
    case ARG_UINT:
        return term_whole((int64_t) * (const uint64_t *)field);
    case ARG_UINT_OR_0:
        if (*(const uint64_t *)field == UINT64_MAX) return text_or_none(NULL);
        return term_whole((int64_t) * (const uint64_t *)field);
    case ARG_FLOAT:
        if (isnan(*(const double *)field)) return text_or_none(NULL);
        return term_real(*(const double *)field);
    case ARG_WORDS:
    case ARG_LIST:
        return list_of(a, field);
    default:
        return text_or_none(*(const char *const *)field);
    }
}

static char folded(char c)
{
    return c == '_' ? '-' : c;
}

/* Whether this is one of the names, without dashes; `_` is `-`. */
static bool has_name(const char *names, const char *name, size_t length)
{
    for (const char *at = names; *at; at += strspn(at, " ")) {
        at += strspn(at, "-");
        const size_t n = strcspn(at, " ");
        size_t i = 0;
        while (i < n && i < length && folded(name[i]) == folded(at[i]))
            i++;
        if (i == n && i == length) return true;
        at += n;
    }
    return false;
}

static bool find_option(const struct rules *r, const char *name, size_t length, struct term *out)
{
    for (size_t g = 0; g < NUM_TRAIN_GROUPS; g++) {
        const struct arg_group *group = train_group(g);
        for (size_t i = 0; i < group->num_args; i++) {
            const struct arg *arg = &group->args[i];
            if (!has_name(arg->names, name, length)) continue;
            *out = option_value((struct arena *)(uintptr_t)&r->arena, arg,
                                (const char *)r->x->o + group->offset + arg->offset);
            return true;
        }
    }
    return false;
}

static enum status rule_value(const struct rules *r, const char *text, size_t length,
                              struct term *out, struct error *err);

static bool find_value(const void *context, const char *name, size_t length, int64_t index,
                       struct term *out)
{
    const struct rules *r = context;
    struct error ignored;
    if (index >= 0) return false;
    for (const struct named_value *v = r->own; v->name; v++)
        if (has_name(v->name, name, length)) {
            *out = v->value;
            return true;
        }
    for (const cJSON *i = r->names->child; i; i = i->next)
        if (has_name(i->string, name, length))
            return !rule_value(r, i->valuestring, strlen(i->valuestring), out, &ignored);
    return find_option(r, name, length, out);
}

static struct expr_names names_of(const struct rules *r)
{
    return (struct expr_names){find_value, r, (struct arena *)(uintptr_t)&r->arena};
}

static enum status rule_value(const struct rules *r, const char *text, size_t length,
                              struct term *out, struct error *err)
{
    const struct expr_names names = names_of(r);
    return expr_value(text, length, &names, out, err);
}

/* ---- rules ---- */

static enum status apply_all(struct rules *r, const cJSON *list, struct error *err);

static enum status apply(struct rules *r, const cJSON *rule, struct error *err)
{
    const char *when = json_as_text(json_get(rule, "when")),
               *why = json_as_text(json_get(rule, "why")),
               *note = json_as_text(json_get(rule, "note"));
    const struct expr_names names = names_of(r);
    struct strbuf text = {0};
    struct term holds;
    TRY(rule_value(r, when, strlen(when), &holds, err));
    if (!term_is_true(&holds)) return OK;
    if (json_get(rule, "rules")) return apply_all(r, json_get(rule, "rules"), err);
    enum status st = expr_fill(why ? why : note, &names, &text, err);
    if (!st) (why ? train_problem : train_note)(r->x, "%s", text.data);
    strbuf_release(&text);
    return st;
}

/* Applies a rule with `of` or `each`. */
static enum status apply_to_each(struct rules *r, const cJSON *rule, struct error *err)
{
    const char *each = json_as_text(json_get(rule, "each"));
    struct term list = {0};
    for (const cJSON *i = json_get(rule, "of") ? json_get(rule, "of")->child : NULL; i;
         i = i->next) {
        const char *name = i->valuestring + strspn(i->valuestring, "-");
        r->own[OWN_OPTION].value = text_or_none(i->valuestring);
        (void)find_value(r, name, strlen(name), -1, &r->own[OWN_X].value);
        TRY(apply(r, rule, err));
    }
    if (each) TRY(rule_value(r, each, strlen(each), &list, err));
    for (size_t i = 0; i < list.length; i++) {
        r->own[OWN_X].value = list.items[i];
        TRY(apply(r, rule, err));
    }
    return OK;
}

static enum status apply_all(struct rules *r, const cJSON *list, struct error *err)
{
    for (const cJSON *i = list->child; i; i = i->next)
        if (json_get(i, "of") || json_get(i, "each"))
            TRY(apply_to_each(r, i, err));
        else
            TRY(apply(r, i, err));
    return OK;
}

/* ---- what no expression says ---- */

/* The last size of the schedule that the run reaches. The trainer checks the
 * sizes before it: the run may resume behind them. 0: no schedule. */
static uint64_t last_batch_size(const struct train_options *o)
{
    const struct batch_size_step *const steps = o->batch_size_steps;
    const uint64_t samples = o->train_samples ? o->train_samples : UINT64_MAX;
    uint64_t iterations = o->train_iters ? o->train_iters : UINT64_MAX, consumed = 0;
    size_t reached = 0;
    if (!o->num_batch_size_steps) return 0;
    for (size_t i = 1; i < o->num_batch_size_steps; i++) {
        const uint64_t size = steps[i - 1].global_batch_size, from = steps[i].from_sample,
                       n = from > consumed ? ceil_div_u64(from - consumed, size) : 0;
        uint64_t taken;
        if (n >= iterations || !mul_u64(n, size, &taken) || !add_u64(consumed, taken, &consumed) ||
            consumed >= samples)
            break;
        iterations -= n;
        reached = i;
    }
    return steps[reached].global_batch_size;
}

static bool is_split(const char *text)
{
    int parts = 0;
    double sum = 0;
    for (const char *at = text; *at && parts < 4; parts++) {
        char number[32] = "";
        double part;
        const size_t length = strcspn(at, ",/");
        if (length >= sizeof number) return false;
        memcpy(number, at, length);
        char *end;
        part = strtod(number, &end);
        if (end == number || end[strspn(end, " ")] || !(part >= 0)) return false;
        sum += part;
        at += length + (at[length] ? 1 : 0);
    }
    return parts >= 1 && parts <= 3 && sum > 0 && isfinite(sum);
}

/* Whether a typed option, perhaps with "=VALUE", names the tokenizer. */
static bool names_tokenizer(const char *typed)
{
    return text_starts_with(typed, "--tokenizer") || text_starts_with(typed, "--vocab-file") ||
           text_starts_with(typed, "--vocab_file") || text_starts_with(typed, "--merge-file") ||
           text_starts_with(typed, "--merge_file");
}

/* Megatron-LM asks its tokenizer for the size. */
static struct term tokenizer_option(const struct train_options *o)
{
    const char *option = o->tokenizer_type ? "--tokenizer-type" : NULL;
    for (size_t i = 0; i < o->no_effect.count && !option; i++)
        if (names_tokenizer(o->no_effect.items[i])) option = o->no_effect.items[i];
    return option ? term_text(option, strcspn(option, "=")) : text_or_none(NULL);
}

void train_check(struct train_finish *x)
{
    const struct train_options *o = x->o;
    cJSON *tree = embedded_file_parse("train_rules.json");
    struct rules r = {.x = x,
                      .names = json_get(tree, "names"),
                      .own = {
                          [OWN_OPTION] = {"option", text_or_none(NULL)},
                          [OWN_X] = {"x", text_or_none(NULL)},
                          {"has_model", term_bool(o->has_model)},
                          {"is_global_batch_size_given", term_bool(o->is_global_batch_size_given)},
                          {"last_batch_size", term_whole((int64_t)last_batch_size(o))},
                          {"split", text_or_none(o->split)},
                          {"is_split", term_bool(o->split && is_split(o->split))},
                          {"tokenizer_option", tokenizer_option(o)},
                          {"moe_aux_loss_coeff", term_real(o->moe_aux_loss_coeff)},
                          {"max_threads", term_whole(MAX_THREADS)},
                          {"max_ranks", term_whole(MAX_RANKS_OF_A_JOB)},
                      }};
    struct error err;
    arena_init(&r.arena);
    if (apply_all(&r, json_get(tree, "rules"), &err)) train_problem(x, "%s", err.text);
    arena_release(&r.arena);
    cJSON_Delete(tree);
}
