/* inspect_internal.h - parts of the output of ferry inspect, as text, as
 * JSON and as a page. */
#ifndef FERRY_CONVERT_CLI_INSPECT_INSPECT_INTERNAL_H
#define FERRY_CONVERT_CLI_INSPECT_INSPECT_INTERNAL_H

#include "ckpt/tensor_stats.h"
#include "common/html.h"
#include "convert/cli/options.h"
#include "convert/cli/report.h"
#include "convert/open.h"
#include "convert/tensor_names.h"

enum { SHOWN_PARTNERS = 4 }; /* names of one tensor */

struct inspect_flags {
    struct source_flags source;
    struct output_flags output;
    struct run_flags run;
    const char *tensors;
    bool stored, args, stats;
    const char *report;
};

/* The result before printing. */
struct inspection {
    struct checkpoint *c;
    const struct inspect_flags *f;
    bool stored_only, stored; /* stored_only: no model; stored: sums count stored tensors */
    struct named_tensor *tensors;
    size_t num_tensors;
    size_t more;           /* the last of them, which are not listed */
    bool is_listed;        /* tensors were requested, or PATH is a file */
    struct moments *stats; /* [num_tensors]; NULL: not requested */
    cJSON *args;           /* NULL: not requested */
    cJSON *page_args;      /* for the page; empty if there are none */
    cJSON *record;         /* ferry.json; NULL: none */
    struct error record_error;
};

/* ---- inspect_sums.c: sizes ---- */

struct sum {
    size_t tensors;
    uint64_t bytes;
};

/* Tensors and bytes by group, by dtype, and by kind of optimizer state. */
enum { NUM_MOMENTS = 3, NUM_GROUPS = 11 };
struct sums {
    struct sum groups[NUM_GROUPS], dtypes[NUM_DTYPES], moments[NUM_MOMENTS], all;
};
extern const char *const inspect_moments[NUM_MOMENTS];
const char *inspect_group(int i); /* its name */
/* stored: sums up stored tensors instead of logical ones. */
struct sums inspect_sums(const struct checkpoint *c, bool stored);

/* ---- inspect_text.c, _json.c, _html.c: the whole result ---- */

void inspection_text(struct strbuf *out, const struct inspection *x);
/* Its first lines: format and origin; the model; weights, optimizer, training
 * and record. */
void inspection_origin(struct strbuf *out, const struct inspection *x);
void inspection_model(struct strbuf *out, const struct inspection *x);
void inspection_state(struct strbuf *out, const struct inspection *x);
cJSON *inspection_json(const struct inspection *x);
/* How many weights came in each encoding. */
cJSON *encodings_json(const struct checkpoint *c);
/* The page of --report. */
void inspection_html(struct strbuf *out, const struct inspection *x,
                     const struct html_environment *e);
/* For a listed master: the weight that is this master; NULL: it is stored. */
const char *inspect_same_as(const struct checkpoint *c, const struct named_tensor *t);
/* If the places of state elements were inferred and all states were read: the
 * number of weights that equal their rounded masters, which proves the places. */
size_t inspect_witnesses(struct checkpoint *c);

/* ---- inspect_lines.c: pieces of lines ---- */

/* "1 file", "2,000 files" */
void add_count(struct strbuf *out, uint64_t n, const char *one, const char *many);
/* Adds a name with control characters escaped. */
void add_escaped_name(struct strbuf *out, const char *name);
/* "  NAME" and blanks up to a column. */
void add_row_name(struct strbuf *out, const char *name, int width);

/* ---- inspect_config.c: the config ---- */

/* The lines of a config: sizes, experts, vocabulary, positions, attention, mlp,
 * norm. */
void config_lines(struct strbuf *out, const struct model_config *m);
/* All fields, a line each; "-" where a field is not set. */
void config_field_lines(struct strbuf *out, const struct model_config *m);
/* All fields as an object: null where a field is not set. */
cJSON *config_json(const struct model_config *m);

/* ---- inspect_args.c: Megatron's args ---- */

/* All args of the checkpoint, sorted by name: the Namespace of its common
 * state, else the values of run_config.yaml as section.name. ERR_USAGE without
 * either. Values that JSON cannot express become texts. The caller deletes the
 * object. */
MUST_CHECK enum status args_json(const struct checkpoint *c, cJSON **out, struct error *err);
void args_lines(struct strbuf *out, const cJSON *args);

#endif
