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
    const struct gaps
        *gaps; /* the source's and the target's; after planning, without the allowed ones */
    const struct target *target; /* NULL: no plan was made */
    const struct target *begun;  /* the target, even if its plan failed; NULL: no plan was tried */
    const char *destination;
    uint64_t peak_memory, max_memory;
    uint64_t disk_needed, disk_free;
    char fingerprint[SHA256_TEXT]; /* of the plan */
    const char *run;               /* identifies the run of all ranks (ckpt/lock.h) */
    struct ranks ranks;
    struct publish_left left;    /* left by an interrupted run */
    const char *left_difference; /* how the interrupted run differs: the words after "an interrupted
                                    run"; "": not at all */
    bool discards;               /* the files of the interrupted run are discarded */
    bool finishes;               /* the interrupted run only lacks its last files */
    struct publish_replaced replaces; /* the folder that --overwrite replaces */
    bool has_digests;                 /* `carries` has digests of the read and written elements */
    struct carry_result *carries;     /* [carries of the plan], after the run */
    double seconds;                   /* since the start of the command */
};

/* "source   hf  llama  1.24 B parameters  BF16 ...", a line for each subject. */
void report_plan(struct strbuf *out, const struct conversion *c);
/* Members of a JSON object: "source" and "target"; "lossy", a list of sentences; the whole plan. */
void report_sides_json(cJSON *object, const struct conversion *c);
void report_target_json(cJSON *object, const struct conversion *c);
/* {"tp": 2, ...} as "layout": its sizes. */
void report_layout_json(cJSON *object, const struct layout *l);
/* The unknown fields of its config as "unknown". */
void report_unknown_json(cJSON *object, const struct checkpoint *c);
void report_replaces_json(cJSON *object, const struct publish_replaced *r); /* as "replaces" */
void report_lossy_json(cJSON *object, const struct target *t);
void report_plan_json(cJSON *object, const struct conversion *c);
/* "converted 2.47 GB in 1.21 s (2.04 GB/s), peak memory 38 MB" */
void report_result(struct strbuf *out, const struct conversion *c, const struct executor_result *r);
void report_result_json(cJSON *object, const struct conversion *c, const struct executor_result *r);

/* "NAME (3), NAME (1) and 2 more": the tensors with elements that are NaN or infinite in the
 * source, or with elements that a cast made infinite. Returns the number of these tensors. */
enum report_count { REPORT_NON_FINITE, REPORT_OVERFLOWED };
size_t report_counts(struct strbuf *out, const struct conversion *c, enum report_count which);
/* Members "non_finite" and "overflowed", each an object {NAME: COUNT} of all such tensors.
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
/* "rope  base 500000, llama3 scaling, ...", or the model's other kind of positions; the label is
 * `width` wide. */
void report_positions(struct strbuf *out, const struct model_config *m, int width);
/* "  dp 4  ZeRO 2": the data parallel ranks that have files of their own (0: none), and the stage
 * of ZeRO (NULL: none); the same as members of an object. */
void report_ranks(struct strbuf *out, uint64_t dp, const unsigned *zero);
void report_ranks_json(cJSON *object, uint64_t dp, const unsigned *zero);
/* "unknown  config.json: foo 3: these may change ..."; nothing where all fields are known. */
void report_unknown(struct strbuf *out, const struct checkpoint *c, int width);

#endif
