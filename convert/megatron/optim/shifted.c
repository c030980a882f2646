#include "convert/megatron/optim/shifted.h"

#include <string.h>

#include "ckpt/masters.h"
#include "convert/megatron/optim/flat_place.h"
#include "convert/states.h"

/* Sums over parameters, as each rank has them. */
struct sums {
    size_t params, shifted;
    uint64_t elements, shifted_elements;
};

static bool is_fully_reshardable(const struct checkpoint *c)
{
    const struct value *content = value_get(c->training.common, "content_metadata");
    const char *kind = value_as_text(value_get(content, "distrib_optim_sharding_type"));
    return kind && strcmp(kind, "fully_reshardable") == 0;
}

/* Keeps parameters that the distributed optimizer has: frozen ones have no
 * master, and no place in a buffer. */
static size_t keep_trained(const struct checkpoint *c, struct arena *a,
                           struct trained_param *params, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (catalog_find(&c->catalog, state_name(a, master_state, params[i].name)))
            params[kept++] = params[i];
    return kept;
}

static void add_sums(const struct param_buffer *b, struct sums *sums)
{
    for (size_t i = 0; i < b->num_params; i++) {
        const struct placed_param *p = &b->params[i];
        const bool shifted = p->start != p->start_unpadded;
        if (p->copy) continue;
        sums->params++;
        sums->elements += p->numel;
        sums->shifted += shifted;
        sums->shifted_elements += shifted ? p->numel : 0;
    }
}

/* Adds up the buffers of all stages, of the first tensor parallel rank, since
 * positions are equal on all. false: places are not known. */
static bool add_stages(const struct checkpoint *c, struct arena *a,
                       const struct trained_param *params, size_t count, struct sums *sums)
{
    const struct layout *l = &c->layout;
    struct bucket_rules rules =
        bucket_rules_of_args(value_get(c->training.common, "args"), c->transformer_engine_names);
    const uint64_t ep = buckets_split_experts(l, rules.experts_apart_by_etp) ? l->ep : 0;
    for (uint64_t i = 0; i < l->pp * (1 + ep); i++) {
        const uint64_t experts = i / l->pp;
        const struct bucket_cell cell = {
            .pp_rank = i % l->pp, .experts = experts > 0, .ep_rank = experts ? experts - 1 : 0};
        struct param_buffer *buffers;
        struct error why;
        size_t num_buffers;
        if (buckets_place(params, count, l, &c->config, &rules, &cell, NULL, 0, a, &buffers,
                          &num_buffers, &why))
            return false;
        for (size_t k = 0; k < num_buffers; k++)
            add_sums(&buffers[k], sums);
    }
    return true;
}

static bool find_sums(const struct checkpoint *c, struct sums *sums)
{
    struct trained_param *params;
    struct arena scratch;
    struct error why;
    size_t count;
    arena_init(&scratch);
    *sums = (struct sums){0};
    const bool known =
        !trained_params(c, &scratch, &params, &count, &why) &&
        add_stages(c, &scratch, params, keep_trained(c, &scratch, params, count), sums);
    arena_release(&scratch);
    return known;
}

enum status shifted_find(struct checkpoint *c, struct error *err)
{
    struct optimizer_info *o = &c->training.optimizer;
    struct masters_result r;
    struct sums sums;
    if (o->unread || !is_fully_reshardable(c) || !find_sums(c, &sums) || !sums.shifted) return OK;
    TRY(masters_compare(&c->catalog, &(struct masters_options){0}, &r, err));
    if (!r.differ && !o->remainders) return OK;
    o->shifted = arena_printf(&c->arena, "states of %zu of %zu parameters, %.3g %% of the elements",
                              sums.shifted, sums.params,
                              100 * (double)sums.shifted_elements / (double)sums.elements);
    checkpoint_note(c,
                    "%s, are shifted%s: Megatron-Core before 0.20 saves those behind the first "
                    "bucket wrong as fully_reshardable (overlap_grad_reduce, or tied embeddings "
                    "over several pipeline stages)",
                    o->shifted,
                    r.differ ? ""
                             : ", unless 0.20 or later saved them, which remainders do not tell");
    return OK;
}
