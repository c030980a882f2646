/* testing_state.h - the state of a run on one rank, for tests: parameters as a
 * checkpoint has them, experts of a layer stacked as the engine has them, and
 * regions on the heap. */
#ifndef FERRY_TRAIN_TRAINER_TESTING_STATE_H
#define FERRY_TRAIN_TRAINER_TESTING_STATE_H

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "convert/map/params.h"
#include "train/trainer/checkpoint.h"

struct test_state {
    struct model_maps maps;
    struct checkpoint c;
    struct arena arena;
    struct parameters parameters;
    struct model_config config;
    const struct param_table *params;
    struct checkpoint_loaded loaded;
    struct train_state s;
};

static inline bool test_state_is_weight(const struct tensor *t)
{
    return !name_is_optimizer(t->name) && !name_is_padding(t->name);
}

/* The names of all experts of a tensor of expert 0. */
static inline const char **test_state_experts(struct test_state *x, const char *name)
{
    static const char first[] = ".experts.0.";
    const char *at = strstr(name, first);
    const char **names = arena_array(&x->arena, x->config.num_experts, sizeof *names);
    for (uint64_t e = 0; e < x->config.num_experts; e++)
        names[e] = arena_printf(&x->arena, "%.*s.experts.%u.%s", (int)(at - name), name,
                                (unsigned)e, at + strlen(first));
    return names;
}

static inline enum status test_state_add(struct test_state *x, const struct tensor *t,
                                         struct error *e)
{
    const struct cut one = {.size = 1, .rows = x->s.padded_rows};
    struct param p;
    uint32_t number;
    if (!param_find(x->params, t->name, &p))
        return fail(e, ERR_OURS, "%s: no such parameter", t->name);
    if (!param_of_expert(p.spec))
        return parameters_add(&x->parameters, t->name, p.spec, &one, &number, e);
    if (p.expert) return OK;
    return parameters_add_stack(&x->parameters, t->name, test_state_experts(x, t->name),
                                x->config.num_experts, p.spec, &one, &number, e);
}

/* The vocabulary, and the rows of padding that the checkpoint stores. */
static inline void test_state_take_config(struct test_state *x)
{
    static const char name[] = "embedding.word_embeddings.weight";
    const struct tensor *t = catalog_find(&x->c.catalog, name);
    const struct tensor *padding =
        catalog_find(&x->c.catalog, arena_printf(&x->arena, "%s.padding", name));
    x->config = x->c.config;
    if (t) x->config.vocab_size = t->shape[0];
    x->s.padded_rows = x->config.vocab_size + (padding ? padding->shape[0] : 0);
}

static inline enum status test_state_add_all(struct test_state *x, struct error *e)
{
    test_state_take_config(x);
    TRY(params_again(x->c.params, &x->config, &x->arena, &x->params, e));
    for (size_t i = 0; i < x->c.catalog.num_tensors; i++)
        if (test_state_is_weight(&x->c.catalog.tensors[i]))
            TRY(test_state_add(x, &x->c.catalog.tensors[i], e));
    return OK;
}

/* Regions: weights, masters where weights are narrow, moments. What no load
 * fills is seen. */
static inline void test_state_allocate(struct test_state *x)
{
    const enum elem_type elem = x->parameters.elem;
    const uint64_t count = x->parameters.bytes / dtype_bytes(elem_dtype(elem));
    for (int k = 0; k < NUM_HELD; k++) {
        x->s.dtype[k] = k == HELD_WEIGHT || elem == ELEM_F64 ? elem_dtype(elem) : DT_F32;
        if (k == HELD_MASTER && elem != ELEM_BF16) continue;
        x->s.data[k] = must_calloc(count + 1, dtype_bytes(x->s.dtype[k]));
        memset(x->s.data[k], k ? 0x7f : 0, dtype_run_bytes(x->s.dtype[k], count));
    }
}

/* How a test loads. */
struct test_loading {
    const char *path;
    enum elem_type elem;
    bool no_optimizer;
    uint64_t true_vocab_size; /* 0: as the checkpoint says */
};

/* Opens the checkpoint that checkpoint_find() finds at the path, and loads it. */
static inline enum status test_state_open(struct test_state *x, const struct test_loading *how,
                                          struct error *e)
{
    const struct source_options source = {.true_vocab_size = how->true_vocab_size};
    const struct checkpoint_load_options o = {.load = {.threads = 2, .progress = PROGRESS_NONE},
                                              .no_optimizer = how->no_optimizer};
    struct checkpoint_found found;
    *x = (struct test_state){.s = {.on_host = true, .seed = 1234}};
    arena_init(&x->arena);
    checkpoint_init(&x->c, how->path);
    parameters_init(&x->parameters, how->elem);
    TRY(model_maps_load(&x->maps, NULL, e));
    TRY(checkpoint_find_to_load(&found, how->path, false, 0, &x->arena, e));
    checkpoint_release(&x->c);
    TRY(source_open(&x->c, found.path, &source, &x->maps, e));
    TRY(test_state_add_all(x, e));
    test_state_allocate(x);
    x->s.parameters = &x->parameters;
    x->s.config = &x->config;
    x->s.origin = &x->c;
    x->s.distributed_optimizer = true;
    x->s.local_spec = x->c.format != &format_hf && !x->c.transformer_engine_names;
    TRY(checkpoint_load(&x->s, &x->c, &o, &x->loaded, &x->arena, e));
    x->s.training = &x->loaded.training;
    return OK;
}

static inline void test_state_close(struct test_state *x)
{
    for (int k = 0; k < NUM_HELD; k++)
        free(x->s.data[k]);
    parameters_release(&x->parameters);
    checkpoint_release(&x->c);
    model_maps_release(&x->maps);
    arena_release(&x->arena);
}

#endif
