#include "ckpt/training.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/strbuf.h"
#include "common/text.h"

const char *const training_part_names[NUM_TRAINING_PARTS] = {
    "progress", "optimizer", "schedule", "loss scale", "parameter groups", "random number states"};

// clang-format off
#define TRAINING_ROW(kind, name, part) {FIELD_ROW(struct training, name), TRAINING_##part},
#define GROUP_ROW(kind, name) FIELD_ROW(struct param_group, name),
const struct training_field training_fields[] = {TRAINING_FIELDS(TRAINING_ROW)};
const struct field group_fields[] = {GROUP_FIELDS(GROUP_ROW)};
// clang-format on
const size_t num_training_fields = COUNT(training_fields);
const size_t num_group_fields = COUNT(group_fields);

/* ---- members of groups ---- */

static bool is_embedding(const char *logical, unsigned num_dims)
{
    (void)num_dims;
    return text_equal(logical, "embedding.word_embeddings.weight") ||
           text_equal(logical, "output_layer.weight");
}

static bool is_vector(const char *logical, unsigned num_dims)
{
    return num_dims <= 1 || text_ends_with(logical, ".bias");
}

static bool is_matrix(const char *logical, unsigned num_dims)
{
    return !is_vector(logical, num_dims);
}

bool training_hidden_matrix(const char *logical, unsigned num_dims)
{
    return is_matrix(logical, num_dims) && !is_embedding(logical, num_dims);
}

static bool is_qk_norm(const char *logical)
{
    return strstr(logical, "q_layernorm.") || strstr(logical, "k_layernorm.");
}

static bool is_matrix_or_qk_norm(const char *logical, unsigned num_dims)
{
    return is_matrix(logical, num_dims) || is_qk_norm(logical);
}

static bool is_other_vector(const char *logical, unsigned num_dims)
{
    return is_vector(logical, num_dims) && !is_qk_norm(logical);
}

static bool is_any(const char *logical, unsigned num_dims)
{
    (void)logical, (void)num_dims;
    return true;
}

const struct group_member_rule group_members[] = {
    {"embeddings", is_embedding},
    {"hidden_matrices", training_hidden_matrix},
    {"matrices", is_matrix},
    {"vectors", is_vector},
    {"matrices_and_qk_norms", is_matrix_or_qk_norm},
    {"vectors_without_qk_norms", is_other_vector},
    {"all", is_any},
};
const size_t num_group_members = COUNT(group_members);

const struct group_member_rule *group_members_find(const char *name)
{
    for (size_t i = 0; i < num_group_members; i++)
        if (text_equal(group_members[i].name, name)) return &group_members[i];
    return NULL;
}

const struct param_group *training_group_of(const struct training *t, const char *logical,
                                            unsigned num_dims, bool is_expert_parallel)
{
    const struct param_group *found = NULL;
    const struct group_member_rule *first = group_members + num_group_members;
    for (size_t i = 0; i < t->num_groups; i++) {
        const struct param_group *g = &t->groups[i];
        const struct group_member_rule *rule = group_members_find(g->members);
        if (g->is_expert_parallel != is_expert_parallel || !rule || rule >= first) continue;
        if (!rule->has(logical, num_dims)) continue;
        found = g;
        first = rule;
    }
    return found;
}

bool training_is_split(const struct training *t)
{
    bool is_split = false;
    for (size_t i = 0; i < t->num_groups; i++)
        is_split |= t->groups[i].optimizer && !text_equal(t->groups[i].optimizer, t->optimizer);
    return is_split;
}

/* ---- states ---- */

bool training_field_given(const struct field *f, const void *of)
{
    const struct scalar s = field_get(f, of);
    return s.kind == FIELD_REAL ? (bool)isfinite(s.real) : scalar_is_given(s);
}

static void clear_real(const struct field *f, void *of)
{
    if (f->kind == FIELD_REAL) field_set(f, of, (struct scalar){FIELD_REAL, {.real = NAN}});
}

void training_init(struct training *t)
{
    *t = (struct training){0};
    for (size_t i = 0; i < num_training_fields; i++)
        clear_real(&training_fields[i].field, t);
}

void param_group_init(struct param_group *g)
{
    *g = (struct param_group){.decoupled_weight_decay = true};
    for (size_t i = 0; i < num_group_fields; i++)
        clear_real(&group_fields[i], g);
}

struct training training_copy(const struct training *from, struct arena *a)
{
    struct training t = *from;
    t.groups = arena_copy(a, from->groups, from->num_groups * sizeof *t.groups);
    t.groups_capacity = t.num_groups;
    for (size_t i = 0; i < t.num_groups; i++)
        if (t.groups[i].listed) t.groups[i].listed = arena_copy_text(a, t.groups[i].listed);
    return t;
}

void training_given_init(struct training_given *g)
{
    *g = (struct training_given){NAN, NAN, NAN, NAN, NAN, NAN, NULL, NAN, NAN};
}

struct param_group *training_add_group(struct training *t, struct arena *a)
{
    struct param_group *g = ARENA_PUSH(a, t->groups, t->num_groups, t->groups_capacity);
    param_group_init(g);
    return g;
}

bool training_has(const struct training *t, enum training_part part)
{
    if (part == TRAINING_GROUPS) return t->num_groups > 0;
    if (part == TRAINING_RNG) return t->has_rng;
    for (size_t i = 0; i < num_training_fields; i++)
        if (training_fields[i].part == part && training_field_given(&training_fields[i].field, t))
            return true;
    return false;
}

/* ---- JSON ---- */

static void add_given(cJSON *object, const struct field *f, const void *of)
{
    if (training_field_given(f, of))
        cJSON_AddItemToObject(object, f->name, scalar_json(field_get(f, of)));
}

static cJSON *group_json(const struct param_group *g)
{
    cJSON *object = cJSON_CreateObject();
    for (size_t i = 0; i < num_group_fields; i++)
        add_given(object, &group_fields[i], g);
    return object;
}

cJSON *training_json(const struct training *t)
{
    cJSON *object = cJSON_CreateObject();
    for (size_t i = 0; i < num_training_fields; i++)
        add_given(object, &training_fields[i].field, t);
    if (!t->num_groups) return object;
    cJSON *groups = cJSON_AddArrayToObject(object, "groups");
    for (size_t i = 0; i < t->num_groups; i++)
        cJSON_AddItemToArray(groups, group_json(&t->groups[i]));
    return object;
}

/* The state of training_from_json(). */
struct json_reader {
    struct training *t;
    struct arena *arena;
    struct strbuf unknown;
};

static const struct field *training_field_find(const char *name)
{
    for (size_t i = 0; i < num_training_fields; i++)
        if (strcmp(training_fields[i].field.name, name) == 0) return &training_fields[i].field;
    return NULL;
}

static const struct field *group_field_find(const char *name)
{
    for (size_t i = 0; i < num_group_fields; i++)
        if (strcmp(group_fields[i].name, name) == 0) return &group_fields[i];
    return NULL;
}

/* Sets field f (NULL: unknown) of a struct; `where` precedes its name in
 * messages. */
static enum status set_member(struct json_reader *r, const struct field *f, void *of,
                              const char *where, const cJSON *item, struct error *err)
{
    static const char *const kinds[] = {[FIELD_UINT] = "a whole number from 0",
                                        [FIELD_REAL] = "a finite number",
                                        [FIELD_BOOL] = "true or false",
                                        [FIELD_TEXT] = "a text"};
    if (!f) {
        if (r->unknown.length) strbuf_add_text(&r->unknown, ", ");
        strbuf_add_text(&r->unknown, where);
        strbuf_add_escaped(&r->unknown, item->string, strlen(item->string));
        return OK;
    }
    double real;
    bool finite = f->kind != FIELD_REAL || !json_as_double(item, &real) || isfinite(real);
    if (finite && field_set_json(f, of, item, r->arena)) return OK;
    return fail(err, ERR_CORRUPT, "%s%s is not %s", where, f->name, kinds[f->kind]);
}

static enum status read_group(struct json_reader *r, const cJSON *item, struct error *err)
{
    const char *where = arena_printf(r->arena, "groups[%zu].", r->t->num_groups);
    if (!cJSON_IsObject(item))
        return fail(err, ERR_CORRUPT, "groups[%zu] is not an object", r->t->num_groups);
    struct param_group *g = training_add_group(r->t, r->arena);
    for (const cJSON *m = item->child; m; m = m->next)
        TRY(set_member(r, group_field_find(m->string), g, where, m, err));
    if (g->members && !group_members_find(g->members))
        return fail(err, ERR_CORRUPT, "%smembers \"%.100s\" is not a known set of parameters",
                    where, g->members);
    return OK;
}

static enum status read_groups(struct json_reader *r, const cJSON *list, struct error *err)
{
    if (!cJSON_IsArray(list)) return fail(err, ERR_CORRUPT, "groups is not a list");
    for (const cJSON *item = list->child; item; item = item->next) {
        if (r->t->num_groups == MAX_PARAM_GROUPS)
            return fail(err, ERR_CORRUPT, "groups has more than %d items", MAX_PARAM_GROUPS);
        TRY(read_group(r, item, err));
    }
    return OK;
}

static enum status read_members(struct json_reader *r, const cJSON *tree, struct error *err)
{
    if (!cJSON_IsObject(tree)) return fail(err, ERR_CORRUPT, "the training state is not an object");
    for (const cJSON *m = tree->child; m; m = m->next) {
        if (strcmp(m->string, "groups") == 0)
            TRY(read_groups(r, m, err));
        else
            TRY(set_member(r, training_field_find(m->string), r->t, "", m, err));
    }
    return OK;
}

enum status training_from_json(struct training *t, const cJSON *tree, struct arena *a,
                               const char **unknown, struct error *err)
{
    struct json_reader r = {.t = t, .arena = a};
    training_init(t);
    enum status st = read_members(&r, tree, err);
    *unknown = r.unknown.length ? arena_text(a, r.unknown.data, r.unknown.length) : NULL;
    strbuf_release(&r.unknown);
    return st;
}

/* ---- two states ---- */

struct comparison {
    struct arena *arena;
    struct training_difference *found;
    size_t count, capacity;
};

static void add_difference(struct comparison *c, const char *field, const char *x, const char *y)
{
    *ARENA_PUSH(c->arena, c->found, c->count, c->capacity) =
        (struct training_difference){field, {x, y}};
}

/* A field as text; a real number with enough digits to tell it from any other. */
static const char *value_text(struct comparison *c, const struct field *f, const void *of)
{
    static const struct scalar_style style = {17, "true", "false", "not given"};
    const struct scalar s = field_get(f, of);
    if (s.kind != FIELD_REAL) return scalar_text(s, &style, c->arena);
    cJSON *item = json_new_double(s.real);
    const char *text = arena_copy_text(c->arena, item->valuestring);
    cJSON_Delete(item);
    return text;
}

static void compare_field(struct comparison *c, const char *where, const struct field *f,
                          const void *x, const void *y)
{
    if (!training_field_given(f, x) || !training_field_given(f, y) || field_equal(f, x, y)) return;
    add_difference(c, arena_printf(c->arena, "%s%s", where, f->name), value_text(c, f, x),
                   value_text(c, f, y));
}

static bool same_members(const struct param_group *x, const struct param_group *y)
{
    return text_equal(x->members, y->members) && x->is_expert_parallel == y->is_expert_parallel;
}

static int compare_reals(double x, double y)
{
    if (isfinite(x) != isfinite(y)) return isfinite(x) ? 1 : -1;
    return (x > y) - (x < y);
}

/* Orders two scalars of one kind. */
static int compare_scalars(struct scalar x, struct scalar y)
{
    switch (x.kind) {
    case FIELD_UINT:
        return (x.number > y.number) - (x.number < y.number);
    case FIELD_REAL:
        return compare_reals(x.real, y.real);
    case FIELD_BOOL:
        return x.truth - y.truth;
    case FIELD_TEXT:
        if (!x.text || !y.text) return (x.text != NULL) - (y.text != NULL);
        return strcmp(x.text, y.text);
    }
    return 0;
}

/* Whether group k precedes group i, by fields, then by place. */
static bool is_before(const struct training *t, size_t k, size_t i)
{
    int order = 0;
    for (size_t f = 0; f < num_group_fields && !order; f++)
        order = compare_scalars(field_get(&group_fields[f], &t->groups[k]),
                                field_get(&group_fields[f], &t->groups[i]));
    return order ? order < 0 : k < i;
}

/* The rank of each group: the number of groups with its members before it. */
static size_t *rank_groups(const struct training *t, struct arena *a)
{
    size_t *ranks = arena_array(a, t->num_groups, sizeof *ranks);
    for (size_t i = 0; i < t->num_groups; i++)
        for (size_t k = 0; k < t->num_groups; k++)
            ranks[i] += same_members(&t->groups[k], &t->groups[i]) && is_before(t, k, i);
    return ranks;
}

/* The group of t with g's members and this rank; NULL: none. Formats keep equal
 * groups in different orders. */
static const struct param_group *counterpart(const struct param_group *g, size_t rank,
                                             const struct training *t, const size_t *ranks)
{
    for (size_t k = 0; k < t->num_groups; k++)
        if (ranks[k] == rank && same_members(&t->groups[k], g)) return &t->groups[k];
    return NULL;
}

static const char *group_name(const struct param_group *g, struct arena *a)
{
    const char *members = g->members ? g->members : g->listed ? g->listed : "unknown members";
    return g->is_expert_parallel ? arena_printf(a, "%s of experts", members) : members;
}

static void compare_groups(struct comparison *c, const struct training *x, const struct training *y)
{
    const size_t *rx = rank_groups(x, c->arena), *ry = rank_groups(y, c->arena);
    for (size_t i = 0; i < x->num_groups; i++) {
        const struct param_group *other = counterpart(&x->groups[i], rx[i], y, ry);
        const char *where = arena_printf(c->arena, "groups[%zu].", i);
        for (size_t f = 0; f < num_group_fields && other; f++)
            compare_field(c, where, &group_fields[f], &x->groups[i], other);
        if (!other)
            add_difference(c, arena_printf(c->arena, "groups[%zu]", i),
                           group_name(&x->groups[i], c->arena), "no such group");
    }
    for (size_t i = 0; i < y->num_groups; i++)
        if (!counterpart(&y->groups[i], ry[i], x, rx))
            add_difference(c, arena_printf(c->arena, "groups[%zu]", i), "no such group",
                           group_name(&y->groups[i], c->arena));
}

size_t training_differences(const struct training *x, const struct training *y, struct arena *a,
                            struct training_difference **out)
{
    struct comparison c = {.arena = a};
    for (size_t i = 0; i < num_training_fields; i++)
        compare_field(&c, "", &training_fields[i].field, x, y);
    if (x->num_groups && y->num_groups) compare_groups(&c, x, y);
    *out = c.found;
    return c.count;
}

/* ---- lines ---- */

/* Parts of a line, with ", " between them. */
struct line {
    struct strbuf text;
    bool begun; /* the next part needs ", " before it */
};

static void add_line_part(struct line *l, const char *text)
{
    if (l->begun) strbuf_add_text(&l->text, ", ");
    strbuf_add_text(&l->text, text);
    l->begun = true;
}

/* Adds `format` with a count or number, if that is given. */
#define ADD_COUNT(l, a, format, n)                                                                 \
    do {                                                                                           \
        if (n) add_line_part(l, arena_printf(a, format, n));                                       \
    } while (0)
#define ADD_REAL(l, a, format, x)                                                                  \
    do {                                                                                           \
        if (isfinite(x)) add_line_part(l, arena_printf(a, format, x));                             \
    } while (0)

static void progress_line(struct line *l, const struct training *t, struct arena *a)
{
    ADD_COUNT(l, a, "step %" PRIu64, t->step);
    ADD_COUNT(l, a, "iteration %" PRIu64, t->iteration);
    ADD_COUNT(l, a, "%" PRIu64 " samples", t->consumed_train_samples);
    ADD_COUNT(l, a, "%" PRIu64 " skipped", t->skipped_train_samples);
    ADD_COUNT(l, a, "%" PRIu64 " validation samples", t->consumed_valid_samples);
    ADD_COUNT(l, a, "%" PRIu64 " tokens", t->consumed_tokens);
    if (t->floating_point_operations > 0)
        ADD_REAL(l, a, "%.6g floating point operations", t->floating_point_operations);
}

static void add_group_text(struct line *l, const struct param_group *g, struct arena *a)
{
    struct line facts = {0};
    if (g->optimizer) add_line_part(&facts, g->optimizer);
    ADD_REAL(&facts, a, "lr %.9g", g->lr);
    ADD_REAL(&facts, a, "weight decay %.9g", g->weight_decay);
    ADD_REAL(&facts, a, "momentum %.9g", g->momentum);
    add_line_part(l, group_name(g, a));
    if (facts.begun) strbuf_printf(&l->text, " (%s)", facts.text.data);
    strbuf_release(&facts.text);
}

static void groups_line(struct line *l, const struct training *t, struct arena *a)
{
    enum { SHOWN = 8 }; /* a line stays a line */
    if (t->optimizer) add_line_part(l, t->optimizer);
    if (!t->num_groups) return;
    add_line_part(l,
                  arena_printf(a, "%zu group%s: ", t->num_groups, t->num_groups == 1 ? "" : "s"));
    l->begun = false;
    for (size_t i = 0; i < t->num_groups && i < SHOWN; i++)
        add_group_text(l, &t->groups[i], a);
    if (t->num_groups > SHOWN) add_line_part(l, arena_printf(a, "%zu more", t->num_groups - SHOWN));
}

static void schedule_line(struct line *l, const struct training *t, struct arena *a)
{
    if (!training_has(t, TRAINING_SCHEDULE)) return;
    strbuf_add_text(&l->text, "schedule: ");
    if (t->lr_decay_style) add_line_part(l, t->lr_decay_style);
    if (isfinite(t->max_lr) && isfinite(t->min_lr))
        add_line_part(l, arena_printf(a, "lr %.9g to %.9g", t->max_lr, t->min_lr));
    else
        ADD_REAL(l, a, "lr %.9g", t->max_lr);
    if (t->lr_warmup_steps > 0) ADD_REAL(l, a, "warmup of %.9g samples", t->lr_warmup_steps);
    ADD_COUNT(l, a, "decay over %" PRIu64, t->lr_decay_steps);
    ADD_COUNT(l, a, "at sample %" PRIu64, t->num_steps);
    if (isfinite(t->start_wd) && isfinite(t->end_wd) &&
        (t->start_wd < t->end_wd || t->start_wd > t->end_wd))
        add_line_part(l, arena_printf(a, "weight decay %.9g to %.9g", t->start_wd, t->end_wd));
    if (!l->begun) strbuf_clear(&l->text);
}

static void loss_scale_line(struct line *l, const struct training *t, struct arena *a)
{
    ADD_REAL(l, a, "loss scale %.9g", t->loss_scale);
    if (!isfinite(t->loss_scale)) return;
    ADD_COUNT(l, a, "%" PRIu64 " good steps", t->growth_tracker);
    ADD_COUNT(l, a, "hysteresis %" PRIu64, t->hysteresis_tracker);
}

static void rng_line(struct line *l, const struct training *t, struct arena *a)
{
    (void)a;
    if (t->has_rng) add_line_part(l, "states of random number generators");
}

size_t training_lines(const struct training *t, struct arena *a, const char ***out)
{
    static void (*const lines[])(struct line *, const struct training *, struct arena *) = {
        progress_line, groups_line, schedule_line, loss_scale_line, rng_line};
    size_t count = 0;
    *out = arena_array(a, COUNT(lines), sizeof **out);
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct line l = {0};
        lines[i](&l, t, a);
        if (l.text.length) (*out)[count++] = arena_text(a, l.text.data, l.text.length);
        strbuf_release(&l.text);
    }
    return count;
}
