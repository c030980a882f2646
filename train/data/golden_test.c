/* golden_test.c - indices, descriptions and samples beside those that the real
 * Megatron-LM made of the same data. All indices are read from a cache that the
 * data wrote, so its files are checked, too: every one of them must be named
 * and filled as Megatron-LM's. */
#include <unistd.h>

#include "common/json.h"
#include "tests/folder.h"
#include "train/data/data.h"
#include "train/data/npy.h"

static char root[4096]; /* of the repository */

/* ---- arrays in a case's .safetensors ---- */

struct arrays {
    struct strbuf file;
    cJSON *header;
    const char *data;
};

struct array {
    const char *data; /* I32 or U8; NULL: there is none */
    bool is_bytes;
    unsigned num_dims;
    uint64_t shape[4], numel;
};

static void read_arrays(struct arrays *a, const char *path)
{
    uint64_t bytes;
    assert_ok(file_read_all(path, 1 << 24, &a->file, &err));
    memcpy(&bytes, a->file.data, sizeof bytes);
    assert_ok(json_parse(a->file.data + 8, bytes, JSON_STRICT, &a->header, &err));
    a->data = a->file.data + 8 + bytes;
}

static struct array array_of(const struct arrays *a, const char *name)
{
    struct array out = {.numel = 1};
    uint64_t begin;
    const cJSON *o = json_get(a->header, name);
    if (!o) return (struct array){.data = NULL};
    assert_true(json_as_u64(cJSON_GetArrayItem(json_get(o, "data_offsets"), 0), &begin));
    for (const cJSON *c = json_get(o, "shape")->child; c; c = c->next) {
        assert_true(json_as_u64(c, &out.shape[out.num_dims]));
        out.numel *= out.shape[out.num_dims++];
    }
    out.data = a->data + begin;
    out.is_bytes = strcmp(json_as_text(json_get(o, "dtype")), "U8") == 0;
    return out;
}

static int64_t element(const struct array *a, uint64_t i)
{
    int32_t n;
    if (a->is_bytes) return (uint8_t)a->data[i];
    memcpy(&n, a->data + i * sizeof n, sizeof n);
    return n;
}

/* ---- a case as options ---- */

/* The words of a blend: prefixes, with weights in front if there are some. */
static struct data_paths words_of(const cJSON *prefixes, const cJSON *weights)
{
    const int count = cJSON_GetArraySize(prefixes);
    struct data_paths p = {.count = 0};
    const char **words = arena_array(&arena, (size_t)(2 * count), sizeof *words);
    for (int k = 0; k < count; k++) {
        const cJSON *weight = cJSON_IsArray(weights) ? cJSON_GetArrayItem(weights, k) : NULL;
        if (weight) words[p.count++] = arena_copy_text(&arena, weight->valuestring);
        words[p.count++] = json_as_text(cJSON_GetArrayItem(prefixes, k));
    }
    p.words = words;
    return p;
}

static bool flag(const cJSON *the_case, const char *name, bool otherwise)
{
    const cJSON *item = json_get(json_get(the_case, "flags"), name);
    return item ? cJSON_IsTrue(item) : otherwise;
}

static void take_samples(struct data_options *o, const cJSON *samples)
{
    for (int k = 0; k < NUM_SPLITS; k++)
        if (!json_as_u64(cJSON_GetArrayItem(samples, k), &o->samples[k])) o->samples[k] = ONE_EPOCH;
}

static struct data_options options_of(const cJSON *c)
{
    struct data_options o = {
        .eod_id = 127, .pad_id = -1, .vocab_size = 128, .null_vocab_size = 128};
    const cJSON *per_split = json_get(c, "per_split");
    for (int k = 0; per_split && k < NUM_SPLITS; k++) {
        const cJSON *blend = cJSON_GetArrayItem(per_split, k);
        o.split_paths[k] = words_of(cJSON_GetArrayItem(blend, 0), cJSON_GetArrayItem(blend, 1));
    }
    if (!per_split) o.paths = words_of(json_get(c, "data"), json_get(c, "weights"));
    for (size_t k = 0; k < o.paths.count; k++)
        if (strcmp(o.paths.words[k], "wide") == 0) o.vocab_size = o.null_vocab_size = 131072;
    o.eod_id = (int64_t)o.vocab_size - 1;
    o.split = json_as_text(json_get(c, "split"));
    assert_true(json_as_u64(json_get(c, "length"), &o.seq_length));
    assert_true(json_as_u64(json_get(c, "seed"), &o.seed));
    take_samples(&o, json_get(c, "samples"));
    o.reset_position_ids = flag(c, "reset_position_ids", false);
    o.reset_attention_mask = flag(c, "reset_attention_mask", false);
    o.eod_mask_loss = flag(c, "eod_mask_loss", false);
    o.inter_document_masking = flag(c, "inter_document_masking", false);
    o.keep_partial_validation = !flag(c, "drop_last_partial_validation_sequence", true);
    o.no_extra_token = !flag(c, "add_extra_token_to_sequence", true);
    if (json_as_i64(json_get(json_get(c, "tokenizer"), "pad_id"), &o.pad_id))
        o.tokenizer = "{\"class\": \"megatron.core.tokenizers.text.text_tokenizer."
                      "MegatronTokenizerText\", \"tokenizer_path\": null, \"vocab_size\": "
                      "\"128\", \"pad_id\": \"5\"}";
    return o;
}

/* ---- indices ---- */

static const struct {
    const char *name;
    enum dtype dtype;
    bool of_blend;
} indices[] = {
    {"document_index", DT_I32, false},      {"sample_index", DT_I32, false},
    {"shuffle_index", DT_U32, false},       {"dataset_index", DT_I16, true},
    {"dataset_sample_index", DT_I64, true},
};

static int64_t element_of(const void *data, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DT_I16:
        return ((const int16_t *)data)[i];
    case DT_I64:
        return ((const int64_t *)data)[i];
    case DT_U32:
        return ((const uint32_t *)data)[i];
    default:
        return ((const int32_t *)data)[i];
    }
}

static void check_index(const struct arrays *arrays, const char *name, const char *path,
                        enum dtype dtype)
{
    const struct array want = array_of(arrays, name);
    struct npy shape = {dtype, want.num_dims, {want.shape[0], want.shape[1]}};
    void *got;
    if (!want.data) fail_msg("%s is missing", name);
    assert_ok(npy_read(path, &shape, &got, &err));
    for (uint64_t i = 0; i < want.numel; i++)
        if (element(&want, i) != element_of(got, dtype, i))
            fail_msg("%s: element %d is %d, expected %d", name, (int)i,
                     (int)element_of(got, dtype, i), (int)element(&want, i));
    free(got);
}

/* One dataset or blend of the report; prefix: of its arrays' names. */
static void check_table(const cJSON *table, const struct arrays *arrays, const char *prefix,
                        const char *cache)
{
    const char *base = path_join(&arena, cache, json_as_text(json_get(table, "cache")));
    const char *want = json_as_text(json_get(table, "description"));
    const bool is_blend = strcmp(json_as_text(json_get(table, "class")), "BlendedDataset") == 0;
    struct strbuf text = {0};
    assert_ok(
        file_read_all(arena_printf(&arena, "%s-description.txt", base), 1 << 20, &text, &err));
    assert_string_equal(text.data, want);
    strbuf_release(&text);
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++)
        if (indices[i].of_blend == is_blend)
            check_index(arrays, arena_printf(&arena, "%s.%s", prefix, indices[i].name),
                        arena_printf(&arena, "%s-%s.npy", base, indices[i].name), indices[i].dtype);
    int k = 0;
    for (const cJSON *c = is_blend ? json_get(table, "datasets")->child : NULL; c; c = c->next)
        check_table(c, arrays, arena_printf(&arena, "%s.%d", prefix, k++), cache);
}

/* ---- samples ---- */

static void compare(const struct arrays *arrays, const char *split, const char *name,
                    int64_t (*got)(const struct data_rows *r, uint64_t i),
                    const struct data_rows *rows)
{
    const struct array want = array_of(arrays, arena_printf(&arena, "%s.%s", split, name));
    assert_non_null(want.data);
    for (uint64_t i = 0; i < want.numel; i++)
        if (element(&want, i) != got(rows, i))
            fail_msg("%s.%s: element %d is %d, expected %d", split, name, (int)i, (int)got(rows, i),
                     (int)element(&want, i));
}

static int64_t token_of(const struct data_rows *r, uint64_t i)
{
    return r->tokens[i];
}

static int64_t label_of(const struct data_rows *r, uint64_t i)
{
    return r->labels[i];
}

static int64_t position_of(const struct data_rows *r, uint64_t i)
{
    return r->positions[i];
}

/* Megatron-LM keeps the mask of the first sample it reads and takes it for all
 * others, with the padding of that sample in it (GPTDataset.__getitem__ stores
 * it, then writes to it). Here each sample has its own. */
static void check_loss(const struct arrays *arrays, const char *split, const struct data_options *o,
                       const struct data_rows *rows)
{
    const struct array want = array_of(arrays, arena_printf(&arena, "%s.loss_mask", split));
    const bool keeps = !o->reset_position_ids && !o->reset_attention_mask && !o->eod_mask_loss;
    assert_non_null(want.data);
    for (uint64_t i = 0; i < want.numel; i++) {
        const bool hidden = keeps && rows->loss_mask[i % o->seq_length] == 0;
        assert_true(rows->loss_mask[i] == 0 || rows->loss_mask[i] == 1);
        if (element(&want, i) != (hidden ? 0 : (int64_t)rows->loss_mask[i]))
            fail_msg("%s.loss_mask: element %d", split, (int)i);
    }
}

/* The mask of a row: key k is hidden from query q behind it, or before the run
 * of q. */
static void check_attention(const struct arrays *arrays, const char *split,
                            const struct data_rows *rows, uint64_t length)
{
    const struct array want = array_of(arrays, arena_printf(&arena, "%s.attention_mask", split));
    for (uint64_t i = 0, begin = 0; i < want.numel; i++) {
        const uint64_t key = i % length, query = i / length % length, row = i / length / length;
        if (query == 0) begin = 0;
        if (key == 0 && rows->starts[row * length + query]) begin = query;
        if (element(&want, i) != (key > query || key < begin))
            fail_msg("%s.attention_mask: element %d", split, (int)i);
    }
}

/* cu_seqlens has a row of length + 1 for each sample: where runs begin, then
 * `length`. */
static void check_runs(const struct arrays *arrays, const char *split, const struct data_rows *rows,
                       uint64_t count, uint64_t length)
{
    const struct array want = array_of(arrays, arena_printf(&arena, "%s.cu_seqlens", split));
    for (uint64_t row = 0; want.data && row < count; row++)
        for (uint64_t i = 0, k = 0; i <= length; i++) {
            if (i < length && !rows->starts[row * length + i]) continue;
            for (uint64_t last = i < length ? k : length; k <= last; k++)
                assert_int_equal(element(&want, row * (length + 1) + k), i);
        }
}

static void check_samples(const struct data *d, const struct data_options *o,
                          const struct arrays *arrays, enum data_split split)
{
    const char *name = split_names[split];
    const uint64_t count = array_of(arrays, arena_printf(&arena, "%s.tokens", name)).shape[0];
    struct data_rows rows;
    assert_ok(data_rows_allocate(&rows, count, o->seq_length, &err));
    assert_ok(data_read(d, split, 0, count, &rows, &err));
    compare(arrays, name, "tokens", token_of, &rows);
    compare(arrays, name, "labels", label_of, &rows);
    compare(arrays, name, "position_ids", position_of, &rows);
    check_loss(arrays, name, o, &rows);
    check_attention(arrays, name, &rows, o->seq_length);
    check_runs(arrays, name, &rows, count, o->seq_length);
    data_rows_release(&rows);
}

/* ---- a case ---- */

static void no_notes(void *context, const char *text)
{
    (void)context;
    fail_msg("a note: %s", text);
}

/* Opens the data twice: the first time fills the cache, the second time reads
 * it. */
static void check_case(const cJSON *report, const struct arrays *arrays)
{
    struct data_options o = options_of(json_get(report, "case"));
    const cJSON *splits = json_get(report, "splits");
    o.cache_path = path_join(&arena, folder, "cache");
    o.note = no_notes;
    for (int pass = 0; pass < 2; pass++) {
        struct data *d;
        assert_ok(data_open(&d, &o, &err));
        for (unsigned k = 0; k < NUM_SPLITS; k++) {
            const cJSON *table = json_get(splits, split_names[k]);
            uint64_t length = 0;
            if (table) assert_true(json_as_u64(json_get(table, "length"), &length));
            assert_int_equal(data_num_samples(d, (enum data_split)k), length);
            if (table) check_table(table, arrays, split_names[k], o.cache_path);
            if (table) check_samples(d, &o, arrays, (enum data_split)k);
        }
        data_close(d);
    }
    assert_ok(path_remove(o.cache_path, &err));
}

static void run_case(const char *cases, const char *file)
{
    struct arrays arrays = {.header = NULL};
    cJSON *report;
    const char *name = arena_text(&arena, file, strlen(file) - 5);
    const char *base = path_join(&arena, cases, name);
    print_message("[          ] %s\n", name);
    assert_ok(
        json_read_file(arena_printf(&arena, "%s.json", base), 1 << 24, JSON_STRICT, &report, &err));
    read_arrays(&arrays, arena_printf(&arena, "%s.safetensors", base));
    check_case(report, &arrays);
    cJSON_Delete(report);
    cJSON_Delete(arrays.header);
    strbuf_release(&arrays.file);
}

static void run_cases(const char *where, size_t at_least)
{
    struct name_list names;
    size_t count = 0;
    assert_int_equal(chdir(root), 0);
    if (chdir(where)) skip();
    assert_ok(folder_list("cases", &arena, &names, &err));
    for (size_t i = 0; i < names.count; i++) {
        if (!strstr(names.names[i], ".json")) continue;
        run_case("cases", names.names[i]);
        count++;
    }
    assert_int_equal(chdir(root), 0);
    assert_true(count >= at_least);
}

static void data_are_megatrons(void **state)
{
    (void)state;
    run_cases("tests/golden/megatron-data", 10);
}

/* Some cases are in this repository, all of them among the fixtures of a test
 * machine. */
static void all_cases_of_the_fixtures_are_megatrons(void **state)
{
    const char *fixtures = getenv("FERRY_FIXTURES"); /* tests/run.sh sets it */
    char where[4096];
    (void)state;
    if (!fixtures) skip();
    (void)snprintf(where, sizeof where, "%s/megatron-data", fixtures);
    run_cases(where, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(data_are_megatrons),
        FOLDER_TEST(all_cases_of_the_fixtures_are_megatrons),
    };
    if (!getcwd(root, sizeof root)) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
