#include "validate/compare/training_states.h"

#include <fnmatch.h>
#include <string.h>

#include "common/strbuf.h"
#include "common/text.h"

static const struct param_group *find_group(const struct training *t, const char *members,
                                            bool of_experts)
{
    for (size_t i = 0; i < t->num_groups; i++)
        if (t->groups[i].members && text_equal(t->groups[i].members, members) &&
            t->groups[i].is_expert_parallel == of_experts)
            return &t->groups[i];
    return NULL;
}

/* Experts have their own groups only if split over ranks, so another layout has
 * other groups with the same settings. Adds to t the expert groups that only
 * `other` has, as copies of t's groups with these experts. */
static void split_groups(struct training *t, const struct training *other, struct arena *a)
{
    for (size_t i = 0; i < other->num_groups; i++) {
        const char *members = other->groups[i].members;
        if (!members || !other->groups[i].is_expert_parallel || find_group(t, members, true))
            continue;
        const struct param_group *all = find_group(t, members, false);
        if (!all) continue;
        struct param_group split = *all;
        split.is_expert_parallel = true;
        *training_add_group(t, a) = split;
    }
}

/* ---- --ignore-training ---- */

static bool name_matches(const char *glob, const char *field, struct arena *a)
{
    struct strbuf literal = {0};
    for (const char *c = glob; *c; c++) {
        if (*c == '[') strbuf_add_char(&literal, '\\');
        strbuf_add_char(&literal, *c);
    }
    const char *pattern = arena_text(a, literal.data ? literal.data : "", literal.length);
    strbuf_release(&literal);
    return fnmatch(pattern, field, 0) == 0;
}

static bool is_ignored(const struct arg_list *ignore, const char *field, struct arena *a)
{
    for (size_t i = 0; ignore && i < ignore->count; i++)
        if (name_matches(ignore->items[i], field, a)) return true;
    return false;
}

static bool matches_in_group(const char *glob, size_t group, struct arena *a)
{
    const char *name = arena_printf(a, "groups[%zu]", group);
    if (name_matches(glob, name, a)) return true;
    for (size_t i = 0; i < num_group_fields; i++)
        if (name_matches(glob, arena_printf(a, "%s.%s", name, group_fields[i].name), a))
            return true;
    return false;
}

static bool matches_a_name(const char *glob, size_t num_groups, struct arena *a)
{
    for (size_t i = 0; i < num_training_fields; i++)
        if (name_matches(glob, training_fields[i].field.name, a)) return true;
    for (size_t i = 0; i < num_groups; i++)
        if (matches_in_group(glob, i, a)) return true;
    return false;
}

enum status training_check_ignored(const struct arg_list *ignore, const struct side sides[2],
                                   struct arena *a, struct error *err)
{
    const size_t x = sides[0].checkpoint.training.run.num_groups,
                 y = sides[1].checkpoint.training.run.num_groups, most = x > y ? x : y;
    for (size_t i = 0; ignore && i < ignore->count; i++)
        if (!matches_a_name(ignore->items[i], most ? most : 1, a))
            return fail(err, ERR_USAGE,
                        "--ignore-training %s: matches no field of the training state; `ferry "
                        "verify --json` lists those that differ",
                        ignore->items[i]);
    return OK;
}

/* ---- both ---- */

struct training_comparison training_states_compare(const struct side sides[2],
                                                   const struct arg_list *ignore, struct arena *a)
{
    struct training_comparison out = {.compared = true};
    struct training_difference *all;
    struct training runs[2];
    for (unsigned i = 0; i < 2; i++)
        runs[i] = training_copy(&sides[i].checkpoint.training.run, a);
    split_groups(&runs[0], &sides[1].checkpoint.training.run, a);
    split_groups(&runs[1], &sides[0].checkpoint.training.run, a);
    const size_t count = training_differences(&runs[0], &runs[1], a, &all);
    out.differences = arena_array(a, count, sizeof *out.differences);
    out.ignored = arena_array(a, count, sizeof *out.ignored);
    for (size_t i = 0; i < count; i++)
        if (is_ignored(ignore, all[i].field, a))
            out.ignored[out.num_ignored++] = all[i];
        else if (strcmp(all[i].field, "iteration") == 0)
            out.iterations = arena_printf(a, "the iterations differ: %s in A, %s in B",
                                          all[i].values[0], all[i].values[1]);
        else
            out.differences[out.count++] = all[i];
    return out;
}
