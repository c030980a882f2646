#include "convert/deepspeed/pipeline_names.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/megatron_names.h"

bool pipeline_name_parse(const char *name, uint64_t *index, const char **local)
{
    enum { MAX_DIGITS = 9 };
    size_t n = 0;
    *index = 0;
    for (; isdigit((unsigned char)name[n]); n++)
        *index = 10 * *index + (uint64_t)(name[n] - '0');
    *local = name + n + 1;
    return n && n <= MAX_DIGITS && name[n] == '.' && **local;
}

void pipeline_names_note(struct pipeline_names *n, struct arena *a, uint64_t index,
                         const char *local)
{
    if (!text_starts_with(local, "self_attention.")) return;
    if (n->num_layers && n->layers[n->num_layers - 1] == index) return;
    *ARENA_PUSH(a, n->layers, n->num_layers, n->capacity) = index;
}

static int by_index(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void pipeline_names_end(struct pipeline_names *n)
{
    size_t kept = 0;
    if (n->num_layers) qsort(n->layers, n->num_layers, sizeof *n->layers, by_index);
    for (size_t i = 0; i < n->num_layers; i++)
        if (!kept || n->layers[kept - 1] != n->layers[i]) n->layers[kept++] = n->layers[i];
    n->num_layers = kept;
}

/* The key of a name outside the model's layers. */
static const char *key_outside(const char *local)
{
    static const struct {
        const char *local, *key;
    } rows[] = {
        {"word_embeddings.weight", "embedding.word_embeddings.weight"},
        {"position_embeddings.weight", "embedding.position_embeddings.weight"},
        {"lm_head.weight", "output_layer.weight"},
        {"final_layernorm.weight", "decoder.final_layernorm.weight"},
        {"final_layernorm.bias", "decoder.final_layernorm.bias"},
        {"weight", "decoder.final_layernorm.weight"}, /* a norm that is a layer */
        {"bias", "decoder.final_layernorm.bias"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (strcmp(rows[i].local, local) == 0) return rows[i].key;
    return NULL;
}

static const char *local_of_tied(const char *name)
{
    if (!text_skip_prefix(&name, "tied_modules.")) return NULL;
    const char *dot = strchr(name, '.');
    return dot ? dot + 1 : NULL;
}

static const char *key_in_layer(struct arena *a, const struct param_table *t, size_t layer,
                                const char *local)
{
    const struct memory_name m = memory_name_parse(
        a, t, arena_printf(a, "language_model.encoder.layers.%zu.%s", layer, local));
    if (m.kind != MEMORY_PARAM || !m.in_layers || m.of_expert) return NULL;
    return arena_printf(a, "decoder.layers.%zu.%s", layer, m.rest);
}

const char *pipeline_name_key(const struct pipeline_names *n, struct arena *a,
                              const struct param_table *t, const char *name)
{
    const char *local = local_of_tied(name);
    uint64_t index;
    if (local) return key_outside(local);
    if (!pipeline_name_parse(name, &index, &local)) return NULL;
    const uint64_t *at =
        n->num_layers ? bsearch(&index, n->layers, n->num_layers, sizeof *n->layers, by_index)
                      : NULL;
    return at ? key_in_layer(a, t, (size_t)(at - n->layers), local) : key_outside(local);
}
