/* places.h - the place of a tensor in a model, by its logical or stored name
 * alone:
 *
 *   decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight
 *   stack "decoder.layers", layer 3, kind "mlp.experts.experts.*.linear_fc1.weight", expert 7
 *
 *   transformer.h.11.attn.c_attn.weight
 *   stack "transformer.h", layer 11, kind "attn.c_attn.weight"
 *
 * The layer is the first number among the dotted parts. The expert is the first
 * later number that follows a part with "expert" in it. */
#ifndef FERRY_VALIDATE_COMPARE_PLACES_H
#define FERRY_VALIDATE_COMPARE_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"

enum region { REGION_EMBEDDINGS, REGION_LAYER, REGION_HEAD, REGION_OTHER, NUM_REGIONS };

struct place {
    enum region region;
    const char *stack;     /* NULL outside of layers */
    const char *kind;      /* equal for corresponding tensors of all layers and experts */
    int64_t layer, expert; /* -1: none */
};

/* Parses a name. Texts are in arena a. */
struct place place_of_name(struct arena *a, const char *name);

/* Whether two places differ at most in layer and expert. */
bool place_same_kind(const struct place *x, const struct place *y);
/* Compares in the order of a model: embeddings, layers by stack and number, the
 * rest, the head. */
int place_compare(const struct place *x, const struct place *y);
/* "embeddings"; "layer 3"; "model.encoder.layers.3" outside of the stack
 * main_stack. In arena a. */
const char *place_text(struct arena *a, const struct place *p, const char *main_stack);
/* "layers 3 to 5" of the stack of `like`, or "layer 3" alone. */
const char *layers_range_text(struct arena *a, const struct place *like, int64_t first,
                              int64_t last, const char *main_stack);
/* The kind; its stack is put in front unless it is main_stack. In arena a. */
const char *place_kind_text(struct arena *a, const struct place *p, const char *main_stack);

#endif
