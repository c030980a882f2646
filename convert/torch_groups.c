#include "convert/torch_groups.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/strbuf.h"
#include "common/text.h"
#include "convert/format.h"

/* ---- reading ---- */

/* betas, a pair of fields, is read by torch_groups_add() and made by
 * key_value(). */
static const struct group_key {
    const char *key;
    struct field field;
} group_keys[] = {
#define KEY(key, member)                                                                           \
    {                                                                                              \
        key, FIELD_ROW(struct param_group, member)                                                 \
    }
    KEY("lr", lr),
    KEY("initial_lr", max_lr),
    KEY("eps", eps),
    KEY("momentum", momentum),
    KEY("weight_decay", weight_decay),
    KEY("amsgrad", amsgrad),
    KEY("decoupled_weight_decay", decoupled_weight_decay),
#undef KEY
};

struct group_reader {
    torch_scalar *scalar;
    void *context;
};

static bool as_real(const struct group_reader *r, const struct value *v, double *out)
{
    if (value_as_float(v, out)) return true;
    return v && v->kind == VALUE_TENSOR && r->scalar && r->scalar(r->context, v, out);
}

static void read_key(const struct group_reader *r, const struct field *f, const struct value *v,
                     struct param_group *to)
{
    struct scalar s = {.kind = f->kind};
    if (f->kind == FIELD_REAL ? as_real(r, v, &s.real) : value_as_bool(v, &s.truth))
        field_set(f, to, s);
}

enum status torch_groups_add(struct checkpoint *c, const struct value *group, torch_scalar *scalar,
                             void *context, struct error *err)
{
    struct training_state *s = &c->training;
    const struct group_reader r = {scalar, context};
    size_t count = s->run.num_groups;
    if (count == MAX_PARAM_GROUPS)
        return fail(err, ERR_CORRUPT, "%s: more than %d parameter groups", c->path,
                    MAX_PARAM_GROUPS);
    struct param_group *to = training_add_group(&s->run, &c->arena);
    *ARENA_PUSH(&c->arena, s->torch_groups, count, s->torch_groups_capacity) =
        (struct torch_group){.native = group};
    for (size_t i = 0; i < COUNT(group_keys); i++)
        read_key(&r, &group_keys[i].field, value_get(group, group_keys[i].key), to);
    const struct value *betas = value_get(group, "betas");
    if (betas && (betas->kind == VALUE_TUPLE || betas->kind == VALUE_LIST) && betas->count == 2) {
        (void)as_real(&r, betas->items[0], &to->beta1);
        (void)as_real(&r, betas->items[1], &to->beta2);
    }
    return OK;
}

void torch_groups_add_param(struct checkpoint *c, const char *name, double step)
{
    struct torch_group *g = &c->training.torch_groups[c->training.run.num_groups - 1];
    const size_t count = g->num_names;
    if ((count & (count - 1)) == 0) { /* room for a power of two */
        const size_t room = count ? 2 * count : 1;
        const char **names = arena_array(&c->arena, room, sizeof *names);
        double *steps = arena_array(&c->arena, room, sizeof *steps);
        if (count) memcpy(names, g->names, count * sizeof *names);
        if (count) memcpy(steps, g->steps, count * sizeof *steps);
        g->names = names;
        g->steps = steps;
    }
    g->names[count] = arena_copy_text(&c->arena, name);
    g->steps[count] = step;
    g->num_names++;
}

/* ---- steps ---- */

static bool is_step(double step)
{
    return step >= 0 && step < 9007199254740992.0; /* 2^53 */
}

/* The step of a group's parameters; *other: one that differs from the first. */
static void find_step(const struct torch_group *g, const char **first, double *step,
                      const char **other, double *other_step)
{
    for (size_t i = 0; i < g->num_names; i++) {
        if (!is_step(g->steps[i])) continue;
        if (!*first) {
            *first = g->names[i];
            *step = g->steps[i];
        } else if (!*other && (g->steps[i] < *step || g->steps[i] > *step)) {
            *other = g->names[i];
            *other_step = g->steps[i];
        }
    }
}

static void set_steps(struct checkpoint *c)
{
    struct training *run = &c->training.run;
    const char *first = NULL, *other = NULL;
    double step = 0, other_step = 0;
    for (size_t i = 0; i < run->num_groups; i++) {
        const char *of_group = NULL, *differs = NULL;
        double here = 0, there = 0;
        find_step(&c->training.torch_groups[i], &of_group, &here, &differs, &there);
        if (of_group) run->groups[i].step = (uint64_t)here;
        find_step(&c->training.torch_groups[i], &first, &step, &other, &other_step);
    }
    if (first && !run->step) run->step = (uint64_t)step;
    if (other)
        checkpoint_note(c,
                        "parameters differ in their number of updates: %s %.0f, %s %.0f; formats "
                        "with one number for all get the first",
                        first, step, other, other_step);
}

/* ---- rules ---- */

/* A parameter of a group, and the group. */
struct listed {
    const struct native_tensor *native;
    size_t group;
    bool taken;
};

static bool rule_has(const struct group_member_rule *rule, const struct listed *p)
{
    const struct native_tensor *native = p->native;
    return rule->has(native->num_logicals ? native->logicals[0] : native->name, native->num_dims);
}

/* The group with exactly the parameters of the rule that no earlier rule took;
 * num_groups: none. */
static size_t group_of_rule(const struct group_member_rule *rule, const struct listed *all,
                            size_t count, size_t num_groups)
{
    size_t found = num_groups;
    for (size_t i = 0; i < count; i++) {
        if (all[i].taken || !rule_has(rule, &all[i])) continue;
        if (found != num_groups && found != all[i].group) return num_groups;
        found = all[i].group;
    }
    for (size_t i = 0; i < count; i++)
        if (all[i].group == found && !rule_has(rule, &all[i])) return num_groups;
    return found;
}

static struct listed *list_group_params(struct checkpoint *c, size_t *count)
{
    const struct training_state *s = &c->training;
    size_t room = 0, n = 0;
    for (size_t g = 0; g < s->run.num_groups; g++)
        room += s->torch_groups[g].num_names;
    struct listed *all = arena_array(&c->arena, room, sizeof *all);
    for (size_t g = 0; g < s->run.num_groups; g++)
        for (size_t i = 0; i < s->torch_groups[g].num_names; i++) {
            const struct native_tensor *native =
                catalog_find_native(&c->catalog, s->torch_groups[g].names[i], NULL);
            if (native) all[n++] = (struct listed){native, g, false};
        }
    *count = n;
    return all;
}

/* How many parameters a group lists, as text; NULL: it has no list. */
static const char *list_text(const struct torch_group *g, struct arena *a)
{
    const struct value *list = value_get(g->native, "params");
    if (g->num_names)
        return arena_printf(a, "%zu listed parameter%s", g->num_names,
                            g->num_names == 1 ? "" : "s");
    return list && list->kind == VALUE_LIST && !list->count ? "no parameters" : NULL;
}

void torch_groups_find_rules(struct checkpoint *c)
{
    struct training *run = &c->training.run;
    size_t count, without = 0;
    if (!c->training.torch_groups) return;
    set_steps(c);
    struct listed *all = list_group_params(c, &count);
    /* one group has all */
    for (size_t r = run->num_groups == 1 ? num_group_members - 1 : 0; r < num_group_members; r++) {
        const bool of_split = group_members[r].has == training_hidden_matrix;
        if (of_split && !training_is_split(run)) continue;
        const size_t g = group_of_rule(&group_members[r], all, count, run->num_groups);
        if (g == run->num_groups || run->groups[g].members) continue;
        run->groups[g].members = group_members[r].name;
        for (size_t i = 0; i < count; i++)
            all[i].taken |= all[i].group == g;
    }
    for (size_t g = 0; g < run->num_groups; g++)
        without += !run->groups[g].members && c->training.torch_groups[g].num_names;
    for (size_t g = 0; g < run->num_groups; g++)
        run->groups[g].listed = list_text(&c->training.torch_groups[g], &c->arena);
    if (without)
        checkpoint_note(c,
                        "%zu of %zu parameter groups do not follow Megatron's rule (no weight "
                        "decay for biases and parameters of one dimension): only formats that list "
                        "a group's parameters keep them",
                        without, run->num_groups);
}

/* ---- planning ---- */

static bool has_state(const struct native_outputs *all, size_t at)
{
    const struct target *t = all->t;
    for (size_t i = 0; i < t->num_states; i++)
        if (native_outputs_find(all, all->out.items[at].native_name, t->states[i]) != SIZE_MAX)
            return true;
    return false;
}

static void append_param(struct arena *a, struct torch_out_group *g, size_t room, size_t at,
                         double step)
{
    if (!g->params) {
        g->params = arena_array(a, room, sizeof *g->params);
        g->steps = arena_array(a, room, sizeof *g->steps);
    }
    g->params[g->num_params] = at;
    g->steps[g->num_params++] = step;
}

/* Sets *to to x if x is given. */
static void set_given(double *to, double x)
{
    if (isfinite(x)) *to = x;
}

static void fill_missing(double *to, double x)
{
    if (!isfinite(*to)) *to = x;
}

/* Sets fields that the user gave, then those of the schedule; lists the rest,
 * which get torch's defaults. */
static void complete_fields(struct target *t, struct param_group *g, struct strbuf *unknown)
{
    const struct training_given *given = t->options.given;
    const struct training *run = &t->training;
    const struct {
        const char *name;
        double *at, without;
    } needed[] = {
        {"lr", &g->lr, 1e-3},
        {"beta1", &g->beta1, 0.9},
        {"beta2", &g->beta2, 0.999},
        {"eps", &g->eps, 1e-8},
        {"weight_decay", &g->weight_decay, 0.01},
    };
    if (given) {
        set_given(&g->lr, given->lr);
        set_given(&g->max_lr, given->lr);
        set_given(&g->beta1, given->adam_beta1);
        set_given(&g->beta2, given->adam_beta2);
        set_given(&g->eps, given->adam_eps);
        if (!(g->wd_mult <= 0)) set_given(&g->weight_decay, given->weight_decay);
    }
    fill_missing(&g->lr, isfinite(g->max_lr) ? g->max_lr : run->max_lr);
    fill_missing(&g->weight_decay, run->start_wd);
    for (size_t i = 0; i < COUNT(needed); i++) {
        if (isfinite(*needed[i].at)) continue;
        if (!strstr(unknown->data ? unknown->data : "", needed[i].name))
            strbuf_printf(unknown, "%s%s", unknown->length ? ", " : "", needed[i].name);
        *needed[i].at = needed[i].without;
    }
    fill_missing(&g->max_lr, isfinite(run->max_lr) ? run->max_lr : g->lr);
}

/* A target's parameters by their logical tensors, in order. */
struct by_logical {
    struct map first; /* name -> the first of it */
    size_t *next;     /* [parameters]; SIZE_MAX: none */
};

static struct by_logical index_by_logical(struct arena *a, const struct native_outputs *all)
{
    struct by_logical x = {.next = arena_array(a, all->out.count, sizeof *x.next)};
    size_t *last = arena_array(a, all->out.count,
                               sizeof *last); /* [first] last with the same logical tensor */
    for (size_t i = 0; i < all->out.count; i++) {
        const struct out_tensor *o = &all->out.items[i];
        size_t first = i;
        x.next[i] = SIZE_MAX;
        if (o->state || !o->logical) continue;
        if (!map_add(&x.first, o->logical, i, &first)) x.next[last[first]] = i;
        last[first] = i;
    }
    return x;
}

/* Lists one of the target's parameters, unless it is listed or has no state. */
static void list_once(const struct native_outputs *all, bool *is_listed, struct torch_out_group *g,
                      size_t at, double step)
{
    if (is_listed[at] || !has_state(all, at)) return;
    is_listed[at] = true;
    append_param(&all->t->plan.arena, g, all->out.count, at, step);
}

/* Adds a listed parameter of the source: under its native name, or, where the
 * target has other names, all tensors made of its logical tensors. */
static void add_listed(struct target *t, const struct native_outputs *all,
                       const struct by_logical *by, bool *is_listed, struct torch_out_group *g,
                       const char *name, double step)
{
    size_t at = native_outputs_find(all, name, NULL);
    const struct native_tensor *native = catalog_find_native(&t->source->catalog, name, NULL);
    const bool is_mapped = native && native->num_logicals;
    const char *const *logicals = is_mapped ? (const char *const *)native->logicals : &name;
    if (at != SIZE_MAX) {
        list_once(all, is_listed, g, at, step);
        return;
    }
    for (size_t i = 0; i < (is_mapped ? native->num_logicals : 1); i++)
        if (map_get(&by->first, logicals[i], &at))
            for (; at != SIZE_MAX; at = by->next[at])
                list_once(all, is_listed, g, at, step);
}

/* The groups as the source lists them. *whole: every parameter with states is
 * in one. */
static struct torch_out_group *listed_groups(struct target *t, const struct native_outputs *all,
                                             bool *whole)
{
    struct arena *a = &t->plan.arena;
    const struct training_state *s = &t->source->training;
    const size_t num_groups = s->run.num_groups;
    struct torch_out_group *groups = arena_array(a, num_groups, sizeof *groups);
    bool *is_listed = arena_array(a, all->out.count, sizeof *is_listed);
    struct by_logical by = index_by_logical(a, all);
    for (size_t g = 0; g < num_groups; g++) {
        const struct torch_group *from = &s->torch_groups[g];
        groups[g].native = from->native;
        for (size_t i = 0; i < from->num_names; i++)
            add_listed(t, all, &by, is_listed, &groups[g], from->names[i], from->steps[i]);
    }
    map_release(&by.first);
    *whole = true;
    for (size_t i = 0; i < all->out.count; i++)
        if (!all->out.items[i].state && !is_listed[i] && has_state(all, i)) *whole = false;
    return groups;
}

/* The source's group with the settings of most parameters; vectors: of
 * vectors. */
static const struct param_group *group_like(const struct training *run, bool vectors)
{
    const struct param_group *found = NULL;
    for (size_t i = 0; i < run->num_groups; i++) {
        const struct param_group *g = &run->groups[i];
        const bool is_of_vectors = g->members && text_starts_with(g->members, "vectors");
        const bool is_of_embeddings = g->members && strcmp(g->members, "embeddings") == 0;
        if (g->is_expert_parallel || is_of_embeddings || is_of_vectors != vectors) continue;
        if (!found) found = g;
    }
    return found;
}

static struct torch_out_group *made_groups(struct target *t, const struct native_outputs *all,
                                           struct param_group *fields, size_t *num_groups)
{
    struct arena *a = &t->plan.arena;
    struct torch_out_group *groups = arena_array(a, 2, sizeof *groups);
    const bool split = t->options.split_decay;
    for (size_t i = 0; i < all->out.count; i++) {
        const struct out_tensor *o = &all->out.items[i];
        if (o->state || !has_state(all, i)) continue;
        const bool is_vector = o->num_dims < 2;
        append_param(a, &groups[split && is_vector], all->out.count, i, NAN);
    }
    for (size_t g = 0; g < 2; g++) {
        const struct param_group *like = group_like(&t->source->training.run, g == 1);
        if (!like) like = group_like(&t->source->training.run, false);
        param_group_init(&fields[g]);
        if (like) fields[g] = *like;
        groups[g].fields = &fields[g];
    }
    if (split) fields[1].weight_decay = fields[1].wd_mult = 0;
    if (split && !groups[0].num_params) groups[0] = groups[1];
    *num_groups = split && groups[1].num_params && groups[0].params != groups[1].params ? 2 : 1;
    return groups;
}

static void note_decay(struct target *t, const struct param_group *fields)
{
    const struct param_group *vectors = group_like(&t->source->training.run, true);
    const double decay = vectors && isfinite(vectors->weight_decay) ? vectors->weight_decay : 0;
    if (t->options.split_decay || !vectors || !(fields->weight_decay > 0)) return;
    t->facts.changed_decay =
        arena_printf(&t->plan.arena, "weight decay %g of parameters of one dimension becomes %g",
                     decay, fields->weight_decay);
    notes_add(&t->notes, &t->plan.arena,
              "all parameters become one group with weight decay %g; the source has a group with "
              "%g for those of one dimension: --split-decay makes two groups",
              fields->weight_decay, decay);
}

enum status torch_groups_plan(struct target *t, const struct native_outputs *all,
                              struct torch_out_group **groups, size_t *num_groups,
                              struct error *err)
{
    struct arena *a = &t->plan.arena;
    const struct training_state *s = &t->source->training;
    bool listed = s->torch_groups && s->run.num_groups;
    struct strbuf unknown = {0};
    *groups = NULL;
    *num_groups = 0;
    if (!t->num_states) return OK;
    if (!listed && training_is_split(&s->run))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: hidden matrices have the states of %s, other parameters those of another "
                    "optimizer, but %s keeps one optimizer; --to hf --optim keeps them, --no-optim "
                    "leaves them out",
                    t->source->path, s->run.optimizer, t->format->name);
    if (listed) *groups = listed_groups(t, all, &listed);
    if (listed && t->options.split_decay && s->run.num_groups > 1)
        return fail(
            err, ERR_USAGE,
            "--split-decay: the source has %zu parameter groups, which are copied unchanged",
            s->run.num_groups);
    if (listed && t->options.split_decay) listed = false;
    *num_groups = s->run.num_groups;
    struct param_group *fields = arena_array(a, listed ? *num_groups : 2, sizeof *fields);
    if (!listed)
        *groups = made_groups(t, all, fields, num_groups);
    else
        for (size_t g = 0; g < *num_groups; g++) {
            fields[g] = s->run.groups[g];
            (*groups)[g].fields = &fields[g];
        }
    for (size_t g = 0; g < *num_groups; g++)
        complete_fields(t, &fields[(*groups)[g].fields - fields], &unknown);
    if (unknown.length)
        notes_add(&t->notes, a,
                  "the source lacks the optimizer's %s: torch's defaults are written; give the "
                  "next run's values (--lr, --weight-decay, ...)",
                  unknown.data);
    if (!listed) note_decay(t, fields);
    t->outcomes[TRAINING_GROUPS].outcome = listed              ? OUTCOME_COPIED
                                           : s->run.num_groups ? OUTCOME_TRANSLATED
                                                               : OUTCOME_MADE;
    strbuf_release(&unknown);
    return OK;
}

/* ---- writing ---- */

static struct value *key_value(struct arena *a, const struct param_group *g,
                               const struct value *native, const char *key)
{
    if (strcmp(key, "betas") == 0) {
        if (!isfinite(g->beta1) || !isfinite(g->beta2)) return NULL;
        struct value *both[] = {value_float(a, g->beta1), value_float(a, g->beta2)};
        return value_list(a, VALUE_TUPLE, 2, both);
    }
    for (size_t i = 0; i < COUNT(group_keys); i++) {
        if (strcmp(group_keys[i].key, key)) continue;
        const struct scalar s = field_get(&group_keys[i].field, g);
        if (s.kind == FIELD_BOOL) return native ? NULL : value_bool(a, s.truth);
        return isfinite(s.real) ? value_float(a, s.real) : NULL;
    }
    return NULL;
}

/* The source's dict with the numbers that the user gave. */
static struct value *native_dict(struct arena *a, const struct torch_out_group *g)
{
    struct value *dict = value_dict(a);
    for (uint32_t i = 0; i < g->native->count; i++) {
        struct value *key = g->native->items[2 * i], *v = g->native->items[2 * i + 1];
        const char *name = value_as_text(key);
        struct value *now = name ? key_value(a, g->fields, g->native, name) : NULL;
        if (!name || strcmp(name, "params")) value_dict_put(a, dict, key, now ? now : v);
    }
    return dict;
}

struct value *torch_group_value(struct arena *a, const struct torch_out_group *g)
{
    static const char *const keys[] = {"lr", "betas", "eps", "weight_decay", "amsgrad"};
    static const char *const flags[] = {"maximize", "foreach", "capturable", "differentiable",
                                        "fused"};
    if (g->native && g->native->kind == VALUE_DICT) return native_dict(a, g);
    struct value *dict = value_dict(a);
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct value *v = key_value(a, g->fields, NULL, keys[i]);
        if (v) value_dict_add(a, dict, keys[i], v);
    }
    for (size_t i = 0; i < COUNT(flags); i++) {
        const bool unset = strcmp(flags[i], "foreach") == 0 || strcmp(flags[i], "fused") == 0;
        value_dict_add(a, dict, flags[i], unset ? value_none(a) : value_bool(a, false));
    }
    value_dict_add(a, dict, "decoupled_weight_decay",
                   value_bool(a, g->fields->decoupled_weight_decay));
    struct value *initial = key_value(a, g->fields, NULL, "initial_lr");
    if (initial) value_dict_add(a, dict, "initial_lr", initial);
    return dict;
}
