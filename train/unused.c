#include "train/unused.h"

#include "convert/target.h"
#include "train/model.h"

enum { SHOWN_NAMES = 5 };

/* Marks the tensors of the catalog that parameters are filled from. */
static void mark_taken(const struct parameters *p, bool *taken)
{
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++)
            taken[p->items[i].parts[k].tensor - p->catalog->tensors] = true;
}

/* The first names of a list, and how many there are. */
struct shown {
    struct strbuf text;
    size_t count;
};

static void show(struct shown *s, const char *name)
{
    if (s->count++ < SHOWN_NAMES) strbuf_printf(&s->text, "%s%s", s->count > 1 ? ", " : "", name);
}

/* ERR_UNSUPPORTED where names have been shown: "PATH: WHAT (7): first, second .. and 2 more". */
static enum status refuse(struct shown *s, const struct catalog *c, const char *what,
                          struct error *err)
{
    enum status st = OK;
    if (s->count > SHOWN_NAMES) strbuf_printf(&s->text, " and %zu more", s->count - SHOWN_NAMES);
    if (s->count)
        st = fail(err, ERR_UNSUPPORTED, "%s: %zu %s %s: %s", c->path, s->count,
                  s->count == 1 ? "tensor" : "tensors", what, s->text.data);
    strbuf_release(&s->text);
    return st;
}

static enum status refuse_names(const struct catalog *c, const char **names, size_t count,
                                const char *what, struct error *err)
{
    struct shown s = {.count = 0};
    for (size_t i = 0; i < count; i++)
        show(&s, names[i]);
    return refuse(&s, c, what, err);
}

static enum status check_taken(const struct catalog *c, const bool *taken, struct error *err)
{
    struct shown s = {.count = 0};
    for (size_t i = 0; i < c->num_tensors; i++)
        if (!taken[i] && is_parameter(&c->tensors[i])) show(&s, c->tensors[i].name);
    return refuse(&s, c, "that no op of the engine takes", err);
}

/* One rank of one has the whole model, and of a batch of one token the program is the same. */
static enum status mark_all(struct catalog *c, bool *taken, struct error *err)
{
    const struct model_options one_rank = {.elem = ELEM_F32};
    const struct batch one_token = {.num_sequences = 1, .length = 1};
    const struct pass_options logits = {.logits = true, .trace_layer = -1};
    struct model m;
    struct pass p = {0};
    enum status st = model_imagine(&m, c, &one_rank, 0, err);
    if (!st) st = pass_make(&p, &m, &one_token, &logits, err);
    if (!st) mark_taken(&m.parameters, taken);
    if (p.model) pass_release(&p);
    model_close(&m);
    return st;
}

enum status unused_check(struct catalog *c, struct error *err)
{
    struct arena scratch;
    TRY(refuse_names(c, c->unexpected, c->num_unexpected, "that the model map does not know", err));
    TRY(refuse_names(c, c->missing, c->num_missing, "missing", err));
    arena_init(&scratch);
    bool *taken = arena_array(&scratch, c->num_tensors + 1, sizeof *taken);
    enum status st = mark_all(c, taken, err);
    if (!st) st = check_taken(c, taken, err);
    arena_release(&scratch);
    return st;
}
