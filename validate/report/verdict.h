/* verdict.h - the verdict of a comparison, as text and as JSON. report_html.h:
 * as a page. */
#ifndef FERRY_VALIDATE_REPORT_VERDICT_H
#define FERRY_VALIDATE_REPORT_VERDICT_H

#include "common/strbuf.h"
#include "validate/compare/compare.h"
#include "validate/forward/forward.h"

struct verdict {
    struct comparison *c;          /* of the weights; NULL if B is stored results */
    double seconds;                /* since the start of the command */
    const struct forward *forward; /* NULL: not asked for */
    bool coloured;                 /* whether words of the text are coloured */
};

/* Whether the exit code is 0. With a forward pass: whether forward_agreement()
 * is not DISAGREE, and configs and training states pass. A forward pass tries
 * only a few tokens, so it does not outweigh these. */
bool verdict_passes(const struct verdict *v);
/* Whether the forward pass contradicts the weights, and so decides. */
bool verdict_is_by_forward(const struct verdict *v);
/* The verdict on tensors, configs and training states: "identical", "within
 * tolerance", "TRAINING DIFFERS", "CONFIGS DIFFER", "DIFFERENT" */
const char *verdict_word(const struct comparison *c);
/* "DIFFERENT: 3 of 291 tensors, 2.47 GB, 1.02 s" */
void weights_line(struct strbuf *out, const struct verdict *v);
/* The same line; if the forward pass decides, after "DIFFERENT: the forward
 * pass; weights ". */
void verdict_line(struct strbuf *out, const struct verdict *v);
/* The whole text: the line, differing fields of configs and training states,
 * tensors and hints (the most important ones, or all if verbose). */
void verdict_text(struct strbuf *out, const struct verdict *v, bool verbose);
/* The verdict for --json. */
cJSON *verdict_json(const struct verdict *v);

/* Names the option that leaves the first difference out. */
const char *training_way_on(struct arena *a, const struct training_comparison *x);

/* "hf, llama, iteration 1000, TP2 PP4, 2.47 GB, BF16"; in the comparison's
 * arena. */
const char *side_text(struct comparison *c, unsigned side);

/* The differences in a layer, in the embeddings or in the head. */
struct place_sum {
    struct place place;
    size_t num_tensors, num_different;
    double max_steps;             /* of its tensors that have steps */
    const struct compared *worst; /* NULL if none differs */
};
/* Sums up the differences by place, in the order of the model; in the
 * comparison's arena. */
struct place_sum *sum_places(struct comparison *c, size_t *count);

#endif
