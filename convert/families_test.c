/* Models of every family, as their programs and publishers name and shape them
 * (tests/golden/families): to Megatron's formats over several ranks and back,
 * bit by bit, with the same config.json, of which every field is known. */
#include <dirent.h>
#include <fnmatch.h>

#include "common/text.h"
#include "convert/map/embedded.h"
#include "convert/map/testing_models.h"
#include "convert/open.h"
#include "kernels/cpu/random.h"

static const char *const golden = "tests/golden/families";

/* ---- making a model ---- */

/* Gives tensors the bytes of the one that they are a copy of. */
static void copy_twins(const cJSON *tensors, const struct safetensors_out *out, size_t count,
                       struct strbuf *file)
{
    for (size_t i = 0; i < count; i++) {
        const cJSON *own = json_get(tensors, out[i].name);
        const char *twin = json_as_text(cJSON_GetArrayItem(own, 2));
        for (size_t k = 0; twin && k < count; k++) {
            uint64_t bytes = dtype_bytes(out[i].dtype);
            if (strcmp(out[k].name, twin)) continue;
            for (unsigned d = 0; d < out[i].num_dims; d++)
                bytes *= out[i].shape[d];
            memcpy(file->data + out[i].offset_bytes, file->data + out[k].offset_bytes, bytes);
        }
    }
}

/* Gives vectors numbers about 0.3, to which a number can be added: minus 1 they
 * are none of BF16. */
static void make_vectors(const struct safetensors_out *out, size_t count, struct strbuf *file)
{
    for (size_t i = 0; i < count; i++)
        if (out[i].num_dims == 1 && dtype_is_float(out[i].dtype) && dtype_bytes(out[i].dtype) > 1)
            random_elements(file->data + out[i].offset_bytes, out[i].dtype, (uint32_t)i, 0.3F, 0,
                            out[i].shape[0]);
}

/* The golden model in scratch, with random bits. */
static const char *make_golden(const char *name)
{
    const char *from = path_join(&scratch, golden, name), *folder = in_scratch("hf");
    struct safetensors_out out[2048];
    struct strbuf file = {0};
    uint64_t bytes, seed = 11;
    size_t count = 0;
    cJSON *tensors;
    assert_ok(json_read_file(path_join(&scratch, from, "tensors.json"), 1 << 24, JSON_STRICT,
                             &tensors, &err));
    for (const cJSON *i = tensors->child; i; i = i->next) {
        const cJSON *shape = cJSON_GetArrayItem(i, 1);
        uint64_t *sizes = arena_array(&scratch, MAX_AXES, sizeof *sizes);
        unsigned n = 0;
        for (const cJSON *d = shape->child; d; d = d->next)
            assert_true(json_as_u64(d, &sizes[n++]));
        enum dtype dtype = DT_F32;
        assert_true(dtype_from_safetensors(json_as_text(cJSON_GetArrayItem(i, 0)), &dtype));
        assert_true(count < COUNT(out));
        out[count++] = (struct safetensors_out){i->string, dtype, n, sizes, 0};
    }
    assert_ok(safetensors_layout(out, count, &file, &bytes, &err));
    add_random(&file, bytes, &seed);
    make_vectors(out, count, &file);
    copy_twins(tensors, out, count, &file);
    assert_ok(folder_create(folder, &err));
    write_file(folder, "model.safetensors", &file);
    assert_ok(file_copy(path_join(&scratch, from, "config.json"),
                        path_join(&scratch, folder, "config.json"), false, &err));
    strbuf_release(&file);
    cJSON_Delete(tensors);
    return folder;
}

/* ---- there and back ---- */

/* Checks that the map reads or knows every field, and counts layers and experts. */
static void read_golden(const char *name, const char *folder, uint64_t *layers, uint64_t *experts)
{
    struct source_options o = {0};
    struct checkpoint c;
    assert_ok(source_open(&c, folder, &o, &maps, &err));
    const char *unknown = unknown_fields_text(&c.unknown, true, &scratch);
    if (unknown) fail_msg("%s: unknown fields: %s", name, unknown);
    *layers = c.config.num_layers;
    *experts = c.config.num_experts;
    checkpoint_release(&c);
}

/* The first of some sizes that divides n; 1: none. */
static unsigned divisor(uint64_t n)
{
    static const unsigned sizes[] = {2, 3, 5, 7};
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (n % sizes[i] == 0) return sizes[i];
    return 1;
}

/* Converts with the largest of some tensor parallel sizes that divides the
 * model. */
static void convert_split(const char *name, const char *from, const char *to, const char *format,
                          const char *pp, const char *ep)
{
    static const char *const sizes[] = {"--tp=2", "--tp=3", "--tp=1"};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        if (!CONVERT(from, to, format, sizes[i], pp, ep, "--ferry-only")) return;
        if (!strstr(err.text, "tensor parallel")) break;
    }
    fail_msg("%s %s: %s", name, format, err.text);
}

static void check_there_and_back(const char *name, const char *hf, const char *format,
                                 const char *pp, const char *ep)
{
    const char *there = in_scratch(format + 5), *back = in_scratch("back");
    convert_split(name, hf, there, format, pp, ep);
    if (CONVERT(there, back, "--to=hf")) fail_msg("%s %s back: %s", name, format, err.text);
    check_same_weights(back, hf);
    check_same_file(path_join(&scratch, back, "config.json"),
                    path_join(&scratch, hf, "config.json"));
    assert_ok(path_remove(back, &err));
}

static void check_family(const char *name)
{
    uint64_t layers, experts;
    const char *hf = make_golden(name);
    read_golden(name, hf, &layers, &experts);
    const char *pp = arena_printf(&scratch, "--pp=%u", divisor(layers)),
               *ep = arena_printf(&scratch, "--ep=%u", experts ? divisor(experts) : 1);
    check_there_and_back(name, hf, "--to=torch_dist", pp, ep);
    check_there_and_back(name, hf, "--to=torch", pp, ep);
    assert_ok(path_remove(in_scratch("hf"), &err));
    assert_ok(path_remove(in_scratch("torch_dist"), &err));
    assert_ok(path_remove(in_scratch("torch"), &err));
}

/* ---- damaged rows ---- */

/* Pairs that the rows of a map make of a model: "LOGICAL HF SHAPE". */
struct pairs {
    const char *items[4096];
    size_t count;
};

static enum status note_pairs(void *context, const struct mapped_tensor *t, struct error *e)
{
    struct pairs *p = context;
    (void)e;
    for (size_t i = 0; i < t->num_parts && p->count < COUNT(p->items); i++)
        p->items[p->count++] =
            arena_printf(&scratch, "%s %s %s", t->name, t->parts[i].hf_name,
                         shape_text(&scratch, t->parts[i].num_dims, t->parts[i].shape));
    return OK;
}

static bool folder_has(const void *context, const char *name)
{
    return stored_find(context, name) != NULL;
}

/* A name of a row as a glob. */
static const char *as_glob(const char *name)
{
    char *out = arena_copy_text(&scratch, name), *to = out;
    for (const char *p = name; *p; p++) {
        *to++ = *p == '{' ? '*' : *p;
        if (*p == '{') p = strchr(p, '}');
    }
    *to = '\0';
    return out;
}

/* The first Hugging Face name of a row. */
static cJSON *first_name(const cJSON *row)
{
    cJSON *hf = json_get(row, "hf");
    return cJSON_IsArray(hf) ? hf->child : hf;
}

/* The Hugging Face tensor that the row makes a logical one of; NULL: none. */
static const char *tensor_of_row(const struct pairs *p, const cJSON *row)
{
    const char *glob =
        arena_printf(&scratch, "%s %s *", as_glob(json_as_text(json_get(row, "megatron"))),
                     as_glob(json_as_text(first_name(row))));
    for (size_t i = 0; i < p->count; i++) {
        if (fnmatch(glob, p->items[i], 0)) continue;
        const char *name = strchr(p->items[i], ' ') + 1;
        return arena_text(&scratch, name, strcspn(name, " "));
    }
    return NULL;
}

static void append(cJSON *text)
{
    (void)cJSON_SetValuestring(text, arena_printf(&scratch, "%sx", json_as_text(text)));
}

enum damage { HF_NAME, MEGATRON_NAME, AXES, NUM_DAMAGES };

/* Damages a row that reads tensor t; false: this damage changes nothing. */
static bool damage_row(cJSON *row, enum damage how, const struct stored_tensor *t)
{
    const char *shape = json_as_text(json_get(row, "shape"));
    const char *blank = shape ? strchr(shape, ' ') : NULL;
    if (how == HF_NAME && (json_get(row, "also") || json_get(row, "copy")))
        return false; /* another spelling may do; files may lack a copy */
    if (how == HF_NAME) append(first_name(row));
    if (how == MEGATRON_NAME) append(json_get(row, "megatron"));
    if (how != AXES) return true;
    if (!blank || strchr(blank + 1, ' ') || strpbrk(shape, "([") || json_get(row, "hf_shape") ||
        t->num_dims != 2 || t->shape[0] == t->shape[1])
        return false;
    json_add_text(row, "hf_shape",
                  arena_printf(&scratch, "%s %.*s", blank + 1, (int)(blank - shape), shape));
    return true;
}

static bool same_pairs(const struct pairs *a, const struct pairs *b)
{
    for (size_t i = 0; i < a->count && a->count == b->count; i++)
        if (strcmp(a->items[i], b->items[i])) return false;
    return a->count == b->count;
}

/* Whether a map is refused, or leaves something of the folder unexplained, or
 * the damaged row does not apply to it: the pairs are those of before. */
static bool is_noticed(const cJSON *map, const char *folder, const struct checkpoint *of,
                       const struct pairs *before)
{
    struct strbuf text = {0};
    struct model_maps own;
    struct checkpoint c;
    struct pairs *now = arena_alloc(&scratch, sizeof *now);
    struct source_options o = {.family = json_as_text(json_get(map, "family"))};
    const struct hf_names names = {.has = folder_has, .context = &of->catalog.stored};
    json_print(&text, map, -1);
    const char *path = in_scratch("damaged.json");
    assert_ok(path_remove(path, &err));
    write_file(in_scratch("."), "damaged.json", &text);
    strbuf_release(&text);
    bool noticed = model_maps_load(&own, path, &err) != OK;
    if (!noticed) {
        noticed = source_open(&c, folder, &o, &own, &err) != OK || c.gaps.num_missing ||
                  c.gaps.num_unexpected;
        checkpoint_release(&c);
    }
    if (!noticed)
        noticed =
            !model_map_expand(model_maps_at(&own, 0), &of->config, &names, note_pairs, now, &err) &&
            same_pairs(before, now);
    model_maps_release(&own);
    return noticed;
}

/* The JSON of a family's embedded map. */
static cJSON *json_of_family(const char *family)
{
    for (size_t i = 0; i < num_embedded_models; i++) {
        cJSON *tree;
        assert_ok(json_parse(embedded_models[i].text, embedded_models[i].length, JSON_STRICT, &tree,
                             &err));
        if (text_equal(json_as_text(json_get(tree, "family")), family)) return tree;
        cJSON_Delete(tree);
    }
    fail_msg("no map %s", family);
    return NULL;
}

static void damage_rows_of(const char *name)
{
    const char *folder = make_golden(name);
    struct source_options o = {0};
    struct pairs *pairs = arena_alloc(&scratch, sizeof *pairs);
    struct checkpoint c;
    assert_ok(source_open(&c, folder, &o, &maps, &err));
    const struct hf_names names = {.has = folder_has, .context = &c.catalog.stored};
    const char *family = arena_copy_text(&scratch, c.family);
    assert_ok(model_map_expand(model_map_of_family(&maps, family), &c.config, &names, note_pairs,
                               pairs, &err));
    cJSON *map = json_of_family(family);
    const int rows = cJSON_GetArraySize(json_get(map, "tensors"));
    for (int i = 0; i < rows * NUM_DAMAGES; i++) {
        cJSON *copy = cJSON_Duplicate(map, true),
              *row = cJSON_GetArrayItem(json_get(copy, "tensors"), i / NUM_DAMAGES);
        const char *tensor = tensor_of_row(pairs, row);
        const char *megatron = json_as_text(json_get(row, "megatron"));
        if (tensor &&
            damage_row(row, (enum damage)(i % NUM_DAMAGES),
                       stored_find(&c.catalog.stored, tensor)) &&
            !is_noticed(copy, folder, &c, pairs))
            fail_msg("%s: damage %d of the row of %s is not noticed", name, i % NUM_DAMAGES,
                     megatron);
        cJSON_Delete(copy);
    }
    cJSON_Delete(map);
    checkpoint_release(&c);
    assert_ok(path_remove(folder, &err));
}

/* ---- all ---- */

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void for_each_model(void (*check)(const char *name))
{
    struct dirent **entries;
    int count = scandir(golden, &entries, is_visible, alphasort);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        if (!test_takes((size_t)i, (size_t)count)) continue;
        check(entries[i]->d_name);
        arena_release(&scratch);
    }
    while (count)
        free(entries[--count]);
    free(entries);
}

static void models_of_every_family_come_back(void **state)
{
    (void)state;
    for_each_model(check_family);
}

/* Every row that a golden model uses, with another name or transposed. */
static void a_damaged_row_of_any_map_is_noticed(void **state)
{
    (void)state;
    for_each_model(damage_rows_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models_of_every_family_come_back, scratch_begin,
                                        scratch_end),
        cmocka_unit_test_setup_teardown(a_damaged_row_of_any_map_is_noticed, scratch_begin,
                                        scratch_end),
    };
    return cmocka_run_group_tests_name("families", tests, load_maps, release_maps);
}
