/* source_megatron.c - shared by Megatron's readers: finds the iteration, calls
 * the reader, lists missing parameters. */
#include "convert/carried.h"
#include "convert/megatron/megatron_source.h"
#include "convert/published.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/text.h"
#include "convert/format.h"
#include "convert/megatron/find_iteration.h"
#include "convert/megatron/optim/remainders.h"
#include "convert/naming.h"
#include "convert/states.h"

/* ---- missing parameters ---- */

/* Names of a layer's tensors after its number: [1] of layers with experts, [0]
 * of others. {e} stands for the expert's number. */
struct layer_names {
    struct map rests[2];
};

static const char of_experts[] = "mlp.experts.experts.";

static bool layer_of(const char *name, uint64_t *layer, const char **rest)
{
    char *end;
    if (!text_starts_with(name, "decoder.layers.")) return false;
    *layer = strtoull(name + strlen("decoder.layers."), &end, 10);
    *rest = end + 1;
    return true;
}

static void collect_rests(struct checkpoint *c, struct layer_names *names)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        uint64_t layer;
        const char *rest;
        if (!layer_of(c->catalog.tensors[i].name, &layer, &rest) || layer >= c->config.num_layers)
            continue;
        if (text_starts_with(rest, of_experts))
            rest = arena_printf(&c->arena, "%s{e}%s", of_experts,
                                rest + strlen(of_experts) +
                                    strspn(rest + strlen(of_experts), "0123456789"));
        (void)map_add(&names->rests[model_layer_is_moe(&c->config, layer)], rest, 0, NULL);
    }
}

/* Lists a layer's tensor `rest` as missing if it is; an expert's, for all
 * experts. */
static enum status add_missing(struct checkpoint *c, uint64_t layer, const char *rest,
                               struct error *err)
{
    const char *expert = strstr(rest, "{e}");
    int before = expert ? (int)(expert - rest) : (int)strlen(rest);
    for (uint64_t e = 0; e < (expert ? c->config.num_experts : 1); e++) {
        const char *number = expert ? arena_printf(&c->arena, "%" PRIu64, e) : "";
        const char *name = arena_printf(&c->arena, "decoder.layers.%" PRIu64 ".%.*s%s%s", layer,
                                        before, rest, number, expert ? expert + 3 : "");
        if (!catalog_find(&c->catalog, name)) TRY(gaps_add_missing(&c->gaps, &c->arena, name, err));
    }
    return OK;
}

static enum status compare_layers(struct checkpoint *c, const struct layer_names *names,
                                  struct error *err)
{
    for (uint64_t l = 0; l < c->config.num_layers; l++) {
        const struct map *rests = &names->rests[model_layer_is_moe(&c->config, l)];
        for (size_t i = 0; i < rests->num_slots; i++) {
            if (rests->slots[i].key) TRY(add_missing(c, l, rests->slots[i].key, err));
        }
    }
    return OK;
}

/* Checks that a parameter of the model map exists with the config's shape. */
static enum status check_mapped(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct checkpoint *c = context;
    const struct tensor *found = catalog_find(&c->catalog, t->name);
    if (!found) return gaps_add_missing(&c->gaps, &c->arena, t->name, err);
    if (found->num_dims == t->num_dims &&
        memcmp(found->shape, t->shape, found->num_dims * sizeof *found->shape) == 0)
        return OK;
    c->contradicts = true;
    return fail(err, ERR_UNSUPPORTED, "%s: %s has shape %s, but its %s requires %s", c->folder,
                found->stored_name ? found->stored_name : found->name,
                shape_text(&c->arena, found->num_dims, found->shape),
                c->config_origin == CONFIG_OF_JSON ? "config.json" : "args or run_config.yaml",
                shape_text(&c->arena, t->num_dims, t->shape));
}

/* Lists missing parameters as gaps. A known family's model map names all
 * parameters, and shapes must match (ERR_UNSUPPORTED); without a family, a
 * layer must have each parameter of another layer of its kind. */
static enum status find_missing(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct model_map *map = c->family ? model_map_of_family(m->maps, c->family) : NULL;
    struct model_config config = c->config;
    if (!config.vocab_size) config.vocab_size = config.padded_vocab_size; /* keeps all rows */
    if (map && config.vocab_size) return model_map_expand(map, &config, NULL, check_mapped, c, err);
    struct layer_names names = {0};
    collect_rests(c, &names);
    enum status st = compare_layers(c, &names, err);
    map_release(&names.rests[0]);
    map_release(&names.rests[1]);
    if (!st && !catalog_find(&c->catalog, "embedding.word_embeddings.weight"))
        st = gaps_add_missing(&c->gaps, &c->arena, "embedding.word_embeddings.weight", err);
    return st;
}

/* ---- opening ---- */

enum megatron_files megatron_files_of(const char *path, const struct source_options *o)
{
    const struct source_options none = {0};
    struct iteration found;
    struct arena a;
    if (!iteration_is_below(path)) return MEGATRON_NONE;
    arena_init(&a);
    enum megatron_files files = MEGATRON_RANKS;
    /* Without an iteration, opening it as torch_dist gives the reason. */
    if (iteration_find(&a, path, o ? o : &none, &found, NULL) ||
        path_exists(path_join(&a, found.folder, "metadata.json")))
        files = MEGATRON_DIST;
    else if (path_exists(path_join(&a, found.folder, ".metadata")))
        files = MEGATRON_DTENSORS;
    arena_release(&a);
    return files;
}

/* Checks that no tensor has gaps; a state that has some makes the states
 * unread. */
static enum status check_tensors(struct checkpoint *c, struct error *err)
{
    struct error why;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (!tensor_check(t, &why)) continue;
        if (!name_is_optimizer(t->name)) return fail(err, why.code, "%s", why.text);
        states_unread(c, "%s", why.text);
    }
    return OK;
}

enum status megatron_open(struct megatron_source *m, megatron_reader *read, struct error *err)
{
    struct checkpoint *c = m->c;
    struct iteration found;
    TRY(iteration_find(&c->arena, c->path, m->o, &found, err));
    c->folder = found.folder;
    c->training.release = found.release;
    c->training.iteration = found.number;
    if (found.note) checkpoint_note(c, "%s", found.note);
    const char *tokenizer = path_join(&c->arena, c->folder, MEGATRON_TOKENIZER_FOLDER);
    if (path_is_folder(tokenizer)) c->tokenizer_folder = tokenizer;
    TRY(read(m, err));
    const char *beside = path_join(&c->arena, c->folder, MEGATRON_HF_FOLDER);
    TRY(carried_open(c, beside, err));
    TRY(published_read(c, beside, err));
    TRY(find_missing(m, err));
    return check_tensors(c, err);
}

static struct naming_import import_of(const struct megatron_source *m)
{
    return (struct naming_import){.c = m->c, .o = m->o, .moe_layers_known = m->moe_layers_known};
}

enum status megatron_import(struct megatron_source *m, struct error *err)
{
    const struct naming_import import = import_of(m);
    return m->c->format->naming->import(&import, err);
}

enum status megatron_import_states(struct megatron_source *m, struct error *err)
{
    const struct naming_import import = import_of(m);
    TRY(m->c->format->naming->import_states(&import, err));
    TRY(remainders_join(m->c, err));
    return states_complete(m->c, err);
}
