/* report.h - the plan and the result of a conversion, as text and as JSON. */
#ifndef FERRY_CONVERT_CLI_REPORT_H
#define FERRY_CONVERT_CLI_REPORT_H

#include <cjson/cJSON.h>

#include "ckpt/executor.h"
#include "ckpt/fingerprint.h"
#include "common/ranks.h"
#include "common/strbuf.h"
#include "convert/target.h"

struct conversion {
    const struct checkpoint *source;
    const struct gaps *gaps;     /* of source and target; after planning, without allowed ones */
    const struct target *target; /* NULL: no plan was made */
    const struct target *begun;  /* the target, even if its plan failed; NULL: no plan was tried */
    const char *destination;
    uint64_t peak_memory, max_memory;
    uint64_t disk_needed, disk_free;
    char fingerprint[SHA256_TEXT]; /* of the plan */
    const char *run;               /* identifies the run of all ranks (ckpt/lock.h) */
    struct ranks ranks;
    struct publish_left left;    /* left by an interrupted run */
    const char *left_difference; /* follows "interrupted run": " with other arguments"; or "" */
    bool discards;               /* the files of the interrupted run are discarded */
    bool finishes;               /* the interrupted run only lacks its last files */
    struct publish_replaced replaces; /* the folder that --overwrite replaces */
    bool has_digests;                 /* `copies` has digests of read and written elements */
    struct copy_result *copies;       /* [target->plan.num_copies], after the run */
    double seconds;                   /* since the start of the command */
};

/* "source   hf  llama  1.24 B parameters  BF16 ...", a line for each subject. */
void report_plan(struct strbuf *out, const struct conversion *c);
/* Add members to a JSON object: "source" and "target"; only "target"; and as
 * noted below. */
void report_sides_json(cJSON *object, const struct conversion *c);
void report_target_json(cJSON *object, const struct conversion *c);
/* "layout": {"tp": 2, ...}. */
void report_layout_json(cJSON *object, const struct layout *l);
/* "unknown": the unknown fields of its config. */
void report_unknown_json(cJSON *object, const struct checkpoint *c);
void report_replaces_json(cJSON *object, const struct publish_replaced *r); /* "replaces" */
void report_lossy_json(cJSON *object, const struct target *t);    /* "lossy": a list of sentences */
void report_plan_json(cJSON *object, const struct conversion *c); /* the whole plan */
/* "converted 2.47 GB in 1.21 s (2.04 GB/s), peak memory 38 MB"; rank 0 counts
 * the bytes of all processes. */
void report_result(struct strbuf *out, const struct conversion *c, const struct executor_result *r);
void report_result_json(cJSON *object, const struct conversion *c, const struct executor_result *r);

/* "NAME (3), NAME (1) and 2 more": tensors with elements that are NaN or
 * infinite in the source, or that a cast made infinite. Returns the number of
 * tensors. */
enum report_count { REPORT_NON_FINITE, REPORT_OVERFLOWED };
size_t report_counts(struct strbuf *out, const struct conversion *c, enum report_count which);
/* Adds "non_finite" and "overflowed", each {NAME: COUNT} of all such tensors.
 * "non_finite" is null without digests, since nothing is counted then. */
void report_counts_json(cJSON *object, const struct conversion *c);

/* Elements and bytes of all parameters, and bytes by dtype. For inspect too. */
struct parameter_count {
    uint64_t elements, bytes;
    uint64_t bytes_by_dtype[NUM_DTYPES];
};
void count_parameters(const struct checkpoint *c, struct parameter_count *out);
/* "BF16", or "BF16 98.2 %, F32 1.8 %" */
void print_dtypes(struct strbuf *out, const struct parameter_count *n);
/* "1.24 B" */
void print_count(struct strbuf *out, uint64_t n);
/* "  dp 4  ZeRO 2": data parallel ranks with files of their own (0: none), and
 * the ZeRO stage (NULL: none); the same as members of an object. */
void report_ranks(struct strbuf *out, uint64_t dp, const unsigned *zero);
void report_ranks_json(cJSON *object, uint64_t dp, const unsigned *zero);
/* "unknown  config.json: foo 3: these may change ..."; nothing if all fields
 * are known. */
void report_unknown(struct strbuf *out, const struct checkpoint *c, int width);

#endif
