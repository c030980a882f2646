#include "convert/megatron/optim/training_source.h"

#include "convert/states.h"
#include "formats/torch.h"

/* Each rereads the archive's pickle; a real one has four: a step and a loss
 * scale. */
enum { MAX_SCALARS = 64 };

static bool read_scalar(void *context, const struct value *tensor, double *out)
{
    struct training_source *s = context;
    struct error why;
    if (++s->num_scalars > MAX_SCALARS && s->c->training.optimizer.present)
        states_unread(s->c, "%s: more than %d training numbers are tensors", s->path, MAX_SCALARS);
    return s->path && s->num_scalars <= MAX_SCALARS &&
           !torch_numbers(s->path, s->offset, s->size, &tensor, 1, out, &why);
}

void training_source_begin(struct training_source *s, struct checkpoint *c)
{
    *s = (struct training_source){.c = c};
    training_reader_init(&s->reader, &c->training.run, &c->arena, read_scalar, s);
}

static void report_unread(struct training_source *s, enum status st, const struct error *err)
{
    if (!st) return;
    if (s->c->training.optimizer.present)
        states_unread(s->c, "%s", err->text);
    else
        checkpoint_note(s->c, "%s: %s", s->c->path, err->text);
}

static void use_archive(struct training_source *s, const char *path, uint64_t offset, uint64_t size)
{
    s->num_scalars = 0;
    s->path = path;
    s->offset = offset;
    s->size = size;
}

void training_source_common(struct training_source *s, const char *path, uint64_t offset,
                            uint64_t size)
{
    struct error err;
    use_archive(s, path, offset, size);
    report_unread(s, training_reader_common(&s->reader, s->c->training.common, &err), &err);
}

void training_source_optimizer(struct training_source *s, const struct value *v, unsigned chain,
                               const char *path, uint64_t offset, uint64_t size)
{
    struct error err;
    use_archive(s, path, offset, size);
    s->reader.chain = chain;
    report_unread(s, training_reader_optimizer(&s->reader, v, path, &err), &err);
}

void training_source_scaler(struct training_source *s, const struct value *v, const char *path,
                            uint64_t offset, uint64_t size)
{
    struct error err;
    use_archive(s, path, offset, size);
    report_unread(s, training_reader_scaler(&s->reader, v, path, &err), &err);
}

void training_source_end(struct training_source *s)
{
    training_reader_finish(&s->reader);
    s->c->training.native_groups = s->reader.native_groups;
    s->c->training.native_schedule = s->reader.native_schedule;
    training_reader_release(&s->reader);
}
