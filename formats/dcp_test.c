#include "formats/dcp.h"

#include <libdeflate.h>
#include <unistd.h>

#include "common/count.h"
#include "formats/pickle.h"
#include "formats/torch.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena a;
static struct stored s;
static struct error err;
static char folder[TEMPORARY_PATH];

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    stored_init(&s);
    return temporary_folder(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    enum status st = path_remove(folder, &err);
    stored_release(&s);
    arena_release(&a);
    return (int)st;
}

static const char *in_folder(const char *name)
{
    return path_join(&a, folder, name);
}

static enum status open_folder(void)
{
    stored_release(&s);
    stored_init(&s);
    return dcp_open(&s, folder, true, &err);
}

/* ---- a folder of one tensor, in chunks of any boxes ---- */

struct box {
    uint64_t offsets[2], sizes[2];
};

static struct strbuf data_file; /* __0_0.distcp */

/* Appends the item of a box of an F32 tensor with elements 100 i + j. */
static struct dcp_chunk add_item(const struct box *b)
{
    struct torch_item item;
    struct strbuf after = {0};
    float *values = arena_array(&a, b->sizes[0] * b->sizes[1] + 1, sizeof *values);
    size_t n = 0;
    for (uint64_t i = 0; i < b->sizes[0]; i++)
        for (uint64_t j = 0; j < b->sizes[1]; j++)
            values[n++] = (float)(100 * (b->offsets[0] + i) + b->offsets[1] + j);
    torch_item_layout(&item, DT_F32, 2, b->sizes);
    struct dcp_chunk c = {b->offsets, b->sizes, 0, data_file.length, item.total_bytes};
    uint32_t crc = libdeflate_crc32(0, values, n * sizeof *values);
    torch_item_emit(DT_F32, 2, b->sizes, crc, &data_file, &after);
    strbuf_add(&data_file, values, n * sizeof *values);
    strbuf_add(&data_file, after.data, after.length);
    strbuf_release(&after);
    return c;
}

static void write_folder(const uint64_t shape[2], const struct box *boxes, size_t count)
{
    static const char *const paths[] = {"__0_0.distcp"};
    struct dcp_chunk *chunks = arena_array(&a, count, sizeof *chunks);
    strbuf_clear(&data_file);
    for (size_t i = 0; i < count; i++)
        chunks[i] = add_item(&boxes[i]);
    struct dcp_tensor t = {.name = "model.w",
                           .dtype = DT_F32,
                           .num_dims = 2,
                           .shape = shape,
                           .chunks = chunks,
                           .num_chunks = count};
    assert_ok(path_remove(in_folder(".metadata"), &err));
    assert_ok(path_remove(in_folder(paths[0]), &err));
    assert_ok(file_write_all(in_folder(paths[0]), data_file.data, data_file.length, false, &err));
    assert_ok(dcp_write_metadata(in_folder(".metadata"), paths, &t, 1, NULL, 0, false, &err));
    strbuf_release(&data_file);
}

static const uint64_t shape_4_6[] = {4, 6};
/* No cut goes through all of it. */
static const struct box pinwheel[] = {
    {{0, 0}, {1, 4}}, {{0, 4}, {3, 2}}, {{3, 2}, {1, 4}}, {{1, 0}, {3, 2}}, {{1, 2}, {2, 2}},
};

static void assert_element(const struct stored_tensor *t, const struct stored_piece *p,
                           struct stored_reader *r, uint64_t i, uint64_t j)
{
    float got;
    const uint64_t *extent = p->extent ? p->extent : t->shape;
    uint64_t row = p->start ? p->start[0] : 0, column = p->start ? p->start[1] : 0;
    uint64_t at = p->stride ? i * p->stride[0] + j * p->stride[1] : i * extent[1] + j;
    assert_ok(stored_read(r, p->file, p->offset_bytes + at * sizeof got, &got, sizeof got, &err));
    assert_true(got == (float)(100 * (row + i) + column + j));
}

static void assert_all_elements(const char *name)
{
    uint64_t elements = 0;
    const struct stored_tensor *t = stored_find(&s, name);
    struct stored_reader *r = stored_reader_create(&s, 2);
    for (size_t k = 0; k < t->num_pieces; k++) {
        const uint64_t *extent = t->pieces[k].extent ? t->pieces[k].extent : t->shape;
        for (uint64_t i = 0; i < extent[0]; i++)
            for (uint64_t j = 0; j < extent[1]; j++, elements++)
                assert_element(t, &t->pieces[k], r, i, j);
    }
    assert_int_equal(elements, t->shape[0] * t->shape[1]);
    stored_reader_free(r);
}

static void chunks_come_back_as_pieces_in_order(void **state)
{
    (void)state;
    write_folder(shape_4_6, pinwheel, 5);
    assert_ok(open_folder());
    const struct stored_tensor *t = stored_find(&s, "model.w");
    assert_int_equal(t->num_pieces, 5);
    assert_int_equal(t->dtype, DT_F32);
    assert_null(t->nested_path);
    assert_int_equal(t->pieces[1].start[1], 4);
    assert_int_equal(t->pieces[2].start[0], 1);
    assert_all_elements("model.w");
}

static void a_chunk_of_all_needs_no_start_and_extent(void **state)
{
    (void)state;
    write_folder(shape_4_6, (const struct box[]){{{0, 0}, {4, 6}}}, 1);
    assert_ok(open_folder());
    assert_null(s.tensors[0].pieces->start);
    assert_null(s.tensors[0].pieces->extent);
    assert_all_elements("model.w");
}

static void a_listing_does_not_open_the_items(void **state)
{
    (void)state;
    write_folder(shape_4_6, pinwheel, 5);
    assert_int_equal(truncate(in_folder("__0_0.distcp"), 0), 0);
    uint64_t bytes = 20000;
    assert_int_equal(truncate(in_folder("__0_0.distcp"), (off_t)bytes), 0); /* zeros */
    assert_ok(dcp_open(&s, folder, false, &err));
    assert_int_equal(stored_find(&s, "model.w")->num_pieces, 5);
    assert_fails(open_folder(), ERR_UNSUPPORTED,
                 "model.w chunk at [0, 0]: __0_0.distcp at 0: neither a zip archive");
}

static void empty_and_repeated_chunks_are_let_pass(void **state)
{
    (void)state;
    const struct box boxes[] = {
        {{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}, {{4, 0}, {0, 6}}, {{4, 0}, {0, 6}}, {{2, 0}, {2, 6}},
    };
    write_folder(shape_4_6, boxes, 5);
    assert_ok(open_folder());
    assert_int_equal(s.tensors[0].num_pieces, 2);
    assert_all_elements("model.w");
    write_folder((const uint64_t[]){0, 6}, (const struct box[]){{{0, 0}, {0, 6}}}, 1);
    assert_ok(open_folder());
    assert_int_equal(s.tensors[0].num_pieces, 0);
}

static void chunks_that_do_not_tile_are_refused(void **state)
{
    (void)state;
    write_folder(shape_4_6, pinwheel, 4);
    assert_fails(open_folder(), ERR_CORRUPT, "model.w: its chunks cover 20 of 24 elements");
    const struct box larger[] = {{{0, 0}, {3, 6}}, {{2, 0}, {2, 6}}};
    write_folder(shape_4_6, larger, 2);
    assert_fails(open_folder(), ERR_CORRUPT, "its chunks cover 30 of 24 elements");
    const struct box shifted[] = {{{0, 0}, {2, 6}}, {{1, 0}, {2, 6}}};
    write_folder(shape_4_6, shifted, 2);
    assert_fails(open_folder(), ERR_CORRUPT, "its chunks overlap and leave gaps");
    const struct box outside[] = {{{0, 0}, {2, 6}}, {{3, 0}, {2, 6}}};
    write_folder(shape_4_6, outside, 2);
    assert_fails(open_folder(), ERR_CORRUPT,
                 "model.w chunk at [3, 0]: 2 elements along dimension 0, which has 4");
}

/* One element of one box of a random grid moved: the measure must see each. */
static void every_shifted_box_of_a_grid_is_seen(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), random = seed;
    for (int round = 0; round < 100; round++) {
        struct box boxes[16];
        for (uint64_t i = 0; i < 16; i++)
            boxes[i] = (struct box){{i / 4, 2 * (i % 4)}, {1, 2}};
        struct box *b = &boxes[test_below(&random, 16)];
        b->offsets[1] = b->offsets[1] < 6 ? b->offsets[1] + 1 : b->offsets[1] - 1;
        write_folder((const uint64_t[]){4, 8}, boxes, 16);
        if (open_folder() != ERR_CORRUPT) fail_msg("seed %lu", (unsigned long)seed);
    }
}

static void items_that_hold_something_else_are_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"__0_0.distcp"};
    static const uint64_t zero[2], sizes[] = {2, 3}, one[] = {3};
    const struct {
        enum dtype dtype;
        unsigned num_dims;
        const uint64_t *sizes;
        const char *message;
    } rows[] = {
        {DT_F32, 2, (const uint64_t[]){3, 2}, "metadata says [3, 2], the file holds [2, 3]"},
        {DT_F32, 1, one, "metadata says [3], the file holds [2, 3]"},
        {DT_BF16, 2, sizes, "metadata says BF16, the file holds F32"},
        {DT_I32, 2, sizes, NULL}, /* of one size: the item counts, with a warning */
    };
    write_folder(sizes, (const struct box[]){{{0, 0}, {2, 3}}}, 1);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct file_stamp stamp;
        assert_ok(file_stamp(in_folder(paths[0]), &stamp, &err));
        struct dcp_chunk c = {zero, rows[i].sizes, 0, 0, stamp.size_bytes};
        struct dcp_tensor t = {.name = "w",
                               .dtype = rows[i].dtype,
                               .num_dims = rows[i].num_dims,
                               .shape = rows[i].sizes,
                               .chunks = &c,
                               .num_chunks = 1};
        assert_ok(path_remove(in_folder(".metadata"), &err));
        assert_ok(dcp_write_metadata(in_folder(".metadata"), paths, &t, 1, NULL, 0, true, &err));
        if (rows[i].message) {
            assert_fails(open_folder(), ERR_CORRUPT, rows[i].message);
            continue;
        }
        assert_ok(open_folder());
        assert_int_equal(s.tensors[0].dtype, DT_F32);
        assert_int_equal(s.num_warnings, 1);
        assert_non_null(strstr(s.warnings[0], "w is F32, metadata says I32"));
    }
}

static void missing_and_short_files_are_named(void **state)
{
    (void)state;
    assert_fails(open_folder(), ERR_IO, "no .metadata: not a distributed checkpoint");
    assert_ok(file_write_all(in_folder("__0.metadata"), "", 0, false, &err));
    assert_fails(open_folder(), ERR_CORRUPT, "__0.metadata: ");
    assert_ok(file_write_all(in_folder(".metadata.tmp"), "", 0, false, &err));
    assert_fails(open_folder(), ERR_IO, "(.metadata.tmp exists)");
    write_folder(shape_4_6, pinwheel, 5);
    assert_int_equal(truncate(in_folder("__0_0.distcp"), 100), 0);
    assert_fails(open_folder(), ERR_CORRUPT, "__0_0.distcp: model.w: bytes 0 to ");
    assert_fails(open_folder(), ERR_CORRUPT, "are beyond the file's 100");
    assert_ok(path_remove(in_folder("__0_0.distcp"), &err));
    assert_fails(open_folder(), ERR_IO,
                 "__0_0.distcp: missing; it should hold 5 items, the first is model.w");
}

/* Writes the .metadata of one rank's chunks of a [4, 6] tensor in __0_0.distcp
 * as `name`. */
static void write_rank(const char *name, const uint64_t *shape, const struct dcp_chunk *chunks,
                       size_t count)
{
    static const char *const paths[] = {"__0_0.distcp"};
    const struct dcp_tensor t = {.name = "model.w",
                                 .dtype = DT_F32,
                                 .num_dims = 2,
                                 .shape = shape,
                                 .chunks = chunks,
                                 .num_chunks = count,
                                 .nested_path = "model\x1fw"};
    assert_ok(path_remove(in_folder(name), &err));
    assert_ok(dcp_write_metadata(in_folder(name), paths, &t, 1, NULL, 0, false, &err));
}

static void files_of_ranks_are_joined(void **state)
{
    (void)state;
    static const uint64_t other[] = {4, 7};
    struct dcp_chunk chunks[5];
    strbuf_clear(&data_file);
    for (size_t i = 0; i < 5; i++)
        chunks[i] = add_item(&pinwheel[i]);
    assert_ok(
        file_write_all(in_folder("__0_0.distcp"), data_file.data, data_file.length, false, &err));
    strbuf_release(&data_file);
    write_rank("__0.metadata", shape_4_6, chunks, 3);
    assert_fails(open_folder(), ERR_CORRUPT, "model.w: its chunks cover 14 of 24 elements");
    write_rank("__1.metadata", shape_4_6, chunks + 2, 3); /* both have the third */
    assert_ok(open_folder());
    assert_all_elements("model.w");
    assert_string_equal(stored_find(&s, "model.w")->nested_path, "model\x1fw");
    write_rank("__1.metadata", other, chunks + 3, 2);
    assert_fails(open_folder(), ERR_CORRUPT,
                 "__1.metadata: model.w: its shape differs between files");
}

static void nested_paths_are_written(void **state)
{
    (void)state;
    static const char *const paths[] = {"__0_0.distcp"};
    struct strbuf bytes = {0};
    assert_ok(torch_to_bytes(&bytes, "archive", value_int(&a, 7), NULL, &err));
    assert_ok(file_write_all(in_folder(paths[0]), bytes.data, bytes.length, false, &err));
    const struct dcp_object objects[] = {{"optim.param_groups.0.lr", 0, 0, bytes.length,
                                          "optim\x1fparam_groups\x1f"
                                          "0\x1flr"},
                                         {"alone", 0, 0, bytes.length, NULL}};
    strbuf_release(&bytes);
    assert_ok(dcp_write_metadata(in_folder(".metadata"), paths, NULL, 0, objects, 2, false, &err));
    assert_ok(open_folder());
    assert_string_equal(s.objects[0].nested_path, objects[0].nested_path);
    assert_null(s.objects[1].nested_path);
    /* the position in the list is a number */
    assert_ok(file_read_all(in_folder(".metadata"), 1 << 20, &bytes, &err));
    assert_non_null(memmem(bytes.data, bytes.length, "param_groupsK\0X", 15));
    strbuf_release(&bytes);
}

static void objects_are_read_and_may_share_bytes(void **state)
{
    (void)state;
    static const char *const paths[] = {"__0_0.distcp", "other.distcp"};
    struct strbuf bytes = {0};
    struct value *v;
    struct value *items[] = {value_text(&a, "state"), value_int(&a, 7)};
    struct value *root = value_list(&a, VALUE_LIST, 2, items);
    assert_ok(torch_to_bytes(&bytes, "archive", root, NULL, &err));
    assert_ok(file_write_all(in_folder(paths[1]), bytes.data, bytes.length, false, &err));
    struct dcp_object objects[] = {{"a/shard_0_2", 1, 0, bytes.length, NULL},
                                   {"a/shard_1_2", 1, 0, bytes.length, NULL}};
    assert_ok(dcp_write_metadata(in_folder(".metadata"), paths, NULL, 0, objects, 2, false, &err));
    strbuf_release(&bytes);
    assert_ok(open_folder());
    assert_int_equal(s.num_objects, 2);
    assert_int_equal(s.num_files, 1);
    assert_string_equal(s.objects[1].name, "a/shard_1_2");
    for (size_t i = 0; i < 2; i++) {
        assert_ok(dcp_read_object(&s, &s.objects[i], &a, &v, &err));
        assert_int_equal(v->items[1]->integer, 7);
        assert_string_equal(value_as_text(v->items[0]), "state");
    }
    s.objects[0].offset_bytes = 3;
    s.objects[0].size_bytes -= 3;
    assert_fails(dcp_read_object(&s, &s.objects[0], &a, &v, &err), ERR_UNSUPPORTED,
                 "other.distcp: a/shard_0_2: neither a zip archive");
}

static void dtypes_that_torch_has_not_are_not_written(void **state)
{
    (void)state;
    struct dcp_tensor t = {
        .name = "w", .dtype = DT_F6_E2M3, .num_dims = 1, .shape = (const uint64_t[]){4}};
    assert_fails(dcp_write_metadata(in_folder(".metadata"), NULL, &t, 1, NULL, 0, false, &err),
                 ERR_UNSUPPORTED, "w: torch's checkpoints have no F6_E2M3 tensors");
    assert_false(path_exists(in_folder(".metadata")));
}

/* ---- .metadata as other versions write it ---- */

#define METADATA "torch.distributed.checkpoint.metadata"

static struct value *size_of(uint64_t n)
{
    struct value *dim = value_int(&a, (int64_t)n), *tuple = value_list(&a, VALUE_TUPLE, 1, &dim);
    struct value *v = value_instance(&a, "torch", "Size", NULL);
    v->object->args = value_list(&a, VALUE_TUPLE, 1, &tuple);
    v->object->by_new = false;
    return v;
}

/* The object graph of one tensor [3] in one chunk; parts may be replaced before
 * it is written. */
struct graph {
    struct value *root, *entries, *items, *chunk, *place, *index, *properties;
};

static struct value *new_dict(struct value **out)
{
    return *out = value_dict(&a);
}

static struct graph make_graph(const char *dtype)
{
    struct graph g;
    struct value *tensor, *entry, *chunk, *place, *index, *properties;
    properties =
        value_list(&a, VALUE_TUPLE, 1, (struct value *[]){value_global(&a, "torch", dtype)});
    g.properties = value_instance(&a, METADATA, "TensorProperties", properties);
    chunk = value_instance(&a, METADATA, "ChunkStorageMetadata", new_dict(&g.chunk));
    value_dict_set(&a, g.chunk, "offsets", size_of(0));
    value_dict_set(&a, g.chunk, "sizes", size_of(3));
    entry = value_instance(&a, METADATA, "TensorStorageMetadata", new_dict(&tensor));
    value_dict_set(&a, tensor, "properties", g.properties);
    value_dict_set(&a, tensor, "size", size_of(3));
    value_dict_set(&a, tensor, "chunks", value_list(&a, VALUE_LIST, 1, &chunk));
    index = value_instance(&a, METADATA, "MetadataIndex", new_dict(&g.index));
    value_dict_set(&a, g.index, "fqn", value_text(&a, "a.b"));
    value_dict_set(&a, g.index, "index", value_int(&a, 0));
    value_dict_set(&a, g.index, "offset", size_of(0));
    place = value_instance(&a, "torch.distributed.checkpoint.filesystem", "_StorageInfo",
                           new_dict(&g.place));
    value_dict_set(&a, g.place, "relative_path", value_text(&a, "__0_0.distcp"));
    value_dict_set(&a, g.place, "offset", value_int(&a, 0));
    value_dict_set(&a, g.place, "length", value_int(&a, 100));
    g.root = value_instance(&a, METADATA, "Metadata", value_dict(&a));
    value_dict_set(&a, g.root->object->state, "state_dict_metadata", new_dict(&g.entries));
    value_dict_set(&a, g.entries, "a.b", entry);
    value_dict_set(&a, g.root->object->state, "storage_data", new_dict(&g.items));
    value_dict_set(&a, g.items, "key", place);
    g.items->items[0] = index;
    return g;
}

/* Writes the graph and a data file of zeros, and opens without the items. */
static enum status open_graph(const struct graph *g)
{
    struct strbuf pickle = {0};
    static const char zeros[1000];
    assert_ok(pickle_write(&pickle, g->root, &err));
    assert_ok(path_remove(in_folder(".metadata"), &err));
    assert_ok(file_write_all(in_folder(".metadata"), pickle.data, pickle.length, false, &err));
    strbuf_release(&pickle);
    assert_ok(path_remove(in_folder("__0_0.distcp"), &err));
    assert_ok(file_write_all(in_folder("__0_0.distcp"), zeros, sizeof zeros, false, &err));
    stored_release(&s);
    stored_init(&s);
    return dcp_open(&s, folder, false, &err);
}

static void planner_data_gives_nested_paths(void **state)
{
    (void)state;
    struct graph g = make_graph("bfloat16");
    struct value *paths = value_dict(&a), *path[] = {value_text(&a, "a"), value_int(&a, 5)};
    value_dict_set(&a, g.root->object->state, "planner_data", paths);
    value_dict_set(&a, paths, "a.b", value_list(&a, VALUE_TUPLE, 2, path));
    value_dict_set(&a, paths, "of nothing", value_list(&a, VALUE_TUPLE, 2, path));
    assert_ok(open_graph(&g));
    assert_int_equal(stored_find(&s, "a.b")->dtype, DT_BF16);
    assert_string_equal(stored_find(&s, "a.b")->nested_path, "a\x1f"
                                                             "5");
}

/* So many that the table of names grows while they are looked up. */
static void planner_data_may_name_what_is_not_there(void **state)
{
    (void)state;
    struct graph g = make_graph("bfloat16");
    struct value *paths = value_dict(&a), *path[] = {value_text(&a, "a"), value_text(&a, "b")};
    value_dict_set(&a, g.root->object->state, "planner_data", paths);
    for (int i = 0; i < 100; i++)
        value_dict_set(&a, paths, arena_printf(&a, "of nothing.%d", i),
                       value_list(&a, VALUE_TUPLE, 2, path));
    value_dict_set(&a, paths, "a.b", value_list(&a, VALUE_TUPLE, 2, path));
    assert_ok(open_graph(&g));
    assert_string_equal(stored_find(&s, "a.b")->nested_path, "a\x1f"
                                                             "b");
}

/* Megatron's all_local_plans refers to chunks; classes of other modules are the
 * same ones. */
static void plans_and_other_modules_make_no_difference(void **state)
{
    (void)state;
    struct graph g = make_graph("float32");
    struct value *plan = value_dict(&a), *chunk_class = g.properties->object->callable;
    chunk_class->global->module = "torch.distributed._shard.sharded_tensor.metadata";
    value_dict_set(&a, plan, "chunk", g.entries->items[1]);
    value_dict_set(&a, g.root->object->state, "all_local_plans",
                   value_list(&a, VALUE_LIST, 1, (struct value *[]){plan}));
    value_dict_set(&a, g.root->object->state, "mcore_data", value_dict(&a));
    assert_ok(open_graph(&g));
    assert_int_equal(stored_find(&s, "a.b")->num_pieces, 1);
}

static void of_equal_keys_the_last_counts(void **state)
{
    (void)state;
    struct graph g = make_graph("float32"), h = make_graph("bfloat16");
    value_dict_set(&a, g.entries, "twice", h.entries->items[1]);
    g.entries->items[2] = value_text(&a, "a.b");
    assert_ok(open_graph(&g));
    assert_int_equal(s.num_tensors, 1);
    assert_int_equal(s.tensors[0].dtype, DT_BF16);
}

static void chunks_listed_more_often_than_the_file_has_bytes_are_refused(void **state)
{
    (void)state;
    struct graph g = make_graph("float32");
    struct value *tensor = g.entries->items[1]->object->state, *list = value_get(tensor, "chunks");
    for (int i = 0; i < 2000; i++)
        value_append(&a, list, list->items[0]);
    for (int i = 0; i < 100; i++) {
        struct value *state_of = value_dict(&a);
        value_dict_set(&a, state_of, "properties", value_get(tensor, "properties"));
        value_dict_set(&a, state_of, "size", value_get(tensor, "size"));
        value_dict_set(&a, state_of, "chunks", list);
        value_dict_set(&a, g.entries, arena_printf(&a, "%d", i),
                       value_instance(&a, METADATA, "TensorStorageMetadata", state_of));
    }
    assert_fails(open_graph(&g), ERR_CORRUPT, "neither a TensorStorageMetadata");
}

static void objects_without_place_are_refused(void **state)
{
    (void)state;
    struct graph g = make_graph("float32");
    value_dict_set(&a, g.entries, "o/shard_0_1",
                   value_instance(&a, METADATA, "BytesStorageMetadata", NULL));
    assert_fails(open_graph(&g), ERR_CORRUPT, "o/shard_0_1: no storage entry");
}

static void graphs_that_lack_something_are_refused_by_name(void **state)
{
    (void)state;
    struct graph g = make_graph("bits8");
    assert_fails(open_graph(&g), ERR_UNSUPPORTED, "a.b: its dtype torch.bits8 is not supported");

    g = make_graph("float32");
    value_dict_set(&a, g.index, "offset", size_of(1));
    assert_fails(open_graph(&g), ERR_CORRUPT, "a.b chunk at [0]: no storage entry");

    g = make_graph("float32");
    value_dict_set(&a, g.place, "relative_path", value_text(&a, "../x.distcp"));
    assert_fails(open_graph(&g), ERR_CORRUPT, "its file ../x.distcp is outside the folder");

    g = make_graph("float32");
    value_dict_set(&a, g.place, "length", value_int(&a, 1001));
    assert_fails(open_graph(&g), ERR_CORRUPT, "bytes 0 to 1001 are beyond the file's 1000");

    g = make_graph("float32");
    value_dict_set(&a, g.place, "transform_descriptors", value_list(&a, VALUE_LIST, 0, NULL));
    assert_ok(open_graph(&g));
    value_append(&a, value_get(g.place, "transform_descriptors"), value_text(&a, "stream.zstd/1"));
    assert_fails(open_graph(&g), ERR_UNSUPPORTED,
                 "a.b: its transform 'stream.zstd/1' is not supported");

    g = make_graph("float32");
    value_dict_set(&a, g.place, "offset", value_int(&a, -1));
    assert_fails(open_graph(&g), ERR_CORRUPT, "entry 0 of storage_data is not a pair");

    g = make_graph("float32");
    value_dict_set(&a, g.index, "offset", size_of(UINT64_MAX)); /* -1 */
    assert_fails(open_graph(&g), ERR_CORRUPT, "entry 0 of storage_data is not a pair");

    g = make_graph("float32");
    value_dict_set(&a, g.chunk, "sizes", value_none(&a));
    assert_fails(open_graph(&g), ERR_CORRUPT, ".metadata: a.b: neither a TensorStorageMetadata");

    g = make_graph("float32");
    g.root->object->state->count--; /* storage_data */
    assert_fails(open_graph(&g), ERR_CORRUPT, "checkpoint: no storage_data");
    g.root = value_none(&a);
    assert_fails(open_graph(&g), ERR_CORRUPT, "checkpoint: no state_dict_metadata");
}

static void a_tensor_of_more_elements_than_there_are_is_refused(void **state)
{
    (void)state;
    static const uint64_t huge[] = {(uint64_t)1 << 40, (uint64_t)1 << 40};
    struct dcp_tensor t = {.name = "w", .dtype = DT_U8, .num_dims = 2, .shape = huge};
    assert_ok(dcp_write_metadata(in_folder(".metadata"), NULL, &t, 1, NULL, 0, false, &err));
    assert_fails(open_folder(), ERR_CORRUPT, "w: too many elements");
}

/* ---- golden folders ---- */

static void folders_of_other_programs_open_whole(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t num_tensors, num_objects;
    } rows[] = {
        {"dcp/fsdp2-dp2/ckpt", 48, 12},
        {"dcp/fsdp-tp-2x2/ckpt", 48, 12},
        {"megatron/qwen2-HEAD-tp2pp2/checkpoint/iter_0000010", 9, 9},
        {"megatron/llama-0.12.0-tp2pp2/checkpoint/iter_0000010", 9, 20},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct value *v;
        stored_release(&s);
        stored_init(&s);
        assert_ok(dcp_open(&s, path_join(&a, "tests/golden", rows[i].name), true, &err));
        assert_int_equal(s.num_tensors, rows[i].num_tensors);
        assert_int_equal(s.num_objects, rows[i].num_objects);
        assert_int_equal(s.num_warnings, 0);
        for (size_t k = 0; k < s.num_objects; k++)
            assert_ok(dcp_read_object(&s, &s.objects[k], &a, &v, &err));
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(chunks_come_back_as_pieces_in_order),
        TEST(a_chunk_of_all_needs_no_start_and_extent),
        TEST(a_listing_does_not_open_the_items),
        TEST(empty_and_repeated_chunks_are_let_pass),
        TEST(chunks_that_do_not_tile_are_refused),
        TEST(every_shifted_box_of_a_grid_is_seen),
        TEST(items_that_hold_something_else_are_refused),
        TEST(missing_and_short_files_are_named),
        TEST(files_of_ranks_are_joined),
        TEST(nested_paths_are_written),
        TEST(objects_are_read_and_may_share_bytes),
        TEST(dtypes_that_torch_has_not_are_not_written),
        TEST(planner_data_gives_nested_paths),
        TEST(planner_data_may_name_what_is_not_there),
        TEST(plans_and_other_modules_make_no_difference),
        TEST(of_equal_keys_the_last_counts),
        TEST(chunks_listed_more_often_than_the_file_has_bytes_are_refused),
        TEST(objects_without_place_are_refused),
        TEST(graphs_that_lack_something_are_refused_by_name),
        TEST(a_tensor_of_more_elements_than_there_are_is_refused),
        TEST(folders_of_other_programs_open_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
