#include "validate/compare/training_states.h"

#include <string.h>

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

struct training_comparison training_states_compare(const struct side sides[2], struct arena *a)
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
    for (size_t i = 0; i < count; i++)
        if (strcmp(all[i].field, "iteration") == 0)
            out.iterations = arena_printf(a, "the iterations differ: %s in A, %s in B",
                                          all[i].values[0], all[i].values[1]);
        else
            out.differences[out.count++] = all[i];
    return out;
}
