/* verdict.h - what a comparison says, as text and as JSON. report_html.h says it as a page. */
#ifndef FERRY_VALIDATE_REPORT_VERDICT_H
#define FERRY_VALIDATE_REPORT_VERDICT_H

#include "common/strbuf.h"
#include "validate/compare/compare.h"
#include "validate/forward/forward.h"

struct verdict {
    struct comparison *c; /* of the weights; NULL where B has none, and is stored results */
    double seconds;       /* that it took, from the start of the command */
    const struct forward *forward; /* NULL: not asked for */
    bool coloured;                 /* words of the text */
};

/* Whether the exit code is 0. The forward pass asks whether the sides compute the same, of the same
 * weights: forward_agreement(). It tries a few tokens only, and so does not outweigh what the
 * configs say. */
bool verdict_passes(const struct verdict *v);
/* Whether the forward pass says otherwise than the weights, and so decides. */
bool verdict_is_by_forward(const struct verdict *v);
/* Of weights and configs: "identical", "within tolerance", "CONFIGS DIFFER", "DIFFERENT" */
const char *verdict_word(const struct comparison *c);
/* "DIFFERENT: 3 of 291 tensors, 2.47 GB, 1.02 s" */
void weights_line(struct strbuf *out, const struct verdict *v);
/* The same, behind "DIFFERENT: the forward pass; weights " where that decides. */
void verdict_line(struct strbuf *out, const struct verdict *v);
/* The line, in which fields the configs differ, and what explains the tensors; verbose: all tensors
 * and hints, not the most important ones. */
void verdict_text(struct strbuf *out, const struct verdict *v, bool verbose);
/* What --json says of it. */
cJSON *verdict_json(const struct verdict *v);

/* "hf, llama, iteration 1000, TP2 PP4, 2.47 GB, BF16"; in the comparison's arena. */
const char *side_text(struct comparison *c, unsigned side);

/* What differs in a layer, in the embeddings, in the head. */
struct place_sum {
    struct place place;
    size_t num_tensors, num_different;
    const struct compared *worst; /* NULL where none differs */
};
/* In the order of the model; in the comparison's arena. */
struct place_sum *sum_places(struct comparison *c, size_t *count);

#endif
