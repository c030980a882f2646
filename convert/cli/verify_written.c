#include "convert/cli/verify_written.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "convert/cli/record_write.h"
#include "convert/states.h"

static void digest_text(struct strbuf *out, const struct tensor_digest *d)
{
    strbuf_clear(out);
    if (d)
        digest_print(out, d);
    else
        strbuf_add_text(out, "nothing");
}

/* Leaves out weights that the reader made from written masters (ZeRO stage 3). */
static size_t leave_made_weights(struct tensor_digest *found, size_t count,
                                 const struct tensor_digest *wrote, size_t num_wrote)
{
    struct map names = {0};
    struct arena a;
    size_t kept = 0;
    arena_init(&a);
    for (size_t i = 0; i < num_wrote; i++)
        (void)map_add(&names, wrote[i].name, i, NULL);
    for (size_t i = 0; i < count; i++) {
        const char *master = state_name(&a, master_state, found[i].name);
        const bool made = !name_is_optimizer(found[i].name) &&
                          !map_get(&names, found[i].name, NULL) && map_get(&names, master, NULL);
        if (!made) found[kept++] = found[i];
    }
    arena_release(&a);
    map_release(&names);
    return kept;
}

/* Leaves out logical tensors of which parts were written as codes. */
static size_t leave_decoded(struct tensor_digest *wrote, size_t count, const struct catalog *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = catalog_find(c, wrote[i].name);
        if (!t || !tensor_is_decoded(t)) wrote[kept++] = wrote[i];
    }
    return kept;
}

/* Prints and counts the names whose digests differ. Both lists are sorted by
 * name. */
static size_t list_differences(const struct tensor_digest *wrote, size_t num_wrote,
                               const struct tensor_digest *found, size_t num_found)
{
    struct strbuf a = {0}, b = {0};
    size_t i = 0, k = 0, bad = 0;
    while (i < num_wrote || k < num_found) {
        int order = i == num_wrote ? 1 : k == num_found ? -1 : strcmp(wrote[i].name, found[k].name);
        const struct tensor_digest *x = order <= 0 ? &wrote[i++] : NULL;
        const struct tensor_digest *y = order >= 0 ? &found[k++] : NULL;
        digest_text(&a, x);
        digest_text(&b, y);
        if (strcmp(a.data, b.data) == 0) continue;
        fprintf(stderr, "  %s: wrote %s, found %s\n", (x ? x : y)->name, a.data, b.data);
        bad++;
    }
    strbuf_release(&a);
    strbuf_release(&b);
    return bad;
}

static enum status compare_digests(const struct plan *p, const struct copy_result *results,
                                   const struct checkpoint *c, const struct digest_options *o,
                                   struct error *err)
{
    struct arena a;
    struct strbuf text = {0};
    struct tensor_digest *wrote, *found;
    size_t num_wrote, num_found, bad = 0;
    arena_init(&a);
    const struct catalog read = catalog_undecoded(&c->catalog, &a);
    enum status st = digest_catalog(&read, o, &a, &found, &num_found, err);
    if (!st) {
        record_digests(p, results, true, &a, &wrote, &num_wrote);
        num_wrote = leave_decoded(wrote, num_wrote, &c->catalog);
        num_found = leave_made_weights(found, num_found, wrote, num_wrote);
        digest_print_all(&text, wrote, num_wrote, NULL); /* sorts */
        digest_print_all(&text, found, num_found, NULL);
        bad = list_differences(wrote, num_wrote, found, num_found);
    }
    strbuf_release(&text);
    arena_release(&a);
    if (!bad) return st;
    return fail(err, ERR_IO, "%s: %zu tensor%s read back differ%s from the written data", c->path,
                bad, bad == 1 ? "" : "s", bad == 1 ? "s" : "");
}

enum status verify_written(const struct plan *p, const struct copy_result *results,
                           const char *folder, const struct source_options *o,
                           const struct model_maps *maps, const struct digest_options *d,
                           struct error *err)
{
    struct checkpoint c;
    struct source_options options = *o;
    options.has_ckpt_step = false; /* an option of the source, not of the written files */
    options.casts = false;
    enum status st = source_open(&c, folder, &options, maps, err);
    if (!st) st = compare_digests(p, results, &c, d, err);
    checkpoint_release(&c);
    return st;
}
