#include "convert/hf/module_names.h"

#include <string.h>

#include "common/text.h"
#include "convert/foreign.h"
#include "convert/wrapper_names.h"

/* ---- the prefix ---- */

/* Whether the model's names exist behind a prefix. */
struct behind {
    const struct module_search *search;
    const char *prefix;
    struct strbuf room;
    const char *first; /* the first that exists, with its prefix */
    const char *twice; /* the first that exists without it, too */
    size_t missing;
};

static bool has_behind(const void *context, const char *name)
{
    struct behind *b = (struct behind *)context;
    const struct hf_names *names = &b->search->names;
    strbuf_clear(&b->room);
    strbuf_printf(&b->room, "%s%s", b->prefix, name);
    return names->has(names->context, b->room.data);
}

static enum status check_part(struct behind *b, const char *name, struct error *err)
{
    const struct module_search *x = b->search;
    if (has_behind(b, name)) {
        if (!b->first) b->first = arena_copy_text(x->arena, b->room.data);
        if (*b->prefix && !b->twice && x->names.has(x->names.context, name))
            b->twice = arena_copy_text(x->arena, name);
        return OK;
    }
    if (b->missing++ < MAX_MISSING && globs_match(x->allow_missing, name)) return OK;
    return fail(err, DIFFERENT, "%s is missing", name);
}

static enum status check_tensor(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct behind *b = context;
    for (size_t i = 0; i < t->num_parts; i++)
        TRY(check_part(b, t->parts[i].hf_name, err));
    return OK;
}

/* Whether the model is complete behind a prefix. Ends at the first missing
 * name, so that many wrong prefixes cost little. */
static bool is_behind(struct behind *b)
{
    const struct module_search *x = b->search;
    const struct hf_names names = {.has = has_behind, .context = b};
    struct model_config config = *x->config;
    struct error none;
    model_map_find_mtp(x->map, &config, &names);
    enum status st = model_map_expand(x->map, &config, &names, check_tensor, b, &none);
    strbuf_release(&b->room);
    return !st && b->first;
}

/* Names that the model may have, in any spelling. */
struct expected {
    struct arena *arena;
    struct map names;
    size_t num_parts, most; /* a model of more parts has too many that are missing */
};

static bool note_asked(const void *context, const char *name)
{
    struct expected *e = (struct expected *)context;
    if (!map_get(&e->names, name, NULL))
        (void)map_add(&e->names, arena_copy_text(e->arena, name), 0, NULL);
    return false;
}

static enum status note_expected(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct expected *e = context;
    for (size_t i = 0; i < t->num_parts; i++)
        (void)note_asked(context, t->parts[i].hf_name);
    e->num_parts += t->num_parts;
    return e->num_parts <= e->most ? OK : fail(err, DIFFERENT, "most are missing");
}

/* Takes a prefix if the model is behind it. */
static enum status try_prefix(const struct module_search *x, const char *prefix,
                              struct behind *found, struct error *err)
{
    struct behind b = {.search = x, .prefix = prefix};
    if (!is_behind(&b)) return OK;
    if (found->first && strcmp(found->first, b.first))
        return fail(err, ERR_UNSUPPORTED,
                    "two models of this config: %s and %s; only one can be read", found->first,
                    b.first);
    /* model.embed of the map behind "", or embed behind "model.": the shorter */
    if (!found->first || strlen(prefix) < strlen(found->prefix)) *found = b;
    return OK;
}

/* Tries each prefix in front of an expected name. */
static enum status try_prefixes(const struct module_search *x, const struct expected *expected,
                                const char *const *names, size_t count, const char **prefix,
                                struct error *err)
{
    struct behind found = {.prefix = ""};
    struct map tried = {0};
    enum status st = OK;
    for (size_t i = 0; i < count && !st; i++)
        for (const char *dot = strchr(names[i], '.'); dot && !st; dot = strchr(dot + 1, '.')) {
            if (!map_get(&expected->names, dot + 1, NULL)) continue;
            const char *front = arena_text(x->arena, names[i], (size_t)(dot + 1 - names[i]));
            if (map_add(&tried, front, 0, NULL)) st = try_prefix(x, front, &found, err);
        }
    map_release(&tried);
    *prefix = found.prefix;
    if (st || !found.twice) return st;
    return fail(err, ERR_UNSUPPORTED, "%s and %s%s: two tensors for one parameter", found.twice,
                found.prefix, found.twice);
}

enum status module_prefix_find(const struct module_search *x, const char *const *names,
                               size_t count, const char **prefix, struct error *err)
{
    struct expected expected = {.arena = x->arena, .most = count + MAX_MISSING};
    const struct hf_names asked = {.has = note_asked, .context = &expected};
    struct behind plain = {.search = x, .prefix = ""};
    *prefix = "";
    if (is_behind(&plain)) return OK;
    enum status st = model_map_expand(x->map, x->config, &asked, note_expected, &expected, err);
    if (!st) st = try_prefixes(x, &expected, names, count, prefix, err);
    map_release(&expected.names);
    return st == DIFFERENT ? OK : st;
}

/* ---- native tensors ---- */

static bool has_parameter(const void *context, const char *name)
{
    return catalog_find_native(context, name, NULL) != NULL;
}

/* Names of parameters without their states. */
static const char **list_parameters(struct checkpoint *c, size_t *count)
{
    const struct catalog *all = &c->catalog;
    const char **names = arena_array(&c->arena, all->num_native, sizeof *names);
    *count = 0;
    for (size_t i = 0; i < all->num_native; i++)
        if (!all->native[i].state) names[(*count)++] = all->native[i].name;
    return names;
}

static const char *name_behind(const char *name, const char *prefix)
{
    (void)text_skip_prefix(&name, prefix);
    return name;
}

/* Renames parameters, by wrappers or by a prefix, where groups list them. */
static void rename_listed(struct checkpoint *c, const char *prefix)
{
    struct torch_group *groups = c->training.torch_groups;
    for (size_t g = 0; groups && g < c->training.run.num_groups; g++)
        for (size_t i = 0; i < groups[g].num_names; i++)
            groups[g].names[i] = prefix ? name_behind(groups[g].names[i], prefix)
                                        : name_without_wrappers(&c->arena, groups[g].names[i]);
}

static bool has_wrapped(struct checkpoint *c)
{
    bool wrapped = false;
    for (size_t i = 0; i < c->catalog.num_native && !wrapped; i++) {
        const char *name = c->catalog.native[i].name;
        wrapped = name_without_wrappers(&c->arena, name) != name;
    }
    return wrapped;
}

static enum status strip_wrappers(struct checkpoint *c, struct error *err)
{
    const struct catalog *all = &c->catalog;
    if (!has_wrapped(c)) return OK;
    const char **names = arena_array(&c->arena, all->num_native, sizeof *names);
    struct wrapper_names w;
    enum status st = OK;
    wrapper_names_init(&w, c);
    for (size_t i = 0; i < all->num_native && !st; i++)
        st = wrapper_names_strip(&w, all->native[i].name, &names[i], err);
    if (!st && w.num_stripped) {
        st = catalog_rename_native(&c->catalog, names, err);
        rename_listed(c, NULL);
        wrapper_names_note(&w);
    }
    wrapper_names_release(&w);
    return st;
}

static enum status strip_prefix(struct checkpoint *c, const char *prefix, struct error *err)
{
    const struct catalog *all = &c->catalog;
    const char **names = arena_array(&c->arena, all->num_native, sizeof *names), *first = NULL;
    for (size_t i = 0; i < all->num_native; i++) {
        names[i] = name_behind(all->native[i].name, prefix);
        if (!first && names[i] != all->native[i].name) first = all->native[i].name;
    }
    if (catalog_rename_native(&c->catalog, names, err))
        return fail_in(err, "%s: without the prefix %s", c->path, prefix);
    rename_listed(c, prefix);
    checkpoint_note(
        c, "the model is part of another module: the prefix %s of its names is stripped (%s)",
        prefix, first);
    return OK;
}

/* ---- adapters ---- */

/* Refuses parameters of LoRA, which belong to weights without having their
 * elements. */
static enum status check_adapters(const struct checkpoint *c, struct error *err)
{
    for (size_t i = 0; i < c->catalog.num_native; i++)
        if (foreign_is_lora(c->catalog.native[i].name))
            return foreign_refuse_lora(c->path, c->catalog.native[i].name, err);
    return OK;
}

enum status module_names_strip(const struct naming_import *import, struct error *err)
{
    struct checkpoint *c = import->c;
    const struct module_search search = {.map = import->map,
                                         .config = &c->config,
                                         .allow_missing = import->o->allow_missing,
                                         .names = {.has = has_parameter, .context = &c->catalog},
                                         .arena = &c->arena};
    const char *prefix;
    size_t count;
    TRY(strip_wrappers(c, err));
    TRY(check_adapters(c, err));
    const char **names = list_parameters(c, &count);
    if (module_prefix_find(&search, names, count, &prefix, err)) return fail_in(err, "%s", c->path);
    return *prefix ? strip_prefix(c, prefix, err) : OK;
}
