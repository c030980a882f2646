#include "ckpt/fingerprint.h"

#include <string.h>

#include "ckpt/encoder.h"
#include "common/count.h"
#include "common/json.h"

static void hash_u64(struct sha256 *s, uint64_t n)
{
    sha256_add(s, &n, sizeof n);
}

static void hash_text(struct sha256 *s, const char *text)
{
    hash_u64(s, strlen(text));
    sha256_add(s, text, strlen(text));
}

static void hash_pair(struct sha256 *s, const struct packed_pair *packed)
{
    const struct pair pair = pair_unpack(packed), *p = &pair;
    uint64_t n[3 + 3 * MAX_AXES] = {p->num_axes, p->a_offset, p->b_offset};
    size_t count = 3;
    for (unsigned k = 0; k < p->num_axes; k++) {
        n[count++] = p->axes[k].extent;
        n[count++] = p->axes[k].a_stride;
        n[count++] = p->axes[k].b_stride;
    }
    sha256_add(s, n, count * sizeof *n);
}

/* The path within the source's folder: the same source at another path has the
 * same fingerprint. */
static const char *path_within(const char *folder, const char *path)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    return strncmp(path, folder, n) == 0 && path[n] == '/' ? path + n : path;
}

static void hash_source(struct sha256 *s, const struct catalog *c, const char *path)
{
    const struct stored *stored = &c->stored;
    hash_u64(s, stored->num_files);
    for (size_t i = 0; i < stored->num_files; i++) {
        const struct stored_file *f = &stored->files[i];
        hash_text(s, path_within(path, f->path));
        hash_u64(s, f->stamp.size_bytes);
        hash_u64(s, (uint64_t)f->stamp.mtime_ns);
    }
}

static void hash_files(struct sha256 *s, const struct plan *p)
{
    hash_u64(s, p->num_files);
    for (size_t i = 0; i < p->num_files; i++) {
        hash_text(s, p->files[i].path);
        hash_u64(s, p->files[i].size_bytes);
    }
    hash_u64(s, p->num_segments);
    for (size_t i = 0; i < p->num_segments; i++) {
        const struct segment *g = &p->segments[i];
        const uint64_t n[] = {g->file, g->dtype, g->wants_crc, g->offset_bytes, g->numel};
        sha256_add(s, n, sizeof n);
    }
}

static void hash_tensor(struct sha256 *s, const struct tensor *t);

static void hash_encoded(struct sha256 *s, const struct encoded *e)
{
    const struct tensor *const companions[] = {e->scales, e->global, e->zeros};
    const uint64_t n[] = {e->code, e->rows, e->cols, e->block[0], e->block[1], e->global_divides};
    sha256_add(s, n, sizeof n);
    sha256_add(s, &e->words, sizeof e->words);
    sha256_add(s, &e->zero_words, sizeof e->zero_words);
    sha256_add(s, &e->zero_offset, sizeof e->zero_offset);
    sha256_add(s, &e->factor, sizeof e->factor);
    if (e->numbers) sha256_add(s, e->numbers, QUANT_NUMBERS * sizeof *e->numbers);
    if (e->nested) {
        sha256_add(s, e->nested->numbers, 256 * sizeof *e->nested->numbers);
        hash_u64(s, e->nested->block);
        sha256_add(s, &e->nested->offset, sizeof e->nested->offset);
        hash_tensor(s, e->nested->scales);
    }
    if (e->lines) sha256_add(s, e->lines, e->rows * sizeof *e->lines);
    if (e->codes) hash_tensor(s, e->codes);
    for (size_t i = 0; i < COUNT(companions); i++)
        if (companions[i]) hash_tensor(s, companions[i]);
}

static void hash_tensor(struct sha256 *s, const struct tensor *t)
{
    hash_text(s, t->name);
    hash_u64(s, t->dtype);
    hash_u64(s, t->num_dims);
    for (unsigned k = 0; k < t->num_dims; k++)
        hash_u64(s, t->shape[k]);
    hash_u64(s, t->num_pieces);
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *x = &t->pieces[i];
        const struct origin *o = piece_origin(x);
        const uint64_t n[] = {x->origin, x->dtype, x->file, x->byte_swapped,
                              o->is_memory || o->is_joined ? 0 : x->offset_bytes};
        sha256_add(s, n, sizeof n);
        hash_pair(s, &x->pair);
        if (x->add != 0) sha256_add(s, &x->add, sizeof x->add);
        if (o->is_memory || x->holder) hash_u64(s, x->holder);
        if (x->origin == ORIGIN_HALVES) hash_tensor(s, &x->halves->upper);
        if (x->origin == ORIGIN_HALVES) hash_tensor(s, &x->halves->lower);
        if (x->origin == ORIGIN_ENCODED) hash_encoded(s, x->encoded);
        if (x->origin == ORIGIN_CODES || x->origin == ORIGIN_SCALES ||
            x->origin == ORIGIN_GLOBAL_SCALE) {
            hash_encoded(s, encoder_form(x->encoder));
            hash_tensor(s, encoder_weight(x->encoder));
        }
    }
}

static void hash_copy(struct sha256 *s, const struct plan_copy *c)
{
    hash_tensor(s, c->source);
    if (c->add != 0) sha256_add(s, &c->add, sizeof c->add);
    hash_u64(s, c->num_pieces);
    for (size_t i = 0; i < c->num_pieces; i++) {
        hash_u64(s, c->pieces[i].segment);
        hash_pair(s, &c->pieces[i].pair);
    }
}

void source_fingerprint(const struct catalog *c, const char *path, char fingerprint[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    hash_source(s, c, path);
    sha256_finish(s, fingerprint);
}

void plan_fingerprint(const struct plan *p, const char *path, char fingerprint[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    hash_source(s, p->source, path);
    hash_files(s, p);
    hash_u64(s, p->num_copies);
    for (size_t i = 0; i < p->num_copies; i++)
        hash_copy(s, &p->copies[i]);
    sha256_finish(s, fingerprint);
}

void training_fingerprint(const struct training *t, char fingerprint[SHA256_TEXT])
{
    struct strbuf text = {0};
    cJSON *tree = training_json(t);
    json_print(&text, tree, -1);
    struct sha256 *s = sha256_start();
    sha256_add(s, fingerprint, strlen(fingerprint));
    sha256_add(s, text.data, text.length);
    sha256_finish(s, fingerprint);
    strbuf_release(&text);
    cJSON_Delete(tree);
}
