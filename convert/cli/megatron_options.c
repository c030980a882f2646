#include "convert/cli/megatron_options.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/arena.h"
#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/embedded.h"
#include "convert/map/fields.h"

static struct arena arena; /* never released */
static struct megatron_option *options;
static size_t num_options, capacity;

static struct megatron_option *find(const char *names)
{
    const size_t length = strcspn(names, " ");
    for (size_t i = 0; i < num_options; i++)
        if (strcspn(options[i].names, " ") == length && !strncmp(options[i].names, names, length))
            return &options[i];
    return NULL;
}

const char *megatron_arg_name(const char *names, bool *unsets, struct arena *a)
{
    const char *name = names + strlen("--");
    const bool adds = text_skip_prefix(&name, "disable-");
    *unsets = adds || text_skip_prefix(&name, "no-");
    char *out = arena_printf(a, "%s%.*s", adds ? "add_" : "", (int)strcspn(name, " "), name);
    for (char *c = out; *c; c++)
        if (*c == '-') *c = '_';
    return out;
}

/* ---- listed options ---- */

static const char *text_of(const cJSON *row, const char *name)
{
    const char *text = json_as_text(json_get(row, name));
    return text ? arena_copy_text(&arena, text) : NULL;
}

/* Completes an option that describes a model. */
static void add_default(struct megatron_option *o, const cJSON *row)
{
    static size_t num_slots;
    const cJSON *usual = json_get(row, "default");
    o->arg = megatron_arg_name(o->names, &o->usual.truth, &arena);
    if (!o->value) {
        o->usual.kind = FIELD_BOOL; /* true if the option unsets it */
    } else if (strcmp(o->value, "N") == 0) {
        o->usual = (struct scalar){FIELD_UINT, {0}};
        (void)json_as_u64(usual, &o->usual.number);
    } else if (strcmp(o->value, "X") == 0) {
        o->usual = (struct scalar){FIELD_REAL, {.real = 0}};
        (void)json_as_double(usual, &o->usual.real);
    } else {
        o->usual = (struct scalar){FIELD_TEXT, {.text = text_of(row, "default")}};
    }
    o->slot = num_slots++;
    assert(num_slots <= MAX_MODEL_OPTIONS);
}

static void add_listed(const cJSON *row)
{
    const char *field = json_as_text(json_get(row, "field"));
    const struct megatron_option o = {.value = text_of(row, "value"),
                                      .field = field ? model_field_find(field) : NULL,
                                      .is_of_training = cJSON_IsTrue(json_get(row, "training")),
                                      .why = text_of(row, "why"),
                                      .only = text_of(row, "only"),
                                      .group = text_of(row, "group"),
                                      .help = text_of(row, "help"),
                                      .choices = text_of(row, "choices"),
                                      .derived = text_of(row, "derived"),
                                      .may_be_0 = cJSON_IsTrue(json_get(row, "may_be_0"))};
    assert(!field || o.field);
    for (const cJSON *i = json_get(row, "options")->child; i; i = i->next) {
        struct megatron_option *to = ARENA_PUSH(&arena, options, num_options, capacity);
        *to = o;
        to->names = arena_copy_text(&arena, i->valuestring);
        if (to->group) add_default(to, row);
    }
}

/* ---- options of fields ---- */

static bool is_listed(const struct model_field *f, size_t num_listed)
{
    for (size_t i = 0; i < num_listed; i++)
        if (options[i].field == f) return true;
    return false;
}

/* Whether the field is the argument as it is. */
static bool is_plain(const cJSON *row)
{
    static const char *const others[] = {"read", "value", "how", "when", "default", "null"};
    for (size_t i = 0; i < COUNT(others); i++)
        if (json_get(row, others[i])) return false;
    return !text_equal(json_as_text(json_get(row, "only")), "export");
}

static char *option_of(const char *arg)
{
    char *name = arena_printf(&arena, "--%s", arg);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return name;
}

/* NULL: it only counts with another declared field, which is refused. */
static const char *refusal_of(const struct model_field *f, const cJSON *row)
{
    const char *when = json_as_text(json_get(row, "when")),
               *about = json_as_text(json_get(row, "about"));
    const struct model_field *other = when ? model_field_find(when) : NULL;
    if (!f->declared || (other && other->declared)) return NULL;
    return arena_printf(&arena, "not implemented: %s", about);
}

/* A listed option keeps what the list says. */
static void add_field(const struct model_field *f, const cJSON *row)
{
    static const char *const values[] = {
        [FIELD_UINT] = "N", [FIELD_REAL] = "X", [FIELD_BOOL] = NULL, [FIELD_TEXT] = "NAME"};
    const char *arg = json_as_text(json_get(row, "args"));
    if (!arg) return;
    const char *name = option_of(arg);
    struct megatron_option *o = find(name);
    if (!o) {
        o = ARENA_PUSH(&arena, options, num_options, capacity);
        *o = (struct megatron_option){
            .names = name, .value = values[f->field.kind], .why = refusal_of(f, row)};
    }
    o->field = f;
}

/* Whether a conversion must find the field as given. */
static bool is_checked(const struct model_field *f)
{
    return f->role == FIELD_MODEL || f->role == FIELD_LENGTH || f->role == FIELD_VOCABULARY;
}

static void load(void)
{
    arena_init(&arena);
    fields_load();
    cJSON *listed = embedded_file_parse("options.json"),
          *of_model = embedded_file_parse("megatron.json");
    for (const cJSON *i = listed->child; i; i = i->next)
        add_listed(i);
    const size_t num_listed = num_options;
    for (const cJSON *i = json_get(of_model, "model")->child; i; i = i->next) {
        const char *name = json_as_text(json_get(i, "megatron"));
        const struct model_field *f = name ? model_field_find(name) : NULL;
        if (f && is_plain(i) && is_checked(f) && !is_listed(f, num_listed)) add_field(f, i);
    }
    cJSON_Delete(listed);
    cJSON_Delete(of_model);
    for (const cJSON *i = fields_list()->child; i; i = i->next)
        add_field(model_field_find(json_as_text(json_get(i, "name"))), i);
}

const struct megatron_option *megatron_options(size_t *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load);
    *count = num_options;
    return options;
}

const struct arg_group *megatron_options_make(struct arg_group *group, const struct arg_group *like,
                                              bool (*make)(struct arg *to,
                                                           const struct megatron_option *o,
                                                           const char *title))
{
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    if (group->args) return group;
    struct arg *args = arena_array(&arena, count, sizeof *args);
    *group = *like;
    for (size_t i = 0; i < count; i++) {
        args[group->num_args] = (struct arg){.names = all[i].names, .value = all[i].value};
        group->num_args += make(&args[group->num_args], &all[i], like->title);
    }
    group->args = args;
    return group;
}

const struct megatron_option *megatron_option_find(const char *names)
{
    return find(names);
}

bool megatron_value_equal(const char *a, const char *b)
{
    char *end_a, *end_b;
    const double x = strtod(a, &end_a), y = strtod(b, &end_b);
    const bool numbers = end_a > a && !*end_a && end_b > b && !*end_b;
    return numbers ? fabs(x - y) <= 1e-9 * fabs(y) : strcmp(a, b) == 0;
}
