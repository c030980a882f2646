#include "convert/megatron/megatron_source.h"

#include "common/file.h"
#include "convert/format.h"
#include "convert/megatron/find_iteration.h"
#include "convert/megatron/missing.h"
#include "convert/naming.h"
#include "formats/pickle.h"

bool megatron_iteration_is_dist(const char *path, const struct source_options *o, bool *is_dist)
{
    const struct source_options none = {0};
    struct iteration found;
    struct arena a;
    if (!iteration_is_below(path)) return false;
    arena_init(&a);
    enum status st = iteration_find(&a, path, o ? o : &none, &found, NULL);
    /* If there is none, the open of torch_dist tells why. */
    *is_dist = st || path_exists(path_join(&a, found.folder, "metadata.json"));
    arena_release(&a);
    return true;
}

enum status megatron_open(struct megatron_source *m, megatron_reader *read, struct error *err)
{
    struct checkpoint *c = m->c;
    struct iteration found;
    TRY(iteration_find(&c->arena, c->path, m->o, &found, err));
    c->folder = found.folder;
    c->training.release = found.release;
    c->training.iteration = found.number;
    TRY(read(m, err));
    TRY(megatron_find_missing(m, err));
    return catalog_check(&c->catalog, err);
}

enum status megatron_import(struct megatron_source *m, struct error *err)
{
    const struct naming_import import = {
        .c = m->c, .o = m->o, .moe_layers_known = m->moe_layers_known};
    return m->c->format->naming->import(&import, err);
}

enum status value_copy(struct arena *a, const struct value *v, struct value **out,
                       struct error *err)
{
    struct strbuf pickle = {0};
    enum status st = pickle_write(&pickle, v, err);
    if (!st) st = pickle_read_bytes(a, pickle.data, pickle.length, out, err);
    strbuf_release(&pickle);
    return st;
}
