/* inspect_sums.c - tensors and bytes by group, dtype and state. */
#include <fnmatch.h>
#include <string.h>

#include "common/count.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/states.h"

/* The first matching pattern gives the group; the last matches all. */
static const struct {
    const char *pattern, *group;
} groups[] = {
    {"optimizer.*", "optimizer"},
    {"*.padding", "vocabulary padding"},
    {"embedding.*", "embeddings"},
    {"output_layer.*", "output layer"},
    {"*norm*", "norms"},
    {"*.self_attention.*", "attention"},
    {"*.experts.*", "experts"},
    {"*.shared_experts.*", "shared experts"},
    {"*.router.*", "router"},
    {"*.mlp.*", "mlp"},
    {"*", "other"},
};
_Static_assert(COUNT(groups) == NUM_GROUPS, "a name for each group");
const char *const inspect_moments[NUM_MOMENTS] = {"param", "exp_avg", "exp_avg_sq"};

const char *inspect_group(int i)
{
    return groups[i].group;
}

static int group_of(const char *name)
{
    int i = 0;
    while (fnmatch(groups[i].pattern, name, 0))
        i++;
    return i;
}

static void add_to_sums(struct sums *s, const char *name, enum dtype dtype, uint64_t bytes)
{
    struct sum *of_moment = NULL;
    for (int i = 0; name_is_optimizer(name) && i < NUM_MOMENTS; i++) {
        const char *rest = name + strlen("optimizer.");
        size_t n = strlen(inspect_moments[i]);
        if (strncmp(rest, inspect_moments[i], n) == 0 && rest[n] == '.') of_moment = &s->moments[i];
    }
    struct sum *sums[] = {&s->groups[group_of(name)], &s->dtypes[dtype], &s->all, of_moment};
    for (size_t i = 0; i < COUNT(sums); i++) {
        if (!sums[i]) continue;
        sums[i]->tensors++;
        sums[i]->bytes += bytes;
    }
}

struct sums inspect_sums(const struct checkpoint *c, bool stored)
{
    struct sums s = {.all = {0, 0}};
    for (size_t i = 0; stored && i < c->catalog.stored.num_tensors; i++) {
        const struct stored_tensor *t = &c->catalog.stored.tensors[i];
        add_to_sums(&s, t->name, t->dtype, stored_tensor_bytes(t));
    }
    for (size_t i = 0; !stored && i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        uint64_t bytes = 0;
        if (t->same_as) continue; /* stored once, as a weight */
        (void)dtype_size_bytes(t->dtype, t->numel, &bytes);
        add_to_sums(&s, t->name, t->dtype, bytes);
    }
    return s;
}
