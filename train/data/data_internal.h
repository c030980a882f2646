/* data_internal.h - a kind of data behind data.h. */
#ifndef FERRY_TRAIN_DATA_DATA_INTERNAL_H
#define FERRY_TRAIN_DATA_DATA_INTERNAL_H

#include "common/arena.h"
#include "train/data/data.h"

struct data_kind {
    /* Opens the data by d->options; sets d->state and d->num_samples. `close`
     * follows, after a failure too, if d->state is set. */
    enum status (*open)(struct data *d, struct error *err);
    void (*close)(struct data *d);
    /* Reads one sample into row. */
    enum status (*read)(const struct data *d, enum data_split split, uint64_t sample,
                        struct data_rows *row, struct error *err);
    /* Appends the files, as lines of data_describe(). */
    void (*describe)(const struct data *d, struct strbuf *out);
};

struct data {
    const struct data_kind *kind;
    struct data_options options; /* with texts in the arena */
    struct arena arena;
    uint64_t num_samples[NUM_SPLITS];
    void *state; /* of the kind */
};

extern const struct data_kind data_kind_gpt, data_kind_packed, data_kind_mock;

/* "  PATH: 3 documents, 120 tokens", a line of data_describe(). */
void data_describe_file(struct strbuf *out, const char *path, uint64_t documents, uint64_t tokens);

/* Calls the note of the options. */
void data_note(const struct data *d, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
