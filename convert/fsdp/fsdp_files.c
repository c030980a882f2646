#include "convert/fsdp/fsdp_files.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/strbuf.h"
#include "common/text.h"
#include "formats/hf_folder.h"

/* Bound, since a hostile name may have any number. */
enum { MAX_RANKS = 1 << 20 };

static const struct full_names {
    const char *weights, *optimizer;
} full_names[] = {
    {"model.pt", "optim.pt"},
    {"pytorch_model_fsdp.bin", "optimizer.bin"},
};

static const char *const suffixes[] = {".pt", ".pth", ".bin"};

/* Words in names of files without weights. */
static const char *const other_words[] = {"extra", "random", "rng", "sched", "data", "lr_"};

static const char *const other_files[] = {"scheduler.bin",       "scheduler.pt",
                                          "random_states_*.pkl", "custom_checkpoint_*.pkl",
                                          "sampler*.bin",        "rng_state*.pth"};

/* ---- files of ranks ---- */

struct rank_name {
    const char *name; /* of the file */
    size_t prefix;    /* bytes before the number */
    const char *suffix;
    uint64_t rank, world; /* world 0: not in the name */
};

/* The number after the last WORD or WORD_ in the name. */
static bool number_behind(const char *name, const char *word, const char **at, uint64_t *out)
{
    const char *found = NULL;
    for (const char *p = strstr(name, word); p; p = strstr(p + 1, word))
        found = p + strlen(word);
    if (!found) return false;
    if (*found == '_') found++;
    *at = found;
    char *end;
    if (*found < '0' || *found > '9') return false;
    *out = strtoull(found, &end, 10);
    return *out < MAX_RANKS;
}

static bool parse_rank(const char *name, struct rank_name *out)
{
    const char *at, *world;
    *out = (struct rank_name){.name = name};
    if (!number_behind(name, "rank", &at, &out->rank)) return false;
    out->prefix = (size_t)(at - name);
    out->suffix = at + strspn(at, "0123456789");
    bool known = false;
    for (size_t i = 0; i < COUNT(suffixes); i++)
        known |= strcmp(out->suffix, suffixes[i]) == 0;
    if (!number_behind(name, "world_size", &world, &out->world)) out->world = 0;
    return known && (!out->world || out->rank < out->world);
}

static bool same_set(const struct rank_name *x, const struct rank_name *y)
{
    return x->prefix == y->prefix && memcmp(x->name, y->name, x->prefix) == 0 &&
           strcmp(x->suffix, y->suffix) == 0;
}

static bool has_word(const struct rank_name *x, const char *word)
{
    const char *at = strstr(x->name, word);
    return at && at < x->name + x->prefix;
}

enum role { WEIGHTS, OPTIMIZER, OTHER };
static enum role role_of(const struct rank_name *x)
{
    for (size_t i = 0; i < COUNT(other_words); i++)
        if (has_word(x, other_words[i])) return OTHER;
    return has_word(x, "optim") ? OPTIMIZER : WEIGHTS;
}

static int by_set(const void *x, const void *y)
{
    const struct rank_name *a = x, *b = y;
    const size_t least = a->prefix < b->prefix ? a->prefix : b->prefix;
    int order = memcmp(a->name, b->name, least);
    if (!order) order = (a->prefix > b->prefix) - (a->prefix < b->prefix);
    if (!order) order = strcmp(a->suffix, b->suffix);
    return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Makes the set of names[0..n), which differ only in rank and are sorted by
 * it. */
static enum status make_set(struct fsdp_set *set, struct arena *a, const char *folder,
                            const struct rank_name *names, size_t n, struct error *err)
{
    const size_t count = names->world ? names->world : names[n - 1].rank + 1;
    /* Allocates no room for many ranks because of one name. */
    if (count > 64 && count / 64 > n)
        return fail(err, ERR_UNSUPPORTED, "%s: only %zu files for %zu ranks, such as %s", folder, n,
                    count, names->name);
    *set = (struct fsdp_set){.count = count, .num_missing = count - n};
    set->paths = arena_array(a, count, sizeof *set->paths);
    set->names = arena_array(a, count, sizeof *set->names);
    for (size_t i = 0; i < n; i++) {
        if (set->paths[names[i].rank])
            return fail(err, ERR_UNSUPPORTED, "%s: %s and %s both belong to rank %" PRIu64, folder,
                        names[i - 1].name, names[i].name, names[i].rank);
        set->names[names[i].rank] = names[i].name;
        set->paths[names[i].rank] = path_join(a, folder, names[i].name);
    }
    for (size_t r = 0; r < count; r++)
        if (!set->names[r])
            set->names[r] =
                arena_printf(a, "%.*s%zu%s", (int)names->prefix, names->name, r, names->suffix);
    return OK;
}

static enum status take_set(struct fsdp_files *f, struct arena *a, const struct rank_name *names,
                            size_t n, struct error *err)
{
    const enum role role = role_of(names);
    struct fsdp_set *set = role == WEIGHTS ? &f->weights : &f->optimizer;
    if (role == OTHER) {
        for (size_t i = 0; i < n; i++)
            *ARENA_PUSH(a, f->others, f->num_others, f->others_capacity) = names[i].name;
        return OK;
    }
    if (set->count)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s and %s belong to two sets of rank files; give a folder with one set",
                    f->folder, set->names[0], names->name);
    return make_set(set, a, f->folder, names, n, err);
}

static size_t list_ranks(struct arena *a, const struct name_list *all, struct rank_name **out)
{
    size_t n = 0;
    *out = arena_array(a, all->count + 1, sizeof **out);
    for (size_t i = 0; i < all->count; i++)
        n += parse_rank(all->names[i], &(*out)[n]);
    qsort(*out, n, sizeof **out, by_set);
    return n;
}

static enum status find_ranks(struct fsdp_files *f, struct arena *a, const struct name_list *all,
                              struct error *err)
{
    struct rank_name *names;
    const size_t n = list_ranks(a, all, &names);
    for (size_t i = 0, next; i < n; i = next) {
        for (next = i + 1; next < n && same_set(&names[i], &names[next]); next++) {
        }
        TRY(take_set(f, a, names + i, next - i, err));
    }
    f->by_rank = f->weights.count;
    return OK;
}

/* ---- full states ---- */

static void add_one(struct fsdp_set *set, struct arena *a, const char *folder, const char *name)
{
    const char *path = path_join(a, folder, name);
    if (!path_is_file(path)) return;
    *set = (struct fsdp_set){.count = 1};
    set->paths = arena_copy(a, &path, sizeof path);
    set->names = arena_copy(a, &name, sizeof name);
}

static void find_full(struct fsdp_files *f, struct arena *a)
{
    for (size_t i = 0; i < COUNT(full_names) && !f->weights.count; i++) {
        add_one(&f->weights, a, f->folder, full_names[i].weights);
        if (f->weights.count) add_one(&f->optimizer, a, f->folder, full_names[i].optimizer);
    }
}

/* Takes a file given by path; the optimizer's may lie beside it. */
static void take_file(struct fsdp_files *f, struct arena *a, const char *name)
{
    add_one(&f->weights, a, f->folder, name);
    for (size_t i = 0; i < COUNT(full_names) && !f->optimizer.count; i++)
        if (strcmp(name, full_names[i].optimizer))
            add_one(&f->optimizer, a, f->folder, full_names[i].optimizer);
}

/* ---- all ---- */

static void list_others(struct fsdp_files *f, struct arena *a, const struct name_list *all)
{
    for (size_t i = 0; i < all->count; i++)
        for (size_t k = 0; k < COUNT(other_files); k++)
            if (fnmatch(other_files[k], all->names[i], 0) == 0)
                *ARENA_PUSH(a, f->others, f->num_others, f->others_capacity) = all->names[i];
}

enum status fsdp_files_find(struct fsdp_files *out, struct arena *a, const char *path,
                            struct error *err)
{
    struct name_list all;
    const bool is_folder = path_is_folder(path);
    *out = (struct fsdp_files){.folder = is_folder ? path : path_parent(a, path)};
    if (!is_folder) {
        take_file(out, a, path_base(a, path));
        return OK;
    }
    TRY(folder_list(path, a, &all, err));
    TRY(find_ranks(out, a, &all, err));
    if (!out->by_rank) find_full(out, a);
    list_others(out, a, &all);
    if (out->weights.count) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: neither model.pt nor rank files of FSDP", path);
}

const char *fsdp_names_text(struct arena *a, const char *const *names, size_t count)
{
    enum { MOST = 3 };
    struct strbuf text = {0};
    for (size_t i = 0; i < count && i < MOST; i++)
        strbuf_printf(&text, "%s%s", i ? ", " : "", names[i]);
    if (count > MOST) strbuf_printf(&text, " and %zu more", count - MOST);
    const char *copy = arena_text(a, text.data ? text.data : "", text.length);
    strbuf_release(&text);
    return copy;
}

/* Whether only FSDP uses this name, as required beside a Hugging Face folder's
 * weights, where many programs leave files. */
static bool is_plainly_fsdp(const char *name)
{
    return text_starts_with(name, "model_world_size_") ||
           text_starts_with(name, "pytorch_model_fsdp");
}

static bool is_weights(const char *name)
{
    struct rank_name parsed;
    for (size_t i = 0; i < COUNT(full_names); i++)
        if (strcmp(name, full_names[i].weights) == 0) return true;
    return parse_rank(name, &parsed) && role_of(&parsed) == WEIGHTS;
}

bool fsdp_files_match(const char *path)
{
    struct arena a;
    struct name_list all;
    bool found = false;
    arena_init(&a);
    if (!path_is_folder(path)) {
        const char *name = path_base(&a, path);
        found = is_weights(name) && !strstr(name, "rank");
    } else if (!folder_list(path, &a, &all, NULL)) {
        const bool is_model = hf_folder_has_weights(path);
        for (size_t i = 0; i < all.count && !found; i++)
            found = is_weights(all.names[i]) && (!is_model || is_plainly_fsdp(all.names[i])) &&
                    path_is_file(path_join(&a, path, all.names[i]));
    }
    arena_release(&a);
    return found;
}
