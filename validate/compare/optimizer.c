#include "validate/compare/optimizer.h"

#include "common/numbers.h"

bool optimizer_has_tensors(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        if (name_is_optimizer(c->catalog.tensors[i].name)) return true;
    return false;
}

bool optimizer_is_read(const struct checkpoint *c)
{
    const struct optimizer_info *o = &c->training.optimizer;
    return !o->present || (!o->unread && optimizer_has_tensors(c));
}

enum status optimizer_check_read(const struct checkpoint *c, struct error *err)
{
    const struct optimizer_info *o = &c->training.optimizer;
    if (optimizer_is_read(c)) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: its optimizer state (%s; %s) cannot be read%s%s; --no-optim leaves it out",
                c->path, o->kind, bytes_text(o->size_bytes), o->unread ? ": " : "",
                o->unread ? o->unread : "");
}
