/* quantization.h - how the weights of a Hugging Face folder are encoded, by its
 * config: rows of convert/models/quantization.json.
 *
 * A config has one scheme or several (groups of compressed-tensors, layers of
 * ModelOpt). Each selects the rows whose `when` holds. Which of these a tensor
 * has, names, dtypes and shapes say.
 *
 *   name       the encoding
 *   when       a condition on members of the scheme
 *   codes      the name of the tensor with codes; {name}: that of the decoded
 *              weight; {module}: {name} up to its last dot
 *   dtype      of the stored codes
 *   code       of kernels/cpu/quant.h
 *   in_blocks  the last two dims of the codes are groups and bytes of a group
 *   transposed the weight is [..., cols, rows] of what is decoded
 *   packed     cols (by default) or rows: what words are along
 *   order      elements of a word, from the lowest bits up
 *   scales     possible names of scales
 *   block      [rows, cols] of a group; 0: all of them
 *   global, global_divides, zeros, shape: names of other companions, with
 *              encoding.h's meaning; shape is [rows, cols], I64 or I32
 *   zeros_dtype (by default I32), zeros_packed
 *   zero_offset  added to zeros
 *   groups     name of a companion: the line of groups of each row
 *   numbers    of code "table"
 *   table      name of a companion that repeats them
 *   factor     of products
 *   only_read  codes are not even copied
 *   state      name of a companion of JSON, as bitsandbytes writes it:
 *              shape; the codes are one row
 *              blocksize, in place of block
 *              nested_blocksize, nested_offset
 *   nested_scales, nested_table: names of companions of U8 scales
 *
 * Companions of activations match the globs of "activations". "exports" says how
 * weights are written anew: the rule of their scales (ckpt/encoder.h), and the
 * quantization_config, whose first empty list names what is left as it is. */
#ifndef FERRY_CONVERT_MAP_QUANTIZATION_H
#define FERRY_CONVERT_MAP_QUANTIZATION_H

#include <cjson/cJSON.h>

#include "ckpt/encoder.h"
#include "common/arena.h"
#include "common/dtype.h"
#include "common/status.h"

enum { MAX_SCALE_NAMES = 4 };

struct quant_row {
    const char *name, *codes, *scales[MAX_SCALE_NAMES]; /* scales: NULL at the end */
    /* NULL: none */
    const char *global, *zeros, *shape, *groups, *table, *state, *nested_scales, *nested_table;
    bool global_divides, in_blocks, transposed, only_read;
    struct quant_words words, zero_words;
    uint64_t zero_offset;
    float *numbers, factor;
    enum quant_code code;
    enum dtype dtype, zeros_dtype;
    uint64_t scale_dtypes;  /* bits of enum dtype */
    enum dtype scale_dtype; /* the first, which is written */
    uint64_t block[2];
};

/* Whether weights can be encoded by a row; or their codes copied, as_stored. */
bool quant_row_can_write(const struct quant_row *row, bool as_stored);

/* "int4[1,32]": what tells the rows of one config apart. */
const char *quant_label(struct arena *a, const struct quant_row *row);

struct quantization {
    const char *method; /* "compressed-tensors pack-quantized", for messages */
    struct quant_row *rows;
    size_t num_rows;
    const char **activations; /* globs, NULL at the end */
    const char **excluded;    /* modules that the config excludes, NULL at the end */
    /* "LABEL NAME": the row that weights have, if there are several. NAME: see
     * encodings_pattern(). */
    const char **chosen;
    size_t num_chosen, chosen_capacity;
};

/* Sets *out to the rows that a config.json selects, with hf_quant_config.json
 * of `folder` (NULL: none); to NULL if neither names a quantisation. *out is in arena a.
 * ERR_UNSUPPORTED names a method that no row knows. */
MUST_CHECK enum status quantization_read(const cJSON *config, const char *folder, struct arena *a,
                                         struct quantization **out, struct error *err);
/* How weights are encoded anew. */
struct quant_export {
    enum encoder_rule rule;
    cJSON *config;   /* a quantization_config, which the caller deletes */
    cJSON *excluded; /* its list of modules that are left as they are */
};
/* False if "exports" has no such name. */
bool quantization_export(const char *name, struct quant_export *out);
/* Removes what a config.json says of it; false: nothing. */
bool quantization_drop(cJSON *config);

/* The file of ModelOpt's beside config.json. */
extern const char quantization_file[];

/* Whether a tensor is a companion of activations. */
bool quantization_is_activation(const struct quantization *q, const char *name);

/* Whether the config excludes a module: by its name, the beginning or the last
 * parts of it, a glob, or a regular expression behind "re:". */
bool quantization_excludes(const struct quantization *q, const char *module);

/* A template with {name} and {module} filled in. */
const char *quant_fill(struct arena *a, const char *template, const char *name);
/* The {name} by which a template gives `text`; NULL: none does. A template with
 * {module} has weights as names. */
const char *quant_unfill(struct arena *a, const char *template, const char *text);

#endif
