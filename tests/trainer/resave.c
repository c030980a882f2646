/* resave.c - loads a checkpoint as a run does, and saves it as the run would.
 *
 *     resave SOURCE DIR [--format FORMAT] [--elem bf16|f32|f64] [--no-optim] [--no-load-optim]
 *            [--true-vocab-size N] [--overwrite] [--keep-last N] [--first N] [--count N] [--fsync]
 *
 * --first N: the number of the iteration that is written, else the source's;
 * --count N: so many iterations, one after the other. It says each when it is
 * complete, and exits as ferry does. */
#include <inttypes.h>
#include <stdio.h>

#include "train/trainer/testing_state.h"

struct options {
    struct test_loading load;
    const char *format, *elem;
    uint64_t first, count;
    struct checkpoint_target to;
};

static bool is_option(const char *word, const char *name)
{
    return strcmp(word, name) == 0;
}

static bool take_flag(struct options *o, const char *word)
{
    bool *const flag = is_option(word, "--no-optim")        ? &o->to.no_optimizer
                       : is_option(word, "--no-load-optim") ? &o->load.no_optimizer
                       : is_option(word, "--overwrite")     ? &o->to.overwrite
                       : is_option(word, "--fsync")         ? &o->to.fsync
                                                            : NULL;
    if (flag) *flag = true;
    return flag;
}

static bool take_value(struct options *o, const char *word, const char *value)
{
    uint64_t *const number = is_option(word, "--keep-last")         ? &o->to.keep_last
                             : is_option(word, "--first")           ? &o->first
                             : is_option(word, "--count")           ? &o->count
                             : is_option(word, "--true-vocab-size") ? &o->load.true_vocab_size
                                                                    : NULL;
    const char **const text = is_option(word, "--format") ? &o->format
                              : is_option(word, "--elem") ? &o->elem
                                                          : NULL;
    if (!value) return false;
    if (number) *number = strtoull(value, NULL, 10);
    if (text) *text = value;
    return number || text;
}

static bool parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){.format = "torch_dist", .elem = "f32", .count = 1, .first = UINT64_MAX};
    if (argc < 3) return false;
    o->load.path = argv[1];
    o->to.dir = argv[2];
    o->to.threads = 2;
    for (int i = 3; i < argc; i++)
        if (!take_flag(o, argv[i]) && !take_value(o, argv[i], argv[i + 1]))
            return false;
        else if (strncmp(argv[i], "--", 2) == 0 && i + 1 < argc && argv[i + 1][0] != '-')
            i++;
    o->load.elem = elem_of(o->elem);
    o->to.format = format_find(o->format);
    return o->to.format;
}

static enum status save_all(struct test_state *x, const struct options *o, struct error *err)
{
    struct training *run = &x->loaded.training;
    struct checkpoint_target to = o->to;
    to.maps = &x->maps;
    if (o->first != UINT64_MAX) run->iteration = o->first;
    for (uint64_t i = 0; i < o->count; i++, run->iteration++) {
        TRY(checkpoint_save(&x->s, &to, err));
        printf("saved iteration %" PRIu64 "\n", run->iteration);
        fflush(stdout);
    }
    return OK;
}

int main(int argc, char **argv)
{
    struct options o;
    struct test_state x;
    struct error err = {OK, ""};
    if (!parse(&o, argc, argv)) {
        fputs("usage: resave SOURCE DIR [OPTION]...\n", stderr);
        return ERR_USAGE;
    }
    enum status st = test_state_open(&x, &o.load, &err);
    if (!st && x.loaded.note) fprintf(stderr, "%s\n", x.loaded.note);
    if (!st) st = save_all(&x, &o, &err);
    if (st) fprintf(stderr, "resave: %s\n", err.text);
    test_state_close(&x);
    return (int)st;
}
