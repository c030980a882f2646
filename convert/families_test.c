/* Models of every family, as their programs and publishers name and shape them
 * (tests/golden/families): to Megatron's formats over several ranks and back,
 * bit by bit, with the same config.json, of which every field is known. */
#include <dirent.h>

#include "convert/map/testing_models.h"
#include "convert/open.h"

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
        if (!CONVERT(from, to, format, sizes[i], pp, ep)) return;
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
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void models_of_every_family_come_back(void **state)
{
    struct dirent **entries;
    int count = scandir(golden, &entries, is_visible, alphasort);
    (void)state;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        if (!test_takes((size_t)i, (size_t)count)) continue;
        check_family(entries[i]->d_name);
        assert_ok(path_remove(in_scratch("hf"), &err));
        assert_ok(path_remove(in_scratch("torch_dist"), &err));
        assert_ok(path_remove(in_scratch("torch"), &err));
    }
    while (count)
        free(entries[--count]);
    free(entries);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models_of_every_family_come_back, scratch_begin,
                                        scratch_end),
    };
    return cmocka_run_group_tests_name("families", tests, load_maps, release_maps);
}
