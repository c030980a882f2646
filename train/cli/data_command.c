/* data_command.c - ferry data: documents of token ids as Megatron's indexed
 * dataset.
 *
 * Reads the lines twice: first to check all and find the largest id, which
 * decides the element type; then to write them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/result.h"
#include "common/text.h"
#include "convert/cli/options.h"
#include "convert/hf/end_tokens.h"
#include "formats/ids_lines.h"
#include "formats/indexed_dataset_writer.h"
#include "train/cli/engine_commands.h"

struct data_flags {
    uint64_t vocab_size, eod_id; /* eod_id: UINT64_MAX is not given */
    const char *hf_config;
    bool append_eod, overwrite, json, quiet;
};

// clang-format off
#define AT(field) offsetof(struct data_flags, field)
static const struct arg data_args[] = {
    {"--vocab-size", ARG_UINT,      AT(vocab_size), "N", NULL, "vocabulary size: refuse ids from N on, write u16 if N < 65500, else i32; default: from the largest id"},
    {"--append-eod", ARG_FLAG,      AT(append_eod), NULL, NULL, "append the token that ends a document to each one; it counts for the loss"},
    {"--eod-id",     ARG_UINT_OR_0, AT(eod_id),     "N", NULL, "id of that token; default: from --hf-config"},
    {"--hf-config",  ARG_TEXT,      AT(hf_config),  "DIR", NULL, "model folder, for its eos_token_id: of generation_config.json, else config.json; of a list the first, as ferry train takes it"},
    {"--overwrite",  ARG_FLAG,      AT(overwrite),  NULL, NULL, "replace the files of OUT"},
    {"--json",       ARG_FLAG,      AT(json),       NULL, NULL, "print the result as JSON"},
    {"--quiet -q",   ARG_FLAG,      AT(quiet),      NULL, NULL, "print errors only"},
};
// clang-format on
static const struct arg_group data_groups[] = {{"Data", data_args, COUNT(data_args), 0}};

static void set_data_defaults(void *options)
{
    struct data_flags *f = options;
    f->eod_id = UINT64_MAX;
}

enum { U16_BELOW = 65500 }; /* vocabularies of u16: Megatron's DType.optimal_dtype */

struct conversion {
    const struct data_flags *flags;
    const char *source;
    int64_t eod;  /* with --append-eod */
    char *prefix; /* of the files, on the heap */
    /* found by the first reading */
    uint64_t num_documents, num_tokens, num_counting, num_empty;
    int32_t largest;
    bool has_mask;
    enum dtype dtype;
    /* used by the second */
    struct indexed_dataset_writer tokens, masks;
    uint64_t written;
    int32_t *mask; /* of one document */
    size_t room;
};

/* ---- first reading ---- */

static enum status check_vocabulary(const struct conversion *c, const struct ids_line *line,
                                    struct error *err)
{
    const uint64_t vocab = c->flags->vocab_size;
    for (size_t i = 0; vocab && i < line->count; i++)
        if ((uint64_t)line->ids[i] >= vocab)
            return fail(err, ERR_CORRUPT,
                        "%s: line %" PRIu64
                        ": element %zu: id %d is not below --vocab-size %" PRIu64,
                        c->source, line->number, i, line->ids[i], vocab);
    return OK;
}

static enum status survey_line(void *context, const struct ids_line *line, struct error *err)
{
    struct conversion *c = context;
    TRY(check_vocabulary(c, line, err));
    c->has_mask |= line->has_mask;
    if (line->count == 0) {
        c->num_empty++;
        return OK;
    }
    for (size_t i = 0; i < line->count; i++) {
        if (line->ids[i] > c->largest) c->largest = line->ids[i];
        c->num_counting += line->mask[i];
    }
    c->num_documents++;
    c->num_tokens += line->count;
    return OK;
}

static enum status survey(struct conversion *c, struct error *err)
{
    const struct data_flags *f = c->flags;
    TRY(ids_lines_read(c->source, survey_line, c, err));
    if (!c->num_documents) return fail(err, ERR_CORRUPT, "%s: no line has a token id", c->source);
    if (f->append_eod) {
        if (c->eod > c->largest) c->largest = (int32_t)c->eod;
        c->num_tokens += c->num_documents;
        c->num_counting += c->num_documents;
    }
    const uint64_t vocab = f->vocab_size ? f->vocab_size : (uint64_t)c->largest + 1;
    c->dtype = vocab < U16_BELOW ? DT_U16 : DT_I32;
    return OK;
}

/* ---- second reading ---- */

/* Adds a document of one sequence: the values, with --append-eod also `last`. */
static enum status add_document(const struct conversion *c, struct indexed_dataset_writer *w,
                                const int32_t *values, size_t count, int32_t last,
                                struct error *err)
{
    TRY(indexed_dataset_append(w, values, count, err));
    if (c->flags->append_eod) TRY(indexed_dataset_append(w, &last, 1, err));
    TRY(indexed_dataset_end_sequence(w, err));
    indexed_dataset_end_document(w);
    return OK;
}

static enum status write_mask(struct conversion *c, const struct ids_line *line, struct error *err)
{
    if (line->count > c->room) {
        c->room = 2 * line->count;
        c->mask = must_realloc(c->mask, c->room * sizeof *c->mask);
    }
    for (size_t i = 0; i < line->count; i++)
        c->mask[i] = line->mask[i];
    return add_document(c, &c->masks, c->mask, line->count, 1, err);
}

static enum status write_line(void *context, const struct ids_line *line, struct error *err)
{
    struct conversion *c = context;
    if (line->count == 0) return OK;
    TRY(check_vocabulary(c, line, err));
    TRY(add_document(c, &c->tokens, line->ids, line->count, (int32_t)c->eod, err));
    if (c->has_mask) TRY(write_mask(c, line, err));
    c->written++;
    return OK;
}

/* Masks left by an earlier dataset would apply to this one. */
static enum status remove_masks(const struct conversion *c, bool only_check, struct error *err)
{
    static const char *const suffixes[] = {".mask.idx", ".mask.bin"};
    enum status st = OK;
    for (size_t i = 0; i < COUNT(suffixes) && !st; i++) {
        struct strbuf path = {0};
        strbuf_printf(&path, "%s%s", c->prefix, suffixes[i]);
        if (!only_check)
            st = path_remove(path.data, err);
        else if (path_exists(path.data))
            st = fail(
                err, ERR_EXISTS,
                "%s exists already, but the new documents have no masks; --overwrite removes it",
                path.data);
        strbuf_release(&path);
    }
    return st;
}

static enum status create_masks(struct conversion *c, struct error *err)
{
    struct strbuf path = {0};
    if (!c->has_mask) return c->flags->overwrite ? OK : remove_masks(c, true, err);
    strbuf_printf(&path, "%s.mask", c->prefix);
    enum status st = indexed_dataset_create(&c->masks, path.data, DT_U8, c->flags->overwrite, err);
    strbuf_release(&path);
    return st;
}

/* Publishes masks first: training on tokens without their masks would count all
 * of them. */
static enum status write_files(struct conversion *c, struct error *err)
{
    TRY(indexed_dataset_create(&c->tokens, c->prefix, c->dtype, c->flags->overwrite, err));
    TRY(create_masks(c, err));
    TRY(ids_lines_read(c->source, write_line, c, err));
    if (c->written != c->num_documents)
        return fail(err, ERR_IO, "%s: changed while it was read", c->source);
    if (c->has_mask) TRY(indexed_dataset_finish(&c->masks, err));
    if (!c->has_mask && c->flags->overwrite) TRY(remove_masks(c, false, err));
    return indexed_dataset_finish(&c->tokens, err);
}

/* ---- the command ---- */

static void report_dataset(const struct conversion *c)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "source", c->source);
    json_add_text(o, "data", c->prefix);
    json_add_text(o, "dtype", c->dtype == DT_U16 ? "u16" : "i32");
    if (c->flags->append_eod) json_add_u64(o, "eod_id", (uint64_t)c->eod);
    json_add_u64(o, "documents", c->num_documents);
    json_add_u64(o, "tokens", c->num_tokens);
    json_add_u64(o, "empty_documents", c->num_empty);
    cJSON_AddBoolToObject(o, "loss_masks", c->has_mask);
    json_add_u64(o, "tokens_that_count", c->num_counting);
    result_set(o);
    if (c->flags->quiet || c->flags->json) return;
    printf("%s.bin, %s.idx: %" PRIu64 " document%s, %" PRIu64 " tokens, %s\n", c->prefix, c->prefix,
           c->num_documents, c->num_documents == 1 ? "" : "s", c->num_tokens,
           c->dtype == DT_U16 ? "u16" : "i32");
    if (c->flags->append_eod) printf("each document ends with id %" PRId64 "\n", c->eod);
    if (c->has_mask)
        printf("%s.mask.bin, %s.mask.idx: %" PRIu64 " tokens count for the loss\n", c->prefix,
               c->prefix, c->num_counting);
    if (c->num_empty)
        printf("left out: %" PRIu64 " document%s without ids\n", c->num_empty,
               c->num_empty == 1 ? "" : "s");
}

/* The folder's, which ferry train takes, too. */
static enum status read_folder_eod(const char *folder, int64_t *eod, struct error *err)
{
    struct end_tokens ends;
    if (!path_is_folder(folder)) return fail(err, ERR_IO, "--hf-config %s: no such folder", folder);
    TRY(end_tokens_read(folder, &ends, err));
    *eod = end_tokens_of_document(&ends);
    return OK;
}

static enum status check_eod(const struct conversion *c, const char *from, struct error *err)
{
    const uint64_t vocab = c->flags->vocab_size;
    if (c->eod > INT32_MAX)
        return fail(err, ERR_USAGE, "%s %" PRId64 " is above the largest id, %d", from, c->eod,
                    INT32_MAX);
    if (vocab && (uint64_t)c->eod >= vocab)
        return fail(err, ERR_USAGE, "%s %" PRId64 " is not below --vocab-size %" PRIu64, from,
                    c->eod, vocab);
    return OK;
}

/* --eod-id, else the folder's. */
static enum status find_eod(struct conversion *c, struct error *err)
{
    const struct data_flags *f = c->flags;
    const bool is_given = f->eod_id != UINT64_MAX;
    int64_t of_folder = -1;
    if (!f->append_eod)
        return is_given || f->hf_config ? fail(err, ERR_USAGE, "%s needs --append-eod",
                                               is_given ? "--eod-id" : "--hf-config")
                                        : OK;
    if (!is_given && !f->hf_config)
        return fail(err, ERR_USAGE,
                    "--append-eod needs --hf-config FOLDER of the model, or --eod-id N");
    if (f->hf_config) TRY(read_folder_eod(f->hf_config, &of_folder, err));
    if (!is_given && of_folder < 0)
        return fail(err, ERR_USAGE,
                    "--hf-config %s: no eos_token_id in generation_config.json or config.json; "
                    "give --eod-id N",
                    f->hf_config);
    c->eod = is_given ? (int64_t)f->eod_id : of_folder;
    if (is_given && of_folder >= 0 && of_folder != c->eod)
        fprintf(stderr,
                "note: --eod-id %" PRId64 " ends documents; eos_token_id of %s is %" PRId64 "\n",
                c->eod, f->hf_config, of_folder);
    return check_eod(c, is_given ? "--eod-id" : "eos_token_id", err);
}

static char *prefix_of(const char *path)
{
    char *prefix = must_strdup(path);
    if (text_ends_with(path, ".bin") || text_ends_with(path, ".idx"))
        prefix[strlen(path) - 4] = '\0';
    return prefix;
}

static enum status data(void *options, const char *const *positional, size_t num_positional,
                        struct error *err)
{
    struct conversion c = {.flags = options, .source = positional[0]};
    (void)num_positional;
    TRY(find_eod(&c, err));
    if (!*positional[1]) return fail(err, ERR_USAGE, "OUT is empty");
    c.prefix = prefix_of(positional[1]);
    enum status st = survey(&c, err);
    if (!st) st = write_files(&c, err);
    if (!st) report_dataset(&c);
    indexed_dataset_writer_close(&c.tokens);
    indexed_dataset_writer_close(&c.masks);
    free(c.mask);
    free(c.prefix);
    return st;
}

const struct command command_data = {
    .name = "data",
    .summary = "write token ids as a training dataset: the .bin and .idx that Megatron-LM reads",
    .positional = "IDS.jsonl OUT",
    .text = "Each line of IDS.jsonl is a document: {\"ids\": [1, 2, 3]}. For fine-tuning it also "
            "has \"loss_mask\": [0, 1, 1] of the same length; 0 excludes a token from the loss. "
            "\"input_ids\" and \"tokens\" are other names of \"ids\"; \"labels\" with -100 is "
            "another form of the mask. Writes OUT.bin and OUT.idx, with masks also OUT.mask.bin "
            "and OUT.mask.idx.\n\n"
            "  ferry data ids.jsonl corpus --append-eod --hf-config model\n\n"
            "Convert texts, one per line, to ids in Python:\n\n"
            "  python3 -c 'from transformers import AutoTokenizer as A; import json, sys; "
            "t = A.from_pretrained(\"model\"); "
            "[print(json.dumps({\"ids\": t(s.rstrip(\"\\n\")).input_ids})) for s in sys.stdin]' "
            "< texts.txt > ids.jsonl",
    .groups = data_groups,
    .num_groups = COUNT(data_groups),
    .options_bytes = sizeof(struct data_flags),
    .defaults = set_data_defaults,
    .run = data,
};
