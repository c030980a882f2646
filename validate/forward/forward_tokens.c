/* forward_tokens.c - chooses the tokens for both runs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/cli/token_ids.h"
#include "validate/forward/forward_internal.h"

enum { SEED = 1, USUAL_LENGTH = 64 };

/* Rows of the embedding without padding; 0: not known. */
static uint64_t embedding_rows(const struct side *s)
{
    const struct tensor *t =
        catalog_find(&s->checkpoint.catalog, "embedding.word_embeddings.weight");
    return t ? t->shape[0] : s->checkpoint.config.vocab_size;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Only learned positions limit the length. */
static uint64_t usual_length(const struct side *sides)
{
    uint64_t length = USUAL_LENGTH;
    for (unsigned i = 0; i < 2; i++) {
        const struct model_config *c = &sides[i].checkpoint.config;
        const char *type = c->position_embedding_type;
        if (type && strcmp(type, "learned_absolute") == 0 && c->max_position_embeddings)
            length = min_u64(length, c->max_position_embeddings);
    }
    return length;
}

static enum status make_random_ids(struct forward *f, const struct forward_options *o,
                                   const struct side *sides, struct error *err)
{
    uint64_t tokens = min_u64(embedding_rows(&sides[0]), embedding_rows(&sides[1])), state = SEED;
    uint64_t length = o->length ? o->length : usual_length(sides);
    if (!tokens || tokens > INT32_MAX)
        return fail(err, ERR_UNSUPPORTED,
                    "the vocabulary size is not known: give tokens with --input-ids");
    if (!o->num_sequences || length > INT32_MAX / o->num_sequences)
        return fail(err, ERR_USAGE, "--batch %" PRIu64 " --seq %" PRIu64 ": no tokens, or too many",
                    o->num_sequences, length);
    f->ids = must_calloc(o->num_sequences * length, sizeof *f->ids);
    for (uint64_t i = 0; i < o->num_sequences * length; i++)
        f->ids[i] = (int32_t)(next_random(&state) % tokens);
    f->batch = (struct batch){.num_sequences = o->num_sequences, .length = length, .ids = f->ids};
    f->ids_are = arena_printf(&f->arena, "at random, seed %d", SEED);
    return OK;
}

static enum status read_ids_file(struct forward *f, const char *path, struct error *err)
{
    struct token_ids t;
    enum status st = ids_read(path, &t, err);
    f->ids = t.ids;
    f->batch = t.batch;
    if (!st) st = ids_check_one_length(&t, path, err);
    free(t.lengths);
    TRY(st);
    f->batch.lengths = NULL;
    f->ids_are = arena_printf(&f->arena, "from %s", path);
    if (f->batch.num_sequences && f->batch.length) return OK;
    return fail(err, ERR_USAGE, "%s: input_ids have no tokens: [%" PRIu64 ", %" PRIu64 "]", path,
                f->batch.num_sequences, f->batch.length);
}

/* Stored results hold only for their own input_ids. */
static enum status check_same_ids(const struct forward *f, struct error *err)
{
    struct token_ids t;
    if (!f->results || !results_have(f->results, "input_ids")) return OK;
    enum status st = ids_read(f->results->path, &t, err);
    if (!st) st = ids_check_one_length(&t, f->results->path, err);
    const struct batch *b = &t.batch;
    bool same = !st && b->num_sequences == f->batch.num_sequences && b->length == f->batch.length &&
                memcmp(t.ids, f->ids, b->num_sequences * b->length * sizeof *t.ids) == 0;
    ids_release(&t);
    if (st || same) return st;
    return fail(err, ERR_USAGE, "the results in %s are for other tokens than those of --input-ids",
                f->results->path);
}

enum status forward_tokens(struct forward *f, const struct forward_options *o,
                           const struct side *sides, struct error *err)
{
    if (o->input_ids) {
        TRY(read_ids_file(f, o->input_ids, err));
        return check_same_ids(f, err);
    }
    if (!f->results) return make_random_ids(f, o, sides, err);
    if (results_have(f->results, "input_ids")) return read_ids_file(f, f->results->path, err);
    return fail(err, ERR_USAGE,
                "%s has no input_ids: give the tokens of its results by --input-ids",
                f->results->path);
}
